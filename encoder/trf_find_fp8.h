/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether BF16 weights are FP8 E4M3 codes times scales, as checkpoints are that were dequantized. */
#ifndef TRF_FIND_FP8_H
#define TRF_FIND_FP8_H

#include "trf_encode.h"
#include "trf_fp8_codes.h"

/* The side of the scale blocks that are looked for. */
enum {
    TRF_FP8_BLOCK = 128
};

/* Looks for one scale, then for one a row, then for one a scale block (for blocks before rows in narrow layers). A
 * layer is found if in each scale region at most 0.4 % of the weights are not codes times the scale. For true BF16 a
 * few thousand weights are looked at, whatever the size. source: BF16. threads: as trf_encode_options. *found: whether
 * there are scales, which are then the caller's (trf_fp8_scales_free). The result does not depend on threads. Errors:
 * TRF_ERR_MEMORY, the source's. */
trf_status trf_find_fp8(const trf_source *source, int threads, trf_fp8_scales *scales, int *found, trf_error *err);

/* @return the bytes of the buffers that a search takes in a layer of so many rows which may be FP8; in others it takes
 * none. threads: as trf_encode_options. */
uint64_t trf_find_fp8_bytes(uint32_t rows, int threads);

/* scales: also all zeros. */
void trf_fp8_scales_free(trf_fp8_scales *scales);

#endif
