/* SPDX-License-Identifier: Apache-2.0 */
/* The window of a layer that is packed of weights that are on the device: that of trf_packed_window_rows_of, whatever
 * they lie in there. */
#ifndef TRF_PACKED_SAMPLE_CUDA_H
#define TRF_PACKED_SAMPLE_CUDA_H

#include "trf_device_layer.h"
#include "trf_load_scratch_cuda.h"
#include "trf_pack_launch.h"
#include "trf_packed_head.h"

/* Bytes of device memory that looking takes. layer: coded, of which info is set; or NULL: for dense weights. */
uint64_t trf_cuda_sample_bytes(const trf_device_layer *layer);

/* Samples a coded layer of the bf16 codec. scratch: whose results and events are used; memory: so many bytes of its
 * device memory, 256-byte aligned; both are the caller's again when it returns. The device is current. Errors:
 * TRF_ERR_CUDA; rows that do not decode are left to what decodes all. */
trf_status trf_cuda_sample_window(const trf_device_layer *layer, const trf_load_scratch *scratch, uint8_t *memory,
                                  trf_packed_window *window, trf_error *err);

/* Samples all rows of dense weights, which the stream given last has been given the work that writes. The same
 * otherwise, with the scratch's first bytes. */
trf_status trf_cuda_sample_rows(const trf_context *context, const trf_rows_to_pack *rows, trf_stream written,
                                const trf_load_scratch *scratch, trf_packed_window *window, trf_error *err);

#endif
