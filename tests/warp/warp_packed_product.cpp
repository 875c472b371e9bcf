/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_emulation.h"

#include "trf_packed_general.cuh"

#include "warp_packed_product.h"

template <int kXTiles, bool kZeroing, bool kTwoAtOnce> static void run_block(void *args) {
    trf_packed_general_block<kXTiles, kZeroing, kTwoAtOnce>(*(const trf_packed_general_args *)args,
                                                            trf_shared_address(warp_shared_memory()));
}

typedef void block_fn(void *args);

template <bool kZeroing, bool kTwoAtOnce> static block_fn *block_of(uint32_t x_tiles) {
    return x_tiles == 1   ? run_block<1, kZeroing, kTwoAtOnce>
           : x_tiles == 2 ? run_block<2, kZeroing, kTwoAtOnce>
           : x_tiles == 4 ? run_block<4, kZeroing, kTwoAtOnce>
                          : run_block<8, kZeroing, kTwoAtOnce>;
}

void warp_multiply_packed(const warp_packed_product *product) {
    const trf_packed_partition *const partition = product->partition;
    trf_packed_general_args args = {};
    args.view = *product->view;
    args.x = product->x;
    args.m = product->m;
    args.x_blocks = partition->x_blocks;
    args.k_splits = partition->k_splits;
    args.partials = (float *)product->workspace;
    args.epilogue = product->epilogue;
    const uint32_t x_tiles = partition->x_tiles;
    block_fn *const block =
        args.view.zeroing ? (product->two_at_once ? block_of<true, true>(x_tiles) : block_of<true, false>(x_tiles))
                          : (product->two_at_once ? block_of<false, true>(x_tiles) : block_of<false, false>(x_tiles));
    for (uint64_t i = 0; i < partition->blocks; i++) {
        blockIdx.x = (uint32_t)i;
        warp_run_block({TRF_PACKED_GENERAL_WARPS, TRF_PACKED_SLABS * x_tiles * TRF_ACC_TILE_BYTES, product->order},
                       block, &args);
    }
    blockIdx.x = 0;
    for (uint32_t n = 0; partition->k_splits > 1 && n < args.m; n++)
        for (uint32_t row = 0; row < args.view.rows; row++)
            trf_packed_general_finish_element(args, n, row);
}
