/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks on a GPU: products of offloaded layers are bit for bit those of resident layers, in any order, on several
 * streams, while the GPU lags behind the host; memory stays within the budget and is given back; corrupt tiles are
 * remembered; every CUDA call of trf_stack_prepare fails once (the linker sends them here), and calls neither allocate
 * nor synchronize. */
#include "gpu_failing_calls.h"
#include "gpu_products.h"
#include "transfuse/stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 12,
    PASSES = 3,
    BUDGETS = 4,
    MOST_M = 9,
    MOST_ROWS = 1024
};

static const struct {
    int recipe;
    trf_favor favor;
    gpu_shape shape;
    uint32_t m;
    trf_path path;
} kSubjects[LAYERS] = {
    {0, TRF_FAVOR_SPEED, {512, 512}, 1, TRF_PATH_FUSED},     {0, TRF_FAVOR_SIZE, {256, 512}, 1, TRF_PATH_FUSED},
    {5, TRF_FAVOR_SPEED, {256, 512}, 9, TRF_PATH_FUSED},     {0, TRF_FAVOR_SPEED, {1024, 768}, 9, TRF_PATH_AUTO},
    {1, TRF_FAVOR_SPEED, {560, 1000}, 1, TRF_PATH_FUSED},    {2, TRF_FAVOR_SPEED, {512, 1024}, 1, TRF_PATH_FUSED},
    {3, TRF_FAVOR_SIZE, {256, 768}, 3, TRF_PATH_TWO_STEP},   {8, TRF_FAVOR_SPEED, {1024, 512}, 1, TRF_PATH_FUSED},
    {7, TRF_FAVOR_SPEED, {300, 530}, 2, TRF_PATH_FUSED},     {0, TRF_FAVOR_SPEED, {1024, 768}, 1, TRF_PATH_FUSED},
    {13, TRF_FAVOR_SPEED, {512, 512}, 1, TRF_PATH_TWO_STEP}, {0, TRF_FAVOR_SPEED, {16, 16}, 1, TRF_PATH_FUSED},
};

/* ---- layers, and what their products are without a stack ---- */

static gpu_layer layers[LAYERS];
static gpu_input inputs[LAYERS];
static trf_dtype x_dtypes[LAYERS];
static float *expected[LAYERS];
static uint64_t y_bytes[LAYERS], workspace_bytes;

static void make_layers(void) {
    test_rng rng = {1};
    for (int i = 0; i < LAYERS; i++) {
        gpu_product product;
        layers[i] = gpu_layer_make(&rng, &kGpuRecipes[kSubjects[i].recipe], kSubjects[i].favor, 0, kSubjects[i].shape,
                                   GPU_WEIGHTS_NORMAL);
        inputs[i] = gpu_input_normal(&rng, kSubjects[i].m, kSubjects[i].shape.cols);
        x_dtypes[i] = gpu_takes(&layers[i], TRF_DTYPE_BF16) ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
        EXPECT(gpu_product_make(&product, &layers[i], kSubjects[i].m, x_dtypes[i], TRF_DTYPE_F32, kSubjects[i].path) ==
               TRF_OK);
        y_bytes[i] = product.y.bytes;
        expected[i] = gpu_malloc(y_bytes[i]);
        gpu_product_run(&product, &inputs[i], expected[i]);
        if (product.info.workspace_bytes > workspace_bytes)
            workspace_bytes = product.info.workspace_bytes;
        gpu_product_free(&product);
    }
}

static void free_layers(void) {
    for (int i = 0; i < LAYERS; i++) {
        gpu_layer_free(&layers[i]);
        gpu_input_free(&inputs[i]);
        free(expected[i]);
    }
    workspace_bytes = 0;
}

/* ---- stacks ---- */

typedef struct stack_run {
    trf_stack *stack;
    trf_stack_info info;
    trf_plan *plans[LAYERS];
    cudaStream_t streams[2];
    gpu_memory workspaces[2]; /* one for each stream */
    gpu_memory y;             /* [PASSES][LAYERS][MOST_M * MOST_ROWS] */
    gpu_memory ballast;       /* written to in order to make the GPU late */
} stack_run;

static trf_stack *make_stack(void) {
    trf_error err = {0};
    trf_stack *stack;
    gpu_check(trf_stack_create(gpu_context, &stack, &err), TRF_OK, &err, "a stack");
    for (int i = 0; i < LAYERS; i++)
        gpu_check(trf_stack_add(stack, layers[i].host, &err), TRF_OK, &err, layers[i].name);
    return stack;
}

/* part: from 0, the least budget, to 3, room for all layers. */
static uint64_t budget_of(const trf_stack *stack, int part) {
    trf_stack_info info;
    trf_stack_get_info(stack, &info);
    const uint64_t all = info.layer_bytes + 4096; /* and faults */
    return info.least_bytes + (all - info.least_bytes) * (uint64_t)part / (BUDGETS - 1);
}

static void make_plans(stack_run *run) {
    trf_error err = {0};
    for (uint32_t i = 0; i < LAYERS; i++)
        gpu_check(test_make_plan(trf_stack_layer(run->stack, i), kSubjects[i].m, x_dtypes[i], TRF_DTYPE_F32,
                                 kSubjects[i].path, &run->plans[i], &err),
                  TRF_OK, &err, layers[i].name);
}

static stack_run make_run(int part) {
    stack_run run = {.stack = make_stack()};
    trf_error err = {0};
    gpu_check(trf_stack_prepare(run.stack, budget_of(run.stack, part), &err), TRF_OK, &err, "preparing");
    trf_stack_get_info(run.stack, &run.info);
    make_plans(&run);
    for (int s = 0; s < 2; s++) {
        CUDA(cudaStreamCreateWithFlags(&run.streams[s], cudaStreamNonBlocking));
        run.workspaces[s] = gpu_memory_make(workspace_bytes);
    }
    run.y = gpu_memory_make((uint64_t)PASSES * LAYERS * MOST_M * MOST_ROWS * sizeof(float));
    run.ballast = gpu_memory_make(test_quick() ? 1 << 20 : 256 << 20);
    return run;
}

static void free_run(stack_run *run) {
    for (int i = 0; i < LAYERS; i++)
        trf_plan_destroy(run->plans[i]);
    trf_stack_destroy(run->stack);
    for (int s = 0; s < 2; s++) {
        CUDA(cudaStreamDestroy(run->streams[s]));
        gpu_memory_free(&run->workspaces[s]);
    }
    gpu_memory_free(&run->y);
    gpu_memory_free(&run->ballast);
}

static void *y_of(const stack_run *run, int place) { return (float *)run->y.at + (size_t)place * MOST_M * MOST_ROWS; }

static trf_status queue_layer(stack_run *run, uint32_t layer, int place, int s, trf_error *err) {
    const trf_operands operands = test_operands(gpu_input_on_device(&inputs[layer], x_dtypes[layer]), y_of(run, place));
    return trf_stack_linear(run->stack, layer, run->plans[layer], &operands, run->workspaces[s].at, run->streams[s],
                            err);
}

typedef enum order_kind {
    IN_ORDER,
    BACKWARDS,
    RANDOM,
    SOME, /* every third is left out */
    EACH_TWICE,
    ORDER_KINDS
} order_kind;

static uint32_t layer_at(test_rng *rng, order_kind kind, int pass, int step) {
    switch (kind) {
    case BACKWARDS:
        return (uint32_t)(LAYERS - 1 - step);
    case RANDOM:
        return test_below(rng, LAYERS);
    case SOME:
        return (uint32_t)((step + step / 2 + pass) % LAYERS);
    case EACH_TWICE:
        return (uint32_t)((step / 2 + pass * LAYERS / 2) % LAYERS);
    default:
        return (uint32_t)step;
    }
}

/* Queues all passes before the first y is checked. streams: how many streams the products use in turn. late: the GPU
 * has more to do than products. */
static void check_passes(stack_run *run, order_kind kind, int streams, int late) {
    test_rng rng = {77 + (uint64_t)kind};
    uint32_t order[PASSES * LAYERS];
    trf_error err = {0};
    gpu_memory_poison(&run->y);
    for (int place = 0; place < PASSES * LAYERS; place++) {
        const int s = place % streams;
        order[place] = layer_at(&rng, kind, place / LAYERS, place % LAYERS);
        if (late && (kind == RANDOM ? test_below(&rng, 2) : 1u))
            CUDA(cudaMemsetAsync(run->ballast.at, 1, run->ballast.bytes, run->streams[s]));
        gpu_check(queue_layer(run, order[place], place, s, &err), TRF_OK, &err, layers[order[place]].name);
    }
    float *y = gpu_malloc(run->y.bytes);
    gpu_memory_read(&run->y, y);
    for (int place = 0; place < PASSES * LAYERS; place++)
        if (memcmp(y + (size_t)place * MOST_M * MOST_ROWS, expected[order[place]], y_bytes[order[place]]))
            ck_abort_msg("order %d, %d streams, late %d: product %d, of layer %u (%s), differs", (int)kind, streams,
                         late, place, order[place], layers[order[place]].name);
    free(y);
    for (uint32_t i = 0; i < LAYERS; i++)
        gpu_check(trf_device_layer_check(trf_stack_layer(run->stack, i), &err), TRF_OK, &err, layers[i].name);
}

/* loop: budgets. */
START_TEST(same_bits) {
    make_layers();
    stack_run run = make_run(_i);
    ck_assert_uint_eq(run.info.layers, LAYERS);
    ck_assert(_i == BUDGETS - 1 ? run.info.resident == LAYERS : run.info.resident < LAYERS);
    ck_assert_uint_le(run.info.device_bytes, budget_of(run.stack, _i));
    ck_assert(!run.info.offloaded_bytes == (run.info.resident == LAYERS));
    ck_assert_uint_eq(run.info.host_bytes, run.info.offloaded_bytes);
    for (order_kind kind = IN_ORDER; kind < ORDER_KINDS; kind++)
        for (int streams = 1; streams <= 2; streams++)
            for (int late = 0; late < 2; late++)
                if (!test_quick() || (streams == 2 && late && (kind == IN_ORDER || kind == RANDOM)))
                    check_passes(&run, kind, streams, late);
    free_run(&run);
    free_layers();
}
END_TEST

/* Any call that reads weights may be made between acquire and release; here it is on the stream NULL. */
START_TEST(decoding) {
    make_layers();
    stack_run run = make_run(0);
    trf_error err = {0};
    for (uint32_t i = 0; i < LAYERS; i++) {
        const trf_device_layer *layer = trf_stack_layer(run.stack, i);
        const trf_layer_info *info = &layers[i].info;
        gpu_memory dense = gpu_memory_make((uint64_t)info->rows * info->cols * trf_dtype_bytes(info->dtype));
        uint8_t *found = gpu_malloc(dense.bytes), *wanted = gpu_malloc(dense.bytes);
        gpu_check(trf_stack_acquire(run.stack, i, NULL, &err), TRF_OK, &err, layers[i].name);
        gpu_check(trf_device_layer_decode(layer, TRF_DECODE_SOURCE, dense.at, dense.bytes, NULL, &err), TRF_OK, &err,
                  layers[i].name);
        gpu_check(trf_stack_release(run.stack, i, NULL, &err), TRF_OK, &err, layers[i].name);
        gpu_memory_read(&dense, found);
        gpu_check(trf_layer_decode(layers[i].host, wanted, dense.bytes, 0, &err), TRF_OK, &err, layers[i].name);
        if (memcmp(found, wanted, dense.bytes))
            ck_abort_msg("%s is decoded wrongly from a stack", layers[i].name);
        free(found);
        free(wanted);
        gpu_memory_free(&dense);
    }
    free_run(&run);
    free_layers();
}
END_TEST

/* ---- memory ---- */

START_TEST(inside_the_budget) {
    const uint64_t page = 2 << 20; /* the unit in which CUDA takes device memory */
    make_layers();
    for (int round = 0; round < 2; round++) /* the first round includes what CUDA allocates only once */
        for (int part = 0; part < BUDGETS; part++) {
            trf_error err = {0};
            trf_stack *stack = make_stack();
            const uint64_t before = gpu_free_bytes(), budget = budget_of(stack, part);
            gpu_check(trf_stack_prepare(stack, budget, &err), TRF_OK, &err, "preparing");
            const uint64_t during = gpu_free_bytes();
            trf_stack_destroy(stack);
            const uint64_t after = gpu_free_bytes();
            if (round == 0)
                continue;
            ck_assert_msg(before - during <= (budget + page - 1) / page * page, "%llu bytes taken, budget %llu",
                          (unsigned long long)(before - during), (unsigned long long)budget);
            ck_assert_uint_eq(after, before);
        }
    free_layers();
}
END_TEST

START_TEST(every_call_fails_once) {
    make_layers();
    stack_run warm = make_run(1);
    free_run(&warm);
    const uint64_t before = gpu_free_bytes();
    trf_stack *stack = make_stack();
    trf_error err = {0};
    long number = 1;
    int sizes_told = 0;
    for (;; number++) {
        gpu_count_calls(number);
        trf_status status = trf_stack_prepare(stack, budget_of(stack, 1), &err);
        const int failed = gpu_call_has_failed();
        gpu_count_calls(0);
        if (!failed) {
            gpu_check(status, TRF_OK, &err, "preparing");
            break;
        }
        gpu_check(status, TRF_ERR_MEMORY, &err, "preparing, with a failure");
        sizes_told += strstr(err.message, " bytes") != NULL;
        ck_assert_ptr_null(trf_stack_layer(stack, 0));
        if (gpu_free_bytes() != before)
            ck_abort_msg("call %ld failed, and memory is lost", number);
    }
    ck_assert_int_gt(number, 3 + LAYERS);
    ck_assert_int_ge(sizes_told, 2); /* of device memory, and of pinned memory */
    trf_stack_destroy(stack);
    stack_run run = make_run(1);
    check_passes(&run, IN_ORDER, 1, 0);
    gpu_count_calls(0);
    for (uint32_t i = 0; i < LAYERS; i++)
        gpu_check(queue_layer(&run, i, (int)i, 0, &err), TRF_OK, &err, layers[i].name);
    ck_assert_int_eq(gpu_calls_made(), 0); /* nothing is allocated, nothing waited for */
    free_run(&run);
    free_layers();
}
END_TEST

/* ---- refusals ---- */

START_TEST(refused) {
    make_layers();
    trf_error err = {0};
    trf_stack *stack = make_stack();
    trf_stack_info info;
    char number[32];
    trf_stack_get_info(stack, &info);
    snprintf(number, sizeof number, "%llu", (unsigned long long)info.least_bytes);
    const uint64_t budgets[] = {0, 100, info.least_bytes - 1};
    for (int i = 0; i < 3; i++) {
        gpu_check(trf_stack_prepare(stack, budgets[i], &err), TRF_ERR_ARGUMENT, &err, "a budget that is too small");
        EXPECT(strstr(err.message, number));
    }
    gpu_check(trf_stack_prepare(stack, info.least_bytes, &err), TRF_OK, &err, "the least budget");

    /* Layers that are held keep others out of their places, but have no other effect. */
    uint32_t refusals = 0;
    gpu_check(trf_stack_acquire(stack, 3, NULL, &err), TRF_OK, &err, "a layer");
    for (uint32_t i = 0; i < LAYERS; i++) {
        trf_status status = trf_stack_acquire(stack, i, NULL, &err);
        refusals += status != TRF_OK;
        if (status == TRF_OK)
            gpu_check(trf_stack_release(stack, i, NULL, &err), TRF_OK, &err, "a layer beside it");
        else
            gpu_check(status, TRF_ERR_ARGUMENT, &err, "a layer in its place");
    }
    ck_assert_uint_gt(refusals, 0);
    ck_assert_uint_lt(refusals, LAYERS - 1);
    gpu_check(trf_stack_release(stack, 3, NULL, &err), TRF_OK, &err, "the layer");
    gpu_check(trf_stack_release(stack, 3, NULL, &err), TRF_ERR_ARGUMENT, &err, "once too often");
    trf_stack_destroy(stack);
    free_layers();
}
END_TEST

/* Acquires each layer, and releases it while the stream is captured. @return for how many that is refused. */
static uint32_t release_while_captured(const stack_run *run) {
    const cudaStream_t stream = run->streams[0];
    trf_error err = {0};
    uint32_t refusals = 0;
    for (uint32_t i = 0; i < LAYERS; i++) {
        cudaGraph_t graph;
        gpu_check(trf_stack_acquire(run->stack, i, stream, &err), TRF_OK, &err, layers[i].name);
        CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        const trf_status status = trf_stack_release(run->stack, i, stream, &err);
        gpu_check(status, status ? TRF_ERR_UNSUPPORTED : TRF_OK, &err, layers[i].name);
        CUDA(cudaStreamEndCapture(stream, &graph));
        CUDA(cudaGraphDestroy(graph));
        if (status)
            gpu_check(trf_stack_release(run->stack, i, stream, &err), TRF_OK, &err, layers[i].name);
        refusals += status != TRF_OK;
    }
    return refusals;
}

/* Resident layers are captured; offloaded layers are refused, and the capture goes on. */
START_TEST(graphs) {
    make_layers();
    trf_error err = {0};
    for (int all = 0; all < 2; all++) {
        stack_run run = make_run(all ? BUDGETS - 1 : 0);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        for (uint32_t i = 0; i < LAYERS; i++) /* what CUDA loads at a first call cannot be captured */
            gpu_check(queue_layer(&run, i, (int)i, 0, &err), TRF_OK, &err, layers[i].name);
        gpu_memory_poison(&run.y);
        CUDA(cudaStreamBeginCapture(run.streams[0], cudaStreamCaptureModeThreadLocal));
        uint32_t refusals = 0;
        for (uint32_t i = 0; i < LAYERS; i++) {
            trf_status status = queue_layer(&run, i, (int)i, 0, &err);
            refusals += status != TRF_OK;
            gpu_check(status, status ? TRF_ERR_UNSUPPORTED : TRF_OK, &err, layers[i].name);
        }
        CUDA(cudaStreamEndCapture(run.streams[0], &graph));
        ck_assert_uint_eq(refusals, LAYERS - run.info.resident);
        CUDA(cudaGraphInstantiate(&exec, graph, 0));
        CUDA(cudaGraphLaunch(exec, run.streams[0]));
        float *y = gpu_malloc(run.y.bytes);
        gpu_memory_read(&run.y, y);
        for (int i = 0; all && i < LAYERS; i++)
            ck_assert_mem_eq(y + (size_t)i * MOST_M * MOST_ROWS, expected[i], y_bytes[i]);
        free(y);
        CUDA(cudaGraphExecDestroy(exec));
        CUDA(cudaGraphDestroy(graph));
        ck_assert_uint_eq(release_while_captured(&run), LAYERS - run.info.resident);
        check_passes(&run, IN_ORDER, 1, 0);
        free_run(&run);
    }
    free_layers();
}
END_TEST

/* ---- corrupt tiles ---- */

START_TEST(faults_stay) {
    enum {
        BAD = 2,
        ROUNDS = 3
    };
    static const char *const names[BAD] = {"corrupt/rans_first_word.trf", "corrupt/narrow_start_state_of_slab_3.trf"};
    trf_error err = {0};
    trf_stack *stack;
    gpu_layer bad[BAD];
    make_layers();
    gpu_check(trf_stack_create(gpu_context, &stack, &err), TRF_OK, &err, "a stack");
    for (int i = 0; i < BAD; i++) {
        bad[i] = gpu_layer_of_golden(names[i]);
        gpu_check(trf_stack_add(stack, bad[i].host, &err), TRF_OK, &err, names[i]);
    }
    for (int i = 0; i < LAYERS; i++)
        gpu_check(trf_stack_add(stack, layers[i].host, &err), TRF_OK, &err, layers[i].name);
    gpu_check(trf_stack_prepare(stack, budget_of(stack, _i), &err), TRF_OK, &err, "preparing");
    gpu_memory dense = gpu_memory_make((uint64_t)MOST_ROWS * 1024 * 4);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < BAD + LAYERS; i++) {
            const trf_device_layer *layer = trf_stack_layer(stack, i);
            const trf_layer_info info = test_layer_info(layer);
            gpu_check(trf_stack_acquire(stack, i, NULL, &err), TRF_OK, &err, "a layer");
            if (i >= BAD || round == 1) /* in the first round nothing has read them yet */
                gpu_check(trf_device_layer_decode(layer, TRF_DECODE_ELEMENTS, dense.at, 2ull * info.rows * info.cols,
                                                  NULL, &err),
                          TRF_OK, &err, "a layer");
            gpu_check(trf_stack_release(stack, i, NULL, &err), TRF_OK, &err, "a layer");
        }
        for (uint32_t i = 0; i < BAD + LAYERS; i++) {
            trf_error alone = {0};
            const trf_status due = i < BAD && round > 0 ? TRF_ERR_RANS : TRF_OK;
            gpu_check(trf_device_layer_check(trf_stack_layer(stack, i), &err), due, &err, "a layer");
            if (due == TRF_OK)
                continue;
            /* The message is the same as for a layer without a stack. */
            gpu_check(trf_device_layer_decode(bad[i].device, TRF_DECODE_ELEMENTS, dense.at,
                                              2ull * bad[i].info.rows * bad[i].info.cols, NULL, &alone),
                      TRF_OK, &alone, names[i]);
            gpu_check(trf_device_layer_check(bad[i].device, &alone), TRF_ERR_RANS, &alone, names[i]);
            ck_assert_str_eq(err.message, alone.message);
            ck_assert_uint_eq(err.offset, alone.offset);
        }
    }
    trf_stack_destroy(stack);
    for (int i = 0; i < BAD; i++)
        gpu_layer_free(&bad[i]);
    gpu_memory_free(&dense);
    free_layers();
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{same_bits, BUDGETS}, {decoding, 1}, {inside_the_budget, 1}, {every_call_fails_once, 1},
                              {refused, 1},         {graphs, 1},   {faults_stay, 2}};
    return gpu_main("stack", tests, sizeof tests / sizeof tests[0]);
}
