/* SPDX-License-Identifier: Apache-2.0 */
/* Epilogues on the device: both paths compared with F64, for every codec and all ways of sharing rows among blocks, in
 * place and not; the same bits on every run; graphs; and the two-step path of packed layers.
 * tests/unit/test_device_epilogue.c tests all combinations, activations and shards. */
#include "gpu_products.h"
#include "trf_context.h"
#include "trf_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const trf_dtype kXTypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F16};
static const trf_dtype kYTypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
enum {
    MOST_M = 33,
    MOST_ROWS = 96 /* the most rows of a layer that are computed in F64 */
};

/* ---- epilogues ---- */

typedef enum operand_kind {
    ABSENT,
    APART,
    IN_PLACE
} operand_kind;

typedef struct combination {
    trf_activation activation;
    operand_kind bias, multiplier, residual;
} combination;

/* Each activation, and each operand by itself and with others. */
static const combination kCombinations[] = {
    {TRF_ACTIVATION_SILU, ABSENT, IN_PLACE, ABSENT},  {TRF_ACTIVATION_NONE, APART, ABSENT, IN_PLACE},
    {TRF_ACTIVATION_GELU, APART, ABSENT, ABSENT},     {TRF_ACTIVATION_GELU_TANH, APART, APART, APART},
    {TRF_ACTIVATION_NONE, ABSENT, ABSENT, APART},     {TRF_ACTIVATION_SILU, ABSENT, APART, IN_PLACE},
    {TRF_ACTIVATION_GELU, ABSENT, IN_PLACE, IN_PLACE}};
enum {
    COMBINATIONS = sizeof kCombinations / sizeof kCombinations[0]
};

/* Operands for y[m][rows] of a type. */
typedef struct operands {
    trf_dtype dtype;
    gpu_memory bias, multiplier, residual;
    double *host_bias, *host_multiplier, *host_residual;
} operands;

static void fill_operand(test_rng *rng, trf_dtype dtype, size_t count, gpu_memory *memory, double **values) {
    void *bits = gpu_malloc(4 * count);
    test_fill_normal(rng, bits, dtype, count, 1.0);
    *memory = gpu_memory_copy_of(bits, count * trf_dtype_bytes(dtype));
    *values = gpu_malloc(count * sizeof **values);
    for (size_t i = 0; i < count; i++)
        (*values)[i] = gpu_to_double(bits, dtype, i);
    free(bits);
}

static operands operands_make(test_rng *rng, trf_dtype dtype, uint32_t m, uint32_t rows) {
    operands o = {.dtype = dtype};
    fill_operand(rng, dtype, rows, &o.bias, &o.host_bias);
    fill_operand(rng, dtype, (size_t)m * rows, &o.multiplier, &o.host_multiplier);
    fill_operand(rng, dtype, (size_t)m * rows, &o.residual, &o.host_residual);
    return o;
}

static void operands_free(operands *o) {
    gpu_memory_free(&o->bias);
    gpu_memory_free(&o->multiplier);
    gpu_memory_free(&o->residual);
    free(o->host_bias);
    free(o->host_multiplier);
    free(o->host_residual);
}

static const void *place_of(operand_kind kind, const void *apart, const void *y) {
    return kind == ABSENT ? NULL : kind == APART ? apart : y;
}

static trf_operands operands_of(combination c, const operands *o, const void *x, void *y) {
    trf_operands given = test_operands(x, y);
    given.bias = place_of(c.bias, o->bias.at, NULL);
    given.multiplier = place_of(c.multiplier, o->multiplier.at, y);
    given.residual = place_of(c.residual, o->residual.at, y);
    return given;
}

/* What y holds before the call: an operand, or bytes of 0xFF. */
static void prepare_y(const gpu_product *product, combination c, const operands *o, trf_stream stream) {
    const gpu_memory *from = c.multiplier == IN_PLACE ? &o->multiplier : c.residual == IN_PLACE ? &o->residual : NULL;
    if (from)
        CUDA(cudaMemcpyAsync(product->y.at, from->at, from->bytes, cudaMemcpyDeviceToDevice, stream));
    else
        CUDA(cudaMemsetAsync(product->y.at, 0xFF, product->y.bytes, stream));
}

static void queue(const gpu_product *product, const gpu_input *input, combination c, const operands *o,
                  trf_stream stream) {
    trf_error err = {0};
    const trf_operands given = operands_of(c, o, gpu_input_on_device(input, product->info.x_dtype), product->y.at);
    prepare_y(product, c, o, stream);
    gpu_check(trf_linear(product->plan, &given, gpu_product_workspace(product), stream, &err), TRF_OK, &err,
              product->name);
}

/* options: without an epilogue; the combination gives it. */
static trf_status make_product(gpu_product *product, const gpu_layer *layer, trf_plan_options options, combination c) {
    options.activation = c.activation;
    options.has_bias = c.bias != ABSENT;
    options.has_multiplier = c.multiplier != ABSENT;
    options.has_residual = c.residual != ABSENT;
    return gpu_product_make_as(product, layer, &options);
}

/* ---- against F64 ---- */

static double activate(trf_activation activation, double v) {
    switch (activation) {
    case TRF_ACTIVATION_SILU:
        return v / (1 + exp(-v));
    case TRF_ACTIVATION_GELU:
        return v / 2 * erfc(-v / sqrt(2));
    case TRF_ACTIVATION_GELU_TANH:
        return v / (1 + exp(-2 * sqrt(2 / acos(-1)) * (v + 0.044715 * v * v * v)));
    default:
        return v;
    }
}

static void check_value(const gpu_product *product, const gpu_reference *reference, combination c, const operands *o,
                        uint32_t i, uint32_t n, const void *y) {
    const uint32_t row = reference->rows[n];
    const size_t at = (size_t)i * product->layer->info.rows + row, of_sum = (size_t)n * reference->m + i;
    const double *in_place = c.multiplier == IN_PLACE ? o->host_multiplier : o->host_residual;
    const double bias = c.bias ? o->host_bias[row] : 0, multiplier = c.multiplier ? o->host_multiplier[at] : 1,
                 residual = c.residual == IN_PLACE ? in_place[at]
                            : c.residual           ? o->host_residual[at]
                                                   : 0;
    const double sum = reference->sums[of_sum] + bias, v = activate(c.activation, sum), due = v * multiplier + residual,
                 found = gpu_to_double(y, o->dtype, at);
    /* activations magnify the error of the sum at most 1.13 times */
    const double of_sums =
                     gpu_bound_of_sum(reference->magnitudes[of_sum], product->layer->info.cols) + 0x1p-24 * fabs(sum),
                 wrong = (1.13 * of_sums + 0x1p-20 * fabs(v)) * fabs(multiplier) + 0x1p-24 * fabs(due) + 0x1p-140;
    if (!(fabs(found - due) <= wrong + gpu_bound_of_rounding(fabs(due) + wrong, o->dtype)))
        ck_abort_msg("%s: activation %d, bias %d, multiplier %d, residual %d: y[%u][%u] = %g, not %g", product->name,
                     (int)c.activation, (int)c.bias, (int)c.multiplier, (int)c.residual, i, row, found, due);
}

static void check_product(gpu_product *product, const gpu_input *input, const gpu_reference *reference, combination c,
                          const operands *o) {
    void *y = gpu_malloc(product->y.bytes);
    gpu_memory_poison(&product->workspace);
    queue(product, input, c, o, NULL);
    gpu_memory_read(&product->y, y);
    gpu_memory tail = {(char *)product->workspace.at + product->workspace.bytes, 0, product->workspace.guard_bytes};
    char nothing;
    gpu_memory_read(&tail, &nothing);
    for (uint32_t n = 0; n < reference->num_rows; n++)
        for (uint32_t i = 0; i < product->info.m; i++)
            check_value(product, reference, c, o, i, n, y);
    free(y);
}

/* How the fused products shared rows. */
static int stream_k, in_clusters, alone;

static void note_way(const trf_plan *plan) {
    const trf_fused_partition *fused = &plan->partition.fused.last;
    if (plan->path == TRF_PATH_FUSED) {
        stream_k += fused->is_stream_k != 0;
        in_clusters += fused->cluster_size > 1;
        alone += !fused->is_stream_k && fused->cluster_size == 1;
    }
}

/* Checks a few of the combinations, in turn. @return whether the path took the product. */
static int check_path(test_rng *rng, const gpu_layer *layer, const gpu_input *input, const gpu_reference *reference,
                      uint32_t m, trf_dtype x_dtype, trf_path path) {
    static unsigned turn;
    const trf_plan_options options = test_plan_options(m, x_dtype, kYTypes[turn % 3], path);
    operands o = operands_make(rng, options.y_dtype, m, layer->info.rows);
    int taken = 0;
    for (; taken < (test_quick() ? 1 : 3); taken++, turn++) {
        const combination c = kCombinations[turn % COMBINATIONS];
        gpu_product product;
        if (make_product(&product, layer, options, c) != TRF_OK)
            break;
        if (taken == 0)
            note_way(product.plan);
        check_product(&product, input, reference, c, &o);
        gpu_product_free(&product);
    }
    operands_free(&o);
    return taken > 0;
}

/* @return how many fused products there were. */
static int check_layer(test_rng *rng, const gpu_layer *layer) {
    static const uint32_t batches[] = {1, 8, 16, MOST_M};
    trf_error err = {0};
    int fused = 0;
    gpu_input input = gpu_input_normal(rng, MOST_M, layer->info.cols);
    gpu_reference exact = gpu_reference_make(rng, layer, &input, TRF_DTYPE_NONE, MOST_ROWS);
    for (int t = 0; t < 2; t++) {
        if (!gpu_takes(layer, kXTypes[t]))
            continue;
        for (int b = 0; b < 4; b++)
            fused += check_path(rng, layer, &input, &exact, batches[b], kXTypes[t], TRF_PATH_FUSED);
        gpu_reference rounded = gpu_reference_make(rng, layer, &input, kXTypes[t], MOST_ROWS);
        if (!check_path(rng, layer, &input, &rounded, MOST_M, kXTypes[t], TRF_PATH_TWO_STEP))
            ck_abort_msg("%s: no two-step product", layer->name);
        gpu_reference_free(&rounded);
    }
    gpu_reference_free(&exact);
    gpu_input_free(&input);
    gpu_check(trf_device_layer_check(layer->device, &err), TRF_OK, &err, layer->name);
    return fused;
}

/* Shapes with rows after the last whole band, with columns outside slabs, with single blocks, and with several that
 * share rows. */
static const gpu_shape kShapes[] = {{300, 515}, {33, 65}, {224, 1152}, {96, 2048}, {15, 300}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0]
};

START_TEST(every_codec) {
    test_rng rng = {12000 + (uint64_t)_i};
    int fused = 0;
    for (int s = 0; s < SHAPES; s++) {
        if (test_quick() && s != _i % SHAPES)
            continue;
        const unsigned k = (unsigned)(s + _i);
        gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[_i], (trf_favor)(k % 2), kGpuSlabCols[k / 2 % 2],
                                         kShapes[s], GPU_WEIGHTS_NORMAL);
        fused += check_layer(&rng, &layer);
        gpu_layer_free(&layer);
    }
    if (!test_quick() && !fused && kGpuRecipes[_i].granularity < TRF_GRANULARITY_SCALE_GROUP)
        ck_abort_msg("%s: no fused product", kGpuRecipes[_i].name);
}
END_TEST

/* Stream-K, clusters of 8, two slabs a warp with an odd number of bands, and a warp a unit. */
START_TEST(every_cut) {
    static const gpu_shape shapes[] = {{160, 14336}, {5216, 2048}, {9000, 300}},
                           quick_shapes[] = {{96, 6144}, {544, 512}, {1000, 300}};
    static const int recipes[] = {0, 2};
    test_rng rng = {13000 + (uint64_t)_i};
    gpu_layer layer =
        gpu_layer_make(&rng, &kGpuRecipes[recipes[_i % 2]], (trf_favor)(_i / 2 % 2), kGpuSlabCols[_i / 4 % 2],
                       test_quick() ? quick_shapes[_i / 8] : shapes[_i / 8], GPU_WEIGHTS_NORMAL);
    if (!check_layer(&rng, &layer))
        ck_abort_msg("%s: no fused product", layer.name);
    gpu_layer_free(&layer);
    if (_i == 8 * 3 - 1)
        printf("fused products with epilogues: %d stream-K, %d in clusters, %d neither\n", stream_k, in_clusters,
               alone);
}
END_TEST

/* ---- the two-step path of packed layers ---- */

/* Replaces the layer's coded device layer by a packed one. @return the coded one. */
static trf_device_layer *pack(gpu_layer *layer) {
    trf_device_layer *const coded = layer->device;
    trf_error err = {0};
    gpu_check(trf_device_layer_convert(coded, TRF_LAYOUT_PACKED, NULL, &layer->device, &err), TRF_OK, &err,
              layer->name);
    return coded;
}

/* Checks what the plan says, and compares every epilogue with F64. */
static void check_packed_two_step(test_rng *rng, const gpu_layer *layer, const gpu_input *input,
                                  const gpu_reference *exact, uint32_t m) {
    for (int i = 0; i < (test_quick() ? 2 : COMBINATIONS); i++) {
        const trf_dtype y_dtype = kYTypes[i % 3];
        const trf_plan_options options = test_plan_options(m, TRF_DTYPE_BF16, y_dtype, TRF_PATH_TWO_STEP);
        operands o = operands_make(rng, y_dtype, m, layer->info.rows);
        gpu_product product;
        ck_assert_int_eq(make_product(&product, layer, options, kCombinations[i]), TRF_OK);
        ck_assert_str_eq(product.info.reason, "the two-step path was asked for");
        ck_assert_uint_ge(product.info.workspace_bytes,
                          2ull * layer->info.rows * layer->info.cols + 4ull * m * layer->info.rows);
        check_product(&product, input, exact, kCombinations[i], &o);
        gpu_product_free(&product);
        operands_free(&o);
    }
}

/* @return y, including what lies between its rows if they have gaps; malloc'd. */
static void *multiply_two_step(const gpu_layer *layer, const gpu_input *input, const trf_plan_options *options,
                               uint64_t *bytes) {
    gpu_product product;
    ck_assert_int_eq(gpu_product_make_as(&product, layer, options), TRF_OK);
    void *y = gpu_malloc(product.y.bytes);
    gpu_product_run(&product, input, y);
    *bytes = product.y.bytes;
    gpu_product_free(&product);
    return y;
}

/* The weights are the same, so the products are those of the coded layer. */
static void check_bits_of_coded(gpu_layer *packed, trf_device_layer *coded, const gpu_input *input, uint32_t m) {
    gpu_layer as_coded = *packed;
    as_coded.device = coded;
    for (int i = 0; i < 6; i++) {
        trf_plan_options options = test_plan_options(m, TRF_DTYPE_BF16, kYTypes[i % 3], TRF_PATH_TWO_STEP);
        uint64_t bytes;
        options.y_stride = i < 3 ? 0 : packed->info.rows + 8;
        void *found = multiply_two_step(packed, input, &options, &bytes),
             *due = multiply_two_step(&as_coded, input, &options, &bytes);
        ck_assert_mem_eq(found, due, bytes);
        free(found);
        free(due);
    }
}

/* loop: shape and batch. */
static const gpu_shape kPackedShapes[] = {{300, 515}, {1024, 1088}};
static const uint32_t kPackedBatches[] = {1, 63, 512, 8192};

START_TEST(packed_two_step) {
    const uint32_t m = kPackedBatches[_i / 2];
    const gpu_shape shape = kPackedShapes[_i % 2];
    test_rng rng = {15000 + (uint64_t)_i};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
    trf_device_layer *const coded = pack(&layer);
    gpu_input input = gpu_input_normal(&rng, m, shape.cols);
    gpu_reference exact = gpu_reference_make(&rng, &layer, &input, TRF_DTYPE_NONE, MOST_ROWS);
    check_packed_two_step(&rng, &layer, &input, &exact, m);
    check_bits_of_coded(&layer, coded, &input, m);
    gpu_reference_free(&exact);
    gpu_input_free(&input);
    trf_device_layer_destroy(coded);
    gpu_layer_free(&layer);
}
END_TEST

static trf_path path_of_auto(const gpu_layer *layer, uint32_t m, combination c) {
    gpu_product product;
    const trf_plan_options options = test_plan_options(m, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO);
    ck_assert_int_eq(make_product(&product, layer, options, c), TRF_OK);
    const trf_path path = product.info.path;
    gpu_product_free(&product);
    return path;
}

/* AUTO takes two-step from 16,384 rows of x on, on cards of the generation that was measured, and without an
 * epilogue. */
START_TEST(packed_auto) {
    static const combination none = {TRF_ACTIVATION_NONE, ABSENT, ABSENT, ABSENT},
                             bias = {TRF_ACTIVATION_NONE, APART, ABSENT, ABSENT};
    test_rng rng = {16000};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 0, kPackedShapes[1], GPU_WEIGHTS_NORMAL);
    trf_device_layer_destroy(pack(&layer));
    const int has_table = gpu_context->limits.capability == 90;
    ck_assert_int_eq(path_of_auto(&layer, 16383, none), TRF_PATH_PACKED);
    ck_assert_int_eq(path_of_auto(&layer, 16384, none), has_table ? TRF_PATH_TWO_STEP : TRF_PATH_PACKED);
    ck_assert_int_eq(path_of_auto(&layer, 16384, bias), TRF_PATH_PACKED);
    gpu_layer_free(&layer);
}
END_TEST

/* ---- the same bits, and graphs ---- */

/* loop: path, batch and layout. Packed layers do not have the path FUSED. */
START_TEST(same_bits_in_graphs_too) {
    static const gpu_shape shape = {1000, 1030};
    const int is_packed = _i >= 4;
    const trf_path path = _i & 1 ? TRF_PATH_TWO_STEP : is_packed ? TRF_PATH_PACKED : TRF_PATH_FUSED;
    const uint32_t m = _i & 2 ? MOST_M : 1;
    const combination c = {TRF_ACTIVATION_SILU, APART, IN_PLACE, APART};
    test_rng rng = {14000 + (uint64_t)_i};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
    if (is_packed)
        trf_device_layer_destroy(pack(&layer));
    gpu_input input = gpu_input_normal(&rng, m, shape.cols);
    gpu_product product;
    ck_assert_int_eq(make_product(&product, &layer, test_plan_options(m, TRF_DTYPE_BF16, TRF_DTYPE_BF16, path), c),
                     TRF_OK);
    operands o = operands_make(&rng, TRF_DTYPE_BF16, m, shape.rows);
    void *first = gpu_malloc(product.y.bytes), *again = gpu_malloc(product.y.bytes);
    queue(&product, &input, c, &o, NULL);
    gpu_memory_read(&product.y, first);
    for (int run = 0; run < (test_quick() ? 5 : 200); run++) {
        gpu_memory_poison(&product.workspace);
        queue(&product, &input, c, &o, NULL);
        gpu_memory_read(&product.y, again);
        ck_assert_mem_eq(first, again, product.y.bytes);
    }
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    queue(&product, &input, c, &o, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int run = 0; run < 5; run++) {
        gpu_memory_poison(&product.y);
        gpu_memory_poison(&product.workspace);
        CUDA(cudaGraphLaunch(executable, stream));
        gpu_memory_read(&product.y, again);
        ck_assert_mem_eq(first, again, product.y.bytes);
    }
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    free(first);
    free(again);
    operands_free(&o);
    gpu_product_free(&product);
    gpu_input_free(&input);
    gpu_layer_free(&layer);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{every_codec, GPU_RECIPES},
                              {every_cut, 8 * 3},
                              {packed_two_step, 2 * 4},
                              {packed_auto, 1},
                              {same_bits_in_graphs_too, 8}};
    return gpu_main("codec_epilogues", tests, sizeof tests / sizeof tests[0]);
}
