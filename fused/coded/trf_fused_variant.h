/* SPDX-License-Identifier: Apache-2.0 */
/* Which fused and grouped kernels there are, and their sizes. The kernels are compiled for these, and planning chooses
 * from them. C and CUDA.
 *
 * A *unit* is the one or two bands of 32 rows that a warp walks at the same time. */
#ifndef TRF_FUSED_VARIANT_H
#define TRF_FUSED_VARIANT_H

#include "transfuse.h"
#include "trf_acc_tile.h"
#include "trf_smem_layout.h"

enum {
    TRF_X_TILE_BYTES = 8 * 64 /* 8 rows of x, the columns of two steps */
};

/* Which variants a layer can have depends on its p, L and frequencies (trf_has_default_p), on the batch, and on shared
 * memory. */
enum trf_fused_variant {
    /* default p, two slabs a warp, from 1 to trf_fused_two_slab_max_x_tiles x tiles; not with scale groups */
    TRF_VARIANT_TWO_SLABS,
    TRF_VARIANT_ONE_SLAB, /* default p; 1, 2, 4 or 8 x tiles */
    TRF_VARIANT_GENERAL,  /* any p, 1 or 8 x tiles, 8 warps; also for long rANS streams and little shared memory */
    TRF_FUSED_VARIANTS
};

TRF_HD_CONSTEXPR int trf_fused_unit_slabs(int variant) { return variant == TRF_VARIANT_TWO_SLABS ? 2 : 1; }

TRF_HD_CONSTEXPR int trf_fused_x_tiles(uint32_t m, int variant) {
    return m <= 8                                        ? 1
           : variant == TRF_VARIANT_GENERAL              ? 8
           : m <= 16                                     ? 2
           : m <= 24 && variant == TRF_VARIANT_TWO_SLABS ? 3
           : m <= 32                                     ? 4
                                                         : 8;
}

/* Whether the int codec has kernels made for these raw bits. It has them for quads of 8-bit codes (6 raw bits) and of
 * codes near 4 bits a weight (3 raw bits). */
TRF_HD_CONSTEXPR int trf_has_known_planes(uint32_t codec, int class_bits, uint32_t raw_bits) {
    return codec == TRF_CODEC_INT && class_bits == 2 && (raw_bits == 3 || raw_bits == 6);
}

/* The most x tiles of kernels with two slabs a warp: those that were faster than with one slab and have enough
 * registers. 0: there are no such kernels. has_scale_groups: whether there are scale groups or scale blocks. */
TRF_HD_CONSTEXPR int trf_fused_two_slab_max_x_tiles(uint32_t codec, int class_bits, uint32_t raw_bits,
                                                    int has_scale_groups) {
    return has_scale_groups                                                                                    ? 0
           : class_bits == 4 || (codec == TRF_CODEC_INT && !trf_has_known_planes(codec, class_bits, raw_bits)) ? 1
                                                                                                               : 4;
}

/* Warps of a block: as many as there are registers for beside the accumulators. Pairs have longer chains of states, so
 * more warps help there. */
TRF_HD_CONSTEXPR int trf_fused_warps(uint32_t codec, int class_bits, int has_scale_groups, int x_tiles, int variant) {
    if (variant == TRF_VARIANT_GENERAL || x_tiles == 8)
        return 8;
    if (variant == TRF_VARIANT_TWO_SLABS)
        return x_tiles > 2 || (x_tiles == 2 && codec == TRF_CODEC_FP16) ? 12 : 16;
    if (x_tiles == 4 && has_scale_groups)
        return 12;
    return class_bits == 4 && x_tiles == 1 && !has_scale_groups ? 20 : 16;
}

/* The log of the decode table's size. With quads and one slab a warp, the warp waits for each look-up, so each lane
 * should have a bank of its own. With two slabs, work on one hides the look-ups of the other. */
TRF_HD_CONSTEXPR uint32_t trf_fused_table_log(int class_bits, int unit_slabs) {
    return class_bits == 2 && unit_slabs == 2 ? TRF_SMALL_TABLE_LOG : TRF_TABLE_LOG;
}

/* Whether the decode steps' constants (trf_rans_params) are kept in vector registers. The compiler prefers to keep them
 * in uniform registers and copies them each time, which is up to 4 % slower. Some kernels with two slabs a warp have no
 * register left for the constants and would spill: bf16 and fp16 with three x tiles, where keeping them costs 7-28 %,
 * and int with two, where it costs 2-4 %. */
TRF_HD_CONSTEXPR int trf_fused_keeps_constants(uint32_t codec, int unit_slabs, int x_tiles) {
    return !(unit_slabs == 2 && ((x_tiles == 3 && (codec == TRF_CODEC_BF16 || codec == TRF_CODEC_FP16)) ||
                                 (x_tiles == 2 && codec == TRF_CODEC_INT)));
}

/* Bytes of a warp's sums as it leaves them in shared memory. */
TRF_HD_CONSTEXPR uint32_t trf_fused_sum_bytes(uint32_t unit_slabs, uint32_t x_tiles) {
    return TRF_ACC_TILE_BYTES * 2 * unit_slabs * x_tiles;
}

/* ---- x of batches above 8 ----
 *
 * With one slab a warp, x is in a pipeline that warps share (trf_fused_x_pipeline.cuh). With two slabs, warps mostly
 * have columns of their own, so each warp copies x for itself, two steps ahead, and each lane copies what it will read
 * itself: that takes the fewest registers. bf16 with three x tiles has enough registers to load x through the L1 cache,
 * as with one x tile, and is faster that way. */

TRF_HD_CONSTEXPR int trf_pipelines_x(int unit_slabs, int x_tiles) { return unit_slabs == 1 && x_tiles > 1; }
TRF_HD_CONSTEXPR int trf_copies_x_by_warp(uint32_t codec, int unit_slabs, int x_tiles) {
    return unit_slabs == 2 && x_tiles > 1 && !(codec == TRF_CODEC_BF16 && x_tiles == 3);
}

/* Bytes of a warp's copy of x, which follows the buffers of its slabs. */
TRF_HD_CONSTEXPR uint32_t trf_copied_x_bytes(uint32_t codec, int unit_slabs, int x_tiles) {
    return trf_copies_x_by_warp(codec, unit_slabs, x_tiles) ? 2 * (uint32_t)x_tiles * TRF_X_TILE_BYTES : 0;
}

/* Bytes of a stage of the pipeline: [step pairs][8 * x_tiles rows][64 bytes]. cols: 128 or 256. */
TRF_HD_CONSTEXPR uint32_t trf_x_stage_bytes(uint32_t cols, int x_tiles) {
    return cols / 32 * (uint32_t)x_tiles * TRF_X_TILE_BYTES;
}

/* ---- grouped kernels ---- */

/* Whether there is a grouped kernel for units of so many slabs. */
TRF_HD_CONSTEXPR int trf_has_group_kernel(uint32_t codec, uint32_t class_bits, uint32_t unit_slabs) {
    return codec == TRF_CODEC_BF16 || codec == TRF_CODEC_FP16 || unit_slabs == (class_bits == 2 ? 2u : 1u);
}

/* Warps of a block, the same for every codec. */
TRF_HD_CONSTEXPR uint32_t trf_group_warps(uint32_t class_bits, uint32_t unit_slabs) {
    return (uint32_t)trf_fused_warps(TRF_CODEC_BF16, (int)class_bits, 0, 1,
                                     unit_slabs == 2 ? TRF_VARIANT_TWO_SLABS : TRF_VARIANT_ONE_SLAB);
}

#endif
