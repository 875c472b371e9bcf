/* y = x . W^T from the blob.
 *
 * Clusters of blocks, one block a multiprocessor. A cluster has consecutive units; its blocks cut the columns of slabs
 * among them. A block walks a *wave* of its units at once: `k_splits` warps a unit (split-K), a range of the block's
 * columns each. Behind each wave the warps of the cluster add up the sums of those that share a unit, through shared
 * memory, and write y. Where one warp has all columns of a unit it writes y itself.
 *
 * The partition may also be *stream-K*: waves times columns are cut evenly among blocks, whose first and last waves may
 * be shared with others. Sums of those go to the workspace, and a second kernel adds them up, in the order of blocks.
 *
 * No sum depends on timing: who adds does not either. With an epilogue what is y here are sums in the workspace
 * (trf_fused_epilogue.cuh).
 *
 * x: the smallest batches read it through the L1 cache, a block's columns only; larger ones have it in shared memory: a
 * copy for each warp that walks two slabs (trf_copies_x_by_warp), or a pipeline of stages that warps share
 * (trf_pipelines_x; trf_fused_x_pipeline.cuh).
 *
 * Shared memory: trf_smem_layout, with warps' copies of x in it, then stages of x, then sums if they cannot lie in the
 * warps' buffers or, behind one meeting more, in place of those or of stages of x. Registers: 96 to 128 a thread with
 * 16 to 20 warps, 168 with 12, 255 with 8. What limits it: docs/performance.md. */
#ifndef TRF_FUSED_KERNEL_CUH
#define TRF_FUSED_KERNEL_CUH

#include "trf_fused_epilogue.cuh"
#include "trf_fused_x_pipeline.cuh"
#include "trf_stream_k.h"

/* The decode table's size. With quads, one slab a warp waits for each look-up, and wants a bank for each lane; two hide
 * that of the other. */
static __host__ __device__ constexpr uint32_t trf_fused_table_log(int class_bits, int slabs) {
    return class_bits == 2 && slabs == 2 ? kSmallTableLog : kTableLog;
}

/* What a block has: work items [begin, end), a work item being one of `cols` columns of a wave of units. */
struct trf_block_share {
    uint32_t unit, units; /* first unit of wave 0; units from there on */
    uint32_t col, cols;   /* first column; columns of a wave, at least 1 */
    uint32_t begin, end;

    __device__ __forceinline__ void find(const trf_fused_args &a) {
        if (a.stream_k) {
            unit = col = 0;
            units = a.units;
            cols = max(a.cols_per_block, 1u);
            begin = trf_share_begin(a.units_per_cluster, a.units_remainder, blockIdx.x); /* work items here */
            end = trf_share_begin(a.units_per_cluster, a.units_remainder, blockIdx.x + 1);
            return;
        }
        const uint32_t cluster = blockIdx.x / a.cluster, rank = blockIdx.x % a.cluster;
        unit = trf_share_begin(a.units_per_cluster, a.units_remainder, cluster);
        units = a.units_per_cluster + (cluster < a.units_remainder ? 1 : 0);
        col = trf_share_begin(a.cols_per_block, a.cols_remainder, rank);
        cols = max(a.cols_per_block + (rank < a.cols_remainder ? 1 : 0), 1u);
        begin = 0;
        end = (units + a.wave_units - 1) / a.wave_units * cols; /* no columns, no units */
    }

    /* Columns of wave g that are the block's, from the first of `cols`. */
    __device__ __forceinline__ uint32_t from(uint32_t g) const { return max(begin, g * cols) - g * cols; }
    __device__ __forceinline__ uint32_t to(uint32_t g) const { return min(end, (g + 1) * cols) - g * cols; }
};

/* A warp's way: of each of the block's waves one unit, a range of the block's columns. */
struct trf_split_k_bands {
    const trf_block_share &share;
    uint32_t wave_units, k_split, k_splits;

    /* The split's columns [col, stop) of wave g. */
    __device__ __forceinline__ void enter_wave(trf_walk &walk, uint32_t g) const {
        const uint32_t from = share.from(g), count = share.to(g) - from;
        walk.col = share.col + from + count * k_split / k_splits;
        walk.stop = share.col + from + count * (k_split + 1) / k_splits;
    }

    /* To the next wave in which the split has columns; there is one. */
    __device__ __forceinline__ void next_band(trf_walk &walk) const {
        do {
            walk.band += wave_units;
            enter_wave(walk, (walk.band - share.unit) / wave_units);
        } while (walk.col == walk.stop);
    }

    /* place: of the warp's unit in its wave. */
    __device__ __forceinline__ trf_walk start(uint32_t place) const {
        trf_walk walk = {share.unit + place, 0, 0, 0};
        for (uint32_t g = share.begin / share.cols; g * share.cols < share.end && g * wave_units + place < share.units;
             g++) {
            trf_walk of_wave;
            enter_wave(of_wave, g);
            if (walk.left == 0) {
                walk.band = share.unit + g * wave_units + place;
                walk.col = of_wave.col;
                walk.stop = of_wave.stop;
            }
            walk.left += of_wave.stop - of_wave.col;
        }
        return walk;
    }
};

/* Stages of x that `slabs` slabs side by side take. */
static __device__ __forceinline__ uint32_t trf_x_stages_of(const trf_fused_args &a, uint32_t slabs) {
    return a.view.slab_cols > a.x_stage_cols ? 2 * slabs : slabs;
}

/* The product of a warp, with x from where it is. */
template <class Product, int kXTiles> struct trf_fused_sink : Product {
    trf_x_pipeline<kXTiles> x_pipeline;
    uint32_t walk_slabs; /* slabs on the warp's way */
    uint32_t next;       /* stage of x */
    uint32_t chunks;     /* left of the stage at hand */

    __device__ __forceinline__ trf_fused_sink(const trf_fused_args &args, uint32_t lane,
                                              const trf_x_pipeline_params &params, uint32_t on_way_)
        : Product(args, lane), x_pipeline(params), walk_slabs(on_way_) {}

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        Product::begin_slab(walk);
        if (!Product::kPipelinedX)
            return;
        next = trf_x_stages_of(this->a, walk_slabs - walk.left);
        chunks = 0;
    }

    __device__ __forceinline__ void begin_step_pair(int half) {
        Product::begin_step_pair(half);
        if (!Product::kPipelinedX || half != 0)
            return;
        if (chunks == 0) {
            x_pipeline.need(this->a, next + 1);
            x_pipeline.stepped = true;
            this->x_shared = x_pipeline.stage(this->a, next++) + 16 * this->lane;
            chunks = this->a.x_stage_cols / 64;
        }
        chunks--;
    }
};

/* Where a block leaves the sums of a unit that it shares with others: its own partials of wave g, of which it has two
 * at most. */
static __device__ __forceinline__ float *trf_partial_of(const trf_fused_args &a, uint32_t block, bool first_wave,
                                                        uint32_t place, uint32_t acc_tiles) {
    return a.partials + ((uint64_t)(2 * block + (first_wave ? 0 : 1)) * a.wave_units + place) * acc_tiles * 128;
}

/* ---- sums of warps that share a unit ----
 * A *task* is one accumulator tile of one unit of the wave; block `task % cluster` adds it up. In clusters of several
 * blocks warps send their sums there, where [task / cluster] [block][k_split] stand side by side; a block alone has
 * them where its warps left them. */

template <class Product>
static __device__ __forceinline__ void trf_send_partial_sums(Product &product, const trf_fused_args &a, uint32_t sums,
                                                             uint32_t warp, uint32_t place, uint32_t k_split) {
    const uint32_t lane = threadIdx.x % 32, in_piece = trf_acc_tile_place(a.m, lane, lane % 4);
    const uint32_t rank = blockIdx.x % a.cluster;
    product.each_acc_tile([&](uint32_t acc_tile, float4 v) {
        if (a.cluster == 1) {
            trf_cluster_store(sums + warp * a.sums_stride + acc_tile * kAccTileBytes + in_piece, 0, v);
        } else {
            const uint32_t task = place * Product::kAccTiles + acc_tile;
            const uint32_t slot = (task / a.cluster * a.cluster + rank) * a.k_splits + k_split;
            trf_cluster_store(sums + slot * kAccTileBytes + in_piece, task % a.cluster, v);
        }
    });
}

/* Adds up what lies at shared addresses at(0) ... at(count - 1), in order, kAtOnce loads at a time; each of `sharers`
 * lanes has every so many of them from its `share` on. All lanes of the warp call it; those with share 0 have the
 * sum. */
template <int kAtOnce, class At>
static __device__ __forceinline__ float4 trf_add_shares(uint32_t count, uint32_t share, uint32_t sharers, At at) {
    float4 sum = {};
#pragma unroll 1
    for (uint32_t i = share; i < count; i += kAtOnce * sharers) {
        float4 v[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; j++)
            v[j] = trf_lds128f(at(min(i + j * sharers, count - 1)));
#pragma unroll
        for (int j = 0; j < kAtOnce; j++)
            if (i + j * sharers < count)
                sum = trf_add(sum, v[j]);
    }
    __syncwarp();
    if (sharers > 1)
        sum = trf_add_of_lane(sum, 2);
    if (sharers > 2)
        sum = trf_add_of_lane(sum, 1);
    return sum;
}

/* Adds up the block's tasks of units [first, first + units), by blocks and parts in order, and writes y, or the block's
 * partials if it has not all columns of these units. For the smallest batches, of which few lanes have sums, others add
 * some of them. */
template <class Product>
static __device__ __forceinline__ void trf_finish_wave(const trf_fused_args &a, uint32_t sums, uint32_t first,
                                                       uint32_t units, float *partials) {
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const uint32_t rank = blockIdx.x % a.cluster, count = a.cluster * a.k_splits;
    const uint32_t sharers = a.m <= 2 ? 4 : a.m <= 4 ? 2 : 1; /* lanes that add for one */
    const uint32_t q = lane % (4 / sharers), share = lane % 4 / (4 / sharers);
    const uint32_t in_piece = sums + trf_acc_tile_place(a.m, lane, q);
    const uint32_t step = a.cluster > 1 ? kAccTileBytes : a.wave_units * a.sums_stride;
#pragma unroll 1
    for (uint32_t task = rank + a.cluster * warp; task < units * Product::kAccTiles; task += a.cluster * warps) {
        const uint32_t unit = task / Product::kAccTiles, acc_tile = task % Product::kAccTiles;
        const uint32_t at = in_piece + (a.cluster > 1 ? task / a.cluster * count * kAccTileBytes
                                                      : unit * a.sums_stride + acc_tile * kAccTileBytes);
        const float4 sum = trf_add_shares<8>(count, share, sharers, [&](uint32_t i) { return at + i * step; });
        if (share || 2 * q >= a.m)
            continue;
        if (partials)
            *reinterpret_cast<float4 *>(partials + 128 * task + 4 * lane) = sum;
        else
            trf_finish_sums(a, lane, q, (first + unit) * Product::kRows, acc_tile / Product::kAccTileCols,
                            acc_tile % Product::kAccTileCols, sum);
    }
}

template <class Traits, class Type, int kP, int kSlabs, int kXTiles, bool kScaled, int kWarps>
static __device__ __forceinline__ void trf_fused_block(const trf_fused_args &a) {
    using Product = trf_warp_product<Traits, Type, kSlabs, kXTiles, kScaled, kP == 0>;
    constexpr int kLog = kP == 0 ? 0 : trf_fused_table_log(Traits::kClassBits, kSlabs);
    static_assert(!Product::kPipelinedX || kWarps / 2 <= 15, "a barrier for each part of two warps or more");
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint2 constants;
    __shared__ trf_block_share share; /* here, since the loop over slabs has no registers to spare */
    __shared__ trf_x_pipeline_params x_pipelines[Product::kPipelinedX ? kWarps : 1];
    const uint32_t shared = trf_shared_address(shared_memory), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    trf_allow_successor();
    if (!a.sums_over_x) /* else blocks may send sums when all are done with x, not when all are there */
        trf_cluster_arrive(a.cluster);
    const trf_table_source<kP> table_source(a.view);

    const uint32_t place = warp % a.wave_units, k_split = warp / a.wave_units;
    trf_block_share share_at_start;
    share_at_start.find(a);
    const trf_split_k_bands band_order_at_start = {share_at_start, a.wave_units, k_split, a.k_splits};
    const trf_walk walk = k_split < a.k_splits ? band_order_at_start.start(place) : trf_walk{};
    const trf_int_planes planes = trf_int_planes_of(a.view.raw_bits);
    trf_stager<kSlabs> stager;
    trf_start<Traits>(stager, a.view, a.smem, planes, walk, band_order_at_start,
                      shared + a.smem.warps + warp * a.smem.warp_bytes, lane);
    trf_build_constants<Traits, kP, kLog>(a.view, table_source, shared, a.smem, &constants);
    if (threadIdx.x == 0)
        share = share_at_start;
    if (Product::kPipelinedX && threadIdx.x < a.k_splits) {
        const trf_walk of_split = trf_split_k_bands{share_at_start, a.wave_units, threadIdx.x, a.k_splits}.start(0);
        const uint32_t x_stages_per_slab = trf_x_stages_of(a, 1),
                       width = a.stream_k ? share_at_start.cols : max(of_split.stop - of_split.col, 1u);
        x_pipelines[threadIdx.x] = {
            shared + a.x_shared + threadIdx.x * 2 * trf_x_stage_bytes(a.x_stage_cols, kXTiles),
            threadIdx.x * a.wave_units,
            threadIdx.x + 1, /* unused where a part is one warp: these may be more than there are barriers */
            (a.stream_k ? 0 : of_split.col) * x_stages_per_slab,
            (a.stream_k ? of_split.col : 0) * x_stages_per_slab,
            width * x_stages_per_slab,
            of_split.left * x_stages_per_slab};
    }
    __syncthreads();
    trf_wait_for_predecessor();

    const trf_split_k_bands band_order = {share, a.wave_units, k_split, a.k_splits};
    trf_fused_sink<Product, kXTiles> sink(a, lane, x_pipelines[Product::kPipelinedX ? min(k_split, a.k_splits - 1) : 0],
                                          walk.left);
    if (Product::kPipelinedX && k_split < a.k_splits && x_pipelines[k_split].total)
        sink.x_pipeline.copy(a);
    uint32_t walk_slabs = 0; /* slabs of the split, up to the end of the wave at hand */
    const trf_rans_params<kP, kLog> params =
        trf_rans_params_of<kP, kLog>(a.view, shared_memory, a.smem.table_log, trf_shared_address(&constants), lane);
    if (Product::kCopiesX)
        sink.x_shared = shared + a.smem.warps + warp * a.smem.warp_bytes + kSlabs * a.smem.slab_bytes + 16 * lane;
    if (stager.bytes[0])
        sink.prefetch_slab(stager.entered);
    if (Product::kCopiesX)
        trf_cp_async_commit();
    const bool joins = a.cluster * a.k_splits > 1;
    const uint32_t first_wave = share.begin / share.cols;
#pragma unroll 1
    for (uint32_t g = first_wave; g * share.cols < share.end; g++) {
        const uint32_t first = share.unit + g * a.wave_units, here = min(a.wave_units, share.units - g * a.wave_units);
        const uint32_t unit = first + place;
        const bool partial = share.to(g) - share.from(g) < share.cols; /* other blocks have the rest */
        trf_walk_slabs<Traits>(a.view, a.smem, planes, stager, params, shared + a.smem.pair_masks, band_order, unit,
                               lane, sink);
        if (Product::kPipelinedX && k_split < a.k_splits) {
            trf_walk of_wave;
            band_order.enter_wave(of_wave, g);
            walk_slabs += of_wave.stop - of_wave.col;
            sink.x_pipeline.stepped = false; /* the way may have ended soon behind a copy */
            sink.x_pipeline.need(a, trf_x_stages_of(a, walk_slabs));
        }
        float *const partials =
            partial ? trf_partial_of(a, blockIdx.x, g == first_wave, 0, Product::kAccTiles) : nullptr;
        if (!joins) {
            if (place < here && k_split == 0) {
                if (partial)
                    sink.each_acc_tile([&](uint32_t acc_tile, float4 v) {
                        *reinterpret_cast<float4 *>(partials + 128 * (place * Product::kAccTiles + acc_tile) +
                                                    4 * lane) = v;
                    });
                else
                    sink.finish(unit);
            }
            sink.clear();
            continue;
        }
        const bool last = (g + 1) * share.cols >= share.end;
        if (last) { /* sums may lie in the warps' buffers */
            trf_cp_async_wait<0>();
            __syncwarp();
        }
        if (a.sums_over_x)
            trf_cluster_arrive(a.cluster);
        if (a.cluster > 1 || g > first_wave)
            trf_cluster_wait(a.cluster); /* the blocks are there; sums of the wave before are read */
        if (k_split < a.k_splits)
            trf_send_partial_sums<Product>(sink, a, shared + a.sums, warp, place, k_split);
        trf_cluster_arrive(a.cluster);
        trf_cluster_wait(a.cluster);
        trf_finish_wave<Product>(a, shared + a.sums, first, here, partials);
        if (!last)
            trf_cluster_arrive(a.cluster);
        sink.clear();
    }
    trf_cp_async_wait<0>();
    if (a.epilogue_args.y)
        trf_apply_epilogue_of_block(a, share.unit * Product::kRows,
                                    min((share.unit + share.units) * Product::kRows, a.whole_rows));
    else
        trf_each_remainder_element(a, [&](uint32_t n, uint32_t row) { trf_store_y(a, n, row, 0.0f); });
}

template <class Traits, class Type, int kP, int kSlabs, int kXTiles, bool kScaled, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) trf_fused(const __grid_constant__ trf_fused_args a) {
    if constexpr (kP == 0 || TRF_LARGE_SHARED)
        trf_fused_block<Traits, Type, kP, kSlabs, kXTiles, kScaled, kWarps>(a);
}

/* Adds up the partials of units that blocks share, and writes their y; with an epilogue that of all units. A warp for
 * each accumulator tile of each unit of the layer. */
static __global__ void __launch_bounds__(256)
    trf_fused_finish(const __grid_constant__ trf_fused_args a, uint32_t slabs, uint32_t x_tiles) {
    const uint32_t lane = threadIdx.x % 32, task = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const uint32_t acc_tiles = 2 * slabs * x_tiles, unit = task / acc_tiles, acc_tile = task % acc_tiles,
                   g = unit / a.wave_units;
    trf_allow_successor();
    trf_wait_for_predecessor();
    if (unit >= a.units || 2 * (lane % 4) >= a.m)
        return;
    const uint32_t cols = a.cols_per_block, begin = g * cols,
                   first = trf_share_of(a.units_per_cluster, a.units_remainder, begin),
                   last = trf_share_of(a.units_per_cluster, a.units_remainder, begin + cols - 1);
    const uint32_t first_row = unit * slabs * TRF_SLAB_ROWS;
    if (first != last) {
        float4 sum = {};
#pragma unroll 4
        for (uint32_t block = first; block <= last; block++) {
            /* Those behind the first block begin inside the wave. */
            const bool its_first =
                block > first || trf_share_begin(a.units_per_cluster, a.units_remainder, block) >= begin;
            sum = trf_add(sum, __ldcg(reinterpret_cast<const float4 *>(
                                   trf_partial_of(a, block, its_first, unit % a.wave_units, acc_tiles) +
                                   128 * acc_tile + 4 * lane)));
        }
        trf_finish_sums(a, lane, lane % 4, first_row, acc_tile / x_tiles, acc_tile % x_tiles, sum);
    }
    if (a.epilogue_args.y)
        trf_apply_epilogue_of_acc_tile(a, lane, first_row, acc_tile / x_tiles, acc_tile % x_tiles);
}

#endif
