/* SPDX-License-Identifier: Apache-2.0 */
/* The bulk kernels (trf_packed_bulk.cuh) and their launch. */
#include "trf_packed_bulk_launch.cuh"

#include "trf_kernel_launch.cuh"

#include "trf_packed_bulk.cuh"
#include "trf_packed_launch_id.cuh"

typedef void (*trf_packed_bulk_kernel)(trf_packed_bulk_args);

template <int kShape, uint32_t kXTiles, bool kZeroing>
static __global__ void __launch_bounds__(32 * (trf_packed_bulk_warps(kShape) + TRF_PACKED_PRODUCER_WARPS), 1)
    trf_packed_bulk(const __grid_constant__ trf_packed_bulk_args args) {
#if TRF_HAS_SM_90A
    extern __shared__ __align__(1024) uint8_t trf_packed_bulk_memory[];
    const uint32_t shared = (trf_shared_address(trf_packed_bulk_memory) + 1023) / 1024 * 1024;
    trf_packed_bulk_block<trf_packed_bulk_config<kShape, kXTiles>, kZeroing>(args, trf_keep_in_register(shared));
#endif
}

/* The kernel for a layer that is zeroing or not. */
template <int kShape, uint32_t kXTiles> static trf_packed_bulk_kernel kernel_of(bool zeroing) {
    return zeroing ? trf_packed_bulk<kShape, kXTiles, true> : trf_packed_bulk<kShape, kXTiles, false>;
}

template <int kShape> static trf_packed_bulk_kernel find_small_kernel(uint32_t x_tiles, bool zeroing) {
    return x_tiles == 1   ? kernel_of<kShape, 1>(zeroing)
           : x_tiles == 2 ? kernel_of<kShape, 2>(zeroing)
                          : kernel_of<kShape, 4>(zeroing);
}

static trf_packed_bulk_kernel find_kernel(int shape, uint32_t x_tiles, bool zeroing) {
    switch (shape) {
    case TRF_PACKED_BULK_256:
        return find_small_kernel<TRF_PACKED_BULK_256>(x_tiles, zeroing);
    case TRF_PACKED_BULK_128:
        return find_small_kernel<TRF_PACKED_BULK_128>(x_tiles, zeroing);
    case TRF_PACKED_BULK_64:
        return find_small_kernel<TRF_PACKED_BULK_64>(x_tiles, zeroing);
    default:
        return x_tiles == 8 ? kernel_of<TRF_PACKED_BULK_32, 8>(zeroing)
                            : find_small_kernel<TRF_PACKED_BULK_32>(x_tiles, zeroing);
    }
}

cudaError_t trf_packed_bulk_launch(const trf_packed_view *view, const trf_product *product,
                                   const trf_packed_partition *partition, const trf_operands *operands, const void *x,
                                   uint32_t x_stride, void *handover, cudaStream_t stream) {
    trf_packed_bulk_args args = trf_packed_bulk_args_of(view, product, partition, operands);
    args.handover =
        trf_packed_handover_at(handover, partition->blocks,
                               trf_packed_bulk_acc_tiles(partition->shape, partition->x_tiles), trf_next_launch_id());
    cudaError_t status =
        trf_make_x_map(x, product->m, view->cols, x_stride, product->m, TRF_PACKED_X_BOX_COLS, true, &args.x_map);
    if (status != cudaSuccess)
        return status;
    bool early;
    return trf_launch_kernel(
        find_kernel(partition->shape, partition->x_tiles, view->zeroing != 0), args,
        {(uint32_t)partition->blocks, 32 * (trf_packed_bulk_warps(partition->shape) + TRF_PACKED_PRODUCER_WARPS),
         trf_packed_bulk_shared_bytes(partition->shape, partition->x_tiles), partition->cluster_size, stream},
        &early);
}
