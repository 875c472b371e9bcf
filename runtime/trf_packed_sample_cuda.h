/* SPDX-License-Identifier: Apache-2.0 */
/* The window of a layer that is packed of weights that are on the device: that of trf_packed_window_rows_of, whatever
 * they lie in there. */
#ifndef TRF_PACKED_SAMPLE_CUDA_H
#define TRF_PACKED_SAMPLE_CUDA_H

#include "trf_device_layer.h"
#include "trf_pack_launch.h"
#include "trf_packed_head.h"

/* Of a layer of the bf16 codec, coded or plain. The device is current. Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA; rows that
 * do not decode are left to what decodes all. */
trf_status trf_cuda_sample_window(const trf_device_layer *layer, trf_packed_window *window, trf_error *err);

/* Of all rows of dense weights, which the stream given last has been given the work that writes. The same otherwise. */
trf_status trf_cuda_sample_rows(const trf_context *context, const trf_rows_to_pack *rows, trf_stream written,
                                trf_packed_window *window, trf_error *err);

#endif
