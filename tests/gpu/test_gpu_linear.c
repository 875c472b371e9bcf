/* SPDX-License-Identifier: Apache-2.0 */
/* Products on the device: both paths compared with F64, for every codec, scale layout, batch and type; the bits of
 * single weights; the same bits on every run; graphs; batches that need cuBLASLt when it is missing. */
#include "gpu_products.h"
#include "trf_context.h"
#include "trf_number_formats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t kBatches[] = {1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 48, 64, 100};
static const uint32_t kQuickBatches[] = {1, 8, 17, 64};
enum {
    BATCHES = sizeof kBatches / sizeof kBatches[0],
    QUICK_BATCHES = sizeof kQuickBatches / sizeof kQuickBatches[0],
    MOST_ROWS = 80, /* of a layer that are computed in F64 */
    ALL_ROWS = 1 << 30
};
static const trf_dtype kXTypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F16};
static const trf_dtype kYTypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};

/* ---- against F64 ---- */

/* Checks all batches of one layer on one path, with one type of x. @return how many of them the path took. */
static int check_batches(const gpu_layer *layer, const gpu_input *input, const gpu_reference *reference,
                         trf_dtype x_dtype, trf_path path) {
    static unsigned turn;
    const uint32_t *batches = test_quick() ? kQuickBatches : kBatches;
    const int count = test_quick() ? QUICK_BATCHES : BATCHES;
    int taken = 0;
    float *y = gpu_malloc((size_t)input->m * layer->info.rows * sizeof *y);
    for (int b = 0; b < count && batches[b] <= input->m; b++) {
        if (path == TRF_PATH_FUSED && batches[b] > TRF_FUSED_MAX_M)
            continue;
        gpu_product product;
        trf_dtype y_dtype = kYTypes[turn++ % 3];
        if (gpu_product_make(&product, layer, batches[b], x_dtype, y_dtype, path) != TRF_OK)
            continue;
        gpu_product_run(&product, input, y);
        gpu_check_product(&product, reference, y);
        gpu_product_free(&product);
        taken++;
    }
    free(y);
    return taken;
}

static void two_step(const gpu_layer *layer, const gpu_input *input, const gpu_reference *reference,
                     trf_dtype x_dtype) {
    if (!check_batches(layer, input, reference, x_dtype, TRF_PATH_TWO_STEP))
        ck_abort_msg("%s: no two-step product", layer->name);
}

/* Checks both paths and both types of x. most_rows: the most rows that are computed in F64. @return how many fused
 * products there were. */
static int check_layer(test_rng *rng, const gpu_layer *layer, uint32_t most_rows) {
    trf_error err = {0};
    gpu_input input = gpu_input_normal(rng, test_quick() ? 64 : 100, layer->info.cols);
    gpu_reference exact = gpu_reference_make(rng, layer, &input, TRF_DTYPE_NONE, most_rows);
    int fused = 0;
    for (int t = 0; t < 2; t++) {
        if (!gpu_takes(layer, kXTypes[t]))
            continue;
        fused += check_batches(layer, &input, &exact, kXTypes[t], TRF_PATH_FUSED);
        if (!layer->view.num_scales) { /* these weights are exact in either type */
            two_step(layer, &input, &exact, kXTypes[t]);
            continue;
        }
        gpu_reference rounded = gpu_reference_make(rng, layer, &input, kXTypes[t], most_rows);
        two_step(layer, &input, &rounded, kXTypes[t]);
        gpu_reference_free(&rounded);
    }
    gpu_reference_free(&exact);
    gpu_input_free(&input);
    gpu_check(trf_device_layer_check(layer->device, &err), TRF_OK, &err, layer->name);
    return fused;
}

static const gpu_shape kShapes[] = {{300, 515},  {33, 65},     {512, 2880}, {1, 1},    {15, 300},
                                    {16, 16},    {32, 64},     {256, 256},  {64, 512}, {17, 8192},
                                    {96, 16384}, {1000, 1030}, {288, 832},  {1, 4096}, {80, 400}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0],
    QUICK_SHAPES = 3 /* the first ones */
};

/* The recipes of kGpuRecipes some of whose layers have codes of more than 8 bits, column offsets, or scale groups that
 * are not multiples of 32. */
static const int kMayBeRefused[GPU_RECIPES] = {[7] = 1, [9] = 1, [10] = 1, [11] = 1, [13] = 1, [14] = 1, [17] = 1};

START_TEST(near_f64) {
    const gpu_recipe *recipe = &kGpuRecipes[_i];
    const int shapes = test_quick() ? QUICK_SHAPES : SHAPES;
    test_rng rng = {5000 + (uint64_t)_i};
    int fused = 0, layers = 0;
    for (int s = 0; s < shapes; s++)
        for (uint32_t k = 0; k < 2 * GPU_NUM_SLAB_COLS; k++) {
            const trf_favor favor = (trf_favor)(k / GPU_NUM_SLAB_COLS);
            const uint32_t slab_cols = kGpuSlabCols[k % GPU_NUM_SLAB_COLS];
            if (test_quick() && k != (uint32_t)(s + _i) % 4)
                continue;
            gpu_layer layer = gpu_layer_make(&rng, recipe, favor, slab_cols, kShapes[s], GPU_WEIGHTS_NORMAL);
            fused += check_layer(&rng, &layer, MOST_ROWS) > 0;
            layers++;
            gpu_layer_free(&layer);
        }
    printf("%s: the fused path took %d of %d layers\n", recipe->name, fused, layers);
    if (gpu_context->limits.capability == 90 && fused != layers && !kMayBeRefused[_i])
        ck_abort_msg("%s: the fused path refused a layer", recipe->name);
}
END_TEST

/* On a device with clusters, blocks share rows of these shapes in all possible ways: 1, 2, 4 and 8 blocks, one or two
 * slabs a warp, one or several groups of units, even and uneven parts, odd numbers of bands, all of x in shared memory
 * or a window of it. */
static const gpu_shape kLargeShapes[] = {{2048, 5632}, {1024, 4096}, {2080, 1024}, {160, 14336}, {5216, 2048}},
                       kQuickLargeShapes[] = {{512, 768}, {256, 1024}, {224, 1152}, {96, 2048}, {288, 512}};
enum {
    LARGE_SHAPES = sizeof kLargeShapes / sizeof kLargeShapes[0]
};

/* Checks all rows of layers of a realistic size, which the fused path must not refuse. */
START_TEST(large_layers) {
    const gpu_recipe *recipe = &kGpuRecipes[_i / 4];
    const int s = (_i % 4 + _i / 4) % LARGE_SHAPES; /* each shape with quads and pairs, slabs of 128 and of 256 */
    test_rng rng = {6000 + (uint64_t)_i};
    gpu_layer layer = gpu_layer_make(&rng, recipe, (trf_favor)(_i % 2), kGpuSlabCols[_i / 2 % 2],
                                     test_quick() ? kQuickLargeShapes[s] : kLargeShapes[s], GPU_WEIGHTS_NORMAL);
    int fused = check_layer(&rng, &layer, ALL_ROWS);
    if (!fused)
        ck_abort_msg("%s: no fused product", layer.name);
    gpu_layer_free(&layer);
}
END_TEST

/* Infinite weights and NaNs reach their rows of y, and no others. */
START_TEST(nonfinite_weights) {
    static const gpu_shape shapes[] = {{300, 515}, {512, 768}};
    test_rng rng = {7000 + (uint64_t)_i};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[_i / 4], (trf_favor)(_i / 2 % 2),
                                     kGpuSlabCols[(_i + _i / 4) % 2], shapes[_i % 2], GPU_WEIGHTS_NONFINITE);
    check_layer(&rng, &layer, MOST_ROWS);
    gpu_layer_free(&layer);
}
END_TEST

/* ---- single weights ---- */

/* If a row of x has a single 1, y is the weight: bit for bit for float codecs (except for the sign of zero), rounded
 * once for scaled codes. */
static void check_one_hot(const gpu_layer *layer, const uint8_t *finite_rows, trf_dtype x_dtype, trf_path path) {
    const uint32_t rows = layer->info.rows, cols = layer->info.cols;
    float *y = gpu_malloc((size_t)TRF_FUSED_MAX_M * rows * sizeof *y);
    const uint32_t last = (cols - 1) / TRF_FUSED_MAX_M * TRF_FUSED_MAX_M; /* batch */
    const uint32_t step = test_quick() && last > 0 ? last : TRF_FUSED_MAX_M;
    for (uint32_t first = 0; first < cols; first += step) {
        uint32_t m = cols - first < TRF_FUSED_MAX_M ? cols - first : TRF_FUSED_MAX_M;
        gpu_product product;
        if (gpu_product_make(&product, layer, m, x_dtype, TRF_DTYPE_F32, path) != TRF_OK)
            break;
        gpu_input input = gpu_input_one_hot(m, cols, first);
        gpu_product_run(&product, &input, y);
        for (uint32_t i = 0; i < m; i++)
            for (uint32_t r = 0; r < rows; r++) {
                double weight = gpu_layer_weight(layer, r, first + i);
                float expected = (float)(path == TRF_PATH_TWO_STEP ? gpu_round(weight, x_dtype) : weight),
                      found = y[i * (size_t)rows + r];
                if (finite_rows[r] && found != expected)
                    ck_abort_msg("%s: row %u, column %u: %a, not %a", product.name, r, first + i, (double)found,
                                 (double)expected);
            }
        gpu_input_free(&input);
        gpu_product_free(&product);
    }
    free(y);
}

START_TEST(one_hot_gives_the_weight) {
    static const gpu_shape shapes[] = {{300, 515}, {96, 1088}};
    test_rng rng = {8000 + (uint64_t)_i};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[_i / 2], (trf_favor)(_i % 2), kGpuSlabCols[(_i + _i / 4) % 2],
                                     shapes[_i / 2 % 2], GPU_WEIGHTS_FINITE);
    uint8_t *finite_rows = gpu_malloc(layer.info.rows);
    for (uint32_t r = 0; r < layer.info.rows; r++) {
        finite_rows[r] = 1;
        for (uint32_t k = 0; k < layer.info.cols; k++)
            finite_rows[r] &= isfinite(gpu_layer_weight(&layer, r, k)) != 0;
    }
    for (int t = 0; t < 2; t++)
        if (gpu_takes(&layer, kXTypes[t])) {
            check_one_hot(&layer, finite_rows, kXTypes[t], TRF_PATH_FUSED);
            check_one_hot(&layer, finite_rows, kXTypes[t], TRF_PATH_TWO_STEP);
        }
    free(finite_rows);
    gpu_layer_free(&layer);
}
END_TEST

/* x and y need no more alignment than their elements have. The fused path gives the same bits at odd addresses;
 * cuBLASLt may take another algorithm. */
START_TEST(odd_addresses) {
    static const gpu_shape shape = {288, 777};
    const uint32_t m = 5;
    test_rng rng = {9000};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 128, shape, GPU_WEIGHTS_NORMAL);
    gpu_input input = gpu_input_normal(&rng, m, shape.cols);
    const uint64_t x_bytes = (uint64_t)m * shape.cols * 2, y_bytes = (uint64_t)m * shape.rows * 2;
    uint16_t *expected = gpu_malloc(y_bytes), *found = gpu_malloc(y_bytes + 2), *y_host = gpu_malloc(y_bytes);
    gpu_reference reference = gpu_reference_make(&rng, &layer, &input, TRF_DTYPE_NONE, shape.rows);
    for (trf_path path = TRF_PATH_FUSED; path <= TRF_PATH_TWO_STEP; path++) {
        gpu_product product;
        if (gpu_product_make(&product, &layer, m, TRF_DTYPE_BF16, TRF_DTYPE_BF16, path) != TRF_OK)
            continue;
        gpu_product_run(&product, &input, expected);
        gpu_memory x = gpu_memory_make(x_bytes + 2), y = gpu_memory_make(y_bytes + 2);
        CUDA(cudaMemcpy((char *)x.at + 2, input.bf16.at, x_bytes, cudaMemcpyDeviceToDevice));
        trf_error err = {0};
        gpu_check(test_multiply(product.plan, (char *)x.at + 2, (char *)y.at + 2, product.workspace.at, NULL, &err),
                  TRF_OK, &err, product.name);
        gpu_memory_read(&y, found);
        memcpy(y_host, found + 1, y_bytes);
        gpu_check_product(&product, &reference, y_host);
        if (path == TRF_PATH_FUSED)
            ck_assert_mem_eq(y_host, expected, y_bytes);
        ck_assert_uint_eq(found[0], 0xFFFF);
        gpu_memory_free(&x);
        gpu_memory_free(&y);
        gpu_product_free(&product);
    }
    gpu_reference_free(&reference);
    free(expected);
    free(found);
    free(y_host);
    gpu_input_free(&input);
    gpu_layer_free(&layer);
}
END_TEST

/* ---- the same bits ---- */

/* loop: layer, path, and whether another stream is busy. */
START_TEST(same_bits_on_every_run) {
    static const gpu_shape shapes[] = {{1000, 1030}, {2048, 4096}};
    const gpu_shape shape = shapes[_i >> 2 & 1];
    const uint32_t m = _i >> 2 & 1 ? 1 : 17;
    test_rng rng = {9100 + (uint64_t)_i};
    gpu_layer layer =
        gpu_layer_make(&rng, &kGpuRecipes[_i >> 2 & 1 ? 0 : 12], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
    gpu_input input = gpu_input_normal(&rng, m, shape.cols);
    gpu_product product;
    ck_assert_int_eq(gpu_product_make(&product, &layer, m,
                                      gpu_takes(&layer, TRF_DTYPE_BF16) ? TRF_DTYPE_BF16 : TRF_DTYPE_F16, TRF_DTYPE_F32,
                                      _i & 1 ? TRF_PATH_TWO_STEP : TRF_PATH_FUSED),
                     TRF_OK);
    gpu_check_same_bits(&product, &input, _i >> 1 & 1);
    gpu_product_free(&product);
    gpu_input_free(&input);
    gpu_layer_free(&layer);
}
END_TEST

/* Calls on one stream share a workspace, whatever their plans, and it may hold anything: bytes of 0xFF, zeros, what
 * others have left. */
START_TEST(shared_workspace) {
    enum {
        LAYERS = 4,
        PLANS = LAYERS * 4
    };
    static const gpu_shape shapes[LAYERS] = {{512, 768}, {1000, 1030}, {33, 65}, {256, 2048}};
    static const uint32_t batches[2] = {1, 17};
    test_rng rng = {9200};
    gpu_layer layers[LAYERS];
    gpu_input inputs[LAYERS];
    gpu_product products[PLANS];
    float *alone[PLANS] = {0}, *shared = gpu_malloc(17 * 1000 * sizeof(float));
    uint64_t workspace_bytes = 0;
    for (int i = 0; i < PLANS; i++) {
        int l = i / 4;
        if (i % 4 == 0) {
            layers[l] = gpu_layer_make(&rng, &kGpuRecipes[l * 4], (trf_favor)(l % 2), 0, shapes[l], GPU_WEIGHTS_NORMAL);
            inputs[l] = gpu_input_normal(&rng, 17, shapes[l].cols);
        }
        trf_dtype x_dtype = gpu_takes(&layers[l], TRF_DTYPE_BF16) ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
        gpu_product_make(&products[i], &layers[l], batches[i & 1], x_dtype, TRF_DTYPE_F32,
                         i & 2 ? TRF_PATH_TWO_STEP : TRF_PATH_AUTO);
        alone[i] = gpu_malloc(products[i].y.bytes);
        gpu_product_run(&products[i], &inputs[l], alone[i]);
        if (products[i].info.workspace_bytes > workspace_bytes)
            workspace_bytes = products[i].info.workspace_bytes;
    }
    gpu_memory workspace = gpu_memory_make(workspace_bytes);
    for (int round = 0; round < 5; round++)
        for (int n = 0; n < PLANS; n++) {
            int i = (n * 7 + round) % PLANS;
            gpu_product product = products[i];
            product.workspace = workspace;
            if (round < 2)
                CUDA(cudaMemset(workspace.at, round == 0 ? 0xFF : 0, workspace.bytes));
            gpu_product_run_on(&product, &inputs[i / 4], shared);
            if (memcmp(shared, alone[i], product.y.bytes) != 0)
                ck_abort_msg("%s, round %d: what the workspace held changes y", product.name, round);
        }
    gpu_memory_free(&workspace);
    for (int i = 0; i < PLANS; i++) {
        gpu_product_free(&products[i]);
        free(alone[i]);
    }
    for (int l = 0; l < LAYERS; l++) {
        gpu_input_free(&inputs[l]);
        gpu_layer_free(&layers[l]);
    }
    free(shared);
}
END_TEST

/* A product and a decoding, captured and replayed. */
START_TEST(graphs) {
    static const gpu_shape shape = {1000, 1030};
    const uint32_t m = _i & 2 ? 33 : 1;
    test_rng rng = {9300 + (uint64_t)_i};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
    gpu_input input = gpu_input_normal(&rng, m, shape.cols);
    gpu_product product;
    ck_assert_int_eq(gpu_product_make(&product, &layer, m, TRF_DTYPE_BF16, TRF_DTYPE_F32,
                                      _i & 1 ? TRF_PATH_TWO_STEP : TRF_PATH_FUSED),
                     TRF_OK);
    gpu_check_graph(&product, &input);
    gpu_product_free(&product);
    gpu_input_free(&input);
    gpu_layer_free(&layer);
}
END_TEST

/* ---- without cuBLASLt ---- */

/* The operands of a product's rows from `first` on. values: those of x, and of all that the epilogue adds and
 * multiplies by; y: has 16-bit elements. */
static trf_operands operands_from(const trf_plan_options *options, uint32_t cols, const uint16_t *values, uint16_t *y,
                                  uint32_t first) {
    trf_operands operands = test_operands(values + (size_t)first * cols, y + first * options->y_stride);
    operands.bias = values;
    operands.multiplier = values + first * options->multiplier_stride;
    operands.residual = values + first * options->residual_stride;
    return operands;
}

/* If cuBLASLt is missing, more rows than fused kernels take are multiplied in passes, with the bits that plans of their
 * rows give. loop: rows of x. */
static const uint32_t kRowsInPasses[] = {65, 128, 150};

START_TEST(passes_without_cublaslt) {
    static uint64_t no_library[8]; /* how a trf_gemm without one begins */
    static const gpu_shape shape = {288, 777};
    const uint32_t m = kRowsInPasses[_i];
    test_rng rng = {9400};
    trf_error err = {0};
    trf_plan *plan;
    gpu_product whole;
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 128, shape, GPU_WEIGHTS_NORMAL);
    gpu_input input = gpu_input_normal(&rng, m, shape.cols);
    trf_plan_options options = test_plan_options(m, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO);
    options.has_bias = options.has_multiplier = options.has_residual = 1;
    options.y_stride = 300, options.multiplier_stride = 310, options.residual_stride = 320;
    struct trf_gemm *const gemm = gpu_context->gemm;
    gpu_context->gemm = (struct trf_gemm *)no_library;
    gpu_check(test_make_plan(layer.device, m, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_TWO_STEP, &plan, &err),
              TRF_ERR_UNSUPPORTED, &err, "two-step without cuBLASLt");
    gpu_product_make_as(&whole, &layer, &options);
    gpu_context->gemm = gemm;
    ck_assert_int_eq(whole.info.path, TRF_PATH_FUSED);
    gpu_memory parts = gpu_memory_make(whole.y.bytes);
    gpu_memory_poison(&whole.y);
    gpu_memory_poison(&parts);
    trf_operands operands = operands_from(&options, shape.cols, input.bf16.at, whole.y.at, 0);
    gpu_check(trf_linear(whole.plan, &operands, gpu_product_workspace(&whole), NULL, &err), TRF_OK, &err, whole.name);
    options.path = TRF_PATH_FUSED;
    for (uint32_t first = 0; first < m; first += options.m) {
        gpu_product part;
        options.m = m - first < TRF_FUSED_MAX_M ? m - first : TRF_FUSED_MAX_M;
        ck_assert_int_eq(gpu_product_make_as(&part, &layer, &options), TRF_OK);
        operands = operands_from(&options, shape.cols, input.bf16.at, parts.at, first);
        gpu_check(trf_linear(part.plan, &operands, gpu_product_workspace(&part), NULL, &err), TRF_OK, &err, part.name);
        gpu_product_free(&part);
    }
    uint8_t *const due = gpu_malloc(parts.bytes), *const found = gpu_malloc(parts.bytes);
    gpu_memory_read(&parts, due);
    gpu_memory_read(&whole.y, found);
    ck_assert_mem_eq(found, due, parts.bytes);
    free(due);
    free(found);
    gpu_memory_free(&parts);
    gpu_product_free(&whole);
    gpu_input_free(&input);
    gpu_layer_free(&layer);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{near_f64, GPU_RECIPES},
                              {large_layers, 4 * 9}, /* floats, i8, and codes scaled by tensor or row */
                              {nonfinite_weights, 4 * GPU_FLOAT_RECIPES},
                              {one_hot_gives_the_weight, 2 * GPU_RECIPES},
                              {odd_addresses, 1},
                              {same_bits_on_every_run, 8},
                              {shared_workspace, 1},
                              {graphs, 4},
                              {passes_without_cublaslt, sizeof kRowsInPasses / sizeof kRowsInPasses[0]}};
    return gpu_main("linear", tests, sizeof tests / sizeof tests[0]);
}
