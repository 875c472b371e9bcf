/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of trf_stack, and the operations of a device that it uses. */
#ifndef TRF_STACK_H
#define TRF_STACK_H

#include "transfuse/stacks.h"
#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer.h"
#include "trf_stack_order.h"

typedef struct trf_stacked_layer {
    /* The stack's. Its context, info and shard are set when it is added, the rest when the stack is prepared. */
    trf_device_layer *device_layer;
    trf_layer *host; /* the layer as it was added, until the stack is prepared; NULL after that */
    int owns_host;   /* whether that is the stack's */
} trf_stacked_layer;

struct trf_stack {
    trf_context *context;
    trf_stacked_layer *layers; /* [count] */
    trf_stack_place *places;   /* [count] */
    uint32_t count, capacity;
    int is_prepared;
    /* The following fields are set when the stack is prepared. */
    trf_stack_placement placement;
    trf_stack_order order;
    uint64_t host_bytes;             /* of pinned memory */
    struct trf_stack_device *device; /* the device's own */
};

/* What a device does for a stack. Functions that take an index are for offloaded layers. */
typedef struct trf_stack_ops {
    /* Computes the device memory that a layer takes, which is the size of its place. Errors: TRF_ERR_UNSUPPORTED. */
    trf_status (*get_layer_bytes)(const trf_layer *layer, uint64_t *bytes, trf_error *err);
    /* @return device memory that a stack of `count` layers takes besides the layers. */
    uint64_t (*fixed_bytes)(uint32_t count);
    /* Makes placement and places, and all layers, and takes over the host layers. After a failure the stack can be
     * destroyed, or prepared again. */
    trf_status (*prepare)(trf_stack *stack, uint64_t budget_bytes, trf_error *err);
    /* Frees the layers and whatever prepare has made; waits for the device. */
    void (*destroy)(trf_stack *stack);
    /* These two are the actions of trf_stack_actions. */
    trf_status (*copy)(trf_stack *stack, uint32_t index, trf_error *err);
    trf_status (*wait)(trf_stack *stack, uint32_t index, trf_error *err);
    /* Makes work that follows on `stream` wait for the layer's copy. */
    trf_status (*await_copy)(trf_stack *stack, uint32_t index, trf_stream stream, trf_error *err);
    /* Marks the work queued on `stream` so far as a use of the layer. again: a use was marked before since the layer's
     * copy, and stays marked. */
    trf_status (*mark_use)(trf_stack *stack, uint32_t index, int again, trf_stream stream, trf_error *err);
} trf_stack_ops;

extern const trf_stack_ops trf_cpu_stack_ops, trf_cuda_stack_ops;

#endif
