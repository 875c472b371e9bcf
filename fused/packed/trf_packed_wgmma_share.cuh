/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the wgmma kernels (trf_packed_wgmma.cuh), and how their blocks share a product.
 *
 * Blocks that stay do whole tiles first. The tiles that are left are fewer than blocks; blocks share them in one of two
 * ways:
 *   - few tiles: their k blocks, one tile after the other, are cut into one equal share a block (stream-K);
 *   - more: a tile's *front*, its first k blocks, is one block's; the *backs* of all tiles, one after the other, are
 *     cut into one equal share for each of the other blocks:
 *
 *        tile 0                    tile 1                    tile 2                    3 tiles, 5 blocks
 *      |-------------------|     |-------------------|     |-------------------|
 *      | block 2    | b. 1       | block 3    | 1 | 0      | block 4    | b. 0
 *        front        back
 *
 * So the blocks of fronts go through the same columns at the same time, like the blocks of whole tiles, and the blocks
 * of backs are at the last columns. With equal shares of whole tiles each block is at other columns, and x comes from
 * memory for each of them as far as the L2 cache does not hold it: 3584x18944 by 2,048 rows takes 525 us that way, and
 * 411 us with fronts (H100).
 *
 * The block that has a tile's first k blocks adds up the sums of the others (trf_packed_handover.cuh), which in both
 * ways are blocks of lower numbers. A back's block may hand over the sums of several tiles, in one parcel for each. A
 * parcel's number is the share's number plus the tile's. From one parcel to the next one or both of these grow, so
 * numbers are distinct; and they are smaller than the number of blocks. */
#ifndef TRF_PACKED_WGMMA_SHARE_CUH
#define TRF_PACKED_WGMMA_SHARE_CUH

#include "trf_divisor.h"
#include "trf_packed_handover.cuh"
#include "trf_packed_partition.h"
#include "trf_packed_product.cuh"
#include "trf_packed_wgmma_sizes.h"
#include "trf_ptx_sm90.cuh"
#include "trf_tensor_map.cuh"

/* Every wgmma kernel takes it by value. */
struct trf_packed_wgmma_args {
    /* Boxes of 64 columns by a block tile's rows of x, in the last x block by the rows that there are, under the
     * swizzle of 128 bytes. The rest of a stage's room for x is not written; it only affects rows of y that do not
     * exist. */
    trf_tensor_map x_map, last_x_map;
    trf_packed_view view;
    uint32_t m;
    /* x blocks of the product; number of whole runs of TRF_PACKED_WGMMA_X_RUN x blocks */
    uint32_t x_blocks, whole_runs;
    uint32_t last_x_rows;                 /* rows of x that the last x block has */
    trf_divisor run_tiles, last_x_blocks; /* tiles of a whole run; x blocks of the last run, which may have fewer */
    uint32_t cluster_size;                /* blocks of a cluster, which has one tile; 0 if blocks stay */
    trf_divisor cluster_blocks;           /* divisor by the blocks of a cluster, or by 1 if blocks stay */
    uint32_t k_blocks;                    /* k blocks of a tile */
    /* For trf_share_begin: with clusters, a tile's k blocks that each block has; if blocks stay, the whole tiles that
     * each has. */
    uint32_t share_quotient, share_remainder;
    uint32_t whole_tiles; /* if blocks stay: the number of tiles, from the first on, that are not shared */
    /* How the other tiles are cut. front_k_blocks: 0 means that they have no fronts, and are all back. back_blocks: so
     * many blocks, from the first on, share the backs; each block after them has a front. */
    uint32_t front_k_blocks, back_blocks;
    trf_divisor back_k_blocks; /* divisor by the back's k blocks of one tile */
    trf_stream_k backs;
    trf_packed_handover handover;
    trf_epilogue epilogue;
    /* Whether y is bare (trf_packed_is_bare) and 16 bytes of a row of y can be written at once. */
    uint32_t writes_16_bytes;
};

/* Makes the arguments, except the maps of x and handover. */
static inline trf_packed_wgmma_args trf_packed_wgmma_args_of(const trf_packed_view *view,
                                                             const trf_packed_partition *partition, uint32_t m,
                                                             const trf_epilogue &epilogue) {
    trf_packed_wgmma_args args = {};
    args.view = *view;
    args.m = m;
    args.x_blocks = partition->x_blocks;
    args.last_x_rows = m - (partition->x_blocks - 1) * trf_packed_wgmma_x_rows(partition->shape);
    args.run_tiles = trf_divisor_of(partition->tiles / partition->x_blocks * TRF_PACKED_WGMMA_X_RUN);
    args.whole_runs = partition->x_blocks / TRF_PACKED_WGMMA_X_RUN;
    args.last_x_blocks =
        trf_divisor_of(partition->x_blocks % TRF_PACKED_WGMMA_X_RUN ? partition->x_blocks % TRF_PACKED_WGMMA_X_RUN
                                                                    : (uint32_t)TRF_PACKED_WGMMA_X_RUN);
    args.cluster_size = partition->cluster_size > 1 ? partition->cluster_size : 0;
    args.cluster_blocks = trf_divisor_of(partition->cluster_size);
    args.k_blocks = partition->k_blocks;
    args.whole_tiles = partition->whole_tiles;
    const uint32_t things = args.cluster_size ? partition->k_blocks : partition->whole_tiles,
                   among = args.cluster_size ? args.cluster_size : (uint32_t)partition->blocks;
    args.share_quotient = things / among;
    args.share_remainder = things % among;
    args.epilogue = epilogue;
    args.writes_16_bytes = trf_packed_is_bare(epilogue) && (uintptr_t)epilogue.y % 16 == 0 &&
                           epilogue.y_stride % 8 == 0 && view->rows % 8 == 0;
    const uint32_t shared_tiles = partition->tiles - partition->whole_tiles,
                   back_k_blocks = partition->k_blocks - partition->front_k_blocks;
    args.front_k_blocks = partition->front_k_blocks;
    args.back_blocks = (uint32_t)partition->blocks - (partition->front_k_blocks ? shared_tiles : 0);
    args.back_k_blocks = trf_divisor_of(back_k_blocks ? back_k_blocks : 1);
    args.backs = trf_stream_k_of(shared_tiles, back_k_blocks, args.back_blocks);
    return args;
}

#if TRF_HAS_SM_90A

/* OfWeights: one of trf_packed_wgmma_weights.cuh. */
template <int kShape, class OfWeights> struct trf_packed_wgmma_config {
    typedef OfWeights Weights;
    static constexpr uint32_t kXRows = trf_packed_wgmma_x_rows(kShape), kXTiles = kXRows / 8,
                              kBands = trf_packed_wgmma_bands(kShape), kRows = trf_packed_wgmma_rows(kShape),
                              kAccTiles = trf_packed_wgmma_acc_tiles(kShape), kWarps = trf_packed_wgmma_warps(kShape);
    static constexpr uint32_t kSlabBytes = Weights::kSlabBytes, kTileBytes = TRF_PACKED_SLABS * kSlabBytes,
                              kBandBytes = trf_packed_wgmma_band_bytes(kSlabBytes), /* of a stage */
        kYRows = trf_packed_wgmma_y_rows(kSlabBytes);
    static constexpr uint32_t kXAt = trf_packed_wgmma_stage_weight_bytes(kShape, kSlabBytes),
                              kXBytes = kXRows * TRF_PACKED_X_BOX_ROW_BYTES; /* one box */
    static constexpr uint32_t kStages = trf_packed_wgmma_stages(kShape, kSlabBytes),
                              kStageBytes = trf_packed_wgmma_stage_bytes(kShape, kSlabBytes),
                              kLinesAt = kStages * kStageBytes,
                              kLinesBytes = trf_packed_wgmma_stage_lines_bytes(kShape),
                              kSumsAt = kLinesAt + kStages * kLinesBytes,
                              kBarriersAt = kSumsAt + trf_packed_wgmma_sums_bytes(kShape),
                              kSumBarriersAt = kBarriersAt + 16 * kStages;
    /* The registers of consumers and of producers, if registers are moved. */
    static constexpr bool kMovesRegisters = trf_packed_wgmma_moves_registers(kShape);
    static constexpr int kRegisters = kMovesRegisters ? (kBands > 2 ? 160 : 232) : 0,
                         kProducerRegisters = kMovesRegisters ? (kBands > 2 ? 32 : 40) : 0;
    static_assert(kXAt % 1024 == 0 && kStageBytes % 1024 == 0, "x lies at multiples of 1024 bytes");
    static_assert(kStages >= 4, "a pipeline");
    static_assert(kWarps <= TRF_PACKED_HANDOVER_WARPS, "a flag for each warp");
    static_assert((kXTiles / 2 + TRF_MAX_CLUSTER - 1) * 2 * kWarps * TRF_ACC_TILE_BYTES <= kLinesAt,
                  "what blocks of a cluster send each other fits where the stages were");
    static_assert(kSumBarriersAt + trf_packed_wgmma_sum_barriers_bytes(kShape) ==
                      trf_packed_wgmma_shared_bytes(kShape, kSlabBytes),
                  "one layout");
};

/* ---- what a block works on ---- */

/* A *stint*: some k blocks of a tile, which a block works on one after the other. */
struct trf_packed_wgmma_stint {
    uint32_t tile;     /* its number among the tiles of all x blocks, by which blocks share them */
    uint32_t row_tile; /* which 128 or 192 rows of W it has, counted without regard to x blocks */
    uint32_t x_block;
    uint32_t begin, end; /* k blocks */
};

/* How many whole tiles a block has, if blocks stay. */
static __device__ __forceinline__ uint32_t trf_packed_wgmma_own_whole_tiles(const trf_packed_wgmma_args &a) {
    return a.share_quotient + (blockIdx.x < a.share_remainder ? 1 : 0);
}

/* The share of one of the back_blocks; the last of these has share 0. */
static __device__ __forceinline__ uint32_t trf_packed_wgmma_back_share(const trf_packed_wgmma_args &a) {
    return a.back_blocks - 1 - blockIdx.x;
}

/* How many stints a block has, including those of tiles that it shares. */
static __device__ __forceinline__ uint32_t trf_packed_wgmma_stints(const trf_packed_wgmma_args &a) {
    if (a.cluster_size)
        return 1;
    const uint32_t whole = trf_packed_wgmma_own_whole_tiles(a);
    if (blockIdx.x >= a.back_blocks)
        return whole + 1;
    const uint32_t share = trf_packed_wgmma_back_share(a), begin = trf_stream_k_begin(&a.backs, share),
                   end = trf_stream_k_begin(&a.backs, share + 1);
    return whole +
           (begin < end ? trf_quotient(end - 1, a.back_k_blocks) - trf_quotient(begin, a.back_k_blocks) + 1 : 0);
}

/* The parcel in which a share of the backs hands over its sums of a tile. */
static __device__ __forceinline__ uint32_t trf_packed_wgmma_parcel_of(const trf_packed_wgmma_args &a,
                                                                      uint32_t shared_tile, uint32_t share) {
    return share + (a.front_k_blocks ? shared_tile : 0);
}

/* Sets row_tile and x_block of a stint from its tile, since tiles lie in runs of x blocks. */
static __device__ __forceinline__ void trf_packed_wgmma_set_place_of_tile(const trf_packed_wgmma_args &a,
                                                                          trf_packed_wgmma_stint &stint) {
    stint.row_tile = stint.tile;
    if (a.x_blocks == 1)
        return;
    const uint32_t run = trf_quotient(stint.tile, a.run_tiles), in_run = trf_rest(stint.tile, run, a.run_tiles);
    if (run < a.whole_runs) {
        stint.row_tile = in_run / TRF_PACKED_WGMMA_X_RUN;
        stint.x_block = TRF_PACKED_WGMMA_X_RUN * run + in_run % TRF_PACKED_WGMMA_X_RUN;
    } else {
        stint.row_tile = trf_quotient(in_run, a.last_x_blocks);
        stint.x_block = TRF_PACKED_WGMMA_X_RUN * run + trf_rest(in_run, stint.row_tile, a.last_x_blocks);
    }
}

static __device__ __forceinline__ trf_packed_wgmma_stint trf_packed_wgmma_stint_of(const trf_packed_wgmma_args &a,
                                                                                   uint32_t number) {
    const uint32_t own_whole_tiles = trf_packed_wgmma_own_whole_tiles(a);
    trf_packed_wgmma_stint stint = {};
    if (a.cluster_size) {
        stint.tile = trf_quotient(blockIdx.x, a.cluster_blocks);
        const uint32_t rank = trf_rest(blockIdx.x, stint.tile, a.cluster_blocks);
        stint.begin = trf_share_begin(a.share_quotient, a.share_remainder, rank);
        stint.end = trf_share_begin(a.share_quotient, a.share_remainder, rank + 1);
    } else if (number < own_whole_tiles) {
        stint.tile = blockIdx.x + number * gridDim.x;
        stint.end = a.k_blocks;
    } else if (blockIdx.x >= a.back_blocks) {
        stint.tile = a.whole_tiles + blockIdx.x - a.back_blocks;
        stint.end = a.front_k_blocks;
    } else {
        const uint32_t share = trf_packed_wgmma_back_share(a), begin = trf_stream_k_begin(&a.backs, share),
                       end = trf_stream_k_begin(&a.backs, share + 1),
                       shared_tile = trf_quotient(begin, a.back_k_blocks) + number - own_whole_tiles,
                       first = shared_tile * a.backs.k_blocks;
        stint.tile = a.whole_tiles + shared_tile;
        stint.begin = a.front_k_blocks + (begin > first ? begin - first : 0);
        stint.end = a.front_k_blocks + min(end - first, a.backs.k_blocks);
    }
    trf_packed_wgmma_set_place_of_tile(a, stint);
    return stint;
}

/* Where a warp is in its block. */
struct trf_packed_wgmma_warp {
    uint32_t warp, lane;

    __device__ __forceinline__ uint32_t slab() const { return warp % TRF_PACKED_SLABS; } /* in the band */
    __device__ __forceinline__ uint32_t band() const { return warp / TRF_PACKED_SLABS; } /* in the tile */
    template <class Config> __device__ __forceinline__ uint32_t band_of(const trf_packed_wgmma_stint &stint) const {
        return stint.row_tile * Config::kBands + band();
    }
};

#endif

#endif
