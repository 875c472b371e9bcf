/* SPDX-License-Identifier: Apache-2.0 */
/* The wide path: every codec that it takes, compared with F64, in all kinds of partitions; the same bits on every run;
 * and corrupt rANS streams. */
#include "gpu_products.h"
#include "trf_context.h"
#include "trf_wide_partition.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BF16 = 0, /* of kGpuRecipes */
    FP16 = 1,
    WIDE_FLOATS = 3, /* of kWideRecipes, the first ones */
    MOST_ROWS = 96   /* of a layer that are computed in F64 */
};
/* The recipes of kGpuRecipes without scale groups and with a codec other than bf16, which has no wide kernels. */
static const int kWideRecipes[] = {FP16, 2, 3, 5, 6, 7, 8};
static const trf_dtype kXTypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F16};
static const trf_dtype kYTypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
/* One band and many; fewer columns than producers, uneven ones, a narrow last one; several work items a block. */
static const gpu_shape kShapes[] = {{32, 512}, {160, 2048}, {96, 8192}, {256, 2112}, {1056, 1344}, {20000, 512}};
/* Every size of a block's part of x, in one block and in two; several such parts. */
static const uint32_t kBatches[] = {1, 40, 48, 64, 65, 96, 110, 128, 130, 190, 224, 256, 300, 384, 512};
enum {
    WIDE_RECIPES = sizeof kWideRecipes / sizeof kWideRecipes[0],
    SHAPES = sizeof kShapes / sizeof kShapes[0],
    BATCHES = sizeof kBatches / sizeof kBatches[0]
};

/* @return how many products the path took. */
static int check_layer(test_rng *rng, const gpu_layer *layer) {
    trf_error err = {0};
    gpu_input input = gpu_input_normal(rng, kBatches[BATCHES - 1], layer->info.cols);
    gpu_reference exact = gpu_reference_make(rng, layer, &input, TRF_DTYPE_NONE, MOST_ROWS);
    float *y = gpu_malloc((size_t)input.m * layer->info.rows * sizeof *y);
    int taken = 0;
    for (int t = 0; t < 2; t++)
        for (int b = 0; gpu_takes(layer, kXTypes[t]) && b < BATCHES; b++) {
            gpu_product product;
            if ((test_quick() && b % 4 != 1) ||
                gpu_product_make(&product, layer, kBatches[b], kXTypes[t], kYTypes[(b + t) % 3], TRF_PATH_WIDE))
                continue;
            gpu_product_run(&product, &input, y);
            gpu_check_product(&product, &exact, y);
            gpu_product_free(&product);
            taken++;
        }
    free(y);
    gpu_reference_free(&exact);
    gpu_input_free(&input);
    gpu_check(trf_device_layer_check(layer->device, &err), TRF_OK, &err, layer->name);
    return taken;
}

START_TEST(near_f64) {
    const gpu_recipe *recipe = &kGpuRecipes[kWideRecipes[_i / 4]];
    test_rng rng = {9000 + (uint64_t)_i};
    int taken = 0;
    for (int s = 0; s < (test_quick() ? 2 : SHAPES); s++) {
        gpu_layer layer =
            gpu_layer_make(&rng, recipe, (trf_favor)(_i % 2), kGpuSlabCols[_i / 2 % 2], kShapes[s], GPU_WEIGHTS_NORMAL);
        taken += check_layer(&rng, &layer);
        gpu_layer_free(&layer);
    }
    printf("%s: the wide path took %d products\n", recipe->name, taken);
    /* It may refuse the decode tables of 8-bit codes of raw integers, and of small layers of some codecs. */
    if (!taken && recipe->codec == TRF_CODEC_AUTO && recipe->dtype != TRF_DTYPE_I8)
        ck_abort_msg("%s: no wide product", recipe->name);
}
END_TEST

/* loop: batch, and whether another stream is busy. */
static const uint32_t kRepeated[] = {40, 64, 90, 128, 180, 300};
enum {
    REPEATED = sizeof kRepeated / sizeof kRepeated[0]
};

START_TEST(same_bits_on_every_run) {
    static const gpu_shape shape = {2048, 2048};
    const uint32_t m = kRepeated[_i / 2];
    test_rng rng = {9100 + (uint64_t)_i};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[FP16], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
    gpu_input input = gpu_input_normal(&rng, m, shape.cols);
    gpu_product product;
    ck_assert_int_eq(gpu_product_make(&product, &layer, m, TRF_DTYPE_F16, TRF_DTYPE_F32, TRF_PATH_WIDE), TRF_OK);
    gpu_check_same_bits(&product, &input, _i % 2);
    gpu_product_free(&product);
    gpu_input_free(&input);
    gpu_layer_free(&layer);
}
END_TEST

START_TEST(graphs) {
    static const gpu_shape shape = {1024, 1088};
    const uint32_t m = kRepeated[_i];
    test_rng rng = {9400 + (uint64_t)_i};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[FP16], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
    gpu_input input = gpu_input_normal(&rng, m, shape.cols);
    gpu_product product;
    ck_assert_int_eq(gpu_product_make(&product, &layer, m, TRF_DTYPE_F16, TRF_DTYPE_F32, TRF_PATH_WIDE), TRF_OK);
    gpu_check_graph(&product, &input);
    gpu_product_free(&product);
    gpu_input_free(&input);
    gpu_layer_free(&layer);
}
END_TEST

/* Infinite weights and NaNs are exceptions: they reach their rows of y, and no others. */
START_TEST(nonfinite_weights) {
    test_rng rng = {9200 + (uint64_t)_i};
    static const gpu_shape shape = {256, 1024};
    const gpu_recipe *recipe = &kGpuRecipes[kWideRecipes[_i % WIDE_FLOATS]];
    gpu_layer layer = gpu_layer_make(&rng, recipe, (trf_favor)(_i / WIDE_FLOATS), 0, shape, GPU_WEIGHTS_NONFINITE);
    check_layer(&rng, &layer);
    gpu_layer_free(&layer);
}
END_TEST

START_TEST(refusals) {
    static const struct {
        gpu_shape shape;
        int recipe;
        const char *reason;
    } cases[] = {{{300, 512}, FP16, "multiples"}, {{256, 500}, FP16, "multiples"}, {{256, 512}, BF16, "bf16"}};
    test_rng rng = {9300};
    for (int i = 0; i < 3; i++) {
        gpu_layer layer =
            gpu_layer_make(&rng, &kGpuRecipes[cases[i].recipe], TRF_FAVOR_SPEED, 0, cases[i].shape, GPU_WEIGHTS_NORMAL);
        const trf_dtype x_dtype = cases[i].recipe == BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
        trf_plan *plan = NULL;
        trf_error err = {0};
        gpu_check(test_make_plan(layer.device, 64, x_dtype, TRF_DTYPE_F32, TRF_PATH_WIDE, &plan, &err),
                  TRF_ERR_UNSUPPORTED, &err, layer.name);
        ck_assert_ptr_null(plan);
        ck_assert_ptr_nonnull(strstr(err.message, "the wide path does not take"));
        ck_assert_ptr_nonnull(strstr(err.message, cases[i].reason));
        gpu_layer_free(&layer);
    }
}
END_TEST

static const char *lacks_wide(const trf_context *context) { return trf_wide_device_refusal(&context->limits); }

int main(void) {
    const gpu_test tests[] = {{near_f64, 4 * WIDE_RECIPES},
                              {same_bits_on_every_run, 2 * REPEATED},
                              {graphs, REPEATED},
                              {nonfinite_weights, 2 * WIDE_FLOATS},
                              {refusals, 1}};
    return gpu_main_unless(lacks_wide, "wide", tests, sizeof tests / sizeof tests[0]);
}
