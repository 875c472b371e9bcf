/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the bulk kernels (trf_packed_bulk.cuh), which planning needs, too. C and CUDA. slab_bytes: those of a
 * packed slab, TRF_PACKED_SLAB_BYTES or TRF_PACKED8_SLAB_BYTES. */
#ifndef TRF_PACKED_BULK_SIZES_H
#define TRF_PACKED_BULK_SIZES_H

#include "trf_device_limits.h"
#include "trf_packed8.h"
#include "trf_packed_stage_sizes.h"
#include "trf_smem_layout.h"

#include <stdbool.h>

/* Shapes of blocks: rows of W, and consumer warps. With the first shape, k blocks are cut evenly over blocks
 * (stream-K); with the others, each tile has a cluster of blocks. */
enum trf_packed_bulk_shape {
    TRF_PACKED_BULK_256, /* 256 rows, 8 warps, up to 32 rows of x; FP8: 64 */
    TRF_PACKED_BULK_128, /* 128 rows, 16 warps, up to 32 rows of x */
    TRF_PACKED_BULK_64,  /* 64 rows, 16 warps, up to 32 rows of x */
    TRF_PACKED_BULK_32,  /* 32 rows, 8 warps, up to 64 rows of x */
    TRF_PACKED_BULK_SHAPES
};

enum {
    TRF_PACKED_BULK_MAX_M = 64,
    TRF_PACKED_BULK_MAX_STAGES = 4, /* six are 1 to 3 % slower */
    TRF_PACKED8_BULK_MAX_STAGES = 6,
    TRF_PACKED8_WARP_TILES = 2
};

/* The packed slabs of a warp; the number of warps that the block's rows are cut over; the number of warps that the
 * packed tiles of a stage are cut over. */
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_warp_slabs(int shape) { return shape == TRF_PACKED_BULK_256 ? 4 : 2; }
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_row_warps(int shape) {
    return shape == TRF_PACKED_BULK_256 || shape == TRF_PACKED_BULK_128 ? 4 : shape == TRF_PACKED_BULK_64 ? 2 : 1;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_col_warps(int shape) {
    return shape == TRF_PACKED_BULK_256 ? 2 : shape == TRF_PACKED_BULK_128 ? 4 : 8;
}

/* Whether there is a kernel for so many x tiles; 8 are 64 rows of x. */
TRF_HD_CONSTEXPR bool trf_packed_bulk_has_kernel(int shape, uint32_t x_tiles, uint32_t slab_bytes) {
    return x_tiles < 8 || shape == TRF_PACKED_BULK_32 ||
           (slab_bytes == TRF_PACKED8_SLAB_BYTES && shape == TRF_PACKED_BULK_256);
}

TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_warps(int shape) {
    return trf_packed_bulk_row_warps(shape) * trf_packed_bulk_col_warps(shape);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_rows(int shape) {
    return TRF_PACKED_SLAB_ROWS * trf_packed_bulk_warp_slabs(shape) * trf_packed_bulk_row_warps(shape);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_bands(int shape) { /* the bands that a block's rows are in */
    return trf_packed_bulk_rows(shape) < TRF_PACKED_TILE_ROWS ? 1 : trf_packed_bulk_rows(shape) / TRF_PACKED_TILE_ROWS;
}
/* The packed tiles of a warp in a stage, which lie side by side, and all packed tiles of a stage's rows, which are a k
 * block. Stages of FP8 with few columns have twice as many as those of BF16, so that a warp waits half as often. */
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_warp_tiles(int shape, uint32_t slab_bytes) {
    return slab_bytes == TRF_PACKED8_SLAB_BYTES && trf_packed_bulk_col_warps(shape) < 8 ? TRF_PACKED8_WARP_TILES : 1;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_k_tiles(int shape, uint32_t slab_bytes) {
    return trf_packed_bulk_col_warps(shape) * trf_packed_bulk_warp_tiles(shape, slab_bytes);
}
/* The accumulator tiles of a block's sums: packed slabs times x tiles. */
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_acc_tiles(int shape, uint32_t x_tiles) {
    return trf_packed_bulk_rows(shape) / TRF_PACKED_SLAB_ROWS * x_tiles;
}

/* ---- a stage: weights | x | exception lines ---- */

TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_weight_bytes(int shape, uint32_t slab_bytes) {
    return trf_packed_bulk_rows(shape) / TRF_PACKED_SLAB_ROWS * trf_packed_bulk_k_tiles(shape, slab_bytes) * slab_bytes;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_x_bytes(int shape, uint32_t x_tiles, uint32_t slab_bytes) {
    return trf_packed_bulk_k_tiles(shape, slab_bytes) * TRF_PACKED_TILE_COLS * x_tiles * 8 * 2;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_stage_bytes(int shape, uint32_t x_tiles, uint32_t slab_bytes) {
    return (trf_packed_bulk_weight_bytes(shape, slab_bytes) + trf_packed_bulk_x_bytes(shape, x_tiles, slab_bytes) +
            trf_packed_bulk_bands(shape) * TRF_PACKED_LINE_BYTES + 1023) /
           1024 * 1024;
}

/* ---- shared memory: stages | sums | barriers ---- */

TRF_HD_CONSTEXPR bool trf_packed_bulk_is_stream_k(int shape) { return shape == TRF_PACKED_BULK_256; }

/* With stream-K, the sums of one slab of each warp; the stages hold the next tile by then. With clusters, the sums that
 * blocks send to where they are added; each block has room for the same number of accumulator tiles. */
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_sums_bytes(int shape, uint32_t x_tiles) {
    return (trf_packed_bulk_is_stream_k(shape) ? trf_packed_bulk_warps(shape) * x_tiles
                                               : trf_packed_bulk_acc_tiles(shape, x_tiles) + TRF_MAX_CLUSTER - 1) *
           TRF_ACC_TILE_BYTES;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_most_stages(uint32_t slab_bytes) {
    return slab_bytes == TRF_PACKED_SLAB_BYTES ? TRF_PACKED_BULK_MAX_STAGES : TRF_PACKED8_BULK_MAX_STAGES;
}
/* 1024 bytes are added so that stages can begin at a multiple of 1024. */
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_other_bytes(int shape, uint32_t x_tiles, uint32_t slab_bytes) {
    return trf_packed_bulk_sums_bytes(shape, x_tiles) + 16 * trf_packed_bulk_most_stages(slab_bytes) + 16 + 1024;
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_fitting_stages(int shape, uint32_t x_tiles, uint32_t slab_bytes) {
    return (TRF_PACKED_SMEM_BYTES - trf_packed_bulk_other_bytes(shape, x_tiles, slab_bytes)) /
           trf_packed_bulk_stage_bytes(shape, x_tiles, slab_bytes);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_stages(int shape, uint32_t x_tiles, uint32_t slab_bytes) {
    return trf_packed_bulk_fitting_stages(shape, x_tiles, slab_bytes) < trf_packed_bulk_most_stages(slab_bytes)
               ? trf_packed_bulk_fitting_stages(shape, x_tiles, slab_bytes)
               : trf_packed_bulk_most_stages(slab_bytes);
}
TRF_HD_CONSTEXPR uint32_t trf_packed_bulk_shared_bytes(int shape, uint32_t x_tiles, uint32_t slab_bytes) {
    return trf_packed_bulk_stages(shape, x_tiles, slab_bytes) *
               trf_packed_bulk_stage_bytes(shape, x_tiles, slab_bytes) +
           trf_packed_bulk_other_bytes(shape, x_tiles, slab_bytes);
}

#endif
