/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_sm90.h"

#include "trf_packed_wgmma.cuh"

#include "warp_packed_product.h"

#include <utility>

template <int kShape, bool kZeroing> static void run_block(void *args) {
    trf_packed_wgmma_block<trf_packed_wgmma_config<kShape>, kZeroing>(*(const trf_packed_wgmma_args *)args,
                                                                      trf_shared_address(warp_shared_memory()));
}

template <int kShape> static void multiply(const warp_packed_product *product, const trf_packed_partition *partition) {
    trf_packed_wgmma_args args = trf_packed_wgmma_args_of(product->view, partition, product->m, product->epilogue);
    const uint32_t x_rows = trf_packed_wgmma_x_rows(kShape);
    args.x_map = warp_make_x_map(product->x, product->m, product->view->cols, x_rows, x_rows);
    args.last_x_map = warp_make_x_map(product->x, product->m, product->view->cols, args.last_x_rows, x_rows);
    args.handover = trf_packed_handover_at(product->workspace, partition->blocks, trf_packed_wgmma_acc_tiles(kShape),
                                           WARP_LAUNCH_ID);
    gridDim.x = (uint32_t)partition->blocks;
    const warp_block_shape shape = {trf_packed_wgmma_threads(kShape) / 32, trf_packed_wgmma_shared_bytes(kShape),
                                    product->order, partition->cluster_size};
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x += partition->cluster_size)
        warp_run_block(shape, args.view.zeroing ? run_block<kShape, true> : run_block<kShape, false>, &args);
    if (partition->whole_tiles < partition->tiles)
        warp_expect_taken_over(args.handover, gridDim.x);
    blockIdx.x = 0;
    gridDim.x = 1;
}

template <int... kNumbers>
static void multiply_by_shape(const warp_packed_product *product, const trf_packed_partition *partition,
                              std::integer_sequence<int, kNumbers...>) {
    static constexpr void (*kMultiply[])(const warp_packed_product *,
                                         const trf_packed_partition *) = {multiply<TRF_PACKED_WGMMA_64 + kNumbers>...};
    kMultiply[partition->shape - TRF_PACKED_WGMMA_64](product, partition);
}

void warp_multiply_packed_wgmma(const warp_packed_product *product, const trf_packed_partition *partition) {
    multiply_by_shape(product, partition, std::make_integer_sequence<int, TRF_PACKED_WGMMA_SHAPES>());
}
