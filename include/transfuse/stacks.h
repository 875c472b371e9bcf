/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks: an ordered list of layers that a program goes through again and again, such as a transformer's, of which
 * some are offloaded to host memory. One needs them for models that are larger than device memory. On a GPU as many
 * layers as a budget allows stay in device memory; the others lie compressed in pinned host memory, and are copied
 * ahead of their use while the GPU is busy with those before, to two buffers in turns. On the CPU all layers are simply
 * there. One thread at a time; streams may be several. Conventions: transfuse.h. */
#ifndef TRANSFUSE_STACKS_H
#define TRANSFUSE_STACKS_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trf_stack trf_stack;

/* Makes an empty stack. The context must outlive it. */
TRF_API trf_status trf_stack_create(trf_context *context, trf_stack **stack, trf_error *err);
/* Waits for the device. The plans of its layers must have been destroyed. */
TRF_API void trf_stack_destroy(trf_stack *stack);

/* Appends a layer, with the index 0, 1, 2 ..., before trf_stack_prepare, which is what copies it. `layer` stays the
 * caller's, and must not change until trf_stack_prepare has returned; it may be added several times. */
TRF_API trf_status trf_stack_add(trf_stack *stack, const trf_layer *layer, trf_error *err);

/* Appends a tensor of a checkpoint, or a shard of it, which is validated now, as by trf_device_layer_load. The
 * checkpoint may be closed afterwards; its file must not change until trf_stack_prepare has returned, or on the CPU
 * while the stack lives. It is TRF_ERR_ARGUMENT for options->memory, and TRF_ERR_UNSUPPORTED for a layout other than
 * CODED. */
TRF_API trf_status trf_stack_load(trf_stack *stack, trf_checkpoint *checkpoint, const char *tensor,
                                  const trf_load_options *options, trf_error *err);

/* Decides which layers stay, spread evenly over the order, copies all of them, and waits for that. budget_bytes is how
 * much device memory layers and buffers may take; workspaces are the program's own. Nothing else is allocated there,
 * now or later. On the CPU it does not matter. After a failure other than TRF_ERR_CUDA layers may be added, and it may
 * be called again. Errors: TRF_ERR_ARGUMENT without layers, when it has been prepared already, and for a budget below
 * trf_stack_info.least_bytes, which the message tells. */
TRF_API trf_status trf_stack_prepare(trf_stack *stack, uint64_t budget_bytes, trf_error *err);

typedef struct trf_stack_info {
    uint32_t layers;
    uint32_t resident; /* layers that stay in device memory; 0 before trf_stack_prepare, as what follows least_bytes */
    uint64_t layer_bytes;     /* that all layers would take in device memory, the offloaded ones included */
    uint64_t least_bytes;     /* the least budget that will do: about two of the largest layers */
    uint64_t device_bytes;    /* device memory that the stack has: within the budget */
    uint64_t host_bytes;      /* pinned host memory that it has */
    uint64_t offloaded_bytes; /* copied in each pass through all layers, in order */
} trf_stack_info;

TRF_API void trf_stack_get_info(const trf_stack *stack, trf_stack_info *info);

/* @return a layer, for plans, wherever it lies, and for trf_device_layer_check at any time. Calls may read its weights
 * only between trf_stack_acquire and trf_stack_release. It is the stack's, and the same one for its whole life. NULL
 * before trf_stack_prepare, and for an index that there is not. */
TRF_API trf_device_layer *trf_stack_layer(const trf_stack *stack, uint32_t index);

/* Lets what follows on `stream` use a layer: the stream waits for its copy, the host does not. In order (0, 1, 2 ...,
 * and 0 again after the last one) layers are there or on their way, and layers may be passed over. In any other order
 * the results are the same, but the copy of the layer begins only then. A layer may be acquired several times, on
 * several streams. Layers that stay cost nothing and may be captured in a CUDA graph; those that are offloaded may not.
 * Errors: TRF_ERR_ARGUMENT when it is not prepared, when there is no such layer, and when its place in a buffer is
 * taken by a layer that has not been released; TRF_ERR_UNSUPPORTED when it would be captured. */
TRF_API trf_status trf_stack_acquire(trf_stack *stack, uint32_t index, trf_stream stream, trf_error *err);

/* Undoes one trf_stack_acquire. What `stream` has been given before may still use the layer; what comes later may not.
 * Starts copies of layers ahead where there is room now. Errors: TRF_ERR_ARGUMENT (not acquired); TRF_ERR_UNSUPPORTED
 * when the stream is captured in a CUDA graph and the layer is offloaded. */
TRF_API trf_status trf_stack_release(trf_stack *stack, uint32_t index, trf_stream stream, trf_error *err);

/* Does trf_stack_acquire, trf_linear and trf_stack_release for layer `index`, whose plan it is, with their errors. */
TRF_API trf_status trf_stack_linear(trf_stack *stack, uint32_t index, const trf_plan *plan,
                                    const trf_operands *operands, void *workspace, trf_stream stream, trf_error *err);

#ifdef __cplusplus
}
#endif
#endif
