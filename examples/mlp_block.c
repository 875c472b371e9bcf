/* The MLP block of a Llama, from a compressed checkpoint: y = down(silu(gate(x)) * up(x)), on the GPU if there is one,
 * else on the CPU. Three products, and nothing between them: what silu(gate) * up takes is gate's epilogue, which
 * overwrites the output of up.
 *
 * Usage: example_mlp_block CHECKPOINT PREFIX X.npy Y.npy [cpu]
 *   PREFIX    such as model.layers.0.mlp; gate_proj, up_proj and down_proj below it are compressed (not from F16)
 *   X.npy     F32 or F16, a row for each token; rounded to BF16, as are the activations in between
 *   Y.npy     is replaced */
#include "transfuse.h"

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
    trf_linear_plan plan;
    void *workspace;
} prepared_layer;

static prepared_layer load(trf_context *context, trf_checkpoint *checkpoint, const char *prefix, const char *name,
                           uint32_t m, trf_dtype y_dtype) {
    char tensor[512];
    prepared_layer prepared;
    trf_error err;
    snprintf(tensor, sizeof tensor, "%s.%s.weight", prefix, name);
    check(trf_device_layer_load(context, checkpoint, tensor, NULL, &prepared.layer, &err), &err);
    trf_device_layer_get_info(prepared.layer, &prepared.info);
    check(trf_linear_plan_init(prepared.layer, m, TRF_DTYPE_BF16, y_dtype, TRF_PATH_AUTO, &prepared.plan, &err), &err);
    check(trf_device_allocate(context, prepared.plan.epilogue_workspace_bytes, &prepared.workspace, &err), &err);
    printf("%-40s %u x %u, %.2f bits a weight, %s\n", tensor, prepared.info.rows, prepared.info.cols,
           8.0 * (double)prepared.info.blob_bytes / prepared.info.rows / prepared.info.cols,
           prepared.plan.path == TRF_PATH_FUSED ? "fused" : prepared.plan.reason);
    return prepared;
}

static void unload(trf_context *context, prepared_layer *layer) {
    trf_device_free(context, layer->workspace);
    trf_device_layer_destroy(layer->layer);
}

/* Only enqueues the product. x, y: device memory. */
static void enqueue(const prepared_layer *layer, const void *x, void *y, const trf_epilogue *epilogue) {
    trf_error err;
    check(trf_linear_with(layer->layer, &layer->plan, x, y, epilogue, layer->workspace, NULL, &err), &err);
}

int main(int argc, char **argv) {
    static const char *const names[LAYERS] = {"gate_proj", "up_proj", "down_proj"};
    if (argc < 5 || argc > 6 || (argc == 6 && strcmp(argv[5], "cpu") != 0)) {
        fprintf(stderr, "usage: %s CHECKPOINT PREFIX X.npy Y.npy [cpu]\n", argv[0]);
        return 2;
    }
    trf_error err;
    trf_context *context;
    trf_checkpoint *checkpoint;
    float *x;
    uint64_t m, hidden;
    check(trf_read_npy(argv[3], &x, &m, &hidden, &err), &err);
    check(trf_context_create(argc == 6 ? TRF_DEVICE_CPU : TRF_DEVICE_AUTO, &context, &err), &err);
    check(trf_checkpoint_open(argv[1], &checkpoint, &err), &err);
    if (m < 1 || m > 1u << 20) {
        fprintf(stderr, "%s: %llu rows\n", argv[3], (unsigned long long)m);
        return 1;
    }
    prepared_layer layers[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        layers[i] =
            load(context, checkpoint, argv[2], names[i], (uint32_t)m, i == DOWN ? TRF_DTYPE_F32 : TRF_DTYPE_BF16);
    trf_checkpoint_close(checkpoint);
    const uint32_t intermediate_size = layers[GATE].info.rows;
    if (layers[GATE].info.cols != hidden || layers[UP].info.cols != hidden ||
        layers[UP].info.rows != intermediate_size || layers[DOWN].info.cols != intermediate_size) {
        fprintf(stderr, "the shapes of x and the three layers do not fit\n");
        return 1;
    }

    const uint64_t x_count = m * hidden, y_count = m * layers[DOWN].info.rows;
    uint16_t *rounded = allocate_host(2 * x_count);
    float *y = allocate_host(4 * y_count);
    void *input, *intermediate, *output;
    check(trf_device_allocate(context, 2 * x_count, &input, &err), &err);
    check(trf_device_allocate(context, 2 * m * intermediate_size, &intermediate, &err), &err);
    check(trf_device_allocate(context, 4 * y_count, &output, &err), &err);
    for (uint64_t i = 0; i < x_count; i++)
        rounded[i] = round_to_bf16(x[i]);
    check(trf_device_upload(context, input, rounded, 2 * x_count, &err), &err);

    const trf_epilogue silu_times_up = {.activation = TRF_ACTIVATION_SILU, .multiplier = intermediate};
    enqueue(&layers[UP], input, intermediate, NULL);
    enqueue(&layers[GATE], input, intermediate, &silu_times_up);
    enqueue(&layers[DOWN], intermediate, output, NULL);
    check(trf_device_download(context, y, output, 4 * y_count, &err), &err); /* waits */
    for (int i = 0; i < LAYERS; i++)
        check(trf_device_layer_check(layers[i].layer, &err), &err);
    check(trf_write_npy(argv[4], y, m, layers[DOWN].info.rows, 1, &err), &err);
    printf("%llu rows on %s\n", (unsigned long long)m, trf_context_device_name(context));

    trf_free(x);
    free(rounded);
    free(y);
    trf_device_free(context, input);
    trf_device_free(context, intermediate);
    trf_device_free(context, output);
    for (int i = 0; i < LAYERS; i++)
        unload(context, &layers[i]);
    trf_context_destroy(context);
    return 0;
}
