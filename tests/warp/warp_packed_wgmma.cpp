/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_engine.h"

#include "trf_packed_wgmma.cuh"

#include "warp_packed.h"

template <int kShape, bool kZeroing> static void run_block(void *args) {
    trf_packed_wgmma_block<trf_packed_wgmma_config<kShape>, kZeroing>(*(const trf_packed_wgmma_args *)args,
                                                                      trf_shared_address(warp_shared_memory()));
}

struct finish_args {
    const trf_packed_wgmma_args *args;
    uint32_t tile;
};

/* One warp. */
template <int kShape> static void run_finish(void *args) {
    typedef trf_packed_wgmma_config<kShape> Config;
    const finish_args &a = *(const finish_args *)args;
    for (uint32_t pair = 0; pair < Config::kItems / 2; pair++)
        trf_packed_wgmma_finish_item_pair<Config>(*a.args, a.tile, pair, trf_shared_address(warp_shared_memory()),
                                                  threadIdx.x);
}

template <int kShape> static void multiply(const warp_packed_product *product, const trf_packed_partition *partition) {
    trf_packed_wgmma_args args = trf_packed_wgmma_args_of(product->view, partition, product->m, product->epilogue);
    args.x_map = warp_describe_x(product->x, product->m, product->view->cols, trf_packed_wgmma_x_rows(kShape));
    args.partials = product->partials;
    gridDim.x = (uint32_t)partition->blocks;
    const warp_block_shape shape = {TRF_PACKED_WGMMA_THREADS / 32, trf_packed_wgmma_shared_bytes(kShape),
                                    product->order, partition->cluster};
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x += partition->cluster)
        warp_run_block(shape, args.view.zeroing ? run_block<kShape, true> : run_block<kShape, false>, &args);
    blockIdx.x = 0;
    for (finish_args finish = {&args, 0}; finish.tile < partition->tiles - partition->whole; finish.tile++)
        warp_run_block({1, TRF_PACKED_BULK_ITEM_BYTES, 0, 1}, run_finish<kShape>, &finish);
    gridDim.x = 1;
}

void warp_multiply_packed_wgmma(const warp_packed_product *product, const trf_packed_partition *partition) {
    switch (partition->shape) {
    case TRF_PACKED_WGMMA_64:
        return multiply<TRF_PACKED_WGMMA_64>(product, partition);
    case TRF_PACKED_WGMMA_96:
        return multiply<TRF_PACKED_WGMMA_96>(product, partition);
    case TRF_PACKED_WGMMA_128:
        return multiply<TRF_PACKED_WGMMA_128>(product, partition);
    case TRF_PACKED_WGMMA_192:
        return multiply<TRF_PACKED_WGMMA_192>(product, partition);
    default:
        return multiply<TRF_PACKED_WGMMA_256>(product, partition);
    }
}
