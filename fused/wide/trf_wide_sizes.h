/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the wide kernels (trf_wide_kernel.cuh), which planning needs, too. C and CUDA. */
#ifndef TRF_WIDE_SIZES_H
#define TRF_WIDE_SIZES_H

#include "trf_smem_layout.h"

enum {
    TRF_WIDE_BANDS = 4, /* of a work item */
    TRF_WIDE_ROWS = TRF_WIDE_BANDS * TRF_SLAB_ROWS,
    TRF_WIDE_UNIT_SLABS = 2, /* slabs of neighbouring bands, which a decoder walks at the same time */
    TRF_WIDE_UNITS = TRF_WIDE_BANDS / TRF_WIDE_UNIT_SLABS,
    TRF_WIDE_UNIT_ROWS = TRF_WIDE_UNIT_SLABS * TRF_SLAB_ROWS,
    TRF_WIDE_STAGE_COLS = 32,
    TRF_WIDE_STAGE_BYTES = TRF_WIDE_ROWS * 2 * TRF_WIDE_STAGE_COLS,
    TRF_WIDE_MAX_PRODUCERS = 8,
    TRF_WIDE_TABLE_LOG = TRF_SMALL_TABLE_LOG /* work of other decoders hides its bank conflicts */
};

/* Kernels have accumulators for up to 64 or up to 128 rows of x (max_x_rows). decoding_blocks: blocks of a cluster that
 * decode for each other, 1 or 2. */
TRF_HD_CONSTEXPR uint32_t trf_wide_max_x_rows(uint32_t x_rows) { return x_rows <= 64 ? 64 : 128; }
TRF_HD_CONSTEXPR uint32_t trf_wide_consumers(uint32_t max_x_rows) { return max_x_rows / 64; }          /* warpgroups */
TRF_HD_CONSTEXPR uint32_t trf_wide_decoders(uint32_t max_x_rows) { return max_x_rows == 64 ? 12 : 8; } /* warps */
TRF_HD_CONSTEXPR uint32_t trf_wide_threads(uint32_t max_x_rows) {
    return 32 * (4 * trf_wide_consumers(max_x_rows) + trf_wide_decoders(max_x_rows));
}
TRF_HD_CONSTEXPR uint32_t trf_wide_block_units(uint32_t decoding_blocks) { return TRF_WIDE_UNITS / decoding_blocks; }
TRF_HD_CONSTEXPR uint32_t trf_wide_max_producers(uint32_t max_x_rows, uint32_t decoding_blocks) {
    return trf_wide_decoders(max_x_rows) / trf_wide_block_units(decoding_blocks);
}

#endif
