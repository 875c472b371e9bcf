/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the wgmma kernels (trf_packed_wgmma.cuh), which planning needs, too. C and CUDA. slab_bytes: those of a
 * packed slab, TRF_PACKED_SLAB_BYTES or TRF_PACKED8_SLAB_BYTES. */
#ifndef TRF_PACKED_WGMMA_SIZES_H
#define TRF_PACKED_WGMMA_SIZES_H

#include "trf_packed_bulk_sizes.h"

/* Shapes of blocks; their numbers follow those of bulk kernels. Most have 128 rows of W by so many rows of x, in steps
 * of 16, so that most batches nearly fill equal x blocks. Some have 192 rows of W, for layers whose tiles of 128 rows
 * do not come out even: 18944x3584 has 148 tiles of 128 rows for 132 multiprocessors, but 99 of 192 rows. */
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
    /* packed tiles of a band in a stage: 64 columns, as many as a box of x has */
    TRF_PACKED_WGMMA_STAGE_PACKED_TILES = 2,
    TRF_PACKED_WGMMA_LINE_K_BLOCKS =
        TRF_PACKED_LINE_TILES / TRF_PACKED_WGMMA_STAGE_PACKED_TILES, /* k blocks of an exception line */
    TRF_PACKED_WGMMA_MAX_STAGES = 8,                                 /* more were no faster when measured */
    TRF_PACKED8_WGMMA_MAX_STAGES = 10,                               /* as many bytes */
    TRF_PACKED_WGMMA_X_RUN = 8 /* x blocks of a *run*: within it, tiles with the same weights follow each other */
};

TRF_HD_CONSTEXPR bool trf_packed_is_wgmma(int shape) { return shape >= TRF_PACKED_WGMMA_64; }

/* The bands of a block, each with a consumer warpgroup, each warp of which has one packed slab; rows of W; rows of
 * x. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_bands(int shape) { return shape < TRF_PACKED_WGMMA_192X96 ? 2 : 3; }
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_rows(int shape) {
    return trf_packed_wgmma_bands(shape) * TRF_PACKED_TILE_ROWS;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_x_rows(int shape) {
    return shape < TRF_PACKED_WGMMA_192X96 ? 64 + 16 * (uint32_t)(shape - TRF_PACKED_WGMMA_64)
                                           : 96 + 16 * (uint32_t)(shape - TRF_PACKED_WGMMA_192X96);
}
/* Whether consumers need more than the registers that a thread has at launch: 168, or 128 with three bands. */
TRF_HD_CONSTEXPR bool trf_packed_wgmma_moves_registers(int shape) {
    return trf_packed_wgmma_bands(shape) > 2 || trf_packed_wgmma_x_rows(shape) > 128;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_warps(int shape) { /* consumers */
    return trf_packed_wgmma_bands(shape) * TRF_PACKED_SLABS;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_threads(int shape) {
    return 32 * (trf_packed_wgmma_warps(shape) + TRF_PACKED_PRODUCER_WARPS);
}
/* The accumulator tiles of a tile's sums: packed slabs times x tiles. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_acc_tiles(int shape) {
    return trf_packed_wgmma_warps(shape) * (trf_packed_wgmma_x_rows(shape) / 8);
}

/* ---- shared memory: stages of weights | x each | exception lines of all stages | sums | barriers ---- */

/* A band's weights in a stage. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_band_bytes(uint32_t slab_bytes) {
    return TRF_PACKED_WGMMA_STAGE_PACKED_TILES * TRF_PACKED_SLABS * slab_bytes;
}
/* So many rows of x have sums that fit, for one band and in 16 bits, in the place of the band's weights in a stage. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_y_rows(uint32_t slab_bytes) {
    return trf_packed_wgmma_band_bytes(slab_bytes) / (2 * TRF_PACKED_TILE_ROWS);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stage_weight_bytes(int shape, uint32_t slab_bytes) {
    return trf_packed_wgmma_bands(shape) * trf_packed_wgmma_band_bytes(slab_bytes);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stage_lines_bytes(int shape) {
    return trf_packed_wgmma_bands(shape) * TRF_PACKED_LINE_BYTES;
}
/* Bytes for all warps: an accumulator tile for each, and a barrier for each for a cluster's sums. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_sums_bytes(int shape) {
    return trf_packed_wgmma_warps(shape) * TRF_ACC_TILE_BYTES;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_sum_barriers_bytes(int shape) { return 8 * trf_packed_wgmma_warps(shape); }
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stage_bytes(int shape, uint32_t slab_bytes) {
    return trf_packed_wgmma_stage_weight_bytes(shape, slab_bytes) +
           trf_packed_wgmma_x_rows(shape) * TRF_PACKED_X_BOX_ROW_BYTES;
}
/* The bytes of a stage with its exception lines and barriers. */
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_whole_stage_bytes(int shape, uint32_t slab_bytes) {
    return trf_packed_wgmma_stage_bytes(shape, slab_bytes) + trf_packed_wgmma_stage_lines_bytes(shape) + 16;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_fitting_stages(int shape, uint32_t slab_bytes) {
    return (TRF_PACKED_SMEM_BYTES - TRF_STATIC_SMEM_BYTES - trf_packed_wgmma_sums_bytes(shape) -
            trf_packed_wgmma_sum_barriers_bytes(shape)) /
           trf_packed_wgmma_whole_stage_bytes(shape, slab_bytes);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_most_stages(uint32_t slab_bytes) {
    return slab_bytes == TRF_PACKED_SLAB_BYTES ? TRF_PACKED_WGMMA_MAX_STAGES : TRF_PACKED8_WGMMA_MAX_STAGES;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_stages(int shape, uint32_t slab_bytes) {
    return trf_packed_wgmma_fitting_stages(shape, slab_bytes) < trf_packed_wgmma_most_stages(slab_bytes)
               ? trf_packed_wgmma_fitting_stages(shape, slab_bytes)
               : trf_packed_wgmma_most_stages(slab_bytes);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_wgmma_shared_bytes(int shape, uint32_t slab_bytes) {
    return trf_packed_wgmma_stages(shape, slab_bytes) * trf_packed_wgmma_whole_stage_bytes(shape, slab_bytes) +
           trf_packed_wgmma_sums_bytes(shape) + trf_packed_wgmma_sum_barriers_bytes(shape);
}

#endif
