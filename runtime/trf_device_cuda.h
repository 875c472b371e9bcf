/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU does as a device, as trf_device_ops has it: memory and layers. Products: trf_linear_cuda.h. */
#ifndef TRF_DEVICE_CUDA_H
#define TRF_DEVICE_CUDA_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_error.h"

/* The device is current. */
trf_status trf_cuda_allocate_here(uint64_t bytes, void **memory, trf_error *err);

trf_status trf_cuda_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err);
void trf_cuda_release(const trf_context *context, void *memory);
trf_status trf_cuda_upload(const trf_context *context, void *to, const void *from_host, uint64_t bytes, trf_error *err);
trf_status trf_cuda_download(const trf_context *context, void *to_host, const void *from, uint64_t bytes,
                             trf_error *err);
trf_status trf_cuda_copy_rows(const trf_context *context, const trf_row_copy *copy, trf_stream stream, trf_error *err);

trf_status trf_cuda_open_device_blob(const trf_context *context, const void *blob, uint64_t blob_bytes,
                                     const trf_load_options *options, struct trf_layer_feed *feed, trf_error *err);
trf_status trf_cuda_get_layer_size(const struct trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                                   trf_error *err);
trf_status trf_cuda_fill_layer(trf_device_layer *made, struct trf_layer_feed *feed, const trf_layer_memory *memory,
                               trf_error *err);
void trf_cuda_destroy_layer(trf_device_layer *layer);
trf_status trf_cuda_check_layer(const trf_device_layer *layer, trf_error *err);

#endif
