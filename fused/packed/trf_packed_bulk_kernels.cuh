/* SPDX-License-Identifier: Apache-2.0 */
/* The bulk kernels (trf_packed_bulk.cuh) for one kind of weights, and their launch. Each source that includes this has
 * the kernels of the kinds for which it calls trf_packed_bulk_launch_as. */
#ifndef TRF_PACKED_BULK_KERNELS_CUH
#define TRF_PACKED_BULK_KERNELS_CUH

#include "trf_kernel_launch.cuh"
#include "trf_packed_bulk.cuh"
#include "trf_packed_launch_id.cuh"

typedef void (*trf_packed_bulk_kernel)(trf_packed_bulk_args);

template <int kShape, uint32_t kXTiles, class Weights>
static __global__ void __launch_bounds__(32 * (trf_packed_bulk_warps(kShape) + TRF_PACKED_PRODUCER_WARPS), 1)
    trf_packed_bulk(const __grid_constant__ trf_packed_bulk_args args) {
#if TRF_HAS_SM_90A
    extern __shared__ __align__(1024) uint8_t trf_packed_bulk_memory[];
    const uint32_t shared = (trf_shared_address(trf_packed_bulk_memory) + 1023) / 1024 * 1024;
    trf_packed_bulk_block<trf_packed_bulk_config<kShape, kXTiles, Weights>>(args, trf_keep_in_register(shared));
#endif
}

template <int kShape, class Weights> static trf_packed_bulk_kernel trf_packed_bulk_find_x(uint32_t x_tiles) {
    if constexpr (trf_packed_bulk_has_kernel(kShape, 8, Weights::kSlabBytes))
        if (x_tiles == 8)
            return trf_packed_bulk<kShape, 8, Weights>;
    return x_tiles == 1   ? trf_packed_bulk<kShape, 1, Weights>
           : x_tiles == 2 ? trf_packed_bulk<kShape, 2, Weights>
                          : trf_packed_bulk<kShape, 4, Weights>;
}

template <class Weights> static trf_packed_bulk_kernel trf_packed_bulk_find(int shape, uint32_t x_tiles) {
    return shape == TRF_PACKED_BULK_256   ? trf_packed_bulk_find_x<TRF_PACKED_BULK_256, Weights>(x_tiles)
           : shape == TRF_PACKED_BULK_128 ? trf_packed_bulk_find_x<TRF_PACKED_BULK_128, Weights>(x_tiles)
           : shape == TRF_PACKED_BULK_64  ? trf_packed_bulk_find_x<TRF_PACKED_BULK_64, Weights>(x_tiles)
                                          : trf_packed_bulk_find_x<TRF_PACKED_BULK_32, Weights>(x_tiles);
}

/* Does what trf_packed_bulk_launch (trf_packed_bulk_launch.cuh) does. */
template <class Weights>
static cudaError_t trf_packed_bulk_launch_as(const trf_packed_view *view, const trf_product *product,
                                             const trf_packed_partition *partition, const trf_operands *operands,
                                             const void *x, uint32_t x_stride, void *handover, cudaStream_t stream) {
    trf_packed_bulk_args args = trf_packed_bulk_args_of(view, product, partition, operands);
    args.handover =
        trf_packed_handover_at(handover, partition->blocks,
                               trf_packed_bulk_acc_tiles(partition->shape, partition->x_tiles), trf_next_launch_id());
    cudaError_t status =
        trf_make_x_map(x, product->m, view->cols, x_stride, product->m, TRF_PACKED_X_BOX_COLS, true, &args.x_map);
    if (status != cudaSuccess)
        return status;
    bool early;
    return trf_launch_kernel(trf_packed_bulk_find<Weights>(partition->shape, partition->x_tiles), args,
                             {(uint32_t)partition->blocks,
                              32 * (trf_packed_bulk_warps(partition->shape) + TRF_PACKED_PRODUCER_WARPS),
                              trf_packed_bulk_shared_bytes(partition->shape, partition->x_tiles, Weights::kSlabBytes),
                              partition->cluster_size, stream},
                             &early);
}

#endif
