/* SPDX-License-Identifier: Apache-2.0 */
/* The MLP block of a Llama, from a compressed checkpoint: y = down(silu(gate(x)) * up(x)), on the GPU if there is one,
 * else on the CPU. Three products, and nothing between them: what silu(gate) * up takes is gate's epilogue, which
 * overwrites the output of up.
 *
 * Usage: example_mlp_block CHECKPOINT PREFIX X.f32 Y.f32 [cpu]
 *   PREFIX    such as model.layers.0.mlp; gate_proj, up_proj and down_proj below it are compressed (not from F16)
 *   X.f32     F32 values without a header, a row for each token; rounded to BF16, as are the activations in between
 *   Y.f32     is replaced */
#include "transfuse.h"
#include "transfuse/device_memory.h" /* only for device memory: programs with CUDA calls of their own do without */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GATE,
    UP,
    DOWN,
    LAYERS
};

static void check(trf_status status, const trf_error *err) {
    if (status == TRF_OK)
        return;
    fprintf(stderr, "%s [%s]\n", err->message, trf_status_name(status));
    exit(1);
}

static void *allocate_host(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    return memory;
}

static void *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    *bytes = (size_t)ftell(file);
    void *memory = allocate_host(*bytes);
    rewind(file);
    if (fread(memory, 1, *bytes, file) != *bytes) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    return memory;
}

static void write_file(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, count, file) != count || fclose(file) != 0) {
        fprintf(stderr, "%s cannot be written\n", path);
        exit(1);
    }
}

/* To nearest even; NaNs stay NaNs. */
static uint16_t round_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* One layer, prepared for a batch; the workspace is in device memory. */
typedef struct prepared_layer {
    trf_device_layer *layer;
    trf_layer_info info;
    trf_plan *plan;
    void *workspace;
} prepared_layer;

static void load(trf_context *context, trf_checkpoint *checkpoint, const char *prefix, const char *name,
                 prepared_layer *prepared) {
    char tensor[512];
    trf_device_layer_info info;
    trf_error err;
    snprintf(tensor, sizeof tensor, "%s.%s.weight", prefix, name);
    check(trf_device_layer_load(context, checkpoint, tensor, NULL, &prepared->layer, &err), &err);
    trf_device_layer_get_info(prepared->layer, &info);
    prepared->info = info.layer;
    printf("%-40s %u x %u, %.2f bits a weight\n", tensor, info.layer.rows, info.layer.cols,
           8.0 * (double)info.layer.blob_bytes / info.layer.rows / info.layer.cols);
}

static void prepare(trf_context *context, const trf_plan_options *options, prepared_layer *prepared) {
    trf_plan_info info;
    trf_error err;
    check(trf_plan_create(prepared->layer, options, &prepared->plan, &err), &err);
    trf_plan_get_info(prepared->plan, &info);
    check(trf_device_allocate(context, info.workspace_bytes, &prepared->workspace, &err), &err);
    printf("%u x %u: %s%s%s\n", prepared->info.rows, prepared->info.cols, info.path_name,
           info.reason ? ", because " : "", info.reason ? info.reason : "");
}

static void unload(trf_context *context, prepared_layer *layer) {
    trf_plan_destroy(layer->plan);
    trf_device_free(context, layer->workspace);
    trf_device_layer_destroy(layer->layer);
}

/* Plans the three products for m rows of x. */
static void prepare_block(trf_context *context, uint32_t m, prepared_layer layers[LAYERS]) {
    trf_plan_options options;
    trf_plan_options_init(&options);
    options.m = m;
    options.x_dtype = options.y_dtype = TRF_DTYPE_BF16;
    prepare(context, &options, &layers[UP]);
    options.activation = TRF_ACTIVATION_SILU;
    options.has_multiplier = 1;
    prepare(context, &options, &layers[GATE]);
    options.activation = TRF_ACTIVATION_NONE;
    options.has_multiplier = 0;
    options.y_dtype = TRF_DTYPE_F32;
    prepare(context, &options, &layers[DOWN]);
}

/* Only enqueues the products. x, intermediate, y: device memory. */
static void enqueue_block(const prepared_layer layers[LAYERS], const void *x, void *intermediate, void *y) {
    trf_error err;
    trf_operands up, gate, down;
    trf_operands_init(&up);
    up.x = x;
    up.y = intermediate;
    trf_operands_init(&gate);
    gate.x = x;
    gate.y = intermediate;
    gate.multiplier = intermediate; /* overwritten in place */
    trf_operands_init(&down);
    down.x = intermediate;
    down.y = y;
    check(trf_linear(layers[UP].plan, &up, layers[UP].workspace, NULL, &err), &err);
    check(trf_linear(layers[GATE].plan, &gate, layers[GATE].workspace, NULL, &err), &err);
    check(trf_linear(layers[DOWN].plan, &down, layers[DOWN].workspace, NULL, &err), &err);
}

/* y of m rows of x; both in host memory. */
static void run_block(trf_context *context, const prepared_layer layers[LAYERS], uint32_t m, const float *x, float *y) {
    const uint64_t x_count = (uint64_t)m * layers[GATE].info.cols, y_count = (uint64_t)m * layers[DOWN].info.rows;
    uint16_t *rounded = allocate_host(2 * x_count);
    void *input, *intermediate, *output;
    trf_error err;
    for (uint64_t i = 0; i < x_count; i++)
        rounded[i] = round_to_bf16(x[i]);
    check(trf_device_allocate(context, 2 * x_count, &input, &err), &err);
    check(trf_device_allocate(context, 2ull * m * layers[GATE].info.rows, &intermediate, &err), &err);
    check(trf_device_allocate(context, 4 * y_count, &output, &err), &err);
    check(trf_device_upload(context, input, rounded, 2 * x_count, &err), &err);
    enqueue_block(layers, input, intermediate, output);
    check(trf_device_download(context, y, output, 4 * y_count, &err), &err); /* waits */
    for (int i = 0; i < LAYERS; i++)
        check(trf_device_layer_check(layers[i].layer, &err), &err);
    trf_device_free(context, input);
    trf_device_free(context, intermediate);
    trf_device_free(context, output);
    free(rounded);
}

int main(int argc, char **argv) {
    static const char *const names[LAYERS] = {"gate_proj", "up_proj", "down_proj"};
    if (argc < 5 || argc > 6 || (argc == 6 && strcmp(argv[5], "cpu") != 0)) {
        fprintf(stderr, "usage: %s CHECKPOINT PREFIX X.f32 Y.f32 [cpu]\n", argv[0]);
        return 2;
    }
    trf_error err;
    trf_context *context;
    trf_context_info device;
    trf_checkpoint *checkpoint;
    size_t x_bytes;
    prepared_layer layers[LAYERS] = {0};
    float *x = read_file(argv[3], &x_bytes);
    check(trf_context_create(argc == 6 ? TRF_DEVICE_CPU : TRF_DEVICE_AUTO, &context, &err), &err);
    check(trf_checkpoint_open(argv[1], &checkpoint, &err), &err);
    for (int i = 0; i < LAYERS; i++)
        load(context, checkpoint, argv[2], names[i], &layers[i]);
    trf_checkpoint_close(checkpoint);
    const trf_layer_info *gate = &layers[GATE].info, *up = &layers[UP].info, *down = &layers[DOWN].info;
    const size_t m = x_bytes / sizeof *x / gate->cols;
    if (m < 1 || m > 1u << 20 || m * gate->cols * sizeof *x != x_bytes || up->rows != gate->rows ||
        up->cols != gate->cols || down->cols != gate->rows) {
        fprintf(stderr, "the shapes of x and the three layers do not fit\n");
        return 1;
    }
    prepare_block(context, (uint32_t)m, layers);
    float *y = allocate_host(4 * m * down->rows);
    run_block(context, layers, (uint32_t)m, x, y);
    write_file(argv[4], y, 4 * m * down->rows);
    trf_context_get_info(context, &device);
    printf("%zu rows on %s\n", m, device.name);

    free(x);
    free(y);
    for (int i = 0; i < LAYERS; i++)
        unload(context, &layers[i]);
    trf_context_destroy(context);
    return 0;
}
