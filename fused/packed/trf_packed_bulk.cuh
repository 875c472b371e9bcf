/* SPDX-License-Identifier: Apache-2.0 */
/* Computes y = x . W^T of a packed layer, BF16 or FP8, by mma.sync, for up to 64 rows of x, on compute capability 9.0.
 * TMA brings weights and x to shared memory in large copies (bulk copies), so that the consumer warps only form
 * fragments and multiply.
 *
 * A block has a *block tile* of 256, 128, 64 or 32 rows of W and all rows of x, and some of the tile's k blocks, which
 * are 64 to 256 columns each. Its warps are cut over the tile's rows and over a k block's packed tiles (shape 128: 4 x
 * 4 warps, 128 columns):
 *
 *        packed tile 0   1     2     3
 *      +---------+-----+-----+-----+-----+     a warp: 2 (or 4) packed slabs by one packed tile by all of x
 *      | slab 0  | w 0 | w 4 | w 8 | w12 |
 *      | ...     | w 1 | w 5 | w 9 | w13 |     128 rows
 *      |         | w 2 | w 6 | w10 | w14 |
 *      | slab 7  | w 3 | w 7 | w11 | w15 |
 *      +---------+-----+-----+-----+-----+
 *
 * A producer warp fills stages with weights, one k block for each stage. The packed tiles of a band lie one after the
 * other, so that a band's part of a stage is one copy. The band's exception line is copied with it, since waiting for
 * that later would cost more than its 128 bytes. Another producer warp brings x, as boxes of 64 columns under the
 * swizzle of 128 bytes, which ldmatrix reads without bank conflicts. full[i] counts bytes, empty[i] counts the warps
 * that are done with a stage.
 *
 * Shape 256: all k blocks of all tiles are cut into one equal share for each block (stream-K), and blocks hand over the
 * sums of tiles that they share (trf_packed_handover.cuh). Example: 28672x8192 has 112 tiles of 128 k blocks of 64
 * columns; each of 132 blocks has 108 or 109 k blocks. Other shapes: each tile has a cluster of 1 to 8 blocks, which
 * share its k blocks. Each block finishes another part of y, and the others send it their sums of that part (st.async),
 * which it adds in the order of blocks. No barrier of the cluster is needed then, since these sums have a place of
 * their own, and all blocks have passed the cluster's barrier long before. Example: 8192x8192 has 128 tiles of 64 rows,
 * one for each block; 4 multiprocessors idle.
 *
 * Shapes with clusters also multiply by several layers in one launch (a group): the grid has the blocks of one product
 * after those of the other. Each block finds its product's arguments, and all else is as in a launch of its own.
 *
 * How a packed slab becomes fragments is a type, one for each kind of layer (trf_packed_bulk_weights.cuh). With FP8, a
 * warp of the shapes 256 and 128 has two packed tiles side by side, so these have twice the columns in a k block.
 *
 * Shared memory: 4 stages of 17 to 45 KiB, with FP8 3 to 6 of 13 to 49 (trf_packed_bulk_sizes.h), 227 KiB at most.
 * Registers: 168 a thread with 8 warps, 96 with 16. Those with many sums have 232, which the producers' warpgroup gives
 * away.
 * From 16 M weights on, memory is the limit: 28672x8192 by one row of x is read at 2.9 TB/s on an H100 and 4.1 on an
 * H200, out of 3.35 and 4.8. For smaller layers the limit is the microseconds in which a block begins and ends. */
#ifndef TRF_PACKED_BULK_CUH
#define TRF_PACKED_BULK_CUH

#include "trf_divisor.h"
#include "trf_packed_bulk_sizes.h"
#include "trf_packed_bulk_weights.cuh"
#include "trf_packed_handover.cuh"
#include "trf_packed_partition.h"
#include "trf_tensor_map.cuh"

/* Every bulk kernel takes it by value. */
struct trf_packed_bulk_args {
    trf_tensor_map x_map; /* boxes of 64 columns by m rows, under the swizzle of 128 bytes */
    trf_packed_view view;
    uint32_t m;
    uint32_t cluster_size;                     /* blocks of a cluster; 1 with stream-K */
    trf_divisor cluster_blocks, tile_k_blocks; /* divisors by cluster_size and by stream_k.k_blocks */
    /* for trf_share_begin: the k blocks of a tile that a block of a cluster has */
    uint32_t share_quotient, share_remainder;
    trf_stream_k stream_k; /* tiles cut over blocks; k_blocks is used with clusters, too */
    trf_packed_handover handover;
    trf_epilogue epilogue;
    uint32_t is_bare; /* trf_packed_is_bare */
};

/* The arguments of a product with clusters or stream-K, but for x_map, handover and launch id. */
static inline trf_packed_bulk_args trf_packed_bulk_args_of(const trf_packed_view *view, const trf_product *product,
                                                           const trf_packed_partition *partition,
                                                           const trf_operands *operands) {
    trf_packed_bulk_args args = {};
    args.view = *view;
    args.m = product->m;
    args.cluster_size = partition->cluster_size;
    args.cluster_blocks = trf_divisor_of(partition->cluster_size);
    args.tile_k_blocks = trf_divisor_of(partition->k_blocks);
    args.share_quotient = partition->k_blocks / partition->cluster_size;
    args.share_remainder = partition->k_blocks % partition->cluster_size;
    args.stream_k = trf_stream_k_of(partition->tiles, partition->k_blocks, (uint32_t)partition->blocks);
    args.epilogue = trf_epilogue_of(product, operands);
    args.is_bare = trf_packed_is_bare(args.epilogue);
    return args;
}

/* A product of a group: several layers in one launch, each with as many blocks as it has alone with clusters. All
 * clusters have one size. Products have nothing else in common, neither x nor numbers of columns. */
struct trf_packed_bulk_member : trf_packed_bulk_args {
    uint32_t first_block; /* in the grid; a multiple of cluster_size */
};
struct trf_packed_bulk_group_args {
    uint32_t count;
    trf_packed_bulk_member members[TRF_PACKED_GROUP_MAX_LAYERS];
};
static_assert(sizeof(trf_packed_bulk_group_args) <= 4096, "CUDA 12.0 takes 4 KiB of arguments");

#if TRF_HAS_SM_90A

/* Weights_: how a slab becomes fragments (trf_packed_bulk_weights.cuh). */
template <int kShape, uint32_t kXTiles_, class Weights_, bool kIsGroup_ = false> struct trf_packed_bulk_config {
    typedef Weights_ Weights;
    static constexpr bool kIsGroup = kIsGroup_; /* whether the arguments are a trf_packed_bulk_member */
    static constexpr uint32_t kXTiles = kXTiles_, kSlabs = trf_packed_bulk_warp_slabs(kShape),
                              kRowWarps = trf_packed_bulk_row_warps(kShape),
                              kColWarps = trf_packed_bulk_col_warps(kShape), kWarps = kRowWarps * kColWarps,
                              kRows = trf_packed_bulk_rows(kShape), kBands = trf_packed_bulk_bands(kShape);
    static constexpr uint32_t kWarpTiles = trf_packed_bulk_warp_tiles(kShape, Weights::kSlabBytes),
                              kTiles = kColWarps * kWarpTiles; /* packed tiles of a warp, and of a k block's rows */
    static constexpr uint32_t kSlabBytes = Weights::kSlabBytes, kTileBytes = TRF_PACKED_SLABS * kSlabBytes;
    static constexpr uint32_t kPackedTileSlabs = kRows < TRF_PACKED_TILE_ROWS ? kRows / TRF_PACKED_SLAB_ROWS
                                                                              : (uint32_t)TRF_PACKED_SLABS,
                              /* bytes that a stage has of a packed tile */
        kPackedTileBytes = kPackedTileSlabs * kSlabBytes;
    static constexpr uint32_t kXBytes = trf_packed_bulk_x_bytes(kShape, kXTiles, kSlabBytes),
                              kXBoxBytes = kXTiles * 1024, kXBoxes = kXBytes / kXBoxBytes;
    static constexpr uint32_t kXAt = trf_packed_bulk_weight_bytes(kShape, kSlabBytes), kLinesAt = kXAt + kXBytes;
    static constexpr uint32_t kStages = trf_packed_bulk_stages(kShape, kXTiles, kSlabBytes),
                              kStageBytes = trf_packed_bulk_stage_bytes(kShape, kXTiles, kSlabBytes),
                              kSumsAt = kStages * kStageBytes,
                              kBarriersAt = kSumsAt + trf_packed_bulk_sums_bytes(kShape, kXTiles),
                              kSumBarrierAt = kBarriersAt + 16 * trf_packed_bulk_most_stages(kSlabBytes);
    static constexpr uint32_t kAccTiles = trf_packed_bulk_acc_tiles(kShape, kXTiles);
    static constexpr bool kStreamK = trf_packed_bulk_is_stream_k(kShape);
    /* consumers need more registers than a thread has at launch */
    static constexpr bool kMovesRegisters = kSlabs * kXTiles >= 16;
    static constexpr int kRegisters = !kMovesRegisters ? 0
                                      : kWarps == 8    ? 232
                                                       : 112,
                         kProducerRegisters = !kMovesRegisters ? 0
                                              : kWarps == 8    ? 40
                                                               : 32;
    static constexpr uint32_t kThreads = 32 * (kWarps + TRF_PACKED_PRODUCER_WARPS);
    static_assert(kXAt % 1024 == 0 && kXBytes % kXBoxBytes == 0, "boxes of x lie at multiples of 1024 bytes");
    static_assert(TRF_PACKED_LINE_TILES % kTiles == 0, "a stage has one exception line a band");
    static_assert(kStages >= 2, "a pipeline");
    static_assert(!kStreamK || !kIsGroup, "products of a group have clusters");
    static_assert(kStreamK || kWarps * kSlabs * kXTiles * TRF_ACC_TILE_BYTES <= kSumsAt,
                  "the sums of a cluster's block fit where its stages were");
};

/* ---- what a block works on ---- */

/* The product that the block has a part of. */
static __device__ __forceinline__ const trf_packed_bulk_member &
trf_packed_bulk_member_of(const trf_packed_bulk_group_args &group) {
    uint32_t i = 0;
    while (i + 1 < group.count && blockIdx.x >= group.members[i + 1].first_block)
        i++;
    return group.members[i];
}

/* The block's number among those of its product. */
template <class Config>
static __device__ __forceinline__ uint32_t trf_packed_bulk_block_number(const trf_packed_bulk_args &a) {
    if constexpr (Config::kIsGroup)
        return blockIdx.x - static_cast<const trf_packed_bulk_member &>(a).first_block;
    return blockIdx.x;
}

/* The tile that a block of a cluster works on, and the block's number in the cluster. */
template <class Config> static __device__ __forceinline__ uint32_t trf_packed_bulk_tile(const trf_packed_bulk_args &a) {
    return trf_quotient(trf_packed_bulk_block_number<Config>(a), a.cluster_blocks);
}
template <class Config> static __device__ __forceinline__ uint32_t trf_packed_bulk_rank(const trf_packed_bulk_args &a) {
    return trf_rest(trf_packed_bulk_block_number<Config>(a), trf_packed_bulk_tile<Config>(a), a.cluster_blocks);
}

/* A range of k blocks, counted through all tiles. */
struct trf_packed_bulk_range {
    uint32_t begin, end;
};

template <class Config>
static __device__ __forceinline__ trf_packed_bulk_range trf_packed_bulk_range_of(const trf_packed_bulk_args &a) {
    if constexpr (Config::kStreamK) {
        const uint32_t share = trf_packed_share_of_block(blockIdx.x);
        return {trf_stream_k_begin(&a.stream_k, share), trf_stream_k_begin(&a.stream_k, share + 1)};
    }
    const uint32_t tile = trf_packed_bulk_tile<Config>(a), rank = trf_packed_bulk_rank<Config>(a),
                   first = tile * a.stream_k.k_blocks;
    return {first + trf_share_begin(a.share_quotient, a.share_remainder, rank),
            first + trf_share_begin(a.share_quotient, a.share_remainder, rank + 1)};
}

/* Where a k block is: in which block tile, and at which packed tiles of the tile's bands. */
struct trf_packed_bulk_place {
    uint32_t tile, packed_tile; /* packed_tile: the first one of the k block */
};

template <class Config>
static __device__ __forceinline__ trf_packed_bulk_place trf_packed_bulk_place_of(const trf_packed_bulk_args &a,
                                                                                 uint32_t k_block) {
    const uint32_t tile = trf_quotient(k_block, a.tile_k_blocks);
    return {tile, trf_rest(k_block, tile, a.tile_k_blocks) * Config::kTiles};
}

/* Goes to the next k block. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_advance(const trf_packed_bulk_args &a,
                                                               trf_packed_bulk_place &place) {
    place.packed_tile += Config::kTiles;
    if (place.packed_tile >= a.stream_k.k_blocks * Config::kTiles) {
        place.packed_tile = 0;
        place.tile++;
    }
}

/* The first band of a block tile, and the number in this band of the tile's first packed slab. */
template <class Config> static __device__ __forceinline__ uint32_t trf_packed_bulk_band(uint32_t tile) {
    return tile * Config::kRows / TRF_PACKED_TILE_ROWS;
}
template <class Config> static __device__ __forceinline__ uint32_t trf_packed_bulk_first_slab(uint32_t tile) {
    return tile * Config::kRows % TRF_PACKED_TILE_ROWS / TRF_PACKED_SLAB_ROWS;
}

/* ---- the producer ---- */

/* How many bands of the block tile the layer has, and how many packed tiles the k block has. */
template <class Config>
static __device__ __forceinline__ uint32_t trf_packed_bulk_bands_of(const trf_packed_view &view,
                                                                    const trf_packed_bulk_place &place) {
    return min(Config::kBands, view.bands - trf_packed_bulk_band<Config>(place.tile));
}
template <class Config>
static __device__ __forceinline__ uint32_t trf_packed_bulk_packed_tiles_of(const trf_packed_view &view,
                                                                           const trf_packed_bulk_place &place) {
    return min(Config::kTiles, view.tiles_per_band - place.packed_tile);
}

/* What a lane copies to a stage: a band's packed tiles, or a part of one packed tile; and a band's exception line,
 * which is the same for all k blocks of its 1,024 columns. */
template <class Config> struct trf_packed_bulk_copy {
    const uint8_t *weights;
    const uint32_t *line;
    uint32_t bands, packed_tiles; /* of the stage */

    __device__ __forceinline__ trf_packed_bulk_copy(const trf_packed_view &view, const trf_packed_bulk_place &place,
                                                    uint32_t lane) {
        const uint32_t band = trf_packed_bulk_band<Config>(place.tile);
        bands = trf_packed_bulk_bands_of<Config>(view, place);
        packed_tiles = trf_packed_bulk_packed_tiles_of<Config>(view, place);
        const uint64_t first = trf_packed_tile_number(&view, band, place.packed_tile);
        if constexpr (Config::kPackedTileSlabs == TRF_PACKED_SLABS)
            weights = view.tiles + (first + (uint64_t)lane * view.tiles_per_band) * Config::kTileBytes;
        else
            weights = view.tiles + (first + lane) * Config::kTileBytes +
                      trf_packed_bulk_first_slab<Config>(place.tile) * Config::kSlabBytes;
        line = trf_packed_line_of(&view, band + lane, place.packed_tile);
    }

    /* All lanes call it. */
    __device__ __forceinline__ void start(const trf_packed_ring<Config> &ring, uint32_t lane, uint64_t policy,
                                          uint64_t line_policy) const {
        if (lane == 0)
            trf_mbarrier_arrive_expect_tx(ring.full(),
                                          bands * (packed_tiles * Config::kPackedTileBytes + TRF_PACKED_LINE_BYTES));
        __syncwarp();
        if constexpr (Config::kPackedTileSlabs == TRF_PACKED_SLABS) { /* a band's packed tiles are contiguous */
            if (lane < bands)
                trf_bulk_load(ring.stage() + lane * Config::kTiles * Config::kTileBytes, weights,
                              packed_tiles * Config::kTileBytes, ring.full(), policy);
        } else {
            if (lane < packed_tiles)
                trf_bulk_load(ring.stage() + lane * Config::kPackedTileBytes, weights, Config::kPackedTileBytes,
                              ring.full(), policy);
        }
        if (lane < bands)
            trf_bulk_load(ring.stage() + Config::kLinesAt + lane * TRF_PACKED_LINE_BYTES, line, TRF_PACKED_LINE_BYTES,
                          ring.full(), line_policy);
    }
};

/* A cluster has one barrier, at which each warp arrives early: under compute-sanitizer arriving may block, and
 * consumers must be able to read before a producer is through. A producer arrives when it has started the copies that
 * wait for nobody, for as many k blocks as there are stages. k_block: the current one, or range.end after all of
 * them. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_arrive(const trf_packed_bulk_args &a,
                                                              const trf_packed_bulk_range &range, uint32_t k_block) {
    if (Config::kStreamK)
        return;
    const uint32_t k_blocks = range.end - range.begin;
    if (k_blocks == 0 ? k_block == range.end : k_block + 1 == range.begin + min(k_blocks, Config::kStages))
        trf_cluster_arrive_relaxed(a.cluster_size);
}

/* Fills the ring with weights, which do not wait for the kernel that may have made x. Addresses are computed one k
 * block ahead, so that a block's first copies start 300 clocks sooner. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_produce_weights(const trf_packed_bulk_args &a,
                                                                       const trf_packed_bulk_range &range,
                                                                       uint32_t shared, uint32_t lane) {
    /* phase 1: a wait on a barrier that was never used returns at once */
    trf_packed_ring<Config> ring = {shared, 0, 1};
    trf_packed_bulk_place place = trf_packed_bulk_place_of<Config>(a, range.begin);
    const uint64_t policy = trf_policy_read_once(), line_policy = trf_policy_keep();
    trf_packed_bulk_copy<Config> copy(a.view, place, lane);
    trf_named_barrier_sync(TRF_PACKED_WEIGHTS_BARRIER_ID, 2);
    for (uint32_t k_block = range.begin; k_block < range.end; k_block++) {
        trf_packed_take_stage(ring);
        copy.start(ring, lane, policy, line_policy);
        ring.next();
        trf_packed_bulk_advance<Config>(a, place);
        copy = trf_packed_bulk_copy<Config>(a.view, place, lane);
        trf_packed_bulk_arrive<Config>(a, range, k_block);
    }
    trf_packed_bulk_arrive<Config>(a, range, range.end);
    trf_allow_successor();
}

/* Fills the ring with x, once x is there. This is another warp's work: if x followed the weights of all k blocks, which
 * take microseconds, the first x would arrive when no other copies are left under way. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_produce_x(const trf_packed_bulk_args &a,
                                                                 const trf_packed_bulk_range &range, uint32_t shared,
                                                                 uint32_t lane) {
    if (lane == 0)
        trf_prefetch_map(&a.x_map);
    const uint64_t policy = trf_policy_keep();
    const uint32_t x_bytes = Config::kXBoxes * TRF_PACKED_X_BOX_ROW_BYTES * a.m;
    trf_packed_ring<Config> ring = {shared, 0, 1};
    trf_packed_bulk_place place = trf_packed_bulk_place_of<Config>(a, range.begin);
    trf_named_barrier_sync(TRF_PACKED_X_BARRIER_ID, 2);
    trf_wait_for_predecessor();
    for (uint32_t k_block = range.begin; k_block < range.end; k_block++) {
        trf_packed_take_stage(ring);
        if (lane == 0)
            trf_mbarrier_arrive_expect_tx(ring.full(), x_bytes);
        __syncwarp();
        if (lane < Config::kXBoxes)
            trf_tma_load_box(ring.stage() + Config::kXAt + lane * Config::kXBoxBytes, &a.x_map,
                             place.packed_tile * TRF_PACKED_TILE_COLS + lane * TRF_PACKED_X_BOX_COLS, 0, ring.full(),
                             policy);
        ring.next();
        trf_packed_bulk_advance<Config>(a, place);
        trf_packed_bulk_arrive<Config>(a, range, k_block);
    }
    trf_packed_bulk_arrive<Config>(a, range, range.end);
}

/* ---- products ---- */

/* Where a warp is in its block. */
template <class Config> struct trf_packed_bulk_warp {
    uint32_t lane, row_warp, col_warp;

    __device__ __forceinline__ explicit trf_packed_bulk_warp(uint32_t warp, uint32_t lane_)
        : lane(lane_), row_warp(warp % Config::kRowWarps), col_warp(warp / Config::kRowWarps) {}

    __device__ __forceinline__ uint32_t first_slab() const { return row_warp * Config::kSlabs; } /* in the tile */
    __device__ __forceinline__ uint32_t band() const { return first_slab() / TRF_PACKED_SLABS; }

    /* The number in a k block of the warp's packed tile i. */
    __device__ __forceinline__ uint32_t tile(uint32_t i) const { return col_warp * Config::kWarpTiles + i; }

    /* Where the warp's slabs of packed tile i are in a stage, and further below its columns of x and the line of its
     * band. */
    __device__ __forceinline__ uint32_t weights(uint32_t stage, uint32_t i) const {
        return stage + (band() * Config::kTiles + tile(i)) * Config::kPackedTileBytes +
               first_slab() % Config::kPackedTileSlabs * Config::kSlabBytes;
    }
    /* For ldmatrix: lane l gives row l % 8 of an x tile and octet l / 8 of the packed tile's 32 columns. */
    __device__ __forceinline__ uint32_t x(uint32_t stage, uint32_t i) const {
        const uint32_t row = lane % 8, octet = tile(i) % 2 * 4 + lane / 8;
        return stage + Config::kXAt + tile(i) / 2 * Config::kXBoxBytes + row * 128 + ((octet ^ row) << 4);
    }
    __device__ __forceinline__ uint32_t line(uint32_t stage) const {
        return stage + Config::kLinesAt + band() * TRF_PACKED_LINE_BYTES;
    }
};

/* How many x tiles have their values in registers at once. */
template <class Config>
static constexpr uint32_t kPackedBulkXAtOnce = Config::kXTiles < 4 ? Config::kXTiles : (uint32_t)4;

template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_load_x(uint4 (&x)[kPackedBulkXAtOnce<Config>], uint32_t at) {
#pragma unroll
    for (uint32_t t = 0; t < kPackedBulkXAtOnce<Config>; t++)
        x[t] = trf_ldmatrix4(at + t * 1024);
}

/* Multiplies the formed fragments by x tiles kFirst to kFirst + kPackedBulkXAtOnce - 1. */
template <class Config, uint32_t kFirst>
static __device__ __forceinline__ void trf_packed_bulk_multiply(float (&sums)[Config::kSlabs][Config::kXTiles][4],
                                                                const uint32_t (&a)[Config::kSlabs][2][4],
                                                                const uint4 (&x)[kPackedBulkXAtOnce<Config>]) {
#pragma unroll
    for (uint32_t s = 0; s < Config::kSlabs; s++)
#pragma unroll
        for (uint32_t t = 0; t < kPackedBulkXAtOnce<Config>; t++)
            trf_mma(trf_bf16_type(), sums[s][kFirst + t], a[s][0], x[t].x, x[t].y);
#pragma unroll
    for (uint32_t s = 0; s < Config::kSlabs; s++)
#pragma unroll
        for (uint32_t t = 0; t < kPackedBulkXAtOnce<Config>; t++)
            trf_mma(trf_bf16_type(), sums[s][kFirst + t], a[s][1], x[t].z, x[t].w);
}

/* Forms and multiplies a warp's part of a stage. If the band ends within the warp's packed tiles, the first one takes
 * the place of those that are missing: x is zero there, and a branch would keep loads from starting early. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_consume(const trf_packed_bulk_args &args,
                                                               const trf_packed_bulk_warp<Config> &warp,
                                                               const trf_packed_bulk_place &place, uint32_t stage,
                                                               float (&sums)[Config::kSlabs][Config::kXTiles][4]) {
    const uint32_t first_tile = place.packed_tile + warp.tile(0),
                   band = trf_packed_bulk_band<Config>(place.tile) + warp.band();
    if (first_tile >= args.view.tiles_per_band || band >= args.view.bands)
        return;
    const uint32_t slab = (trf_packed_bulk_first_slab<Config>(place.tile) + warp.first_slab()) % TRF_PACKED_SLABS;
    const typename Config::Weights from(warp.line(stage), first_tile, warp.lane);
#pragma unroll
    for (uint32_t i = 0; i < Config::kWarpTiles; i++) {
        const bool is_there = i == 0 || first_tile + i < args.view.tiles_per_band;
        const uint32_t weights = warp.weights(stage, is_there ? i : 0);
        typename Config::Weights::words words[Config::kSlabs];
#pragma unroll
        for (uint32_t s = 0; s < Config::kSlabs; s++)
            words[s] = from.load(weights + s * Config::kSlabBytes, warp.lane);
        uint4 x[kPackedBulkXAtOnce<Config>];
        trf_packed_bulk_load_x<Config>(x, warp.x(stage, i));
        uint32_t a[Config::kSlabs][2][4];
#pragma unroll
        for (uint32_t s = 0; s < Config::kSlabs; s++)
            from.form_slab(a[s], words[s]);
        from.patch(a, args.view, first_tile + i, slab, warp.lane);
        trf_packed_bulk_multiply<Config, 0>(sums, a, x);
        if constexpr (Config::kXTiles > kPackedBulkXAtOnce<Config>) {
            static_assert(Config::kXTiles == 2 * kPackedBulkXAtOnce<Config>, "two halves");
            trf_packed_bulk_load_x<Config>(x, warp.x(stage, i) + kPackedBulkXAtOnce<Config> * 1024);
            trf_packed_bulk_multiply<Config, kPackedBulkXAtOnce<Config>>(sums, a, x);
        }
    }
}

/* ---- sums ---- */

/* Writes the elements of y of an accumulator tile, which is a packed slab of a block tile by an x tile. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_write_acc_tile(const trf_packed_bulk_args &args, uint32_t tile,
                                                                      uint32_t acc_tile, uint32_t lane, float4 v) {
    const uint32_t first = tile * Config::kRows + acc_tile / Config::kXTiles * TRF_PACKED_SLAB_ROWS + lane / 4,
                   n = acc_tile % Config::kXTiles * 8 + 2 * (lane % 4);
#pragma unroll 1 /* writing a y that is not bare takes hundreds of instructions */
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t row = first + 8 * half;
        const float low = half ? v.z : v.x, high = half ? v.w : v.y;
        if (row >= args.view.rows)
            break;
        float factor;
        if (args.is_bare && trf_packed_get_row_factor(args.view, row, &factor)) {
            const trf_epilogue &e = args.epilogue;
            const uint64_t at = n * e.y_stride + row;
            if (n < args.m)
                trf_write_rounded(e.y, e.y_dtype, at, low * factor);
            if (n + 1 < args.m)
                trf_write_rounded(e.y, e.y_dtype, at + e.y_stride, high * factor);
            continue;
        }
#pragma unroll 1
        for (uint32_t i = 0; i < 2 && n + i < args.m; i++)
            trf_packed_write_y(args.view, args.epilogue, n + i, row, i ? high : low);
    }
}

/* What a block does with the sums of a tile of which it has some k blocks. */
struct trf_packed_bulk_sharing {
    bool hands_over;      /* another block finishes the tile */
    uint32_t first, last; /* the shares whose sums this block adds to its own; none if first > last */

    __device__ __forceinline__ trf_packed_bulk_sharing(const trf_stream_k &stream_k, uint32_t tile) {
        const uint32_t share = trf_packed_share_of_block(blockIdx.x);
        hands_over = trf_stream_k_begin(&stream_k, share) > tile * stream_k.k_blocks;
        first = share + 1;
        last = trf_packed_last_share(stream_k, tile);
    }
};

/* Adds what other blocks have handed over of an accumulator tile. */
template <class Config>
static __device__ __forceinline__ float4 trf_packed_bulk_add_shares(const trf_packed_bulk_args &args,
                                                                    const trf_packed_bulk_sharing &sharing,
                                                                    uint32_t acc_tile, uint32_t lane, float4 v) {
    for (uint32_t share = sharing.first; share <= sharing.last; share++)
        v = trf_add4(v, trf_ldg128f_of_others(trf_packed_handed_over<Config::kAccTiles>(
                            args.handover, trf_packed_block_of_share(share), acc_tile, lane)));
    return v;
}

/* With stream-K, brings the warps' sums of a tile to y, or to the block that finishes the tile, and sets them to zero.
 * All consumers call it. at: address of the place of sums. */
template <class Config>
static __device__ __forceinline__ void
trf_packed_bulk_leave_tile(const trf_packed_bulk_args &args, const trf_packed_bulk_warp<Config> &warp, uint32_t tile,
                           uint32_t at, float (&sums)[Config::kSlabs][Config::kXTiles][4]) {
    static_assert(!Config::kStreamK || Config::kWarps <= TRF_PACKED_HANDOVER_WARPS, "a flag for each warp");
    constexpr uint32_t kSlabAccTiles = Config::kRowWarps * Config::kXTiles;
    const uint32_t number = warp.col_warp * Config::kRowWarps + warp.row_warp, lane_at = at + 16 * warp.lane;
    const trf_packed_bulk_sharing sharing(args.stream_k, tile);
    if (!sharing.hands_over)
        for (uint32_t share = sharing.first; share <= sharing.last; share++)
            trf_packed_take_over(args.handover, trf_packed_block_of_share(share), number, warp.lane);
#pragma unroll
    for (uint32_t s = 0; s < Config::kSlabs; s++) {
        trf_named_barrier_sync(TRF_PACKED_SUMS_BARRIER_ID, Config::kWarps); /* all have read what was there */
#pragma unroll
        for (uint32_t t = 0; t < Config::kXTiles; t++) {
            float(&v)[4] = sums[s][t];
            trf_sts128f(lane_at + (number * Config::kXTiles + t) * TRF_ACC_TILE_BYTES,
                        make_float4(v[0], v[1], v[2], v[3]));
            v[0] = v[1] = v[2] = v[3] = 0;
        }
        trf_named_barrier_sync(TRF_PACKED_SUMS_BARRIER_ID, Config::kWarps);
#pragma unroll 1
        for (uint32_t i = number; i < kSlabAccTiles; i += Config::kWarps) {
            float4 v = trf_lds128f_of_others(lane_at + i * TRF_ACC_TILE_BYTES);
#pragma unroll
            for (uint32_t k = 1; k < Config::kColWarps; k++)
                v = trf_add4(v, trf_lds128f_of_others(lane_at + (k * kSlabAccTiles + i) * TRF_ACC_TILE_BYTES));
            const uint32_t acc_tile =
                (i / Config::kXTiles * Config::kSlabs + s) * Config::kXTiles + i % Config::kXTiles;
            if (sharing.hands_over)
                *trf_packed_handed_over<Config::kAccTiles>(args.handover, blockIdx.x, acc_tile, warp.lane) = v;
            else
                trf_packed_bulk_write_acc_tile<Config>(
                    args, tile, acc_tile, warp.lane,
                    trf_packed_bulk_add_shares<Config>(args, sharing, acc_tile, warp.lane, v));
        }
    }
    if (sharing.hands_over)
        trf_packed_hand_over(args.handover, blockIdx.x, number, warp.lane);
}

/* ---- clusters: a block finishes every so many-th accumulator tile, and all send it their sums of these ---- */

/* How many accumulator tiles the block of this rank finishes; rank 0 has the most. */
template <class Config>
static __device__ __forceinline__ uint32_t trf_packed_bulk_acc_tiles_of(const trf_packed_bulk_args &a, uint32_t rank) {
    return trf_quotient(Config::kAccTiles + a.cluster_size - 1 - rank, a.cluster_blocks);
}

/* Adds up the sums of the block's warps, and sends them to the blocks that finish them. The k-th accumulator tile that
 * is finished there goes to place r * most + k, where r is this block's rank and `most` is rank 0's number of
 * accumulator tiles. A block that is alone writes its sums to y. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_send(const trf_packed_bulk_args &args,
                                                            const trf_packed_bulk_warp<Config> &warp, uint32_t shared,
                                                            const float (&sums)[Config::kSlabs][Config::kXTiles][4]) {
    const uint32_t lane_at = shared + 16 * warp.lane;
    trf_named_barrier_sync(TRF_PACKED_SUMS_BARRIER_ID, Config::kWarps); /* all have read the stages */
#pragma unroll
    for (uint32_t s = 0; s < Config::kSlabs; s++)
#pragma unroll
        for (uint32_t t = 0; t < Config::kXTiles; t++) {
            const float(&v)[4] = sums[s][t];
            const uint32_t acc_tile = (warp.first_slab() + s) * Config::kXTiles + t;
            trf_sts128f(lane_at + (warp.col_warp * Config::kAccTiles + acc_tile) * TRF_ACC_TILE_BYTES,
                        make_float4(v[0], v[1], v[2], v[3]));
        }
    trf_named_barrier_sync(TRF_PACKED_SUMS_BARRIER_ID, Config::kWarps);
    const uint32_t number = warp.col_warp * Config::kRowWarps + warp.row_warp,
                   rank = trf_packed_bulk_rank<Config>(args),
                   from_rank = rank * trf_packed_bulk_acc_tiles_of<Config>(args, 0);
    /* The warp arrived when it started; after the wait the other blocks' barriers are set up. */
    if (args.cluster_size > 1)
        trf_cluster_wait(args.cluster_size);
#pragma unroll 1
    for (uint32_t acc_tile = number; acc_tile < Config::kAccTiles; acc_tile += Config::kWarps) {
        const uint32_t k = trf_quotient(acc_tile, args.cluster_blocks);
        float4 v = trf_lds128f_of_others(lane_at + acc_tile * TRF_ACC_TILE_BYTES);
#pragma unroll
        for (uint32_t c = 1; c < Config::kColWarps; c++)
            v = trf_add4(v, trf_lds128f_of_others(lane_at + (c * Config::kAccTiles + acc_tile) * TRF_ACC_TILE_BYTES));
        if (args.cluster_size == 1)
            trf_packed_bulk_write_acc_tile<Config>(args, trf_packed_bulk_block_number<Config>(args), acc_tile,
                                                   warp.lane, v);
        else
            trf_st_async128f(lane_at + Config::kSumsAt + (from_rank + k) * TRF_ACC_TILE_BYTES,
                             shared + Config::kSumBarrierAt, trf_rest(acc_tile, k, args.cluster_blocks), v);
    }
}

/* Adds the blocks' sums in the order of blocks, once they are there, and writes them to y. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_add_blocks(const trf_packed_bulk_args &args,
                                                                  const trf_packed_bulk_warp<Config> &warp,
                                                                  uint32_t shared) {
    const uint32_t number = warp.col_warp * Config::kRowWarps + warp.row_warp,
                   rank = trf_packed_bulk_rank<Config>(args),
                   acc_tiles = trf_packed_bulk_acc_tiles_of<Config>(args, rank),
                   block_bytes = trf_packed_bulk_acc_tiles_of<Config>(args, 0) * TRF_ACC_TILE_BYTES;
    __syncwarp(); /* the warp's own lanes must have sent theirs, too */
    trf_mbarrier_wait(shared + Config::kSumBarrierAt, 0);
#pragma unroll 1
    for (uint32_t k = number; k < acc_tiles; k += Config::kWarps) {
        const uint32_t at = shared + Config::kSumsAt + k * TRF_ACC_TILE_BYTES + 16 * warp.lane;
        float4 v = trf_lds128f_of_others(at);
#pragma unroll 3
        for (uint32_t r = 1; r < args.cluster_size; r++)
            v = trf_add4(v, trf_lds128f_of_others(at + r * block_bytes));
        trf_packed_bulk_write_acc_tile<Config>(args, trf_packed_bulk_tile<Config>(args), rank + k * args.cluster_size,
                                               warp.lane, v);
    }
}

/* ---- the block ---- */

template <class Config>
static __device__ __forceinline__ void
trf_packed_bulk_walk(const trf_packed_bulk_args &args, const trf_packed_bulk_range &range, uint32_t shared,
                     const trf_packed_bulk_warp<Config> &warp, float (&sums)[Config::kSlabs][Config::kXTiles][4]) {
    trf_packed_ring<Config> ring = {shared, 0, 0};
    trf_packed_bulk_place place = trf_packed_bulk_place_of<Config>(args, range.begin);
    for (uint32_t k_block = range.begin; k_block < range.end; k_block++) {
        trf_mbarrier_wait(ring.full(), ring.phase);
        trf_packed_bulk_consume<Config>(args, warp, place, ring.stage(), sums);
        trf_packed_give_stage_back(ring.empty(), warp.lane);
        ring.next();
        const uint32_t tile = place.tile;
        trf_packed_bulk_advance<Config>(args, place);
        if (Config::kStreamK && (place.tile != tile || k_block + 1 == range.end))
            trf_packed_bulk_leave_tile<Config>(args, warp, tile, shared + Config::kSumsAt, sums);
    }
}

/* Sets up the barriers of stages and of a cluster's sums. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_set_up(const trf_packed_bulk_args &args, uint32_t shared,
                                                              uint32_t lane) {
    trf_packed_set_ring_up<Config>(shared, lane);
    if (args.cluster_size > 1 && lane == 0) {
        const uint32_t barrier = shared + Config::kSumBarrierAt;
        trf_mbarrier_init(barrier, 1);
        trf_mbarrier_publish();
        trf_mbarrier_arrive_expect_tx(
            barrier, args.cluster_size * TRF_ACC_TILE_BYTES *
                         trf_packed_bulk_acc_tiles_of<Config>(args, trf_packed_bulk_rank<Config>(args)));
    }
    __syncwarp();
}

/* shared: address of trf_packed_bulk_shared_bytes, a multiple of 1024. */
template <class Config>
static __device__ __forceinline__ void trf_packed_bulk_block(const trf_packed_bulk_args &args, uint32_t shared) {
    const uint32_t warp_number = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const bool meets = !Config::kStreamK && args.cluster_size > 1;
    if (warp_number >= Config::kWarps) {
        trf_give_registers<Config::kProducerRegisters>();
        if (warp_number == Config::kWarps)
            trf_packed_bulk_produce_weights<Config>(args, trf_packed_bulk_range_of<Config>(args), shared, lane);
        else if (warp_number == Config::kWarps + 1)
            trf_packed_bulk_produce_x<Config>(args, trf_packed_bulk_range_of<Config>(args), shared, lane);
        else if (warp_number == Config::kWarps + 2)
            trf_packed_bulk_set_up<Config>(args, shared, lane);
        if (meets && warp_number >= Config::kWarps + 2)
            trf_cluster_arrive_relaxed(args.cluster_size);
        if (meets)
            trf_cluster_wait(args.cluster_size);
        return;
    }
    if (meets)
        trf_cluster_arrive_relaxed(args.cluster_size);
    trf_named_barrier_sync(TRF_PACKED_CONSUMERS_BARRIER_ID, Config::kWarps + 1);
    const trf_packed_bulk_range range = trf_packed_bulk_range_of<Config>(args);
    trf_take_registers<Config::kRegisters>();
    const trf_packed_bulk_warp<Config> warp(warp_number, lane);
    float sums[Config::kSlabs][Config::kXTiles][4] = {};
    trf_packed_bulk_walk<Config>(args, range, shared, warp, sums);
    if constexpr (!Config::kStreamK) {
        trf_wait_for_predecessor(); /* a block without k blocks has not waited yet */
        trf_packed_bulk_send<Config>(args, warp, shared, sums);
        if (meets)
            trf_packed_bulk_add_blocks<Config>(args, warp, shared);
    }
}

#endif

#endif
