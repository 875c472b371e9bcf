/* SPDX-License-Identifier: Apache-2.0 */
/* Runs wgmma kernels in emulated blocks, for any kind of weights (trf_packed_wgmma_weights.cuh). */
#ifndef WARP_PACKED_WGMMA_H
#define WARP_PACKED_WGMMA_H

#include "warp_sm90.h"

#include "trf_packed_wgmma.cuh"

#include "warp_packed_product.h"

#include <utility>

template <int kShape, class Weights> static void run_block(void *args) {
    trf_packed_wgmma_block<trf_packed_wgmma_config<kShape, Weights>>(*(const trf_packed_wgmma_args *)args,
                                                                     trf_shared_address(warp_shared_memory()));
}

template <int kShape, class Weights>
static void multiply(const warp_packed_product *product, const trf_packed_partition *partition) {
    trf_packed_wgmma_args args = trf_packed_wgmma_args_of(product->view, partition, product->m, product->epilogue);
    const uint32_t x_rows = trf_packed_wgmma_x_rows(kShape);
    args.x_map = warp_make_x_map(product->x, product->m, product->view->cols, x_rows, x_rows);
    args.last_x_map = warp_make_x_map(product->x, product->m, product->view->cols, args.last_x_rows, x_rows);
    args.handover = trf_packed_handover_at(product->workspace, partition->blocks, trf_packed_wgmma_acc_tiles(kShape),
                                           WARP_LAUNCH_ID);
    gridDim.x = (uint32_t)partition->blocks;
    const warp_block_shape shape = {trf_packed_wgmma_threads(kShape) / 32,
                                    trf_packed_wgmma_shared_bytes(kShape, Weights::kSlabBytes), product->order,
                                    partition->cluster_size};
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x += partition->cluster_size)
        warp_run_block(shape, run_block<kShape, Weights>, &args);
    if (partition->whole_tiles < partition->tiles)
        warp_expect_taken_over(args.handover, gridDim.x);
    blockIdx.x = 0;
    gridDim.x = 1;
}

template <class Weights, int... kNumbers>
static void multiply_by_shape(const warp_packed_product *product, const trf_packed_partition *partition,
                              std::integer_sequence<int, kNumbers...>) {
    static constexpr void (*kMultiply[])(const warp_packed_product *, const trf_packed_partition *) = {
        multiply<TRF_PACKED_WGMMA_64 + kNumbers, Weights>...};
    kMultiply[partition->shape - TRF_PACKED_WGMMA_64](product, partition);
}

typedef std::make_integer_sequence<int, TRF_PACKED_WGMMA_SHAPES> wgmma_shape_numbers;

#endif
