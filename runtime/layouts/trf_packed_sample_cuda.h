/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the window for a layer that is packed from weights on the device. It is the window of the rows that
 * trf_packed_window_rows_of chooses, whatever layout they lie in. Of dense weights it finds out as well whether they
 * are FP8. */
#ifndef TRF_PACKED_SAMPLE_CUDA_H
#define TRF_PACKED_SAMPLE_CUDA_H

#include "trf_device_layer.h"
#include "trf_find_fp8_launch.h"
#include "trf_load_scratch_cuda.h"
#include "trf_pack_launch.h"
#include "trf_packed_head.h"

/* @return bytes of device memory that sampling takes: a coded layer whose info is set, or dense weights. */
uint64_t trf_cuda_sample_bytes(const trf_device_layer *layer);
uint64_t trf_cuda_sample_rows_bytes(uint32_t rows, uint32_t cols);

/* Samples a coded layer of the bf16 codec. It uses the results and events of `scratch`, and trf_cuda_sample_bytes of
 * its device memory at `memory`, 256-byte aligned; both are free again when it returns. The device is current. Errors:
 * TRF_ERR_CUDA. Rows that do not decode are no error here: the call that decodes the whole layer reports them. */
trf_status trf_cuda_sample_window(const trf_device_layer *layer, const trf_load_scratch *scratch, uint8_t *memory,
                                  trf_packed_window *window, trf_error *err);

/* What a search for FP8 has found. */
typedef struct trf_fp8_search {
    trf_found_fp8 found;
    trf_found_scales to; /* in the scratch's memory, behind its first 4,096 bytes */
} trf_fp8_search;

/* Repeats a search of trf_cuda_sample_rows with all weights checked, since packing found weights that do not fit. The
 * first bytes of the scratch are used again. Errors: TRF_ERR_CUDA. */
trf_status trf_cuda_search_all(const trf_context *context, const trf_rows_to_pack *rows,
                               const trf_load_scratch *scratch, trf_fp8_search *search, trf_error *err);

/* Samples dense weights. `written` is the stream on which the work that writes them has been queued. search: is set to
 * what a search for FP8 in all rows finds, which trusts samples (trf_launch_find_fp8); or NULL: there is none. It uses
 * the first bytes of the scratch, trf_cuda_sample_rows_bytes, and is otherwise the same. The scales that were found
 * stay there. Errors: also TRF_ERR_MEMORY. */
trf_status trf_cuda_sample_rows(const trf_context *context, const trf_rows_to_pack *rows, trf_stream written,
                                trf_load_scratch *scratch, trf_fp8_search *search, trf_packed_window *window,
                                trf_error *err);

#endif
