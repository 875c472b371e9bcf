/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes layers and rows on a GPU, for contexts and for the two-step path. */
#ifndef TRF_DECODE_CUDA_H
#define TRF_DECODE_CUDA_H

#include "transfuse/device_memory.h"

/* Does what trf_device_layer_decode does, with checked arguments. */
trf_status trf_cuda_decode(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                           trf_error *err);

/* Does what trf_decode_rows does, with checked arguments. */
trf_status trf_cuda_decode_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                trf_error *err);

#endif
