/* SPDX-License-Identifier: Apache-2.0 */
/* The bulk kernels (trf_packed_bulk.cuh) that multiply by several layers, for one kind of weights, and their launch.
 * Each source that includes this has the kernels of the kinds for which it calls trf_packed_group_launch_as. */
#ifndef TRF_PACKED_GROUP_KERNELS_CUH
#define TRF_PACKED_GROUP_KERNELS_CUH

#include "trf_kernel_launch.cuh"
#include "trf_packed_bulk.cuh"
#include "trf_packed_group_partition.h"
#include "trf_pad_x.h"

typedef void (*trf_packed_group_kernel)(trf_packed_bulk_group_args);

template <int kShape, uint32_t kXTiles, class Weights>
static __global__ void __launch_bounds__(32 * (trf_packed_bulk_warps(kShape) + TRF_PACKED_PRODUCER_WARPS), 1)
    trf_packed_group(const __grid_constant__ trf_packed_bulk_group_args group) {
#if TRF_HAS_SM_90A
    extern __shared__ __align__(1024) uint8_t trf_packed_group_memory[];
    const uint32_t shared = (trf_shared_address(trf_packed_group_memory) + 1023) / 1024 * 1024;
    trf_packed_bulk_block<trf_packed_bulk_config<kShape, kXTiles, Weights, true>>(trf_packed_bulk_member_of(group),
                                                                                  trf_keep_in_register(shared));
#endif
}

template <int kShape, class Weights> static trf_packed_group_kernel trf_packed_group_find_x(uint32_t x_tiles) {
    static_assert(TRF_PACKED_GROUP_MAX_M == 4 * TRF_PACKED_X_TILE_ROWS, "1, 2 or 4 x tiles");
    return x_tiles == 1   ? trf_packed_group<kShape, 1, Weights>
           : x_tiles == 2 ? trf_packed_group<kShape, 2, Weights>
                          : trf_packed_group<kShape, 4, Weights>;
}

template <class Weights> static trf_packed_group_kernel trf_packed_group_find(int shape, uint32_t x_tiles) {
    return shape == TRF_PACKED_BULK_128  ? trf_packed_group_find_x<TRF_PACKED_BULK_128, Weights>(x_tiles)
           : shape == TRF_PACKED_BULK_64 ? trf_packed_group_find_x<TRF_PACKED_BULK_64, Weights>(x_tiles)
                                         : trf_packed_group_find_x<TRF_PACKED_BULK_32, Weights>(x_tiles);
}

/* Sets a member's x_map. x has rows of whole 16 bytes, and is copied to the workspace if necessary. */
static int trf_packed_group_take_x(const void *x, const trf_packed_view *view, uint8_t *padded,
                                   trf_packed_bulk_member *member, trf_stream stream) {
    uint32_t x_stride;
    const int status = trf_align_x(&x, member->m, view->cols, padded, &x_stride, stream);
    if (status)
        return status;
    return trf_make_x_map(x, member->m, view->cols, x_stride, member->m, TRF_PACKED_X_BOX_COLS, true, &member->x_map);
}

/* Does what trf_packed_group_launch does. views: those of BF16 layers, or the parts of trf_packed8_view. */
template <class Weights>
static int trf_packed_group_launch_as(const trf_packed_view *const *views, const trf_product *const *products,
                                      uint32_t count, const trf_packed_group_partition *partition, const void *const *x,
                                      void *const *y, void *workspace, trf_stream stream) {
    trf_packed_bulk_group_args group = {};
    uint32_t first_block = 0;
    group.count = count;
    for (uint32_t i = 0; i < count; i++) {
        trf_operands operands = {};
        operands.y = y[i];
        trf_packed_bulk_member &member = group.members[i];
        static_cast<trf_packed_bulk_args &>(member) =
            trf_packed_bulk_args_of(views[i], products[i], &partition->members[i], &operands);
        member.first_block = first_block;
        first_block += (uint32_t)partition->members[i].blocks;
        const int status =
            trf_packed_group_take_x(x[i], views[i], (uint8_t *)workspace + partition->x_offset[i], &member, stream);
        if (status)
            return status;
    }
    bool early;
    return trf_launch_kernel(trf_packed_group_find<Weights>(partition->shape, partition->x_tiles), group,
                             {partition->blocks,
                              32 * (trf_packed_bulk_warps(partition->shape) + TRF_PACKED_PRODUCER_WARPS),
                              trf_packed_bulk_shared_bytes(partition->shape, partition->x_tiles, Weights::kSlabBytes),
                              partition->cluster_size, stream},
                             &early);
}

#endif
