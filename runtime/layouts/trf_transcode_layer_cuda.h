/* SPDX-License-Identifier: Apache-2.0 */
/* Transcodes coded layers that are on a GPU already, where they lie, as trf_transcode_cuda.h does with layers that are
 * being loaded. */
#ifndef TRF_TRANSCODE_LAYER_CUDA_H
#define TRF_TRANSCODE_LAYER_CUDA_H

#include "trf_transcode_cuda.h"

/* Hands all parts of a coded layer, of tile_rows_each rows of tiles each, to `take`, as trf_cuda_transcode does. The
 * layer is not a stack's. context: take's. Errors: those of take; TRF_ERR_RANS, for which the layer's fault is set;
 * TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_cuda_transcode_layer(const trf_device_layer *layer, uint32_t tile_rows_each, trf_take_part_fn *take,
                                    void *context, trf_error *err);

/* Makes a layer remember a tile that does not decode, as any other call that decodes it would, unless it remembers one
 * already. found: has `set`. @return the layer's status after that. Errors: TRF_ERR_RANS, TRF_ERR_CUDA. */
trf_status trf_cuda_note_fault(const trf_device_layer *layer, trf_device_fault found, trf_error *err);

#endif
