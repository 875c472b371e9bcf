/* SPDX-License-Identifier: Apache-2.0 */
/* Plain layers in a GPU's memory: members of trf_layout_ops. */
#ifndef TRF_PLAIN_LAYER_CUDA_H
#define TRF_PLAIN_LAYER_CUDA_H

#include "trf_context.h"

trf_status trf_cuda_fill_plain_layer(trf_device_layer *made, struct trf_layer_feed *feed,
                                     const trf_layer_memory *memory, trf_error *err);
trf_status trf_cuda_convert_to_plain(trf_device_layer *made, const trf_device_layer *from,
                                     const trf_layer_memory *memory, trf_error *err);
trf_status trf_cuda_check_plain_layer(const trf_device_layer *layer, trf_error *err);
trf_status trf_cuda_decode_plain(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                                 trf_error *err);
trf_status trf_cuda_decode_plain_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                      trf_error *err);

#endif
