/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_sm90.h"

#include "trf_packed_bulk.cuh"

#include "warp_packed_product.h"

void warp_expect_taken_over(const trf_packed_handover &handover, uint32_t blocks) {
    for (uint32_t i = 0; i < blocks * TRF_PACKED_HANDOVER_WARPS; i++)
        if (handover.flags[i] == handover.launch_id)
            warp_fail("has left sums that nobody took over");
}

template <class Config, bool kZeroing> static void run_block(void *args) {
    trf_packed_bulk_block<Config, kZeroing>(*(const trf_packed_bulk_args *)args,
                                            trf_shared_address(warp_shared_memory()));
}

template <int kShape, uint32_t kXTiles> static void multiply(const warp_packed_product *product, uint32_t blocks) {
    typedef trf_packed_bulk_config<kShape, kXTiles> Config;
    trf_packed_bulk_args args = {};
    const uint32_t rows = product->view->bands * TRF_PACKED_TILE_ROWS,
                   tiles = (rows + Config::kRows - 1) / Config::kRows,
                   k_blocks = (product->view->tiles_per_band + Config::kColWarps - 1) / Config::kColWarps;
    const uint32_t cluster_size = Config::kStreamK ? 1 : blocks;
    if (!Config::kStreamK)
        blocks = tiles * cluster_size;
    args.x_map = warp_make_x_map(product->x, product->m, product->view->cols, product->m, 8 * kXTiles);
    args.view = *product->view;
    args.m = product->m;
    args.cluster_size = cluster_size;
    args.cluster_blocks = trf_divisor_of(cluster_size);
    args.tile_k_blocks = trf_divisor_of(k_blocks);
    args.share_quotient = k_blocks / cluster_size;
    args.share_remainder = k_blocks % cluster_size;
    args.stream_k = trf_stream_k_of(tiles, k_blocks, blocks);
    args.handover = trf_packed_handover_at(product->workspace, blocks, Config::kAccTiles, WARP_LAUNCH_ID);
    gridDim.x = blocks;
    args.epilogue = product->epilogue;
    args.is_bare = trf_packed_is_bare(args.epilogue);
    const warp_block_shape shape = {Config::kThreads / 32, trf_packed_bulk_shared_bytes(kShape, kXTiles),
                                    product->order, cluster_size};
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x += cluster_size)
        warp_run_block(shape, args.view.zeroing ? run_block<Config, true> : run_block<Config, false>, &args);
    if (Config::kStreamK)
        warp_expect_taken_over(args.handover, blocks);
    blockIdx.x = 0;
    gridDim.x = 1;
}

template <uint32_t kXTiles>
static void multiply_by_shape(const warp_packed_product *product, int shape, uint32_t blocks) {
    if constexpr (kXTiles == 8)
        return multiply<TRF_PACKED_BULK_32, kXTiles>(product, blocks);
    else if (shape == TRF_PACKED_BULK_32)
        multiply<TRF_PACKED_BULK_32, kXTiles>(product, blocks);
    else if (shape == TRF_PACKED_BULK_256)
        multiply<TRF_PACKED_BULK_256, kXTiles>(product, blocks);
    else if (shape == TRF_PACKED_BULK_128)
        multiply<TRF_PACKED_BULK_128, kXTiles>(product, blocks);
    else
        multiply<TRF_PACKED_BULK_64, kXTiles>(product, blocks);
}

void warp_multiply_packed_bulk(const warp_packed_product *product, int shape, uint32_t x_tiles, uint32_t blocks) {
    switch (x_tiles) {
    case 1:
        return multiply_by_shape<1>(product, shape, blocks);
    case 2:
        return multiply_by_shape<2>(product, shape, blocks);
    case 4:
        return multiply_by_shape<4>(product, shape, blocks);
    default:
        return multiply_by_shape<8>(product, shape, blocks);
    }
}
