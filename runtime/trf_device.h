/* SPDX-License-Identifier: Apache-2.0 */
/* The devices, each in a file of its own: trf_context_cpu.c, and trf_context_cuda.c or, in a build without device code,
 * trf_no_device_code.c. */
#ifndef TRF_DEVICE_H
#define TRF_DEVICE_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_error.h"
#include "trf_layer_feed.h"

/* As trf_context_create. */
trf_status trf_cpu_context_create(trf_context **context, trf_error *err);
trf_status trf_cuda_context_create(int device, trf_context **context, trf_error *err);

/* A layer as `adopt` wants it; free() undoes it. Errors: TRF_ERR_MEMORY. */
trf_status trf_begin_device_layer(trf_context *context, const trf_layout_ops *layout, trf_device_layer **layer,
                                  trf_error *err);

/* What a layer is made of, in memory: a blob, or a layer's buffer; of a checkpoint's tensor nothing. */
typedef struct trf_given_blob {
    const void *at;
    uint64_t bytes;
} trf_given_blob;

/* Whether the caller's memory for a layer is enough, and in nobody's way. alignment: the device's; in_place:
 * memory->blob is the given blob. Errors: TRF_ERR_ARGUMENT. */
trf_status trf_check_layer_memory(const trf_layer_memory *memory, const trf_layer_size *size,
                                  const trf_given_blob *given, uint32_t alignment, int in_place, trf_error *err);

/* Makes it one as `fill` wants it. view, shard: of what will be loaded. */
void trf_describe_device_layer(const trf_blob_view *view, const trf_shard_range *shard, trf_device_layer *layer);

#endif
