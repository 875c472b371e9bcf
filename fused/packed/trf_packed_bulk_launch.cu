/* SPDX-License-Identifier: Apache-2.0 */
/* The bulk kernels (trf_packed_bulk.cuh) and their launch. */
#include "trf_packed_bulk_launch.cuh"

#include "trf_kernel_launch.cuh"

#include "trf_packed_bulk.cuh"

typedef void (*trf_packed_bulk_kernel)(trf_packed_bulk_args);

template <int kShape, uint32_t kXTiles, bool kZeroing>
static __global__ void __launch_bounds__(32 * (trf_packed_bulk_warps(kShape) + TRF_PACKED_BULK_PRODUCER_WARPS), 1)
    trf_packed_bulk(const __grid_constant__ trf_packed_bulk_args args) {
#if TRF_WARPGROUPS
    extern __shared__ __align__(1024) uint8_t trf_packed_bulk_memory[];
    const uint32_t shared = (trf_shared_address(trf_packed_bulk_memory) + 1023) / 1024 * 1024;
    trf_packed_bulk_block<trf_packed_bulk_config<kShape, kXTiles>, kZeroing>(args, shared);
#endif
}

/* A warp an item of a tile. */
template <int kShape, uint32_t kXTiles>
static __global__ void __launch_bounds__(256) trf_packed_bulk_finish(const trf_packed_bulk_args args) {
#if TRF_WARPGROUPS
    typedef trf_packed_bulk_config<kShape, kXTiles> Config;
    trf_wait_for_predecessor();
    const uint32_t item = blockIdx.y * 8 + threadIdx.x / TRF_LANES;
    if (item < Config::kItems)
        trf_packed_bulk_finish_item<Config>(args, blockIdx.x, item, threadIdx.x % TRF_LANES);
#endif
}

struct trf_packed_bulk_kernels {
    trf_packed_bulk_kernel product[2], finish; /* of a layer that is zeroing, or not; NULL: stream-K alone has it */
};

template <int kShape, uint32_t kXTiles> static trf_packed_bulk_kernels kernels() {
    trf_packed_bulk_kernels found = {{trf_packed_bulk<kShape, kXTiles, false>, trf_packed_bulk<kShape, kXTiles, true>},
                                     nullptr};
    if constexpr (trf_packed_bulk_is_stream_k(kShape))
        found.finish = trf_packed_bulk_finish<kShape, kXTiles>;
    return found;
}

/* Of 1, 2 or 4 x tiles. */
template <int kShape> static trf_packed_bulk_kernels kernels_of(uint32_t x_tiles) {
    return x_tiles == 1 ? kernels<kShape, 1>() : x_tiles == 2 ? kernels<kShape, 2>() : kernels<kShape, 4>();
}

static trf_packed_bulk_kernels find_kernels(int shape, uint32_t x_tiles) {
    switch (shape) {
    case TRF_PACKED_BULK_256:
        return kernels_of<TRF_PACKED_BULK_256>(x_tiles);
    case TRF_PACKED_BULK_128:
        return kernels_of<TRF_PACKED_BULK_128>(x_tiles);
    case TRF_PACKED_BULK_64:
        return kernels_of<TRF_PACKED_BULK_64>(x_tiles);
    case TRF_PACKED_BULK_64_8_WARPS:
        return kernels<TRF_PACKED_BULK_64_8_WARPS, 8>();
    default:
        return x_tiles == 8 ? kernels<TRF_PACKED_BULK_32, 8>() : kernels_of<TRF_PACKED_BULK_32>(x_tiles);
    }
}

cudaError_t trf_packed_bulk_launch(const trf_packed_view *view, const trf_product *product,
                                   const trf_packed_partition *partition, const trf_operands *operands, const void *x,
                                   uint32_t x_stride, float *partials, cudaStream_t stream) {
    trf_packed_bulk_args args = {};
    args.view = *view;
    args.m = product->m;
    args.cluster = partition->cluster;
    args.share_quotient = partition->stages / partition->cluster;
    args.share_remainder = partition->stages % partition->cluster;
    args.stream_k = trf_stream_k_of(partition->tiles, partition->stages, (uint32_t)partition->blocks);
    args.partials = partials;
    args.epilogue = trf_epilogue_of(product, operands);
    args.is_bare = trf_packed_is_bare(args.epilogue);
    cudaError_t status = trf_describe_x(x, product->m, view->cols, x_stride, 8 * partition->x_tiles,
                                        TRF_PACKED_BULK_X_BOX_COLS, true, &args.x_map);
    if (status != cudaSuccess)
        return status;
    const trf_packed_bulk_kernels found = find_kernels(partition->shape, partition->x_tiles);
    bool early;
    status = trf_launch_kernel(
        found.product[view->zeroing != 0], args,
        {(uint32_t)partition->blocks, 32 * (trf_packed_bulk_warps(partition->shape) + TRF_PACKED_BULK_PRODUCER_WARPS),
         trf_packed_bulk_shared_bytes(partition->shape, partition->x_tiles), partition->cluster, stream},
        &early);
    if (status == cudaSuccess && found.finish)
        status = trf_launch_finish(
            found.finish, args,
            dim3(partition->tiles, (trf_packed_bulk_items(partition->shape, partition->x_tiles) + 7) / 8), 256, early,
            stream);
    return status;
}
