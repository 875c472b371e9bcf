/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that owns its memory: it reserves device memory once, asks how much each layer takes, and has layers placed
 * where it wants them. Two layers that stand for attention's q and a fused k|v are encoded here; one comes from host
 * memory, the other is in device memory already. Both write side by side into rows of one y. Everything runs on the GPU
 * if there is one, else on the CPU.
 *
 * Usage: example_engine_memory [cpu] */
#include "transfuse.h"
#include "transfuse/device_memory.h" /* stands for what an engine does with CUDA calls of its own */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 2,
    COLS = 320,
    M = 3, /* rows of x */
    POOL_BYTES = 16 << 20,
    POOL_ALIGNMENT = 256
};

static const uint32_t kRows[LAYERS] = {512, 384};

static void check(trf_status status, const trf_error *err) {
    if (status == TRF_OK)
        return;
    fprintf(stderr, "%s [%s]\n", err->message, trf_status_name(status));
    exit(1);
}

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void *allocate_host(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory)
        fail("no memory");
    return memory;
}

/* ---- the engine's device memory ---- */

typedef struct memory_pool {
    uint8_t *memory;
    uint64_t used;
} memory_pool;

static void *take(memory_pool *pool, uint64_t bytes) {
    void *taken = pool->memory + pool->used;
    pool->used += (bytes + POOL_ALIGNMENT - 1) / POOL_ALIGNMENT * POOL_ALIGNMENT;
    if (pool->used > POOL_BYTES)
        fail("the pool is too small");
    return bytes ? taken : NULL;
}

/* ---- layers ---- */

static float bf16_to_float(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Weights with exponents as trained ones have them, more or less: products of two uniform values. BF16. */
static uint16_t *draw(uint64_t count, uint32_t seed) {
    uint16_t *drawn = allocate_host(count * sizeof *drawn);
    for (uint64_t i = 0; i < count; i++) {
        float value = 0.05f;
        uint32_t bits;
        for (int factor = 0; factor < 2; factor++) {
            seed = seed * 1664525u + 1013904223u;
            value *= (float)(int32_t)seed * 0x1p-31f;
        }
        memcpy(&bits, &value, sizeof bits);
        drawn[i] = (uint16_t)(bits >> 16);
    }
    return drawn;
}

/* The blob of a dense matrix; what it says of itself, and whether it decodes to the same bits. */
static void *encode(const uint16_t *weights, uint32_t rows, uint64_t *blob_bytes) {
    trf_matrix matrix;
    trf_encode_options options;
    trf_layer *layer;
    trf_layer_info info;
    trf_error err;
    void *blob;
    trf_matrix_init(&matrix);
    matrix.weights = weights;
    matrix.dtype = TRF_DTYPE_BF16;
    matrix.rows = rows;
    matrix.cols = COLS;
    trf_encode_options_init(&options);
    options.favor = TRF_FAVOR_SIZE;
    check(trf_encode_layer(&matrix, &options, &blob, blob_bytes, NULL, &err), &err);

    check(trf_layer_from_memory(blob, *blob_bytes, &layer, &err), &err);
    trf_layer_get_info(layer, &info);
    const uint64_t bytes = (uint64_t)info.rows * info.cols * trf_dtype_bytes(info.dtype);
    uint16_t *decoded = allocate_host(bytes);
    check(trf_layer_decode(layer, decoded, bytes, 0, &err), &err);
    printf("%u x %u %s, codec %s: %llu bytes instead of %llu, %s\n", info.rows, info.cols, trf_dtype_name(info.dtype),
           trf_codec_name(info.codec), (unsigned long long)*blob_bytes, (unsigned long long)bytes,
           memcmp(decoded, weights, bytes) ? "and others" : "the same bits");
    free(decoded);
    trf_layer_free(layer);
    return blob;
}

/* Places a layer in the pool. upload_first: the engine has brought the blob to the device itself. */
static trf_device_layer *place(trf_context *context, memory_pool *pool, const void *blob, uint64_t blob_bytes,
                               int upload_first) {
    trf_load_options options;
    trf_layer_size size;
    trf_device_layer *layer;
    trf_error err;
    trf_load_options_init(&options);
    check(trf_device_layer_get_size(context, blob, blob_bytes, &options, &size, &err), &err);
    options.memory = (trf_layer_memory){.buffer = take(pool, size.buffer_bytes),
                                        .buffer_bytes = size.buffer_bytes,
                                        .directory = take(pool, size.directory_bytes),
                                        .directory_bytes = size.directory_bytes};
    if (upload_first) {
        check(trf_device_upload(context, options.memory.buffer, blob, blob_bytes, &err), &err);
        blob = options.memory.buffer; /* where it stays */
        options.buffer_is_on_device = 1;
    }
    check(trf_device_layer_create(context, blob, blob_bytes, &options, &layer, &err), &err);
    return layer;
}

/* ---- products ---- */

/* A plan whose y is `stride` elements from row to row. */
static trf_plan *plan(trf_device_layer *layer, uint64_t stride) {
    trf_plan_options options;
    trf_plan *made;
    trf_error err;
    trf_plan_options_init(&options);
    options.m = M;
    options.x_dtype = TRF_DTYPE_BF16;
    options.y_dtype = TRF_DTYPE_F32;
    options.y_stride = stride;
    check(trf_plan_create(layer, &options, &made, &err), &err);
    return made;
}

/* y[M][all rows] of the layers side by side. x, y: device memory. */
static void multiply(trf_device_layer *const layers[LAYERS], uint64_t all_rows, memory_pool *pool, const void *x,
                     float *y) {
    trf_plan *plans[LAYERS];
    trf_plan_info info;
    trf_operands operands;
    trf_error err;
    uint64_t workspace_bytes = 0, at = 0;
    for (int i = 0; i < LAYERS; i++) {
        plans[i] = plan(layers[i], all_rows);
        trf_plan_get_info(plans[i], &info);
        if (workspace_bytes < info.workspace_bytes)
            workspace_bytes = info.workspace_bytes;
    }
    void *workspace = take(pool, workspace_bytes); /* one for all, since they run one after the other */
    trf_operands_init(&operands);
    operands.x = x;
    for (int i = 0; i < LAYERS; at += kRows[i++]) {
        operands.y = y + at;
        check(trf_linear(plans[i], &operands, workspace, NULL, &err), &err);
    }
    for (int i = 0; i < LAYERS; i++) {
        check(trf_device_layer_check(layers[i], &err), &err); /* waits */
        trf_plan_destroy(plans[i]);
    }
}

/* The largest difference of y from products by the dense weights, which the device decodes. */
static double largest_difference(trf_context *context, trf_device_layer *const layers[LAYERS], memory_pool *pool,
                                 const uint16_t *x, const float *y, uint64_t all_rows) {
    double largest = 0;
    for (uint64_t i = 0, first = 0; i < LAYERS; first += kRows[i++]) {
        const uint64_t bytes = 2ull * kRows[i] * COLS;
        uint16_t *weights = allocate_host(bytes);
        void *decoded = take(pool, bytes);
        trf_error err;
        check(trf_device_layer_decode(layers[i], TRF_DECODE_SOURCE, decoded, bytes, NULL, &err), &err);
        check(trf_device_download(context, weights, decoded, bytes, &err), &err);
        for (uint32_t n = 0; n < M; n++)
            for (uint32_t row = 0; row < kRows[i]; row++) {
                double sum = 0;
                for (uint32_t k = 0; k < COLS; k++)
                    sum += (double)bf16_to_float(x[n * COLS + k]) * (double)bf16_to_float(weights[row * COLS + k]);
                largest = fmax(largest, fabs(sum - (double)y[n * all_rows + first + row]));
            }
        free(weights);
    }
    return largest;
}

int main(int argc, char **argv) {
    trf_context *context;
    trf_context_info device;
    trf_device_layer *layers[LAYERS];
    trf_device_layer_info info;
    memory_pool pool = {0};
    trf_error err;
    uint64_t all_rows = 0;
    check(trf_context_create(argc > 1 && !strcmp(argv[1], "cpu") ? TRF_DEVICE_CPU : TRF_DEVICE_AUTO, &context, &err),
          &err);
    trf_context_get_info(context, &device);
    printf("transfuse %s on %s\n", trf_version(), device.name);
    check(trf_device_allocate(context, POOL_BYTES, (void **)&pool.memory, &err), &err);
    for (int i = 0; i < LAYERS; i++) {
        uint64_t blob_bytes;
        uint16_t *weights = draw((uint64_t)kRows[i] * COLS, 7 + (uint32_t)i);
        void *blob = encode(weights, kRows[i], &blob_bytes);
        layers[i] = place(context, &pool, blob, blob_bytes, i == 1);
        trf_device_layer_get_info(layers[i], &info);
        printf("layer %d: %llu bytes of device memory\n", i, (unsigned long long)info.memory_bytes);
        all_rows += kRows[i];
        trf_free(blob); /* the layer is in the pool */
        free(weights);
    }

    uint16_t *x = draw(M * COLS, 1);
    float *y = allocate_host(M * all_rows * sizeof *y);
    void *x_dev = take(&pool, 2 * M * COLS), *y_dev = take(&pool, M * all_rows * sizeof *y);
    check(trf_device_upload(context, x_dev, x, 2 * M * COLS, &err), &err);
    multiply(layers, all_rows, &pool, x_dev, y_dev);
    check(trf_device_download(context, y, y_dev, M * all_rows * sizeof *y, &err), &err);
    const double difference = largest_difference(context, layers, &pool, x, y, all_rows);
    printf("y: %d x %llu, %s\n", M, (unsigned long long)all_rows, difference < 1e-5 ? "as by dense weights" : "wrong");

    for (int i = 0; i < LAYERS; i++)
        trf_device_layer_destroy(layers[i]);
    trf_device_free(context, pool.memory);
    trf_context_destroy(context);
    free(x);
    free(y);
    return difference < 1e-5 ? 0 : 1;
}
