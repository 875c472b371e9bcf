/* SPDX-License-Identifier: Apache-2.0 */
/* Runs bulk kernels in emulated blocks, for any kind of weights (trf_packed_bulk_weights.cuh). */
#ifndef WARP_PACKED_BULK_H
#define WARP_PACKED_BULK_H

#include "warp_sm90.h"

#include "trf_packed_bulk.cuh"

#include "warp_packed_product.h"

template <class Config> static void run_block(void *args) {
    trf_packed_bulk_block<Config>(*(const trf_packed_bulk_args *)args, trf_shared_address(warp_shared_memory()));
}

/* Sets the arguments of a product. blocks: all of them for a stream-K shape, else those of a cluster. @return how many
 * blocks the product has. */
template <class Config>
static uint32_t set_args(trf_packed_bulk_args *args, const warp_packed_product *product, uint32_t blocks) {
    const uint32_t rows = product->view->bands * TRF_PACKED_TILE_ROWS,
                   tiles = (rows + Config::kRows - 1) / Config::kRows,
                   k_blocks = (product->view->tiles_per_band + Config::kTiles - 1) / Config::kTiles;
    const uint32_t cluster_size = Config::kStreamK ? 1 : blocks;
    if (!Config::kStreamK)
        blocks = tiles * cluster_size;
    args->x_map = warp_make_x_map(product->x, product->m, product->view->cols, product->m, 8 * Config::kXTiles);
    args->view = *product->view;
    args->m = product->m;
    args->cluster_size = cluster_size;
    args->cluster_blocks = trf_divisor_of(cluster_size);
    args->tile_k_blocks = trf_divisor_of(k_blocks);
    args->share_quotient = k_blocks / cluster_size;
    args->share_remainder = k_blocks % cluster_size;
    args->stream_k = trf_stream_k_of(tiles, k_blocks, blocks);
    args->epilogue = product->epilogue;
    args->is_bare = trf_packed_is_bare(args->epilogue);
    return blocks;
}

template <class Config>
static void run_blocks(void (*kernel)(void *), void *args, uint32_t shared_bytes, uint32_t blocks,
                       uint32_t cluster_size, uint32_t order) {
    const warp_block_shape shape = {Config::kThreads / 32, shared_bytes, order, cluster_size};
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x += cluster_size)
        warp_run_block(shape, kernel, args);
    blockIdx.x = 0;
    gridDim.x = 1;
}

template <class Weights, int kShape, uint32_t kXTiles>
static void multiply(const warp_packed_product *product, uint32_t blocks) {
    typedef trf_packed_bulk_config<kShape, kXTiles, Weights> Config;
    trf_packed_bulk_args args = {};
    blocks = set_args<Config>(&args, product, blocks);
    args.handover = trf_packed_handover_at(product->workspace, blocks, Config::kAccTiles, WARP_LAUNCH_ID);
    run_blocks<Config>(run_block<Config>, &args, trf_packed_bulk_shared_bytes(kShape, kXTiles, Config::kSlabBytes),
                       blocks, args.cluster_size, product->order);
    if (Config::kStreamK)
        warp_expect_taken_over(args.handover, blocks);
}

template <class Weights, uint32_t kXTiles>
static void multiply_by_shape(const warp_packed_product *product, int shape, uint32_t blocks) {
    if (shape == TRF_PACKED_BULK_32)
        multiply<Weights, TRF_PACKED_BULK_32, kXTiles>(product, blocks);
    if constexpr (trf_packed_bulk_has_kernel(TRF_PACKED_BULK_256, kXTiles, Weights::kSlabBytes))
        if (shape == TRF_PACKED_BULK_256)
            multiply<Weights, TRF_PACKED_BULK_256, kXTiles>(product, blocks);
    if constexpr (kXTiles < 8) {
        if (shape == TRF_PACKED_BULK_128)
            multiply<Weights, TRF_PACKED_BULK_128, kXTiles>(product, blocks);
        else if (shape == TRF_PACKED_BULK_64)
            multiply<Weights, TRF_PACKED_BULK_64, kXTiles>(product, blocks);
    }
}

/* Multiplies by the kernel of a shape. */
template <class Weights>
static void multiply_by_kernel(const warp_packed_product *product, int shape, uint32_t x_tiles, uint32_t blocks) {
    switch (x_tiles) {
    case 1:
        return multiply_by_shape<Weights, 1>(product, shape, blocks);
    case 2:
        return multiply_by_shape<Weights, 2>(product, shape, blocks);
    case 4:
        return multiply_by_shape<Weights, 4>(product, shape, blocks);
    default:
        return multiply_by_shape<Weights, 8>(product, shape, blocks);
    }
}

#endif
