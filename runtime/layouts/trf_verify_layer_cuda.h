/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of layers in a GPU's memory: making them, and comparing the memory with them. */
#ifndef TRF_VERIFY_LAYER_CUDA_H
#define TRF_VERIFY_LAYER_CUDA_H

#include "trf_context.h"
#include "trf_device_layer.h"

/* Queues what trf_device_ops.add_data_checksum does. The device is current, and the head is written by work that was
 * queued on the stream before. @return a cudaError_t. */
int trf_cuda_queue_data_checksum(const trf_context *context, void *buffer, uint64_t buffer_bytes, trf_stream stream);

trf_status trf_cuda_add_data_checksum(const trf_context *context, void *buffer, uint64_t buffer_bytes, trf_error *err);

/* Members of trf_layout_ops. */
trf_status trf_cuda_verify_blob(const trf_device_layer *layer, trf_error *err);
trf_status trf_cuda_verify_buffer(const trf_device_layer *layer, trf_error *err);

#endif
