/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU does as a device, except products (trf_linear_cuda.h): it allocates and copies its memory, fills and
 * checks coded layers, and destroys layers of any layout. trf_context_cuda.c puts the functions into the tables of
 * device ops and layout ops. The comments at the members of these tables say what each function does and returns:
 * trf_context.h and trf_layout.h. */
#ifndef TRF_DEVICE_CUDA_H
#define TRF_DEVICE_CUDA_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_error.h"

/* Does what trf_cuda_allocate does, on the current device. */
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

/* Finds the memory of a coded layer: it sets memory->directory, and memory->buffer unless the blob has a place
 * already. */
typedef trf_status trf_cuda_find_memory_fn(void *context, trf_layer_memory *memory, trf_error *err);

/* Does what trf_cuda_fill_layer does, with memory that `find` provides. The caller's thread calls `find` once, while
 * other threads read the first tiles. blob_dev is the place of the blob, which may lie there already; NULL means that
 * `find` says where the blob goes. The device is current. Errors: those of trf_cuda_fill_layer and of find. Nothing
 * uses the memory any more after a failure. */
trf_status trf_cuda_fill_layer_later(trf_device_layer *made, struct trf_layer_feed *feed, void *blob_dev,
                                     trf_cuda_find_memory_fn *find, void *context, trf_error *err);
void trf_cuda_destroy_layer(trf_device_layer *layer);
trf_status trf_cuda_check_layer(const trf_device_layer *layer, trf_error *err);

#endif
