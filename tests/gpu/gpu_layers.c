/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_layers.h"

#include "trf_decode.h"
#include "trf_number_formats.h"
#include "trf_scale.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const gpu_recipe kGpuRecipes[GPU_RECIPES] = {
    {"bf16", TRF_DTYPE_BF16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"fp16", TRF_DTYPE_F16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"e4m3", TRF_DTYPE_F8_E4M3, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"e5m2", TRF_DTYPE_F8_E5M2, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"bf16 of f32", TRF_DTYPE_F32, TRF_CODEC_BF16, TRF_GRANULARITY_NONE, 0, 0},
    {"i8", TRF_DTYPE_I8, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"int tensor", TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_TENSOR, 0, 0},
    {"int channel", TRF_DTYPE_F16, TRF_CODEC_INT, TRF_GRANULARITY_CHANNEL, 0, 0},
    {"int channel of f32, 4.25 bits", TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_CHANNEL, 0, 4.25},
    {"int scale-group:16", TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 16, 0},
    {"int scale-group:32", TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 32, 0},
    {"int scale-group:48", TRF_DTYPE_F16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 48, 0},
    {"int scale-group:64, 5 bits", TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 64, 5},
    {"int scale-group:128", TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 128, 0},
    {"int scale-group:4096", TRF_DTYPE_F16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 4096, 0},
    {"int scale-block:32", TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 32, 0},
    {"int scale-block:128", TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 128, 0},
    {"int scale-block:272", TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 272, 0},
};

const uint32_t kGpuSlabCols[GPU_NUM_SLAB_COLS] = {128, 256};

gpu_shape gpu_gathered_shape(uint32_t slab_cols) {
    /* There are 4,290 slabs of 256 columns, or twice as many of 128. With 11 warps a multiprocessor, all warps but a
     * few have 3 slabs each, or 6 */
    const gpu_shape shape = {33 * 32 * 256 / slab_cols, 129 * slab_cols + 64};
    return shape;
}

/* ---- weights ---- */

enum {
    POOL = 1 << 15
};

/* Normal numbers, which are drawn only once because logarithms and cosines would take longer than the tests. */
static const double *normal_pool(void) {
    static double pool[POOL];
    if (pool[0] == 0) {
        test_rng rng = {20};
        for (int i = 0; i < POOL; i++)
            pool[i] = test_normal(&rng);
    }
    return pool;
}

static double sigma_of(trf_dtype dtype) { return dtype == TRF_DTYPE_I8 ? 20 : trf_dtype_bytes(dtype) == 1 ? 1 : 0.02; }

static int is_finite(trf_dtype dtype, const void *weight) {
    uint32_t bits = 0;
    memcpy(&bits, weight, trf_dtype_bytes(dtype));
    switch (dtype) {
    case TRF_DTYPE_F32:
        return (bits & 0x7F800000) != 0x7F800000 && (bits & 0x7FFFFFFF) < 0x7F7F8000; /* BF16 would be infinite */
    case TRF_DTYPE_BF16:
        return (bits & 0x7F80) != 0x7F80;
    case TRF_DTYPE_F16:
        return (bits & 0x7C00) != 0x7C00;
    case TRF_DTYPE_F8_E4M3:
        return (bits & 0x7F) != 0x7F;
    case TRF_DTYPE_F8_E5M2:
        return (bits & 0x7C) != 0x7C;
    default:
        return 1;
    }
}

static void put_pattern(test_rng *rng, trf_dtype dtype, void *weight, int finite) {
    size_t bytes = trf_dtype_bytes(dtype);
    do {
        uint64_t bits = test_random(rng);
        memcpy(weight, &bits, bytes);
    } while (finite && !is_finite(dtype, weight));
}

/* Writes a float that is infinite or not a number. */
static void put_nonfinite(test_rng *rng, trf_dtype dtype, void *weight) {
    const int sign = (int)test_below(rng, 2), nan = (int)test_below(rng, 3) == 0;
    uint32_t bits = dtype == TRF_DTYPE_F32       ? 0x7F800000u | (nan ? 0x410000u : 0)
                    : dtype == TRF_DTYPE_BF16    ? 0x7F80u | (nan ? 0x41u : 0)
                    : dtype == TRF_DTYPE_F16     ? 0x7C00u | (nan ? 0x201u : 0)
                    : dtype == TRF_DTYPE_F8_E4M3 ? 0x7Fu
                                                 : 0x7Cu | (nan ? 2u : 0);
    bits |= (uint32_t)sign << (8 * trf_dtype_bytes(dtype) - 1);
    memcpy(weight, &bits, trf_dtype_bytes(dtype));
}

void *gpu_make_weights(test_rng *rng, const gpu_recipe *recipe, gpu_shape shape, gpu_weight_kind kind) {
    const trf_dtype dtype = recipe->dtype;
    const size_t count = (size_t)shape.rows * shape.cols, bytes = trf_dtype_bytes(dtype);
    const double *pool = normal_pool(), sigma = sigma_of(dtype);
    const int scaled = recipe->codec == TRF_CODEC_INT;
    uint8_t *weights = gpu_malloc(count * bytes);
    if (kind == GPU_WEIGHTS_PATTERNS && !scaled) {
        test_fill_patterns(weights, dtype, count);
        return weights;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t random = test_below(rng, UINT32_MAX);
        test_put_weight(weights, dtype, i, sigma * pool[random % POOL]);
        if (scaled || kind == GPU_WEIGHTS_NORMAL)
            continue;
        if (kind == GPU_WEIGHTS_FINITE && random / POOL % 50 == 0)
            put_pattern(rng, dtype, weights + i * bytes, 1);
        if (kind == GPU_WEIGHTS_NONFINITE && dtype != TRF_DTYPE_I8 && random / POOL % 5000 == 0)
            put_nonfinite(rng, dtype, weights + i * bytes);
    }
    return weights;
}

/* ---- layers ---- */

static void decode_elements(gpu_layer *layer) {
    trf_decode_table *table = gpu_malloc(sizeof *table);
    trf_error err = {0};
    layer->elements = gpu_malloc((size_t)layer->info.rows * layer->info.cols * 2);
    trf_decode_table_init(table, &layer->view);
    for (uint64_t t = 0; t < layer->view.num_tiles; t++) {
        trf_tile_shape shape = trf_tile_shape_of(&layer->view.header, t, layer->view.tiles[t].coding);
        uint16_t *to = layer->elements + (size_t)shape.row * layer->info.cols + shape.col;
        trf_status status = trf_decode_tile_best()(&layer->view, table, t,
                                                   (const uint8_t *)layer->blob + layer->view.tiles[t].data_offset, to,
                                                   layer->info.cols, &err);
        if (status != TRF_ERR_RANS) /* which some tests want */
            gpu_check(status, TRF_OK, &err, layer->name);
    }
    free(table);
}

gpu_layer gpu_layer_of_blob(const char *name, void *blob, uint64_t blob_bytes) {
    gpu_layer layer = {.blob = blob, .blob_bytes = blob_bytes};
    trf_error err = {0};
    snprintf(layer.name, sizeof layer.name, "%s", name);
    gpu_check(trf_layer_from_memory(blob, blob_bytes, &layer.host, &err), TRF_OK, &err, name);
    gpu_check(trf_blob_open(blob, blob_bytes, blob_bytes, &layer.view, &err), TRF_OK, &err, name);
    gpu_check(trf_device_layer_create(gpu_context, blob, blob_bytes, NULL, &layer.device, &err), TRF_OK, &err, name);
    trf_layer_get_info(layer.host, &layer.info);
    decode_elements(&layer);
    return layer;
}

void *gpu_encode_weights(const void *weights, const gpu_recipe *recipe, trf_favor favor, uint32_t slab_cols,
                         gpu_shape shape, const char *name, uint64_t *blob_bytes) {
    void *blob;
    trf_encode_options options;
    trf_error err = {0};
    trf_encode_options_init(&options);
    options.codec = recipe->codec;
    options.favor = favor;
    options.slab_cols = slab_cols;
    options.granularity = recipe->granularity;
    options.scale_group_size = recipe->scale_group_size;
    options.bits = recipe->bits;
    options.verify = 0;
    const trf_matrix matrix = test_matrix(weights, recipe->dtype, shape.rows, shape.cols);
    gpu_check(trf_encode_layer(&matrix, &options, &blob, blob_bytes, NULL, &err), TRF_OK, &err, name);
    return blob;
}

void *gpu_encode(test_rng *rng, const gpu_recipe *recipe, trf_favor favor, uint32_t slab_cols, gpu_shape shape,
                 gpu_weight_kind kind, const char *name, uint64_t *blob_bytes) {
    void *const weights = gpu_make_weights(rng, recipe, shape, kind), *const blob = gpu_encode_weights(
                                                                          weights, recipe, favor, slab_cols, shape,
                                                                          name, blob_bytes);
    free(weights);
    return blob;
}

gpu_layer gpu_layer_make(test_rng *rng, const gpu_recipe *recipe, trf_favor favor, uint32_t slab_cols, gpu_shape shape,
                         gpu_weight_kind kind) {
    uint64_t blob_bytes;
    char name[160];
    snprintf(name, sizeof name, "%s, favor %s, slabs of %u, %u x %u, kind %d", recipe->name, favor ? "size" : "speed",
             slab_cols, shape.rows, shape.cols, kind);
    void *blob = gpu_encode(rng, recipe, favor, slab_cols, shape, kind, name, &blob_bytes);
    return gpu_layer_of_blob(name, blob, blob_bytes);
}

gpu_layer gpu_layer_of_golden(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s", TRF_TEST_DATA_DIR, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        ck_abort_msg("%s cannot be read", path);
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    void *blob;
    EXPECT(posix_memalign(&blob, 16, bytes) == 0);
    EXPECT(fread(blob, 1, bytes, file) == bytes);
    fclose(file);
    return gpu_layer_of_blob(name, blob, bytes);
}

void gpu_layer_free(gpu_layer *layer) {
    trf_device_layer_destroy(layer->device);
    trf_layer_free(layer->host);
    free(layer->blob);
    free(layer->elements);
}

/* ---- values ---- */

float gpu_layer_scale(const gpu_layer *layer, uint32_t row, uint32_t col) {
    return layer->view.num_scales ? trf_scale_value(&layer->view, trf_scale_index(&layer->view, row, col)) : 1;
}

double gpu_layer_weight(const gpu_layer *layer, uint32_t row, uint32_t col) {
    uint16_t element = layer->elements[(size_t)row * layer->info.cols + col];
    switch (trf_element_codec(layer->info.codec, layer->info.dtype)) {
    case TRF_CODEC_BF16:
        return (double)trf_bf16_to_f32(element);
    case TRF_CODEC_FP16:
        return (double)trf_f16_to_f32(element);
    case TRF_CODEC_E4M3:
        return (double)trf_e4m3_to_f32((uint8_t)element);
    case TRF_CODEC_E5M2:
        return (double)trf_e5m2_to_f32((uint8_t)element);
    default:
        return (int16_t)element * (double)gpu_layer_scale(layer, row, col);
    }
}

double gpu_to_double(const void *values, trf_dtype dtype, size_t index) {
    if (dtype == TRF_DTYPE_F32)
        return (double)((const float *)values)[index];
    uint16_t bits = ((const uint16_t *)values)[index];
    return (double)(dtype == TRF_DTYPE_BF16 ? trf_bf16_to_f32(bits) : trf_f16_to_f32(bits));
}

double gpu_round(double value, trf_dtype dtype) {
    if (dtype == TRF_DTYPE_F32)
        return (double)(float)value;
    return (double)(dtype == TRF_DTYPE_BF16 ? trf_bf16_to_f32(trf_f64_to_bf16(value))
                                            : trf_f16_to_f32(trf_f64_to_f16(value)));
}
