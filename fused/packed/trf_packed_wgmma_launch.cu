/* SPDX-License-Identifier: Apache-2.0 */
/* The wgmma kernels (trf_packed_wgmma.cuh) and their launch. */
#include "trf_packed_wgmma_launch.cuh"

#include "trf_kernel_launch.cuh"

#include "trf_packed_wgmma.cuh"

static constexpr uint32_t kFinishWarps = 8;

typedef void (*trf_packed_wgmma_kernel)(trf_packed_wgmma_args);

template <int kShape, bool kZeroing>
static __global__ void __launch_bounds__(TRF_PACKED_WGMMA_THREADS, 1)
    trf_packed_wgmma(const __grid_constant__ trf_packed_wgmma_args args) {
#if TRF_WARPGROUPS
    extern __shared__ __align__(1024) uint8_t trf_packed_wgmma_memory[];
    trf_packed_wgmma_block<trf_packed_wgmma_config<kShape>, kZeroing>(args,
                                                                      trf_shared_address(trf_packed_wgmma_memory));
#endif
}

/* A warp two items of a tile. */
template <int kShape>
static __global__ void __launch_bounds__(32 * kFinishWarps) trf_packed_wgmma_finish(const trf_packed_wgmma_args args) {
#if TRF_WARPGROUPS
    __shared__ uint4 sums[kFinishWarps * TRF_PACKED_BULK_ITEM_BYTES / sizeof(uint4)];
    const uint32_t warp = threadIdx.x / TRF_LANES;
    trf_wait_for_predecessor();
    trf_packed_wgmma_finish_item_pair<trf_packed_wgmma_config<kShape>>(
        args, blockIdx.x, blockIdx.y * kFinishWarps + warp,
        trf_shared_address(sums) + warp * TRF_PACKED_BULK_ITEM_BYTES, threadIdx.x % TRF_LANES);
#endif
}

struct trf_packed_wgmma_kernels {
    trf_packed_wgmma_kernel product[2], finish; /* of a layer that is zeroing, or not */
};

template <int kShape> static trf_packed_wgmma_kernels kernels() {
    static_assert(trf_packed_wgmma_items(kShape) / 2 % kFinishWarps == 0, "each warp has an item pair");
    return {{trf_packed_wgmma<kShape, false>, trf_packed_wgmma<kShape, true>}, trf_packed_wgmma_finish<kShape>};
}

static trf_packed_wgmma_kernels find_kernels(int shape) {
    switch (shape) {
    case TRF_PACKED_WGMMA_64:
        return kernels<TRF_PACKED_WGMMA_64>();
    case TRF_PACKED_WGMMA_96:
        return kernels<TRF_PACKED_WGMMA_96>();
    case TRF_PACKED_WGMMA_128:
        return kernels<TRF_PACKED_WGMMA_128>();
    case TRF_PACKED_WGMMA_192:
        return kernels<TRF_PACKED_WGMMA_192>();
    default:
        return kernels<TRF_PACKED_WGMMA_256>();
    }
}

cudaError_t trf_packed_wgmma_launch(const trf_packed_view *view, const trf_product *product,
                                    const trf_packed_partition *partition, const trf_operands *operands, const void *x,
                                    uint32_t x_stride, float *partials, cudaStream_t stream) {
    trf_packed_wgmma_args args =
        trf_packed_wgmma_args_of(view, partition, product->m, trf_epilogue_of(product, operands));
    args.partials = partials;
    cudaError_t status = trf_describe_x(x, product->m, view->cols, x_stride, trf_packed_wgmma_x_rows(partition->shape),
                                        TRF_PACKED_BULK_X_BOX_COLS, true, &args.x_map);
    if (status != cudaSuccess)
        return status;
    const trf_packed_wgmma_kernels found = find_kernels(partition->shape);
    bool early;
    status = trf_launch_kernel(found.product[view->zeroing != 0], args,
                               {(uint32_t)partition->blocks, TRF_PACKED_WGMMA_THREADS,
                                trf_packed_wgmma_shared_bytes(partition->shape), partition->cluster, stream},
                               &early);
    if (status == cudaSuccess && partition->whole < partition->tiles)
        status = trf_launch_finish(
            found.finish, args,
            dim3(partition->tiles - partition->whole, trf_packed_wgmma_items(partition->shape) / 2 / kFinishWarps),
            32 * kFinishWarps, early, stream);
    return status;
}
