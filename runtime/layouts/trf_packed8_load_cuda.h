/* SPDX-License-Identifier: Apache-2.0 */
/* Makes packed FP8 layers on a GPU, for trf_packed_load_cuda.c, which decides when. */
#ifndef TRF_PACKED8_LOAD_CUDA_H
#define TRF_PACKED8_LOAD_CUDA_H

#include "trf_load_scratch_cuda.h"
#include "trf_packed8_layer.h"

/* Makes a packed FP8 layer from a coded one that is on the device. memory: the caller's, and large enough, or none. The
 * device is current. Errors: TRF_ERR_UNSUPPORTED (it cannot be packed so; made is as before), TRF_ERR_RANS, for which
 * the coded layer's fault is set, TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_cuda_make_packed8(trf_device_layer *made, const trf_device_layer *from, const trf_layer_memory *memory,
                                 trf_error *err);

/* Makes one from dense weights that are FP8. request: trf_pack8_request_of_dense's, with constants. rows: all rows.
 * scratch: its first 256 bytes and its results are used. The rest is as in trf_cuda_make_packed8. */
trf_status trf_cuda_pack8_rows(trf_device_layer *made, const trf_pack8_request *request, const trf_rows_to_pack *rows,
                               const trf_layer_memory *memory, trf_load_scratch *scratch, trf_error *err);

/* Makes `made` from a coded layer that was loaded to memory that is given back afterwards. A member of
 * trf_layout_ops, `convert`, without its checks; the device is current. */
typedef trf_status trf_cuda_make_packed_fn(trf_device_layer *made, const trf_device_layer *coded,
                                           const trf_layer_memory *memory, trf_error *err);

/* Loads a feed as a coded layer, to the memory of a load scratch, and lets `make` make the layer of it. The device is
 * current. Errors: those of `fill` in trf_layout_ops. */
trf_status trf_cuda_load_then_make(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                                   trf_cuda_make_packed_fn *make, trf_error *err);

#endif
