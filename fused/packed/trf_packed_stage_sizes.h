/* SPDX-License-Identifier: Apache-2.0 */
/* What bulk and wgmma kernels have in common: the sizes of what fills their stages, and of what their blocks hand over
 * to each other. C and CUDA. */
#ifndef TRF_PACKED_STAGE_SIZES_H
#define TRF_PACKED_STAGE_SIZES_H

#include "trf_acc_tile.h"
#include "trf_smem_layout.h"

enum {
    TRF_PACKED_SMEM_BYTES = 227 << 10, /* of a block, compute capability 9.0 */
    TRF_PACKED_PRODUCER_WARPS = 4,     /* a whole warpgroup, because of setmaxnreg; three of them have work */
    TRF_PACKED_X_BOX_COLS = 64,        /* columns of a box of x, under the swizzle of 128 bytes */
    TRF_PACKED_X_BOX_ROW_BYTES = 2 * TRF_PACKED_X_BOX_COLS,
    /* the most warps of a block that hands sums over to another (trf_packed_handover.cuh) */
    TRF_PACKED_HANDOVER_WARPS = 12
};

/* The workspace that `blocks` blocks need to hand over acc_tiles accumulator tiles each. */
TRF_HD_CONSTEXPR uint64_t trf_packed_handover_bytes(uint64_t blocks, uint32_t acc_tiles) {
    return blocks * (acc_tiles * (uint64_t)TRF_ACC_TILE_BYTES + TRF_PACKED_HANDOVER_WARPS * sizeof(uint64_t));
}

#endif
