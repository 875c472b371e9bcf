/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the wgmma kernels (trf_packed_wgmma.cuh), which planning needs, too. C and CUDA. */
#ifndef TRF_PACKED_WGMMA_SIZES_H
#define TRF_PACKED_WGMMA_SIZES_H

#include "trf_packed_bulk_sizes.h"

/* Shapes of blocks behind the bulk kernels': 128 rows of W by so many rows of x, in steps of 16, so that most batches
 * come near to filling equal x blocks; and 192 rows of W by so many, for layers whose tiles of 128 rows go round badly:
 * 18944x3584 has 148 of these, for 132 multiprocessors, but 99 of 192 rows. */
enum trf_packed_wgmma_shape {
    TRF_PACKED_WGMMA_64 = TRF_PACKED_BULK_SHAPES,
    TRF_PACKED_WGMMA_80,
    TRF_PACKED_WGMMA_96,
    TRF_PACKED_WGMMA_112,
    TRF_PACKED_WGMMA_128,
    TRF_PACKED_WGMMA_144,
    TRF_PACKED_WGMMA_160,
    TRF_PACKED_WGMMA_176,
    TRF_PACKED_WGMMA_192,
    TRF_PACKED_WGMMA_208,
    TRF_PACKED_WGMMA_224,
    TRF_PACKED_WGMMA_240,
    TRF_PACKED_WGMMA_256,
    TRF_PACKED_WGMMA_192X96,
    TRF_PACKED_WGMMA_192X112,
    TRF_PACKED_WGMMA_192X128,
    TRF_PACKED_SHAPES
};

enum {
    TRF_PACKED_WGMMA_SHAPES = TRF_PACKED_SHAPES - TRF_PACKED_WGMMA_64,
    TRF_PACKED_WGMMA_STAGE_PACKED_TILES = 2, /* packed tiles of a band in a stage: 64 columns, a box of x */
    TRF_PACKED_WGMMA_LINE_K_BLOCKS =
        TRF_PACKED_LINE_TILES / TRF_PACKED_WGMMA_STAGE_PACKED_TILES, /* of an exception line */
    TRF_PACKED_WGMMA_STAGE_BAND_BYTES = TRF_PACKED_WGMMA_STAGE_PACKED_TILES * TRF_PACKED_TILE_BYTES,
    /* Rows of x whose sums of a band, as 16 bits, fit into the place of a stage's weights of it. */
    TRF_PACKED_WGMMA_Y_ROWS = TRF_PACKED_WGMMA_STAGE_BAND_BYTES / (2 * TRF_PACKED_TILE_ROWS),
    TRF_PACKED_WGMMA_MAX_STAGES = 8, /* more were no faster in the experiments that this comes from */
    TRF_PACKED_WGMMA_X_RUN = 8       /* x blocks that lie side by side in the order of tiles: a run */
};

TRF_HD_CONSTEXPR bool trf_packed_is_wgmma(int shape) { return shape >= TRF_PACKED_WGMMA_64; }

/* Bands of a block, a consumer warpgroup for each, of which a warp has a slab; rows of W; rows of x. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_bands(int shape) { return shape < TRF_PACKED_WGMMA_192X96 ? 2 : 3; }
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_rows(int shape) {
    return trf_packed_wgmma_bands(shape) * TRF_PACKED_TILE_ROWS;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_x_rows(int shape) {
    return shape < TRF_PACKED_WGMMA_192X96 ? 64 + 16 * (uint32_t)(shape - TRF_PACKED_WGMMA_64)
                                           : 96 + 16 * (uint32_t)(shape - TRF_PACKED_WGMMA_192X96);
}
/* Whether the registers that a thread has at launch, 168, or 128 with three bands, do not do for consumers. */
TRF_HD_CONSTEXPR bool trf_packed_wgmma_moves_registers(int shape) {
    return trf_packed_wgmma_bands(shape) > 2 || trf_packed_wgmma_x_rows(shape) > 128;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_warps(int shape) { /* consumers */
    return trf_packed_wgmma_bands(shape) * TRF_PACKED_SLABS;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_threads(int shape) {
    return 32 * (trf_packed_wgmma_warps(shape) + TRF_PACKED_PRODUCER_WARPS);
}
/* Sums of a tile: packed slabs by x tiles. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_acc_tiles(int shape) {
    return trf_packed_wgmma_warps(shape) * (trf_packed_wgmma_x_rows(shape) / 8);
}

/* ---- shared memory: stages, weights | x each | exception lines of all stages | sums | barriers ---- */

TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stage_weight_bytes(int shape) {
    return trf_packed_wgmma_bands(shape) * TRF_PACKED_WGMMA_STAGE_BAND_BYTES;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stage_lines_bytes(int shape) {
    return trf_packed_wgmma_bands(shape) * TRF_PACKED_LINE_BYTES;
}
/* Bytes for all warps: an accumulator tile each, and a barrier for a cluster's sums. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_sums_bytes(int shape) {
    return trf_packed_wgmma_warps(shape) * TRF_ACC_TILE_BYTES;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_sum_barriers_bytes(int shape) { return 8 * trf_packed_wgmma_warps(shape); }
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stage_bytes(int shape) {
    return trf_packed_wgmma_stage_weight_bytes(shape) + trf_packed_wgmma_x_rows(shape) * TRF_PACKED_X_BOX_ROW_BYTES;
}
/* What a stage takes with its lines and barriers. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_whole_stage_bytes(int shape) {
    return trf_packed_wgmma_stage_bytes(shape) + trf_packed_wgmma_stage_lines_bytes(shape) + 16;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_fitting_stages(int shape) {
    return (TRF_PACKED_SMEM_BYTES - TRF_STATIC_SMEM_BYTES - trf_packed_wgmma_sums_bytes(shape) -
            trf_packed_wgmma_sum_barriers_bytes(shape)) /
           trf_packed_wgmma_whole_stage_bytes(shape);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stages(int shape) {
    return trf_packed_wgmma_fitting_stages(shape) < TRF_PACKED_WGMMA_MAX_STAGES ? trf_packed_wgmma_fitting_stages(shape)
                                                                                : (uint32_t)TRF_PACKED_WGMMA_MAX_STAGES;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_shared_bytes(int shape) {
    return trf_packed_wgmma_stages(shape) * trf_packed_wgmma_whole_stage_bytes(shape) +
           trf_packed_wgmma_sums_bytes(shape) + trf_packed_wgmma_sum_barriers_bytes(shape);
}

#endif
