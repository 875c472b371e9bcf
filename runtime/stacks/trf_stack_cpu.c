/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks on the CPU. Device memory is the process's memory, so every layer simply stays, whatever the budget. */
#include "trf_device_cpu.h"
#include "trf_layer_from_feed.h"
#include "trf_stack.h"

#include <stdlib.h>

/* Counts the bytes that trf_cpu_take_layer counts. */
static trf_status cpu_get_layer_bytes(const trf_layer *layer, uint64_t *bytes, trf_error *err) {
    (void)err;
    *bytes = layer->view.header.blob_bytes + sizeof *layer;
    return TRF_OK;
}

/* Makes another layer from the same blob. */
static trf_status copy_layer(const trf_layer *layer, trf_layer **copy, trf_error *err) {
    trf_load_options options;
    trf_layer_feed feed;
    trf_load_options_init(&options);
    trf_status status = trf_layer_feed_open_memory(layer->blob, layer->view.header.blob_bytes, &options, &feed, err);
    if (status != TRF_OK)
        return status;
    status = trf_layer_from_feed(&feed, NULL, copy, err);
    trf_layer_feed_close(&feed);
    return status;
}

static trf_status fill_layer(trf_stacked_layer *layer, trf_error *err) {
    trf_layer *host = layer->host;
    trf_status status = layer->owns_host ? TRF_OK : copy_layer(layer->host, &host, err);
    if (status != TRF_OK)
        return status;
    status = trf_cpu_take_layer(layer->device_layer, host, err);
    if (status != TRF_OK && !layer->owns_host)
        trf_layer_free(host);
    return status;
}

static uint64_t cpu_fixed_bytes(uint32_t count) { return (void)count, 0; }

static trf_status cpu_prepare(trf_stack *stack, uint64_t budget_bytes, trf_error *err) {
    (void)budget_bytes;
    for (uint32_t i = 0; i < stack->count; i++) {
        trf_stacked_layer *layer = &stack->layers[i];
        if (!layer->host) /* an earlier attempt made this layer before it failed */
            continue;
        trf_status status = fill_layer(layer, err);
        if (status != TRF_OK)
            return trf_prefix_error(err, status, "layer %u of the stack", i);
        layer->host = NULL;
    }
    return trf_stack_placement_make(stack->places, stack->count, 0, UINT64_MAX, &stack->placement, err);
}

static void cpu_destroy_stack(trf_stack *stack) {
    for (uint32_t i = 0; i < stack->count; i++) {
        trf_stacked_layer *layer = &stack->layers[i];
        if (!layer->host)
            layer->device_layer->layout->destroy(layer->device_layer);
        free(layer->device_layer);
    }
}

const trf_stack_ops trf_cpu_stack_ops = {
    .get_layer_bytes = cpu_get_layer_bytes,
    .fixed_bytes = cpu_fixed_bytes,
    .prepare = cpu_prepare,
    .destroy = cpu_destroy_stack,
};
