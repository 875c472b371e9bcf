/* SPDX-License-Identifier: Apache-2.0 */
/* Coded layers that are on a GPU, and become something else there: what trf_transcode_cuda.h has for those that are
 * loaded, where they lie. */
#ifndef TRF_TRANSCODE_LAYER_CUDA_H
#define TRF_TRANSCODE_LAYER_CUDA_H

#include "trf_transcode_cuda.h"

/* Hands all parts of a coded layer of no stack to `take`, of so many rows of tiles each, as trf_cuda_transcode does.
 * context: take's. Errors: those of take; TRF_ERR_RANS, and the layer's fault is set then; TRF_ERR_MEMORY,
 * TRF_ERR_CUDA. */
trf_status trf_cuda_transcode_layer(const trf_device_layer *layer, uint32_t tile_rows_each, trf_take_part_fn *take,
                                    void *context, trf_error *err);

/* Has a layer remember a tile that does not decode, as it would from any other call, unless it knows one already.
 * found: with `set`. @return what the layer says of it. Errors: TRF_ERR_RANS, TRF_ERR_CUDA. */
trf_status trf_cuda_note_fault(const trf_device_layer *layer, trf_device_fault found, trf_error *err);

#endif
