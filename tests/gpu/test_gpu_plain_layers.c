/* SPDX-License-Identifier: Apache-2.0 */
/* Plain layers on a GPU, in addition to what tests/unit/test_device_plain.c tests on any device: products compared with
 * F64, the same bits on every run, graphs; layers that are loaded in many parts, whatever bits they have; several loads
 * at once; and nothing of a load stays. */
#include "gpu_products.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_ROWS = 96, /* of a layer that are computed in F64 */
    LOADS = 6
};
static const gpu_shape kShapes[] = {{1, 1}, {333, 77}, {32, 512}, {1100, 704}, {4096, 264}};
static const uint32_t kBatches[] = {1, 8, 33, 64, 65, 300};
static const trf_dtype kYTypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0],
    BATCHES = sizeof kBatches / sizeof kBatches[0]
};

static int is_plain_codec(const gpu_recipe *recipe) {
    return recipe->codec == TRF_CODEC_BF16 ||
           (recipe->codec == TRF_CODEC_AUTO && (recipe->dtype == TRF_DTYPE_BF16 || recipe->dtype == TRF_DTYPE_F16));
}

/* A layer's blob, loaded plain. */
static trf_device_layer *load_plain(const gpu_layer *layer) {
    trf_load_options options;
    trf_device_layer *plain = NULL;
    trf_error err = {0};
    trf_load_options_init(&options);
    options.layout = TRF_LAYOUT_PLAIN;
    gpu_check(trf_device_layer_create(gpu_context, layer->blob, layer->blob_bytes, &options, &plain, &err), TRF_OK,
              &err, layer->name);
    return plain;
}

/* Makes a layer whose `device` is plain. */
static gpu_layer make_plain(test_rng *rng, const gpu_recipe *recipe, trf_favor favor, gpu_shape shape,
                            gpu_weight_kind kind) {
    gpu_layer layer = gpu_layer_make(rng, recipe, favor, 0, shape, kind);
    trf_device_layer *const coded = layer.device;
    layer.device = load_plain(&layer);
    trf_device_layer_destroy(coded);
    return layer;
}

START_TEST(near_f64) {
    const gpu_recipe *recipe = &kGpuRecipes[_i];
    test_rng rng = {9500 + (uint64_t)_i};
    if (!is_plain_codec(recipe))
        return;
    for (int s = 0; s < (test_quick() ? 2 : SHAPES); s++) {
        gpu_layer layer = make_plain(&rng, recipe, TRF_FAVOR_SPEED, kShapes[s], GPU_WEIGHTS_NORMAL);
        const trf_dtype x_dtype = layer.info.codec == TRF_CODEC_FP16 ? TRF_DTYPE_F16 : TRF_DTYPE_BF16;
        gpu_input input = gpu_input_normal(&rng, kBatches[BATCHES - 1], layer.info.cols);
        gpu_reference exact = gpu_reference_make(&rng, &layer, &input, TRF_DTYPE_NONE, MOST_ROWS);
        float *y = gpu_malloc((size_t)input.m * layer.info.rows * sizeof *y);
        for (int b = 0; b < BATCHES; b++) {
            gpu_product product;
            ck_assert_int_eq(
                gpu_product_make(&product, &layer, kBatches[b], x_dtype, kYTypes[b % 2 ? 0 : 1], TRF_PATH_DENSE),
                TRF_OK);
            gpu_product_run(&product, &input, y);
            gpu_check_product(&product, &exact, y);
            gpu_product_free(&product);
        }
        free(y);
        gpu_reference_free(&exact);
        gpu_input_free(&input);
        gpu_layer_free(&layer);
    }
}
END_TEST

/* loop: batch, and whether another stream is busy. */
static const uint32_t kRepeated[] = {1, 33, 300};
enum {
    REPEATED = sizeof kRepeated / sizeof kRepeated[0]
};

START_TEST(same_bits_and_graphs) {
    static const gpu_shape shape = {1024, 1088};
    const uint32_t m = kRepeated[_i / 2];
    test_rng rng = {9600 + (uint64_t)_i};
    gpu_layer layer = make_plain(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, shape, GPU_WEIGHTS_NORMAL);
    gpu_input input = gpu_input_normal(&rng, m, shape.cols);
    gpu_product product;
    ck_assert_int_eq(gpu_product_make(&product, &layer, m, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO), TRF_OK);
    ck_assert_int_eq(product.info.path, TRF_PATH_DENSE);
    gpu_check_same_bits(&product, &input, _i % 2);
    gpu_check_graph(&product, &input);
    gpu_product_free(&product);
    gpu_input_free(&input);
    gpu_layer_free(&layer);
}
END_TEST

static void check_elements(const gpu_layer *layer, const trf_device_layer *plain) {
    const uint64_t bytes = 2ull * layer->info.rows * layer->info.cols;
    gpu_memory weights = gpu_memory_make(bytes);
    uint16_t *found = gpu_malloc(bytes);
    trf_error err = {0};
    gpu_check(trf_device_layer_decode(plain, TRF_DECODE_ELEMENTS, weights.at, bytes, NULL, &err), TRF_OK, &err,
              layer->name);
    gpu_memory_read(&weights, found);
    ck_assert_mem_eq(found, layer->elements, bytes);
    gpu_memory_free(&weights);
    free(found);
}

/* There are more parts than buffers for them (of 16 MiB of coded weights), with edges and without. One part, a single
 * row of tiles, is larger than a buffer. */
START_TEST(many_parts) {
    static const gpu_shape shapes[] = {{15000, 2100}, {8192, 4096}, {600, 30000}};
    static const gpu_weight_kind kinds[] = {GPU_WEIGHTS_NORMAL, GPU_WEIGHTS_NONFINITE, GPU_WEIGHTS_PATTERNS};
    test_rng rng = {9700 + (uint64_t)_i};
    for (int s = 0; s < (test_quick() ? 1 : 3); s++) {
        gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[_i / 3], (trf_favor)(s % 2),
                                         kGpuSlabCols[s % GPU_NUM_SLAB_COLS], shapes[s], kinds[_i % 3]);
        if (is_plain_codec(&kGpuRecipes[_i / 3])) {
            trf_device_layer *plain = load_plain(&layer);
            check_elements(&layer, plain);
            trf_device_layer_destroy(plain);
            const uint64_t before = gpu_free_bytes(); /* kernels are loaded, and stay */
            plain = load_plain(&layer);
            trf_device_layer_destroy(plain);
            ck_assert_uint_eq(gpu_free_bytes(), before);
        }
        gpu_layer_free(&layer);
    }
}
END_TEST

typedef struct load_work {
    const gpu_layer *layer;
    trf_device_layer *plain;
} load_work;

static void *run_load(void *context) {
    load_work *work = context;
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = TRF_LAYOUT_PLAIN;
    options.threads = 2;
    trf_device_layer_create(gpu_context, work->layer->blob, work->layer->blob_bytes, &options, &work->plain, NULL);
    return NULL;
}

/* Several loads share the streams and the staging buffers. */
START_TEST(several_at_once) {
    static const gpu_shape shape = {5000, 3000};
    test_rng rng = {9800};
    gpu_layer layers[2] = {gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL),
                           gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SIZE, 0, shape, GPU_WEIGHTS_NONFINITE)};
    load_work works[LOADS] = {{0}};
    pthread_t threads[LOADS];
    for (int i = 0; i < LOADS; i++) {
        works[i].layer = &layers[i % 2];
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_load, &works[i]), 0);
    }
    for (int i = 0; i < LOADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < LOADS; i++) {
        ck_assert_ptr_nonnull(works[i].plain);
        check_elements(works[i].layer, works[i].plain);
        trf_device_layer_destroy(works[i].plain);
    }
    gpu_layer_free(&layers[0]);
    gpu_layer_free(&layers[1]);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{near_f64, GPU_RECIPES},
                              {same_bits_and_graphs, 2 * REPEATED},
                              {many_parts, 3 * GPU_FLOAT_RECIPES},
                              {several_at_once, 1}};
    return gpu_main("dense", tests, sizeof tests / sizeof tests[0]);
}
