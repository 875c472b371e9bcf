/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of the kernels that multiply by packed experts (trf_moe_product.cuh), which planning needs, too. C and
 * CUDA. slab_bytes: those of a packed slab, TRF_PACKED_SLAB_BYTES or TRF_PACKED8_SLAB_BYTES. */
#ifndef TRF_MOE_SIZES_H
#define TRF_MOE_SIZES_H

#include "trf_packed_wgmma_sizes.h"

/* The kernels, by how many tokens of an expert a tile has at most: 64, 192 or 256. */
enum trf_moe_kernel {
    TRF_MOE_64,
    TRF_MOE_192,
    TRF_MOE_256,
    TRF_MOE_KERNELS
};

enum {
    TRF_MOE_MAX_EXPERTS = 512, /* of one device */
    TRF_MOE_OWN_ROUTES = 512,  /* so few routes each block sorts by itself, in place of kernels that come first */
    TRF_MOE_CHUNK = 32,        /* routes that a warp sorts at once */
    TRF_MOE_BLOCK_CHUNKS = 32, /* chunks of a block of the kernels that sort */
    TRF_MOE_BLOCK_ROUTES = TRF_MOE_CHUNK * TRF_MOE_BLOCK_CHUNKS,
    TRF_MOE_BANDS = 2, /* of a tile */
    TRF_MOE_ROWS = TRF_MOE_BANDS * TRF_PACKED_TILE_ROWS,
    TRF_MOE_WARPS = TRF_MOE_BANDS * TRF_PACKED_SLABS, /* consumers */
    TRF_MOE_THREADS = 32 * (TRF_MOE_WARPS + TRF_PACKED_PRODUCER_WARPS),
    TRF_MOE_GATHERING_WARPS = TRF_PACKED_PRODUCER_WARPS - 1, /* that copy rows of x */
    TRF_MOE_BOX_ROWS = 64,                                   /* of a box of x */
    TRF_MOE_RUN = 16                                         /* row tiles that follow each other for the same tokens */
};

TRF_HD_CONSTEXPR uint32_t trf_moe_x_rows(int kernel) {
    return kernel == TRF_MOE_64 ? 64 : kernel == TRF_MOE_192 ? 192 : 256;
}

/* Whether threads copy rows of x from where they lie. With other kernels TMA copies boxes of rows that lie in the order
 * of slots. */
TRF_HD_CONSTEXPR int trf_moe_gathers_x(int kernel) { return kernel == TRF_MOE_64; }

/* The accumulator tiles of a tile's sums. */
TRF_HD_CONSTEXPR uint32_t trf_moe_acc_tiles(int kernel) { return TRF_MOE_WARPS * (trf_moe_x_rows(kernel) / 8); }

/* ---- shared memory: stages of weights | x each | exception lines of all stages | sums | barriers | stints | tables
 * ---- */

TRF_HD_CONSTEXPR uint32_t trf_moe_stage_weight_bytes(uint32_t slab_bytes) {
    return TRF_MOE_BANDS * trf_packed_wgmma_band_bytes(slab_bytes);
}
TRF_HD_CONSTEXPR uint32_t trf_moe_stage_lines_bytes(void) { return TRF_MOE_BANDS * TRF_PACKED_LINE_BYTES; }
TRF_HD_CONSTEXPR uint32_t trf_moe_stage_bytes(int kernel, uint32_t slab_bytes) {
    return trf_moe_stage_weight_bytes(slab_bytes) + trf_moe_x_rows(kernel) * TRF_PACKED_X_BOX_ROW_BYTES;
}
TRF_HD_CONSTEXPR uint32_t trf_moe_sums_bytes(void) { return TRF_MOE_WARPS * TRF_ACC_TILE_BYTES; }

/* Where the tables lie (trf_moe_tables.cuh). Each begins at a multiple of 16 bytes. blocks_before: u16, one more than
 * experts, and so many more that lanes can search it 32 at a time. Only the kernel that gathers has the others:
 * first_slots (u32), routes of slots (u16), and where the experts' weights lie. */
TRF_HD_CONSTEXPR uint32_t trf_moe_blocks_before_bytes(void) { return 2 * (TRF_MOE_MAX_EXPERTS + 32); }
TRF_HD_CONSTEXPR uint32_t trf_moe_first_slots_bytes(void) { return 4 * (TRF_MOE_MAX_EXPERTS + 4); }
TRF_HD_CONSTEXPR uint32_t trf_moe_own_routes_bytes(void) { return 2 * TRF_MOE_OWN_ROUTES; }
TRF_HD_CONSTEXPR uint32_t trf_moe_pointers_bytes(void) { return 16 * TRF_MOE_MAX_EXPERTS; }
TRF_HD_CONSTEXPR uint32_t trf_moe_tables_bytes(int kernel) {
    return trf_moe_blocks_before_bytes() +
           (trf_moe_gathers_x(kernel)
                ? trf_moe_first_slots_bytes() + trf_moe_own_routes_bytes() + trf_moe_pointers_bytes()
                : 0);
}

/* What consumers are told of a stint (trf_moe_product.cuh). As each has a stage at least, a stint more than stages is
 * known at once, at most. */
TRF_HD_CONSTEXPR uint32_t trf_moe_stint_bytes(void) { return 32; }
TRF_HD_CONSTEXPR uint32_t
trf_moe_whole_stage_bytes(int kernel, uint32_t slab_bytes) { /* with a stage's exception lines, barriers, stint */
    return trf_moe_stage_bytes(kernel, slab_bytes) + trf_moe_stage_lines_bytes() + 16 + trf_moe_stint_bytes();
}
TRF_HD_CONSTEXPR uint32_t trf_moe_stages(int kernel, uint32_t slab_bytes) {
    return (TRF_PACKED_SMEM_BYTES - trf_moe_sums_bytes() - trf_moe_stint_bytes() - trf_moe_tables_bytes(kernel)) /
           trf_moe_whole_stage_bytes(kernel, slab_bytes);
}
TRF_HD_CONSTEXPR uint32_t trf_moe_stints(int kernel, uint32_t slab_bytes) {
    return trf_moe_stages(kernel, slab_bytes) + 1;
}
TRF_HD_CONSTEXPR uint32_t trf_moe_shared_bytes(int kernel, uint32_t slab_bytes) {
    return trf_moe_stages(kernel, slab_bytes) * trf_moe_whole_stage_bytes(kernel, slab_bytes) + trf_moe_sums_bytes() +
           trf_moe_stint_bytes() + trf_moe_tables_bytes(kernel);
}

#endif
