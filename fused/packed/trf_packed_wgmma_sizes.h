/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the wgmma kernels (trf_packed_wgmma.cuh), which planning needs, too. C and CUDA. */
#ifndef TRF_PACKED_WGMMA_SIZES_H
#define TRF_PACKED_WGMMA_SIZES_H

#include "trf_packed_bulk_sizes.h"

/* Shapes of blocks behind the bulk kernels': 128 rows of W by so many rows of x. */
enum trf_packed_wgmma_shape {
    TRF_PACKED_WGMMA_64 = TRF_PACKED_BULK_SHAPES,
    TRF_PACKED_WGMMA_96,
    TRF_PACKED_WGMMA_128,
    TRF_PACKED_WGMMA_192,
    TRF_PACKED_WGMMA_256,
    TRF_PACKED_SHAPES
};

enum {
    TRF_PACKED_WGMMA_BANDS = 2, /* of a block: a consumer warpgroup has one */
    TRF_PACKED_WGMMA_ROWS = TRF_PACKED_WGMMA_BANDS * TRF_PACKED_TILE_ROWS,
    TRF_PACKED_WGMMA_SLABS = TRF_PACKED_WGMMA_BANDS * TRF_PACKED_SLABS, /* and consumer warps, one a slab */
    TRF_PACKED_WGMMA_THREADS = 32 * (TRF_PACKED_WGMMA_SLABS + TRF_PACKED_PRODUCER_WARPS),
    TRF_PACKED_WGMMA_STAGE_PACKED_TILES = 2, /* packed tiles of a band in a stage: 64 columns, a box of x */
    TRF_PACKED_WGMMA_LINE_K_BLOCKS =
        TRF_PACKED_LINE_TILES / TRF_PACKED_WGMMA_STAGE_PACKED_TILES, /* of an exception line */
    TRF_PACKED_WGMMA_STAGE_BAND_BYTES = TRF_PACKED_WGMMA_STAGE_PACKED_TILES * TRF_PACKED_TILE_BYTES,
    /* Rows of x whose sums of a band, as 16 bits, fit into the place of a stage's weights of it. */
    TRF_PACKED_WGMMA_Y_ROWS = TRF_PACKED_WGMMA_STAGE_BAND_BYTES / (2 * TRF_PACKED_TILE_ROWS),
    TRF_PACKED_WGMMA_STAGE_WEIGHT_BYTES = TRF_PACKED_WGMMA_BANDS * TRF_PACKED_WGMMA_STAGE_BAND_BYTES,
    TRF_PACKED_WGMMA_STAGE_LINES_BYTES = TRF_PACKED_WGMMA_BANDS * TRF_PACKED_LINE_BYTES,
    TRF_PACKED_WGMMA_SUMS_BYTES = TRF_PACKED_WGMMA_SLABS * TRF_ACC_TILE_BYTES,
    TRF_PACKED_WGMMA_SUM_BARRIERS_BYTES = 8 * TRF_PACKED_WGMMA_SLABS, /* one a warp, for a cluster's sums */
    TRF_PACKED_WGMMA_MAX_STAGES = 8, /* more were no faster in the experiments that this comes from */
    TRF_PACKED_WGMMA_X_RUN = 8       /* x blocks that lie side by side in the order of tiles: a run */
};

TRF_HD_CONSTEXPR bool trf_packed_is_wgmma(int shape) { return shape >= TRF_PACKED_WGMMA_64; }

TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_x_rows(int shape) {
    return shape == TRF_PACKED_WGMMA_64    ? 64
           : shape == TRF_PACKED_WGMMA_96  ? 96
           : shape == TRF_PACKED_WGMMA_128 ? 128
           : shape == TRF_PACKED_WGMMA_192 ? 192
                                           : 256;
}
/* Sums of a tile: packed slabs by x tiles. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_acc_tiles(int shape) {
    return TRF_PACKED_WGMMA_SLABS * (trf_packed_wgmma_x_rows(shape) / 8);
}

/* ---- shared memory: stages, weights | x each | exception lines of all stages | sums | barriers ---- */

TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stage_bytes(int shape) {
    return TRF_PACKED_WGMMA_STAGE_WEIGHT_BYTES + trf_packed_wgmma_x_rows(shape) * TRF_PACKED_X_BOX_ROW_BYTES;
}
/* What a stage takes with its lines and barriers. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_whole_stage_bytes(int shape) {
    return trf_packed_wgmma_stage_bytes(shape) + TRF_PACKED_WGMMA_STAGE_LINES_BYTES + 16;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_fitting_stages(int shape) {
    return (TRF_PACKED_SMEM_BYTES - TRF_STATIC_SMEM_BYTES - TRF_PACKED_WGMMA_SUMS_BYTES -
            TRF_PACKED_WGMMA_SUM_BARRIERS_BYTES) /
           trf_packed_wgmma_whole_stage_bytes(shape);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stages(int shape) {
    return trf_packed_wgmma_fitting_stages(shape) < TRF_PACKED_WGMMA_MAX_STAGES ? trf_packed_wgmma_fitting_stages(shape)
                                                                                : (uint32_t)TRF_PACKED_WGMMA_MAX_STAGES;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_shared_bytes(int shape) {
    return trf_packed_wgmma_stages(shape) * trf_packed_wgmma_whole_stage_bytes(shape) + TRF_PACKED_WGMMA_SUMS_BYTES +
           TRF_PACKED_WGMMA_SUM_BARRIERS_BYTES;
}

#endif
