/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers in a GPU's memory: members of trf_layout_ops. Sizes and adopting are in trf_packed_layer.h; destroying
 * and checking are the same functions as for plain layers. */
#ifndef TRF_PACKED_LAYER_CUDA_H
#define TRF_PACKED_LAYER_CUDA_H

#include "trf_context.h"

trf_status trf_cuda_fill_packed_layer(trf_device_layer *made, struct trf_layer_feed *feed,
                                      const trf_layer_memory *memory, trf_error *err);
trf_status trf_cuda_convert_to_packed(trf_device_layer *made, const trf_device_layer *from,
                                      const trf_layer_memory *memory, trf_error *err);
trf_status trf_cuda_pack(trf_device_layer *made, const trf_device_matrix *matrix, const trf_pack_options *options,
                         trf_error *err);
trf_status trf_cuda_decode_packed(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                                  trf_error *err);
trf_status trf_cuda_decode_packed_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                       trf_error *err);

#endif
