/* SPDX-License-Identifier: Apache-2.0 */
/* The wgmma kernels (trf_packed_wgmma.cuh) for one kind of weights, and their launch. Each source that includes this
 * has the kernels of the kinds for which it calls trf_packed_wgmma_launch_as. */
#ifndef TRF_PACKED_WGMMA_KERNELS_CUH
#define TRF_PACKED_WGMMA_KERNELS_CUH

#include <utility>

#include "trf_kernel_launch.cuh"

#include "trf_packed_launch_id.cuh"
#include "trf_packed_wgmma.cuh"

typedef void (*trf_packed_wgmma_kernel)(trf_packed_wgmma_args);

template <int kShape, class Weights>
static __global__ void __launch_bounds__(trf_packed_wgmma_threads(kShape), 1)
    trf_packed_wgmma(const __grid_constant__ trf_packed_wgmma_args args) {
#if TRF_HAS_SM_90A
    extern __shared__ __align__(1024) uint8_t trf_packed_wgmma_memory[];
    trf_packed_wgmma_block<trf_packed_wgmma_config<kShape, Weights>>(
        args, trf_keep_in_register(trf_shared_address(trf_packed_wgmma_memory)));
#endif
}

template <class Weights, int... kNumbers>
static trf_packed_wgmma_kernel trf_packed_wgmma_find(int shape, std::integer_sequence<int, kNumbers...>) {
    static constexpr trf_packed_wgmma_kernel kKernels[] = {
        trf_packed_wgmma<TRF_PACKED_WGMMA_64 + kNumbers, Weights>...};
    return kKernels[shape - TRF_PACKED_WGMMA_64];
}

/* Does what trf_packed_bulk_launch (trf_packed_bulk_launch.cuh) does, for a partition with a wgmma kernel. */
template <class Weights>
static cudaError_t trf_packed_wgmma_launch_as(const trf_packed_view *view, const trf_product *product,
                                              const trf_packed_partition *partition, const trf_operands *operands,
                                              const void *x, uint32_t x_stride, void *handover, cudaStream_t stream) {
    typedef std::make_integer_sequence<int, TRF_PACKED_WGMMA_SHAPES> shape_numbers;
    trf_packed_wgmma_args args =
        trf_packed_wgmma_args_of(view, partition, product->m, trf_epilogue_of(product, operands));
    args.handover = trf_packed_handover_at(handover, partition->blocks, trf_packed_wgmma_acc_tiles(partition->shape),
                                           trf_next_launch_id());
    const uint32_t x_rows = trf_packed_wgmma_x_rows(partition->shape);
    cudaError_t status = trf_make_x_map(x, product->m, view->cols, x_stride, args.last_x_rows, TRF_PACKED_X_BOX_COLS,
                                        true, &args.last_x_map);
    args.x_map = args.last_x_map;
    if (status == cudaSuccess && args.x_blocks > 1 && args.last_x_rows < x_rows)
        status = trf_make_x_map(x, product->m, view->cols, x_stride, x_rows, TRF_PACKED_X_BOX_COLS, true, &args.x_map);
    if (status != cudaSuccess)
        return status;
    bool early;
    return trf_launch_kernel(trf_packed_wgmma_find<Weights>(partition->shape, shape_numbers()), args,
                             {(uint32_t)partition->blocks, trf_packed_wgmma_threads(partition->shape),
                              trf_packed_wgmma_shared_bytes(partition->shape, Weights::kSlabBytes),
                              partition->cluster_size, stream},
                             &early);
}

#endif
