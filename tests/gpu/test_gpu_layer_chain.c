/* SPDX-License-Identifier: Apache-2.0 */
/* A chain of 32 layers, each of which takes the y of the one before. One CUDA graph gives the same bits as call by
 * call, with epilogues, residuals in place, both paths and one workspace. Calls only enqueue: they allocate no memory
 * on the host or the device, do not wait, and can all be captured.
 *
 * The linker sends the library's allocations, and those of the CUDA runtime that is linked into it, here
 * (TRF_TEST_WRAPS_ALLOCATIONS: CMakeLists.txt). What cuBLASLt and the driver do inside their own libraries is not
 * seen. */
#include "gpu_products.h"
#include "transfuse/experts.h"
#include "trf_number_formats.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    LAYERS = 32,
    KINDS = 8, /* layers k, k + 8 ... have one shape and codec, but weights of their own */
    MOST_M = 16,
    INPUTS = 4
};

/* ---- allocations ---- */

static atomic_long allocations;

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    return __real_malloc(bytes);
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    return __real_calloc(count, bytes);
}

void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    return __real_realloc(memory, bytes);
}

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    return __real_aligned_alloc(alignment, bytes);
}

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    atomic_fetch_add(&allocations, 1);
    return __real_mmap(at, bytes, protection, flags, fd, offset);
}

/* ---- the chain ---- */

/* The columns of kind k are its width, its rows the width of kind k + 1. 515 and 300 are neither whole slabs, nor whole
 * bands, nor aligned to 16 bytes. */
static const struct {
    int recipe; /* of kGpuRecipes */
    trf_favor favor;
    uint32_t slab_cols, width;
    trf_dtype x_dtype;
    trf_path path;
    trf_activation activation;
    int has_bias, has_residual; /* residual: y itself, which holds that of the layer 8 layers earlier */
} kKinds[KINDS] = {
    {0, TRF_FAVOR_SPEED, 256, 512, TRF_DTYPE_BF16, TRF_PATH_AUTO, TRF_ACTIVATION_SILU, 0, 0},
    {0, TRF_FAVOR_SIZE, 128, 768, TRF_DTYPE_BF16, TRF_PATH_AUTO, TRF_ACTIVATION_NONE, 1, 1},
    {1, TRF_FAVOR_SPEED, 128, 515, TRF_DTYPE_F16, TRF_PATH_AUTO, TRF_ACTIVATION_GELU, 1, 0},
    {2, TRF_FAVOR_SPEED, 256, 1024, TRF_DTYPE_F16, TRF_PATH_AUTO, TRF_ACTIVATION_NONE, 0, 1},
    {7, TRF_FAVOR_SPEED, 128, 300, TRF_DTYPE_BF16, TRF_PATH_AUTO, TRF_ACTIVATION_GELU_TANH, 1, 1},
    {0, TRF_FAVOR_SPEED, 256, 2048, TRF_DTYPE_BF16, TRF_PATH_TWO_STEP, TRF_ACTIVATION_SILU, 0, 1},
    {10, TRF_FAVOR_SPEED, 256, 640, TRF_DTYPE_F16, TRF_PATH_AUTO, TRF_ACTIVATION_NONE, 0, 0},
    {9, TRF_FAVOR_SPEED, 256, 1152, TRF_DTYPE_BF16, TRF_PATH_AUTO, TRF_ACTIVATION_NONE, 1,
     1}, /* scale groups of 16: two-step */
};

typedef struct chain_layer {
    gpu_layer layer;
    gpu_memory bias, multiplier;
} chain_layer;

typedef struct chain {
    uint32_t m;
    chain_layer *layers; /* [LAYERS] */
    trf_plan *plans[LAYERS];
    gpu_memory x, y[KINDS], workspace; /* x: the first layer's; the y of layer l is y[l % KINDS] */
    gpu_memory inputs[INPUTS];
    size_t y_bytes; /* of all y */
} chain;

static gpu_memory filled_normal(test_rng *rng, trf_dtype dtype, size_t count, double sigma) {
    void *values = gpu_malloc(count * trf_dtype_bytes(dtype));
    test_fill_normal(rng, values, dtype, count, sigma);
    gpu_memory memory = gpu_memory_copy_of(values, count * trf_dtype_bytes(dtype));
    free(values);
    return memory;
}

static uint32_t width_of(int l) { return kKinds[l % KINDS].width; }
static trf_dtype x_dtype_of(int l) { return kKinds[l % KINDS].x_dtype; }
static int has_residual(int l) { return kKinds[l % KINDS].has_residual && l >= KINDS; }

/* Multipliers keep y near 1 in size, or the chain would run to infinity or zero. */
static chain_layer *make_layers(test_rng *rng) {
    chain_layer *layers = gpu_malloc(LAYERS * sizeof *layers);
    for (int l = 0; l < LAYERS; l++) {
        const gpu_recipe *recipe = &kGpuRecipes[kKinds[l % KINDS].recipe];
        const gpu_shape shape = {width_of(l + 1), width_of(l)};
        const double sigma = trf_dtype_bytes(recipe->dtype) == 1 ? 1 : 0.02;
        layers[l].layer = gpu_layer_make(rng, recipe, kKinds[l % KINDS].favor, kKinds[l % KINDS].slab_cols, shape,
                                         GPU_WEIGHTS_NORMAL);
        layers[l].bias = filled_normal(rng, x_dtype_of(l + 1), shape.rows, 0.5);
        layers[l].multiplier =
            filled_normal(rng, x_dtype_of(l + 1), (size_t)MOST_M * shape.rows, 0.8 / (sigma * sqrt(shape.cols)));
    }
    return layers;
}

static void free_layers(chain_layer *layers) {
    for (int l = 0; l < LAYERS; l++) {
        gpu_memory_free(&layers[l].bias);
        gpu_memory_free(&layers[l].multiplier);
        gpu_layer_free(&layers[l].layer);
    }
    free(layers);
}

static chain chain_make(test_rng *rng, chain_layer *layers, uint32_t m) {
    chain s = {.m = m, .layers = layers};
    uint64_t workspace_bytes = 0;
    int fused = 0;
    for (int l = 0; l < LAYERS; l++) {
        const int k = l % KINDS;
        trf_error err = {0};
        trf_plan_options options = test_plan_options(m, x_dtype_of(l), x_dtype_of(l + 1), kKinds[k].path);
        options.activation = kKinds[k].activation;
        options.has_bias = kKinds[k].has_bias;
        options.has_multiplier = 1;
        options.has_residual = has_residual(l);
        gpu_check(trf_plan_create(layers[l].layer.device, &options, &s.plans[l], &err), TRF_OK, &err,
                  layers[l].layer.name);
        const trf_plan_info info = test_plan_info(s.plans[l]);
        fused += info.path == TRF_PATH_FUSED;
        if (info.workspace_bytes > workspace_bytes)
            workspace_bytes = info.workspace_bytes;
    }
    ck_assert_int_ge(fused, LAYERS / 2);
    ck_assert_int_lt(fused, LAYERS);
    s.workspace = gpu_memory_make(workspace_bytes);
    s.x = gpu_memory_make(2ull * m * width_of(0));
    for (int k = 0; k < KINDS; k++) {
        s.y[k] = gpu_memory_make(2ull * m * width_of(k + 1));
        s.y_bytes += s.y[k].bytes;
    }
    for (int i = 0; i < INPUTS; i++)
        s.inputs[i] = filled_normal(rng, x_dtype_of(0), (size_t)m * width_of(0), 1);
    return s;
}

static void chain_free(chain *s) {
    for (int l = 0; l < LAYERS; l++)
        trf_plan_destroy(s->plans[l]);
    gpu_memory_free(&s->workspace);
    gpu_memory_free(&s->x);
    for (int k = 0; k < KINDS; k++)
        gpu_memory_free(&s->y[k]);
    for (int i = 0; i < INPUTS; i++)
        gpu_memory_free(&s->inputs[i]);
}

/* Makes calls, and does nothing else. @return the first failure. */
typedef trf_status queue_fn(const void *context, trf_stream stream, trf_error *err);

/* One call for each layer. */
static trf_status chain_queue(const void *context, trf_stream stream, trf_error *err) {
    const chain *s = context;
    trf_status status = TRF_OK;
    for (int l = 0; l < LAYERS && status == TRF_OK; l++) {
        const int k = l % KINDS;
        trf_operands operands = test_operands(l ? s->y[(l + KINDS - 1) % KINDS].at : s->x.at, s->y[k].at);
        operands.bias = kKinds[k].has_bias ? s->layers[l].bias.at : NULL;
        operands.multiplier = s->layers[l].multiplier.at;
        operands.residual = has_residual(l) ? s->y[k].at : NULL;
        status = trf_linear(s->plans[l], &operands, s->workspace.at, stream, err);
    }
    return status;
}

static void set_input(const chain *s, int input, cudaStream_t stream) {
    CUDA(cudaMemcpyAsync(s->x.at, s->inputs[input].at, s->x.bytes, cudaMemcpyDeviceToDevice, stream));
}

static void poison(const chain *s) {
    gpu_memory_poison(&s->workspace);
    for (int k = 0; k < KINDS; k++)
        gpu_memory_poison(&s->y[k]);
}

/* Reads all y, one after the other, after all work. */
static void read_all(const chain *s, uint8_t *to) {
    for (int k = 0; k < KINDS; k++) {
        gpu_memory_read(&s->y[k], to);
        to += s->y[k].bytes;
    }
}

/* Expects meaningful values: finite, not all small, and of about one magnitude. */
static void check_plausible(const chain *s, const uint8_t *all) {
    for (int k = 0; k < KINDS; k++) {
        const size_t count = s->y[k].bytes / 2;
        double squares = 0;
        for (size_t i = 0; i < count; i++) {
            const double value = gpu_to_double(all, x_dtype_of(k + 1), i);
            if (!isfinite(value))
                ck_abort_msg("layer %d of 8: y[%zu] is %g", k, i, value);
            squares += value * value;
        }
        const double rms = sqrt(squares / (double)count);
        if (!(rms > 0.01 && rms < 100))
            ck_abort_msg("layer %d of 8: values of size %g", k, rms);
        all += s->y[k].bytes;
    }
}

/* Computes what calls one by one give for each input. */
static void run_eagerly(const chain *s, cudaStream_t stream, uint8_t **expected) {
    for (int i = 0; i < INPUTS; i++) {
        trf_error err = {0};
        expected[i] = gpu_malloc(s->y_bytes);
        poison(s);
        set_input(s, i, stream);
        gpu_check(chain_queue(s, stream, &err), TRF_OK, &err, "the chain");
        read_all(s, expected[i]);
        check_plausible(s, expected[i]);
        for (int j = 0; j < i; j++)
            ck_assert_mem_ne(expected[i], expected[j], s->y_bytes);
    }
}

/* Captures calls; those that allocate device memory, wait, or use the default stream fail. */
static cudaGraphExec_t capture(queue_fn *queue, const void *context, cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    trf_error err = {0};
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    gpu_check(queue(context, stream, &err), TRF_OK, &err, "calls, captured");
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return executable;
}

/* A chain that has been run by calls one by one. */
typedef struct chain_run {
    chain_layer *layers;
    chain chain;
    cudaStream_t stream;
    uint8_t *expected[INPUTS], *found; /* y_bytes each */
} chain_run;

static chain_run run_make(uint64_t seed, uint32_t m) {
    test_rng rng = {seed};
    chain_run run = {.layers = make_layers(&rng)};
    run.chain = chain_make(&rng, run.layers, m);
    run.found = gpu_malloc(run.chain.y_bytes);
    CUDA(cudaStreamCreateWithFlags(&run.stream, cudaStreamNonBlocking));
    run_eagerly(&run.chain, run.stream, run.expected); /* kernels are loaded at their first launch */
    return run;
}

static void run_free(chain_run *run) {
    CUDA(cudaStreamDestroy(run->stream));
    for (int i = 0; i < INPUTS; i++)
        free(run->expected[i]);
    free(run->found);
    chain_free(&run->chain);
    free_layers(run->layers);
}

/* loop: the batch. */
START_TEST(one_graph) {
    chain_run made = run_make(15000, _i ? MOST_M : 1);
    const chain *s = &made.chain;
    cudaGraphExec_t executable = capture(chain_queue, s, made.stream);
    for (int run = 0; run < (test_quick() ? INPUTS : 5 * INPUTS); run++) {
        const int input = (run * 3 + run / INPUTS) % INPUTS;
        poison(s);
        if (run % 2) { /* right after a replay with another input */
            set_input(s, (input + 1) % INPUTS, made.stream);
            CUDA(cudaGraphLaunch(executable, made.stream));
        }
        set_input(s, input, made.stream);
        CUDA(cudaGraphLaunch(executable, made.stream));
        read_all(s, made.found);
        ck_assert_mem_eq(made.found, made.expected[input], s->y_bytes);
    }
    CUDA(cudaGraphExecDestroy(executable));
    run_free(&made);
}
END_TEST

/* ---- only enqueued ---- */

/* Keeps a stream busy until the gate opens, or until a call has obviously waited for it. */
static atomic_int gate_open, gave_up;

static void CUDART_CB wait_at_gate(void *context) {
    (void)context;
    for (int i = 0; i < 20000 && !atomic_load(&gate_open); i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (!atomic_load(&gate_open))
        atomic_store(&gave_up, 1);
}

/* Bytes of the device's default pool, from which stream-ordered allocations come. */
static uint64_t pool_bytes(void) {
    cudaMemPool_t pool;
    uint64_t bytes = 0;
    CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
    CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &bytes));
    return bytes;
}

/* Makes calls on a stream whose gate is closed. @return how many allocations the library has made on the host
 * meanwhile. */
static long queue_behind_gate(queue_fn *queue, const void *context, cudaStream_t stream) {
    enum {
        ROUNDS = 2
    };
    trf_error err = {0};
    trf_status status = TRF_OK;
    atomic_store(&gate_open, 0);
    atomic_store(&gave_up, 0);
    CUDA(cudaLaunchHostFunc(stream, wait_at_gate, NULL));
    const long before = atomic_load(&allocations);
    for (int round = 0; round < ROUNDS && status == TRF_OK; round++)
        status = queue(context, stream, &err);
    const long made = atomic_load(&allocations) - before;
    const cudaError_t progress = cudaStreamQuery(stream);
    cudaGetLastError(); /* else the next launch would report it */
    atomic_store(&gate_open, 1);
    CUDA(cudaStreamSynchronize(stream));
    gpu_check(status, TRF_OK, &err, "calls behind a gate");
    ck_assert_int_eq(progress, cudaErrorNotReady); /* every call returned while the gate was closed */
    ck_assert_int_eq(atomic_load(&gave_up), 0);
    return made;
}

/* Checks calls that have been made before. */
static void check_only_enqueued(queue_fn *queue, const void *context, cudaStream_t stream) {
    size_t free_before, free_after, all;
    queue_behind_gate(queue, context, stream);
    CUDA(cudaMemGetInfo(&free_before, &all));
    const uint64_t pool_before = pool_bytes();
    ck_assert_int_eq(queue_behind_gate(queue, context, stream), 0);
    CUDA(cudaMemGetInfo(&free_after, &all));
    ck_assert_uint_eq(free_before, free_after);
    ck_assert_uint_eq(pool_before, pool_bytes());
}

/* loop: the batch. */
START_TEST(calls_only_enqueue) {
    chain_run run = run_make(15100, _i ? MOST_M : 1);
    trf_error err = {0};
    set_input(&run.chain, 0, run.stream);
    check_only_enqueued(chain_queue, &run.chain, run.stream);
    read_all(&run.chain, run.found);
    ck_assert_mem_eq(run.found, run.expected[0], run.chain.y_bytes);

    /* Shows that the linker sends allocations here. */
    const long of_layers = atomic_load(&allocations);
    const gpu_layer *first = &run.layers[0].layer;
    trf_device_layer *another;
    gpu_check(trf_device_layer_create(gpu_context, first->blob, first->blob_bytes, NULL, &another, &err), TRF_OK, &err,
              "a layer");
    ck_assert_int_gt(atomic_load(&allocations), of_layers);
    trf_device_layer_destroy(another);
    run_free(&run);
}
END_TEST

/* The other calls of inference: groups, experts, products in two steps, the wide path, a layer's weights and single
 * rows of them. */
enum {
    OTHER_LAYERS = 2,
    EXPERTS = 4,
    TOKENS = 40,
    LOOKED_UP = 5,
    OTHER_ROWS = 1024,
    OTHER_COLS = 2048
};

typedef struct others {
    gpu_layer layers[OTHER_LAYERS], wide_layer; /* of bf16; of fp8, which the wide path takes */
    trf_layer_group *group;
    trf_experts *experts;
    trf_experts_plan *experts_plan;
    trf_plan *two_step, *wide; /* wide: NULL on other GPUs than those of compute capability 9.0 */
    gpu_memory x, offsets, ids, workspace, grouped[OTHER_LAYERS], by_experts, by_two_step, by_wide, weights, rows;
} others;

static trf_status others_queue(const void *context, trf_stream stream, trf_error *err) {
    const others *o = context;
    const trf_device_layer *layer = o->layers[0].device;
    void *const workspace = o->workspace.at;
    const void *const x[OTHER_LAYERS] = {o->x.at, o->x.at};
    void *const y[OTHER_LAYERS] = {o->grouped[0].at, o->grouped[1].at};
    trf_status status = trf_linear_group(o->group, x, y, workspace, stream, err);
    if (status == TRF_OK)
        status = trf_experts_linear(o->experts_plan, o->x.at, o->offsets.at, o->by_experts.at, workspace, stream, err);
    if (status == TRF_OK)
        status = test_multiply(o->two_step, o->x.at, o->by_two_step.at, workspace, stream, err);
    if (status == TRF_OK && o->wide)
        status = test_multiply(o->wide, o->x.at, o->by_wide.at, workspace, stream, err);
    if (status == TRF_OK)
        status = trf_device_layer_decode(layer, TRF_DECODE_SOURCE, o->weights.at, o->weights.bytes, stream, err);
    if (status == TRF_OK)
        status = test_decode_rows(
            layer, test_row_request(o->ids.at, 4, LOOKED_UP, TRF_DECODE_SOURCE, o->rows.at, o->rows.bytes), stream,
            err);
    return status;
}

static void plan_others(others *o) {
    const gpu_shape shape = {OTHER_ROWS, OTHER_COLS};
    test_rng rng = {15200};
    trf_group_member members[OTHER_LAYERS];
    trf_device_layer *list[EXPERTS];
    trf_error err = {0};
    for (int l = 0; l < OTHER_LAYERS; l++) {
        o->layers[l] = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 256, shape, GPU_WEIGHTS_NORMAL);
        members[l] = test_group_member(o->layers[l].device, 1, TRF_DTYPE_BF16, TRF_DTYPE_BF16);
    }
    for (int e = 0; e < EXPERTS; e++)
        list[e] = o->layers[e % OTHER_LAYERS].device;
    gpu_check(trf_layer_group_create(members, OTHER_LAYERS, &o->group, &err), TRF_OK, &err, "a group");
    gpu_check(trf_experts_create(list, EXPERTS, &o->experts, &err), TRF_OK, &err, "experts");
    gpu_check(trf_experts_plan_create(o->experts, TOKENS, TRF_DTYPE_BF16, TRF_DTYPE_BF16, &o->experts_plan, &err),
              TRF_OK, &err, "experts");
    gpu_check(test_make_plan(list[0], TOKENS, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_TWO_STEP, &o->two_step, &err),
              TRF_OK, &err, "two steps");
    o->wide_layer = gpu_layer_make(&rng, &kGpuRecipes[2], TRF_FAVOR_SPEED, 256, shape, GPU_WEIGHTS_NORMAL);
    const trf_status status =
        test_make_plan(o->wide_layer.device, TOKENS, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_WIDE, &o->wide, &err);
    if (status != TRF_OK)
        gpu_check(status, TRF_ERR_UNSUPPORTED, &err, "wide");
    o->x = filled_normal(&rng, TRF_DTYPE_BF16, (size_t)TOKENS * OTHER_COLS, 1);
}

static void others_make(others *o) {
    static const uint32_t offsets[EXPERTS + 1] = {0, 7, 7, 30, TOKENS};
    static const int32_t ids[LOOKED_UP] = {3, OTHER_ROWS - 1, 3, 0, 500};
    plan_others(o);
    uint64_t workspace_bytes = test_group_info(o->group).workspace_bytes;
    const uint64_t needs[] = {trf_experts_plan_workspace_bytes(o->experts_plan),
                              test_plan_info(o->two_step).workspace_bytes,
                              o->wide ? test_plan_info(o->wide).workspace_bytes : 0};
    for (int i = 0; i < 3; i++)
        if (needs[i] > workspace_bytes)
            workspace_bytes = needs[i];
    o->workspace = gpu_memory_make(workspace_bytes);
    o->offsets = gpu_memory_copy_of(offsets, sizeof offsets);
    o->ids = gpu_memory_copy_of(ids, sizeof ids);
    for (int l = 0; l < OTHER_LAYERS; l++)
        o->grouped[l] = gpu_memory_make(2ull * OTHER_ROWS);
    o->by_experts = gpu_memory_make(2ull * TOKENS * OTHER_ROWS);
    o->by_two_step = gpu_memory_make(2ull * TOKENS * OTHER_ROWS);
    o->by_wide = gpu_memory_make(2ull * TOKENS * OTHER_ROWS);
    o->weights = gpu_memory_make(2ull * OTHER_ROWS * OTHER_COLS);
    o->rows = gpu_memory_make(2ull * LOOKED_UP * OTHER_COLS);
}

enum {
    OUTPUTS = OTHER_LAYERS + 5
};

static const gpu_memory *output_of(const others *o, int i) {
    const gpu_memory *const all[OUTPUTS] = {&o->grouped[0], &o->grouped[1], &o->by_experts, &o->by_two_step,
                                            &o->by_wide,    &o->weights,    &o->rows};
    return all[i];
}

/* Runs everything to poisoned memory, by calls or by the graph. @return all outputs, one after the other; malloc'd. */
static uint8_t *run_others(const others *o, cudaStream_t stream, cudaGraphExec_t graph, size_t *bytes) {
    trf_error err = {0};
    *bytes = 0;
    gpu_memory_poison(&o->workspace);
    for (int i = 0; i < OUTPUTS; i++) {
        gpu_memory_poison(output_of(o, i));
        *bytes += output_of(o, i)->bytes;
    }
    if (graph)
        CUDA(cudaGraphLaunch(graph, stream));
    else
        gpu_check(others_queue(o, stream, &err), TRF_OK, &err, "other calls");
    uint8_t *all = gpu_malloc(*bytes), *at = all;
    for (int i = 0; i < OUTPUTS; at += output_of(o, i++)->bytes)
        gpu_memory_read(output_of(o, i), at);
    return all;
}

static void others_free(others *o) {
    trf_layer_group_destroy(o->group);
    trf_experts_plan_destroy(o->experts_plan);
    trf_experts_destroy(o->experts);
    trf_plan_destroy(o->two_step);
    trf_plan_destroy(o->wide);
    for (int i = 0; i < OUTPUTS; i++) {
        gpu_memory memory = *output_of(o, i);
        gpu_memory_free(&memory);
    }
    gpu_memory_free(&o->x);
    gpu_memory_free(&o->offsets);
    gpu_memory_free(&o->ids);
    gpu_memory_free(&o->workspace);
    for (int l = 0; l < OTHER_LAYERS; l++)
        gpu_layer_free(&o->layers[l]);
    gpu_layer_free(&o->wide_layer);
}

START_TEST(other_calls_only_enqueue) {
    others o = {0};
    cudaStream_t stream;
    size_t bytes;
    others_make(&o);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint8_t *eager = run_others(&o, stream, NULL, &bytes);
    ck_assert_mem_eq(eager + bytes - o.rows.bytes - o.weights.bytes, o.layers[0].elements, o.weights.bytes);
    check_only_enqueued(others_queue, &o, stream);
    cudaGraphExec_t graph = capture(others_queue, &o, stream);
    uint8_t *replayed = run_others(&o, stream, graph, &bytes);
    ck_assert_mem_eq(eager, replayed, bytes);
    CUDA(cudaGraphExecDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    free(eager);
    free(replayed);
    others_free(&o);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{one_graph, 2}, {calls_only_enqueue, 2}, {other_calls_only_enqueue, 1}};
    return gpu_main("layer_chain", tests, sizeof tests / sizeof tests[0]);
}
