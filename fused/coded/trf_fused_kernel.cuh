/* SPDX-License-Identifier: Apache-2.0 */
/* Computes y = x . W^T from the blob.
 *
 * The work is done by clusters of blocks, one block a multiprocessor. A cluster has consecutive units; its blocks share
 * the panels of these. A block walks a *wave* of its units at once, with `k_splits` warps for each unit (split-K), each
 * of which has a range of the block's columns. After each wave the warps of the cluster add up, through shared memory,
 * the sums of warps that share a unit, and write y. A warp that has all columns of a unit writes y itself.
 *
 * Example: 8192 x 8192 in BF16 (quads), one row of x, 132 multiprocessors. There are 128 units of 64 rows, one for each
 * block; clusters of one block; one wave of one unit; and 16 splits of its 32 panels.
 *
 *          columns of W:  0       512     1024             7680    8192
 *                         +-------+-------+--   ...   --+-------+
 *     rows    0 to   63   |warp  0|warp  1|             |warp 15|   block   0: 16 warps' sums -> 64 elements of y
 *                         +-------+-------+--   ...   --+-------+
 *     rows   64 to  127   |warp  0|warp  1|             |warp 15|   block   1
 *            ...
 *     rows 8128 to 8191   |warp  0|warp  1|             |warp 15|   block 127; four multiprocessors idle
 *
 *     a warp's range:  two slabs, each 32 x 256, at the same time (rows 0 to 31 and 32 to 63), then the next two
 *     a step of it:    16 columns of both: 4 fragments of 16 x 16, of each of which a lane decodes 8 weights, as
 *                      mma.m16n8k16 needs them: rows lane / 4 and 8 below it, columns 2 * (lane % 4) and 8 further on
 *
 *     pipeline of a warp     slab s:  | step 0 | step 1 | ...           | step 15 | slab s + 1 ...
 *       cp.async ahead        8-bit plane by 3 steps, narrow planes by a chunk (4 steps), rANS streams by a slab
 *       x ahead               two steps, from the L1 cache
 *       decode, mma           each step
 *
 *     shared memory, bytes    table 32768 | masks 512 | guard 544 | 16 warps x 2 slabs x 4416 | guard 544: 175680
 *       a slab's 4416         ring of 4 steps 2048 | narrow planes 512 | two of rANS streams, 928 each
 *
 * The partition may also be *stream-K*: all wave panels (one panel of all units of a wave) are cut evenly among blocks.
 * Then a block may share its first and its last wave with other blocks. The sums of shared waves go to the workspace,
 * and a second kernel adds them up, in the order of blocks.
 *
 * Neither the order of additions nor which block adds depends on timing. With an epilogue, "y" means here sums in the
 * workspace (trf_fused_epilogue.cuh).
 *
 * x: the smallest batches read it through the L1 cache, and only a block's own columns. Larger ones have x in shared
 * memory: as a copy for each warp that walks two slabs (trf_copies_x_by_warp), or in a pipeline of stages that warps
 * share (trf_pipelines_x; trf_fused_x_pipeline.cuh).
 *
 * Shared memory: trf_smem_layout, which includes the warps' copies of x; then the stages of x; then the sums, unless
 * they can lie in the warps' buffers or, after one more barrier, in place of these or of the stages of x. Registers: 96
 * to 128 a thread with 16 to 20 warps, 168 with 12, 255 with 8. What limits it:
 * docs/notebook/2026-11-22-fused-kernel.md. */
#ifndef TRF_FUSED_KERNEL_CUH
#define TRF_FUSED_KERNEL_CUH

#include "trf_fused_epilogue.cuh"
#include "trf_fused_x_pipeline.cuh"
#include "trf_stream_k.h"

/* A block's share of the work: wave panels [begin, end). A wave panel is one panel of all units of a wave. */
struct trf_block_share {
    uint32_t unit, units;   /* first unit of wave 0; number of units from there on */
    uint32_t panel, panels; /* first panel; number of panels of a wave, at least 1 */
    uint32_t begin, end;

    __device__ __forceinline__ void find(const trf_fused_partition_args &p) {
        if (p.is_stream_k) {
            unit = panel = 0;
            units = p.units;
            panels = max(p.panel_quotient, 1u);
            /* the share is of wave panels here */
            begin = trf_share_begin(p.share_quotient, p.share_remainder, blockIdx.x);
            end = trf_share_begin(p.share_quotient, p.share_remainder, blockIdx.x + 1);
            return;
        }
        const uint32_t cluster = blockIdx.x / p.cluster_size, rank = blockIdx.x % p.cluster_size;
        unit = trf_share_begin(p.share_quotient, p.share_remainder, cluster);
        units = p.share_quotient + (cluster < p.share_remainder ? 1 : 0);
        panel = trf_share_begin(p.panel_quotient, p.panel_remainder, rank);
        panels = max(p.panel_quotient + (rank < p.panel_remainder ? 1 : 0), 1u);
        begin = 0;
        end = (units + p.wave_units - 1) / p.wave_units * panels; /* if there are no panels, there are no units */
    }

    /* The panels of wave g that the block has, [from, to), counted from the first of `panels`. */
    __device__ __forceinline__ uint32_t from(uint32_t g) const { return max(begin, g * panels) - g * panels; }
    __device__ __forceinline__ uint32_t to(uint32_t g) const { return min(end, (g + 1) * panels) - g * panels; }
};

/* A warp's way: one unit of each of the block's waves, and a range of the block's panels. */
struct trf_split_k_unit_order {
    const trf_block_share &share;
    uint32_t wave_units, k_split, k_splits;

    /* Sets the split's panels [panel, stop) of wave g. */
    __device__ __forceinline__ void enter_wave(trf_walk &walk, uint32_t g) const {
        const uint32_t from = share.from(g), count = share.to(g) - from;
        walk.panel = share.panel + from + count * k_split / k_splits;
        walk.stop = share.panel + from + count * (k_split + 1) / k_splits;
    }

    /* Goes to the next wave in which the split has columns; there is one. */
    __device__ __forceinline__ void next_unit(trf_walk &walk) const {
        do {
            walk.unit += wave_units;
            enter_wave(walk, (walk.unit - share.unit) / wave_units);
        } while (walk.panel == walk.stop);
    }

    /* Returns the beginning of the way. unit_in_wave: which unit of each wave the warp has. */
    __device__ __forceinline__ trf_walk start(uint32_t unit_in_wave) const {
        trf_walk walk = {share.unit + unit_in_wave, 0, 0, 0};
        for (uint32_t g = share.begin / share.panels;
             g * share.panels < share.end && g * wave_units + unit_in_wave < share.units; g++) {
            trf_walk of_wave;
            enter_wave(of_wave, g);
            if (walk.left == 0) {
                walk.unit = share.unit + g * wave_units + unit_in_wave;
                walk.panel = of_wave.panel;
                walk.stop = of_wave.stop;
            }
            walk.left += of_wave.stop - of_wave.panel;
        }
        return walk;
    }
};

/* How many fills of the stages of x a warp's way through so many panels takes. */
static __device__ __forceinline__ uint32_t trf_x_fills_of(const trf_product_args &a, uint32_t x_stage_cols,
                                                          uint32_t num_panels) {
    return a.view.slab_cols > x_stage_cols ? 2 * num_panels : num_panels;
}

/* The product of a warp, which takes x from the pipeline if there is one. */
template <class Product, int kXTiles> struct trf_fused_sink : Product {
    const trf_fused_partition_args &p;
    trf_x_pipeline<kXTiles> x_pipeline;
    uint32_t walk_panels; /* panels on the warp's whole way, unit after unit */
    uint32_t next;        /* the next fill of the stages of x */
    uint32_t chunks;      /* chunks left of the current fill */

    __device__ __forceinline__ trf_fused_sink(const trf_product_args &args, const trf_fused_partition_args &partition,
                                              uint32_t lane, const trf_x_pipeline_params &params, uint32_t walk_panels_)
        : Product(args, lane), p(partition), x_pipeline(params), walk_panels(walk_panels_) {}

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        Product::begin_slab(walk);
        if (!Product::kPipelinedX)
            return;
        next = trf_x_fills_of(this->a, p.x_stage_cols, walk_panels - walk.left);
        chunks = 0;
    }

    __device__ __forceinline__ void begin_step_pair(int step_pair) {
        Product::begin_step_pair(step_pair);
        if (!Product::kPipelinedX || step_pair != 0)
            return;
        if (chunks == 0) {
            x_pipeline.need(this->a, p, next + 1);
            x_pipeline.copies_waited_for = true;
            this->x_shared = x_pipeline.stage(p, next++) + 16 * this->lane;
            chunks = p.x_stage_cols / 64;
        }
        chunks--;
    }
};

/* Where a block leaves the sums of a unit that it shares with other blocks. A block has partials of two waves at most:
 * its first and its last one. */
static __device__ __forceinline__ float *trf_partial_of(const trf_fused_partition_args &p, uint32_t block,
                                                        bool first_wave, uint32_t unit_in_wave, uint32_t acc_tiles) {
    return p.partials + ((uint64_t)(2 * block + (first_wave ? 0 : 1)) * p.wave_units + unit_in_wave) * acc_tiles * 128;
}

/* ---- sums of warps that share a unit ----
 *
 * A *task* is one accumulator tile of one unit of the wave; block `task % cluster_size` adds it up. In clusters of
 * several blocks, warps send their sums to that block, where they lie as [task / cluster_size][block][k_split]. If a
 * block is alone, the sums stay where its warps left them. */

template <class Product>
static __device__ __forceinline__ void trf_send_partial_sums(Product &product, const trf_partition_args &p,
                                                             uint32_t sums, uint32_t warp, uint32_t unit_in_wave,
                                                             uint32_t k_split) {
    const uint32_t lane = threadIdx.x % 32, in_tile = trf_acc_tile_offset(product.a.m, lane, lane % 4);
    const uint32_t rank = blockIdx.x % p.cluster_size;
    product.each_acc_tile([&](uint32_t acc_tile, float4 v) {
        if (p.cluster_size == 1) {
            trf_cluster_store(sums + warp * p.sums_stride + acc_tile * TRF_ACC_TILE_BYTES + in_tile, 0, v);
        } else {
            const uint32_t task = unit_in_wave * Product::kAccTiles + acc_tile;
            const uint32_t place = (task / p.cluster_size * p.cluster_size + rank) * p.k_splits + k_split;
            trf_cluster_store(sums + place * TRF_ACC_TILE_BYTES + in_tile, task % p.cluster_size, v);
        }
    });
}

/* Adds up what lies at shared addresses at(0) ... at(count - 1), in order, with kAtOnce loads at a time. Each of
 * `adders` lanes adds every adders-th of them from number `adder` on. All lanes of the warp call it; those with adder 0
 * get the sum. */
template <int kAtOnce, class At>
static __device__ __forceinline__ float4 trf_add_partials(uint32_t count, uint32_t adder, uint32_t adders, At at) {
    float4 sum = {};
#pragma unroll 1
    for (uint32_t i = adder; i < count; i += kAtOnce * adders) {
        float4 v[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; j++)
            v[j] = trf_lds128f(at(min(i + j * adders, count - 1)));
#pragma unroll
        for (int j = 0; j < kAtOnce; j++)
            if (i + j * adders < count)
                sum = trf_add4(sum, v[j]);
    }
    __syncwarp();
    if (adders > 1)
        sum = trf_add_of_lane(sum, 2);
    if (adders > 2)
        sum = trf_add_of_lane(sum, 1);
    return sum;
}

/* Adds up the block's tasks of units [first, first + units), in the order of blocks and splits. Writes y, or the
 * block's partials if it does not have all columns of these units. In the smallest batches few lanes have sums of their
 * own; other lanes add some for them. */
template <class Product>
static __device__ __forceinline__ void trf_finish_wave(const trf_product_args &a, const trf_partition_args &p,
                                                       uint32_t sums, uint32_t first, uint32_t units, float *partials) {
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const uint32_t rank = blockIdx.x % p.cluster_size, count = p.cluster_size * p.k_splits;
    const uint32_t adders = a.m <= 2 ? 4 : a.m <= 4 ? 2 : 1; /* lanes that add for each lane's sums */
    const uint32_t q = lane % (4 / adders), adder = lane % 4 / (4 / adders);
    const uint32_t in_tile = sums + trf_acc_tile_offset(a.m, lane, q);
    const uint32_t step = p.cluster_size > 1 ? TRF_ACC_TILE_BYTES : p.wave_units * p.sums_stride;
#pragma unroll 1
    for (uint32_t task = rank + p.cluster_size * warp; task < units * Product::kAccTiles;
         task += p.cluster_size * warps) {
        const uint32_t unit = task / Product::kAccTiles, acc_tile = task % Product::kAccTiles;
        const uint32_t at = in_tile + (p.cluster_size > 1 ? task / p.cluster_size * count * TRF_ACC_TILE_BYTES
                                                          : unit * p.sums_stride + acc_tile * TRF_ACC_TILE_BYTES);
        const float4 sum = trf_add_partials<8>(count, adder, adders, [&](uint32_t i) { return at + i * step; });
        if (adder || 2 * q >= a.m)
            continue;
        if (partials)
            *reinterpret_cast<float4 *>(partials + 128 * task + 4 * lane) = sum;
        else
            trf_finish_sums(a, lane, q, (first + unit) * Product::kRows, acc_tile / Product::kAccTileXTiles,
                            acc_tile % Product::kAccTileXTiles, sum);
    }
}

/* ---- the steps of a block ---- */

/* What a warp of a block knows of itself. */
struct trf_fused_warp {
    uint32_t shared; /* address of the block's dynamic shared memory */
    uint32_t warp, lane;
    /* The warp's unit in each wave, and the warp's split of the block's columns of it. Warps from split k_splits on
     * have no work. */
    uint32_t unit_in_wave, k_split;

    __device__ __forceinline__ trf_fused_warp(const trf_partition_args &p, const uint8_t *shared_memory)
        : shared(trf_shared_address(shared_memory)), warp(threadIdx.x / 32), lane(threadIdx.x % 32),
          unit_in_wave(warp % p.wave_units), k_split(warp / p.wave_units) {}
};

/* Sets up the pipeline of x of one split. If a split has only one warp, its barrier is unused: there may be more such
 * splits than barriers. */
template <int kXTiles>
static __device__ __forceinline__ trf_x_pipeline_params trf_x_pipeline_of(const trf_product_args &a,
                                                                          const trf_fused_partition_args &p,
                                                                          const trf_block_share &share, uint32_t shared,
                                                                          uint32_t k_split) {
    const trf_walk of_split = trf_split_k_unit_order{share, p.wave_units, k_split, p.k_splits}.start(0);
    const uint32_t x_fills_per_slab = trf_x_fills_of(a, p.x_stage_cols, 1),
                   width = p.is_stream_k ? share.panels : max(of_split.stop - of_split.panel, 1u);
    return {shared + p.x_stages_offset + k_split * 2 * trf_x_stage_bytes(p.x_stage_cols, kXTiles),
            k_split * p.wave_units,
            k_split + 1,
            (p.is_stream_k ? 0 : of_split.panel) * x_fills_per_slab,
            (p.is_stream_k ? of_split.panel : 0) * x_fills_per_slab,
            width * x_fills_per_slab,
            of_split.left * x_fills_per_slab};
}

/* Ends a wave for a warp that has all columns of `unit`, or all that the block has of it. partials: where the sums go
 * in the latter case, else NULL. */
template <class Product>
static __device__ __forceinline__ void trf_end_wave_alone(Product &product, uint32_t lane, uint32_t unit_in_wave,
                                                          uint32_t unit, float *partials) {
    if (!partials) {
        product.finish(unit);
        return;
    }
    product.each_acc_tile([&](uint32_t acc_tile, float4 v) {
        *reinterpret_cast<float4 *>(partials + 128 * (unit_in_wave * Product::kAccTiles + acc_tile) + 4 * lane) = v;
    });
}

/* Warps that share units add up the sums of units [first, first + units). is_first, is_last: whether this is the first
 * or last of the block's waves. `a` is a parameter, since taking it from `product` costs 14 more registers. */
template <class Product>
static __device__ __forceinline__ void trf_end_wave_shared(Product &product, const trf_product_args &a,
                                                           const trf_fused_partition_args &p, const trf_fused_warp &w,
                                                           uint32_t first, uint32_t units, float *partials,
                                                           bool is_first, bool is_last) {
    if (is_last) { /* the sums may lie in the warps' buffers */
        trf_cp_async_wait<0>();
        __syncwarp();
    }
    if (p.cluster_sums_replace_buffers)
        trf_cluster_arrive(p.cluster_size);
    /* Waits until the cluster's blocks have started, and until sums of the wave before have been read. */
    if (p.cluster_size > 1 || !is_first)
        trf_cluster_wait(p.cluster_size);
    if (w.k_split < p.k_splits)
        trf_send_partial_sums<Product>(product, p, w.shared + p.sums_offset, w.warp, w.unit_in_wave, w.k_split);
    trf_cluster_arrive(p.cluster_size);
    trf_cluster_wait(p.cluster_size);
    trf_finish_wave<Product>(a, p, w.shared + p.sums_offset, first, units, partials);
    if (!is_last)
        trf_cluster_arrive(p.cluster_size);
}

/* Keeps the pipeline of x going to the end of wave g: other warps of the split may still need what this one copies.
 * walk_panels: the split's panels up to the end of the wave. */
template <class Sink>
static __device__ __forceinline__ void trf_end_x_of_wave(Sink &sink, const trf_fused_partition_args &p,
                                                         const trf_split_k_unit_order &unit_order, uint32_t g,
                                                         uint32_t *walk_panels) {
    trf_walk of_wave;
    unit_order.enter_wave(of_wave, g);
    *walk_panels += of_wave.stop - of_wave.panel;
    sink.x_pipeline.copies_waited_for = false; /* the way may have ended shortly after a copy */
    sink.x_pipeline.need(sink.a, p, trf_x_fills_of(sink.a, p.x_stage_cols, *walk_panels));
}

/* Goes through the block's waves. walk(unit) walks the warp's part of a unit, if it has one. */
template <class Sink, class Walk>
static __device__ __forceinline__ void
trf_walk_waves(Sink &sink, const trf_product_args &a, const trf_fused_partition_args &p, const trf_fused_warp &w,
               const trf_block_share &share, const trf_split_k_unit_order &unit_order, Walk walk) {
    const bool joins = p.cluster_size * p.k_splits > 1;
    const uint32_t first_wave = share.begin / share.panels;
    uint32_t walk_panels = 0; /* panels of the split up to the end of the current wave */
#pragma unroll 1
    for (uint32_t g = first_wave; g * share.panels < share.end; g++) {
        const uint32_t first = share.unit + g * p.wave_units, units = min(p.wave_units, share.units - g * p.wave_units);
        const bool is_partial = share.to(g) - share.from(g) < share.panels; /* other blocks have the other panels */
        walk(first + w.unit_in_wave);
        if (Sink::kPipelinedX && w.k_split < p.k_splits)
            trf_end_x_of_wave(sink, p, unit_order, g, &walk_panels);
        float *const partials =
            is_partial ? trf_partial_of(p, blockIdx.x, g == first_wave, 0, Sink::kAccTiles) : nullptr;
        if (joins)
            trf_end_wave_shared(sink, a, p, w, first, units, partials, g == first_wave,
                                (g + 1) * share.panels >= share.end);
        else if (w.unit_in_wave < units && w.k_split == 0)
            trf_end_wave_alone(sink, w.lane, w.unit_in_wave, first + w.unit_in_wave, partials);
        sink.clear();
    }
    trf_cp_async_wait<0>();
}

/* ---- the kernels ---- */

template <class Codec, class Type, int kP, int kSlabs, int kXTiles, bool kScaleGroups, int kWarps>
static __device__ __forceinline__ void trf_fused_block(const trf_fused_args &args) {
    const trf_product_args &a = args.product;
    const trf_fused_partition_args &p = args.partition;
    using Product = trf_warp_product<Codec, Type, kSlabs, kXTiles, kScaleGroups, kP == 0>;
    constexpr int kLog = kP == 0 ? 0 : trf_fused_table_log(Codec::kClassBits, kSlabs);
    static_assert(!Product::kPipelinedX || kWarps / 2 <= 15, "a barrier for each split of two warps or more");
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint2 constants[2];
    __shared__ trf_block_share share; /* in shared memory, since the loop over slabs has no registers to spare */
    __shared__ trf_x_pipeline_params x_pipelines[Product::kPipelinedX ? kWarps : 1];
    const trf_fused_warp w(p, shared_memory);

    /* The first slabs and the table are loaded while the block finds its share. */
    trf_allow_successor();
    /* Other blocks may send sums once this block has started, or, where sums replace x or buffers, once it is done with
     * these. */
    if (!p.cluster_sums_replace_buffers)
        trf_cluster_arrive(p.cluster_size);
    const trf_table_slots<kP> table_source(a.view);
    trf_block_share share_at_start;
    share_at_start.find(p);
    const trf_split_k_unit_order unit_order_at_start = {share_at_start, p.wave_units, w.k_split, p.k_splits};
    const trf_walk walk = w.k_split < p.k_splits ? unit_order_at_start.start(w.unit_in_wave) : trf_walk{};
    const trf_int_planes planes = trf_int_planes_of(a.view.raw_bits);
    trf_prefetcher<kSlabs> prefetcher;
    trf_start_walk<Codec>(prefetcher, a.view, p.smem, planes, walk, unit_order_at_start,
                          w.shared + p.smem.first_warp + w.warp * p.smem.warp_bytes, w.lane);
    trf_build_constants<Codec, kP, kLog>(a.view, table_source, w.shared, p.smem, constants);
    if (threadIdx.x == 0)
        share = share_at_start;
    if (Product::kPipelinedX && threadIdx.x < p.k_splits)
        x_pipelines[threadIdx.x] = trf_x_pipeline_of<kXTiles>(a, p, share_at_start, w.shared, threadIdx.x);
    __syncthreads();
    trf_wait_for_predecessor();

    /* x is read only from here on: the preceding kernel may have made it. */
    const trf_split_k_unit_order unit_order = {share, p.wave_units, w.k_split, p.k_splits};
    trf_fused_sink<Product, kXTiles> sink(
        a, p, w.lane, x_pipelines[Product::kPipelinedX ? min(w.k_split, p.k_splits - 1) : 0], walk.left);
    if (Product::kPipelinedX && w.k_split < p.k_splits && x_pipelines[w.k_split].total)
        sink.x_pipeline.copy(a, p);
    const trf_rans_params<kP, kLog> params =
        trf_rans_params_of<kP, kLog, trf_fused_keeps_constants(Codec::kCodec, kSlabs, kXTiles)>(
            a.view, shared_memory, p.smem.table_log, trf_shared_address(constants), w.lane);
    if (Product::kCopiesX)
        sink.x_shared =
            w.shared + p.smem.first_warp + w.warp * p.smem.warp_bytes + kSlabs * p.smem.slab_bytes + 16 * w.lane;
    if (prefetcher.bytes[0])
        sink.prefetch_slab(prefetcher.entered);
    if (Product::kCopiesX)
        trf_cp_async_commit();
    trf_walk_waves(sink, a, p, w, share, unit_order, [&](uint32_t unit) {
        trf_walk_slabs<Codec>(a.view, p.smem, planes, prefetcher, params, w.shared + p.smem.lane_pair_masks, unit_order,
                              unit, w.lane, sink);
    });

    if (args.epilogue.y)
        trf_apply_epilogue_of_block(args, share.unit * Product::kRows,
                                    min((share.unit + share.units) * Product::kRows, a.whole_rows));
    else
        trf_each_remainder_element(a, [&](uint32_t n, uint32_t row) { trf_write_y(a, n, row, 0.0f); });
}

template <class Codec, class Type, int kP, int kSlabs, int kXTiles, bool kScaleGroups, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) trf_fused(const __grid_constant__ trf_fused_args args) {
    if constexpr (kP == 0 || TRF_LARGE_SHARED)
        trf_fused_block<Codec, Type, kP, kSlabs, kXTiles, kScaleGroups, kWarps>(args);
}

/* Adds up the partials of units that blocks share, and writes y of these; with an epilogue, y of all units. There is a
 * warp for each accumulator tile of each unit of the layer. */
static __global__ void __launch_bounds__(256)
    trf_fused_finish(const __grid_constant__ trf_fused_args args, uint32_t unit_slabs, uint32_t x_tiles) {
    const trf_product_args &a = args.product;
    const trf_fused_partition_args &p = args.partition;
    const uint32_t lane = threadIdx.x % 32, task = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const uint32_t acc_tiles = 2 * unit_slabs * x_tiles, unit = task / acc_tiles, acc_tile = task % acc_tiles,
                   g = unit / p.wave_units;
    trf_allow_successor();
    trf_wait_for_predecessor();
    if (unit >= p.units || 2 * (lane % 4) >= a.m)
        return;
    const uint32_t panels = p.panel_quotient, begin = g * panels,
                   first = trf_share_of(p.share_quotient, p.share_remainder, begin),
                   last = trf_share_of(p.share_quotient, p.share_remainder, begin + panels - 1);
    const uint32_t first_row = unit * unit_slabs * TRF_SLAB_ROWS;
    if (first != last) {
        float4 sum = {};
#pragma unroll 4
        for (uint32_t block = first; block <= last; block++) {
            /* Blocks after the first one begin inside the wave. */
            const bool its_first =
                block > first || trf_share_begin(p.share_quotient, p.share_remainder, block) >= begin;
            sum = trf_add4(sum, __ldcg(reinterpret_cast<const float4 *>(
                                    trf_partial_of(p, block, its_first, unit % p.wave_units, acc_tiles) +
                                    128 * acc_tile + 4 * lane)));
        }
        trf_finish_sums(a, lane, lane % 4, first_row, acc_tile / x_tiles, acc_tile % x_tiles, sum);
    }
    if (args.epilogue.y)
        trf_apply_epilogue_of_acc_tile(args, lane, first_row, acc_tile / x_tiles, acc_tile % x_tiles);
}

#endif
