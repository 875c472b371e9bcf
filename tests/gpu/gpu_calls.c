/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_calls.h"

#include "transfuse/tuning.h"
#include "trf_device_layer.h"

#include <stdio.h>
#include <string.h>

enum {
    OTHER_IDS = 4, /* of rows that no layer has */
    GROUP_M = 4,
    DELAY_BYTES = 32 << 20,
    RUNS = 3,      /* of each call that is timed */
    MORE_RUNS = 40 /* where a time looks too long */
};
static const float kMostTimes = 2;

/* ---- memory ---- */

gpu_memory gpu_exact_memory(uint64_t bytes) {
    gpu_memory memory = {NULL, bytes, 0};
    CUDA(cudaMalloc(&memory.at, bytes ? bytes : 1));
    CUDA(cudaMemset(memory.at, 0xFF, bytes));
    CUDA(cudaDeviceSynchronize());
    return memory;
}

gpu_memory gpu_exact_copy_of(const void *host, uint64_t bytes) {
    gpu_memory memory = gpu_exact_memory(bytes);
    CUDA(cudaMemcpy(memory.at, host, bytes, cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(NULL)); /* it has arrived, for all streams */
    return memory;
}

void *gpu_last_bytes(const gpu_memory *memory, uint64_t bytes) {
    return (uint8_t *)memory->at + ((memory->bytes - bytes) & ~(uint64_t)15);
}

static gpu_memory make_ids(uint32_t rows) {
    int64_t *ids = gpu_malloc((rows + OTHER_IDS) * sizeof *ids);
    const int64_t others[OTHER_IDS] = {-1, rows, INT64_MAX, INT64_MIN};
    for (uint32_t r = 0; r < rows; r++)
        ids[r] = (int64_t)((uint64_t)r * 7919 % rows);
    memcpy(ids + rows, others, sizeof others);
    const gpu_memory memory = gpu_exact_copy_of(ids, (rows + OTHER_IDS) * sizeof *ids);
    free(ids);
    return memory;
}

gpu_call_memory gpu_call_memory_make(test_rng *rng, uint32_t rows, uint32_t cols) {
    static const uint32_t offsets[] = {0, 13, GPU_CALL_TOKENS};
    gpu_call_memory memory = {.rows = rows, .cols = cols, .input = gpu_input_normal(rng, GPU_CALL_MAX_M, cols)};
    memory.weights = gpu_exact_memory(2 * sizeof(float) * (uint64_t)(rows + OTHER_IDS) * cols);
    memory.y = gpu_exact_memory(sizeof(float) * (uint64_t)GPU_CALL_MAX_M * rows);
    for (int i = 0; i < 2; i++)
        memory.beside_y[i] = gpu_exact_memory(sizeof(float) * (uint64_t)GROUP_M * rows);
    memory.ids = make_ids(rows);
    memory.offsets = gpu_exact_copy_of(offsets, sizeof offsets);
    memory.delay = gpu_exact_memory(DELAY_BYTES);
    CUDA(cudaEventCreate(&memory.begin));
    CUDA(cudaEventCreate(&memory.end));
    return memory;
}

void gpu_call_memory_free(gpu_call_memory *memory) {
    gpu_memory *const all[] = {&memory->weights, &memory->y,       &memory->beside_y[0], &memory->beside_y[1],
                               &memory->ids,     &memory->offsets, &memory->delay};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gpu_memory_free(all[i]);
    gpu_input_free(&memory->input);
    CUDA(cudaEventDestroy(memory->begin));
    CUDA(cudaEventDestroy(memory->end));
}

/* ---- preparing ---- */

typedef struct plan_kind {
    trf_path path;
    uint32_t m;
} plan_kind;

static const plan_kind kCodedPlans[GPU_CALL_PLANS] = {{TRF_PATH_FUSED, 1},     {TRF_PATH_FUSED, 12},
                                                      {TRF_PATH_FUSED, 64},    {TRF_PATH_WIDE, 80},
                                                      {TRF_PATH_TWO_STEP, 16}, {TRF_PATH_AUTO, GPU_CALL_MAX_M}};
static const plan_kind kPackedPlans[GPU_CALL_PLANS] = {{TRF_PATH_PACKED, 1},    {TRF_PATH_PACKED, 9},
                                                       {TRF_PATH_PACKED, 33},   {TRF_PATH_PACKED, 70},
                                                       {TRF_PATH_TWO_STEP, 16}, {TRF_PATH_PACKED, GPU_CALL_MAX_M}};

static plan_kind kind_of(const gpu_calls *calls, int plan) {
    const trf_layout layout = test_device_layer_info(calls->layer).layout;
    return layout == TRF_LAYOUT_CODED ? kCodedPlans[plan] : kPackedPlans[plan];
}

/* y is F32, or of x's type for every second plan. */
static trf_dtype y_dtype_of(const gpu_calls *calls, int plan) { return plan % 2 ? calls->x_dtype : TRF_DTYPE_F32; }

static int is_taken(trf_status status, const trf_error *err, const char *what) {
    if (status != TRF_ERR_UNSUPPORTED)
        gpu_check(status, TRF_OK, err, what);
    return status == TRF_OK;
}

static void make_plans(gpu_calls *calls) {
    trf_error err = {0};
    for (int i = 0; i < GPU_CALL_PLANS; i++) {
        const plan_kind kind = kind_of(calls, i);
        if (is_taken(test_make_plan(calls->layer, kind.m, calls->x_dtype, y_dtype_of(calls, i), kind.path,
                                    &calls->plans[i], &err),
                     &err, "a plan"))
            calls->workspaces[i] = gpu_exact_memory(test_plan_info(calls->plans[i]).workspace_bytes);
    }
}

static void make_group(gpu_calls *calls) {
    trf_error err = {0};
    trf_device_layer *const layers[] = {calls->layer, calls->beside, calls->layer};
    trf_group_member members[3];
    for (int i = 0; i < 3; i++)
        members[i] = test_group_member(layers[i], GROUP_M, calls->x_dtype, TRF_DTYPE_F32);
    if (is_taken(trf_layer_group_create(members, 3, &calls->group, &err), &err, "a group"))
        calls->group_workspace = gpu_exact_memory(test_group_info(calls->group).workspace_bytes);
}

static void make_experts(gpu_calls *calls) {
    trf_error err = {0};
    trf_device_layer *const layers[] = {calls->layer, calls->beside};
    if (!is_taken(trf_experts_create(layers, 2, &calls->experts, &err), &err, "experts"))
        return;
    if (is_taken(trf_experts_plan_create(calls->experts, GPU_CALL_TOKENS, calls->x_dtype, TRF_DTYPE_F32,
                                         &calls->experts_plan, &err),
                 &err, "a plan of experts"))
        calls->experts_workspace = gpu_exact_memory(trf_experts_plan_workspace_bytes(calls->experts_plan));
}

gpu_calls gpu_calls_make(trf_device_layer *layer, trf_device_layer *beside, const gpu_call_memory *memory) {
    const trf_layer_info info = test_layer_info(layer);
    gpu_calls calls = {.layer = layer, .beside = beside, .memory = memory};
    calls.x_dtype = info.codec == TRF_CODEC_FP16 ? TRF_DTYPE_F16 : TRF_DTYPE_BF16;
    make_plans(&calls);
    make_group(&calls);
    make_experts(&calls);
    return calls;
}

void gpu_calls_free(gpu_calls *calls) {
    for (int i = 0; i < GPU_CALL_PLANS; i++) {
        trf_plan_destroy(calls->plans[i]);
        gpu_memory_free(&calls->workspaces[i]);
    }
    trf_layer_group_destroy(calls->group);
    trf_experts_plan_destroy(calls->experts_plan);
    trf_experts_destroy(calls->experts);
    gpu_memory_free(&calls->group_workspace);
    gpu_memory_free(&calls->experts_workspace);
}

/* ---- calls ---- */

static void *workspace_of(const gpu_memory *memory) { return memory->bytes ? memory->at : NULL; }

static trf_status decode(const gpu_calls *calls, trf_decode_as as, trf_error *err) {
    const trf_layer_info info = test_layer_info(calls->layer);
    const uint64_t bytes = trf_decoded_weight_bytes_of_info(&info, as) * info.rows * info.cols;
    return trf_device_layer_decode(calls->layer, as, gpu_last_bytes(&calls->memory->weights, bytes), bytes, NULL, err);
}

static trf_status look_up(const gpu_calls *calls, trf_decode_as as, trf_error *err) {
    const trf_layer_info info = test_layer_info(calls->layer);
    const uint32_t count = info.rows + OTHER_IDS;
    const uint64_t bytes = trf_decoded_weight_bytes_of_info(&info, as) * count * info.cols;
    void *const to = gpu_last_bytes(&calls->memory->weights, bytes);
    return test_decode_rows(calls->layer, test_row_request(calls->memory->ids.at, 8, count, as, to, bytes), NULL, err);
}

static trf_status multiply_group(const gpu_calls *calls, trf_error *err) {
    const gpu_call_memory *memory = calls->memory;
    const void *const x = gpu_input_on_device(&memory->input, calls->x_dtype);
    const void *const xs[] = {x, x, x};
    void *const ys[] = {gpu_last_bytes(&memory->y, memory->beside_y[0].bytes), memory->beside_y[0].at,
                        memory->beside_y[1].at};
    return trf_linear_group(calls->group, xs, ys, workspace_of(&calls->group_workspace), NULL, err);
}

static trf_status decode_experts(const gpu_calls *calls, trf_error *err) {
    const trf_layer_info info = test_layer_info(calls->layer);
    const uint64_t matrix = 2 * (uint64_t)info.rows * info.cols;
    void *const to = gpu_last_bytes(&calls->memory->weights, 2 * matrix);
    return trf_experts_decode(calls->experts, TRF_DECODE_ELEMENTS, to, matrix, 2 * matrix, NULL, err);
}

uint64_t gpu_call_y_bytes(const gpu_calls *calls, int plan, trf_dtype *dtype) {
    *dtype = y_dtype_of(calls, plan);
    return (uint64_t)kind_of(calls, plan).m * calls->memory->rows * trf_dtype_bytes(*dtype);
}

static trf_status multiply(const gpu_calls *calls, int plan, trf_error *err) {
    const gpu_call_memory *memory = calls->memory;
    trf_dtype dtype;
    void *const y = gpu_last_bytes(&memory->y, gpu_call_y_bytes(calls, plan, &dtype));
    return test_multiply(calls->plans[plan], gpu_input_on_device(&memory->input, calls->x_dtype), y,
                         workspace_of(&calls->workspaces[plan]), NULL, err);
}

static trf_status multiply_experts(const gpu_calls *calls, trf_error *err) {
    const gpu_call_memory *memory = calls->memory;
    void *const y = gpu_last_bytes(&memory->y, sizeof(float) * (uint64_t)GPU_CALL_TOKENS * memory->rows);
    return trf_experts_linear(calls->experts_plan, gpu_input_on_device(&memory->input, calls->x_dtype),
                              memory->offsets.at, y, workspace_of(&calls->experts_workspace), NULL, err);
}

/* Whether a layer has a call at all. */
static int has_call(const gpu_calls *calls, int call) {
    if (call < GPU_CALL_LINEAR)
        return 1;
    if (call < GPU_CALL_GROUP)
        return calls->plans[call - GPU_CALL_LINEAR] != NULL;
    return call == GPU_CALL_GROUP     ? calls->group != NULL
           : call == GPU_CALL_EXPERTS ? calls->experts_plan != NULL
                                      : calls->experts != NULL;
}

int gpu_call_queue(const gpu_calls *calls, int call, const char *what) {
    trf_error err = {0};
    trf_status status;
    if (!has_call(calls, call))
        return 0;
    if (call < GPU_CALL_ROWS)
        status = decode(calls, (trf_decode_as)(call - GPU_CALL_DECODE), &err);
    else if (call < GPU_CALL_LINEAR)
        status = look_up(calls, (trf_decode_as)(call - GPU_CALL_ROWS), &err);
    else if (call < GPU_CALL_GROUP)
        status = multiply(calls, call - GPU_CALL_LINEAR, &err);
    else
        status = call == GPU_CALL_GROUP     ? multiply_group(calls, &err)
                 : call == GPU_CALL_EXPERTS ? multiply_experts(calls, &err)
                                            : decode_experts(calls, &err);
    return is_taken(status, &err, what);
}

void gpu_call_name(const gpu_calls *calls, int call, char name[64]) {
    static const char *const others[] = {"a group", "experts", "decoding experts"};
    if (call < GPU_CALL_LINEAR) {
        snprintf(name, 64, "%s as %d", call < GPU_CALL_ROWS ? "decoding" : "rows", call % GPU_CALL_FORMS);
    } else if (call < GPU_CALL_GROUP) {
        const plan_kind kind = kind_of(calls, call - GPU_CALL_LINEAR);
        snprintf(name, 64, "%s product, m %u", trf_path_name(kind.path), kind.m);
    } else {
        snprintf(name, 64, "%s", others[call - GPU_CALL_GROUP]);
    }
}

/* ---- times ---- */

/* @return a call's time on the device, or a negative number if there is no such call. */
static float time_call(const gpu_calls *calls, int call, const char *what) {
    const gpu_call_memory *memory = calls->memory;
    float milliseconds;
    CUDA(cudaMemsetAsync(memory->delay.at, 0, memory->delay.bytes, NULL));
    CUDA(cudaEventRecord(memory->begin, NULL));
    if (!gpu_call_queue(calls, call, what))
        return -1;
    CUDA(cudaEventRecord(memory->end, NULL));
    gpu_check_cuda(cudaEventSynchronize(memory->end), what);
    CUDA(cudaEventElapsedTime(&milliseconds, memory->begin, memory->end));
    return milliseconds;
}

static float least_time(const gpu_calls *calls, int call, int runs, const char *what) {
    float least = time_call(calls, call, what);
    for (int i = 1; i < runs && least >= 0; i++) {
        const float time = time_call(calls, call, what);
        least = time < least ? time : least;
    }
    return least;
}

gpu_call_times gpu_call_times_of(const gpu_calls *intact, const char *what) {
    gpu_call_times times = {.most = 0};
    for (int call = 0; call < GPU_CALLS && !test_quick(); call++)
        times.least[call] = least_time(intact, call, 2 * RUNS, what);
    return times;
}

static void check_time(const gpu_calls *intact, const gpu_calls *mutant, int call, gpu_call_times *times,
                       const char *what) {
    float time = least_time(mutant, call, RUNS, what), *const least = &times->least[call];
    char name[64];
    if (time < 0 || *least < 0)
        return;
    if (time > kMostTimes * *least) { /* both again: other work of the machine may have been in between */
        *least = least_time(intact, call, MORE_RUNS, what);
        time = least_time(mutant, call, MORE_RUNS, what);
    }
    gpu_call_name(mutant, call, name);
    if (time > times->most * *least) {
        times->most = time / *least;
        snprintf(times->slowest, sizeof times->slowest, "%s: %s, %.1f us", what, name, 1000 * (double)time);
    }
    times->over_twice += time > kMostTimes * *least;
    if (time > kMostTimes * *least && time > kMostTimes * times->full_slab[call])
        ck_abort_msg("%s: %s takes %.1f us, of the intact layer %.1f, and of slabs full of exceptions %.1f at most",
                     what, name, 1000 * (double)time, 1000 * (double)*least, 1000 * (double)times->full_slab[call]);
}

void gpu_call_all(const gpu_calls *intact, const gpu_calls *mutant, gpu_call_times *times, const char *what) {
    for (int call = 0; call < GPU_CALLS; call++) {
        times->calls++;
        if (!test_quick()) {
            check_time(intact, mutant, call, times, what);
            continue;
        }
        char name[64], both[384];
        gpu_call_name(mutant, call, name);
        snprintf(both, sizeof both, "%s: %s", what, name);
        gpu_call_queue(mutant, call, both);
        gpu_check_cuda(cudaDeviceSynchronize(), both);
    }
}

void gpu_call_times_add(gpu_call_times *to, const gpu_call_times *times) {
    to->calls += times->calls;
    to->over_twice += times->over_twice;
    if (times->most <= to->most)
        return;
    to->most = times->most;
    memcpy(to->slowest, times->slowest, sizeof to->slowest);
}

/* ---- other layouts ---- */

/* Uses a layer that was made of another one. */
static void use_converted(const gpu_calls *calls, trf_device_layer *layer, const char *what) {
    gpu_calls made = {.layer = layer, .beside = layer, .memory = calls->memory, .x_dtype = calls->x_dtype};
    if (test_device_layer_info(layer).layout != TRF_LAYOUT_PLAIN)
        make_plans(&made);
    for (int call = 0; call < GPU_CALL_GROUP; call++)
        gpu_call_queue(&made, call, what);
    gpu_check_cuda(cudaDeviceSynchronize(), what);
    gpu_calls_free(&made);
}

static void convert_experts(const gpu_calls *calls, const char *what) {
    trf_experts *packed = NULL;
    trf_error err = {0};
    if (!calls->experts)
        return;
    const trf_status status = trf_experts_convert(calls->experts, NULL, NULL, &packed, &err);
    if (status != TRF_OK && status != TRF_ERR_RANS && status != TRF_ERR_UNSUPPORTED)
        gpu_check(status, TRF_OK, &err, what);
    trf_experts_destroy(packed);
}

void gpu_convert_all(const gpu_calls *calls, const char *what) {
    static const trf_layout layouts[] = {TRF_LAYOUT_PLAIN, TRF_LAYOUT_PACKED, TRF_LAYOUT_PACKED8};
    const trf_layout own = test_device_layer_info(calls->layer).layout;
    for (int i = 0; i < 3; i++) {
        trf_device_layer *made = NULL;
        trf_error err = {0};
        if (layouts[i] == own || (own >= TRF_LAYOUT_PACKED && layouts[i] >= TRF_LAYOUT_PACKED))
            continue;
        const trf_status status = trf_device_layer_convert(calls->layer, layouts[i], NULL, &made, &err);
        if (status == TRF_OK)
            use_converted(calls, made, what);
        else if (status != TRF_ERR_RANS && status != TRF_ERR_UNSUPPORTED)
            gpu_check(status, TRF_OK, &err, what);
        trf_device_layer_destroy(made);
    }
    if (own == TRF_LAYOUT_CODED)
        convert_experts(calls, what);
}
