/* SPDX-License-Identifier: Apache-2.0 */
/* Computes y = x . W^T by warpgroups (sm_90a), for larger batches; takes every m.
 *
 * A *work item* is 128 rows of W (4 bands of 32), a range of its columns, and 48 to 128 rows of x. A block has two
 * kinds of warps:
 *   consumers  one or two warpgroups (wgmma): products of 64 rows of W by all rows of x, both operands in shared
 *              memory, sums in registers
 *   decoders   12 or 8 warps, each with slabs of a *unit*, two bands at a time; they store what they decode in a
 *              *stage* of 128 rows by 32 columns, beside which x is copied
 * Decoders work in *producers* of one warp for each unit that the block decodes. Each producer has consecutive panels,
 * and all producers work at the same time. Consumers take their stages one by one: turn by turn of slabs, and within a
 * turn, 32 columns of each producer after the other.
 *
 * The blocks of a cluster share work in one of two ways. Two blocks may decode for each other: both have the same work
 * item but different rows of x, and each decodes one of the units and stores it in both blocks. Or `k_splits` blocks
 * share a work item's columns (split-K); at the end each sends its sums to the blocks that add them up, in a fixed
 * order.
 *
 * Example: 8192 x 8192 in FP8 E4M3 (quads), 256 rows of x, 132 multiprocessors. There are 64 work items, each for a
 * cluster of two blocks that decode for each other; four multiprocessors idle.
 *
 *          columns of W:   0      1024     2048             7168    8192      (32 panels, 8 producers)
 *                          +--------+--------+--   ...   --+--------+
 *     rows   0 to  63      |prod. 0 |prod. 1 |             |prod. 7 |  decoded by block 0, stored in both blocks
 *     rows  64 to 127      |prod. 0 |prod. 1 |             |prod. 7 |  decoded by block 1, stored in both blocks
 *                          +--------+--------+--   ...   --+--------+  = cluster 0; block 0 multiplies by rows 0 to 127
 *     rows 128 to 255                    cluster 1 ...                   of x, block 1 by rows 128 to 255
 *
 *     a block    8 decoders ... -> stage of producer i (128 x 32 of W, 128 x 32 of x) -> 2 consumers ... -> registers
 *       full[i]  decoders of both blocks and the copy of x arrive; consumers wait
 *       empty[i] consumers of both blocks arrive; decoders wait
 *       a producer has one stage: while consumers read it, its decoders go on with the next 32 columns
 *
 *     shared memory, bytes   table 32768 | masks 512 | guard 544 | 8 warps x 2 slabs x 3392 | guard 544
 *                            | to a multiple of 1024 | 8 stages x 8192 | 8 copies of x x 8192: 220160
 *       a slab's 3392        planes of raw bits 1536 | two of rANS streams, 928 each
 *
 * Registers: 128 a thread. What limits it: docs/notebook/2026-11-23-wide-kernel.md. */
#ifndef TRF_WIDE_KERNEL_CUH
#define TRF_WIDE_KERNEL_CUH

#include "trf_fused_kernel.cuh"
#include "trf_ptx_sm90.cuh"
#include "trf_tensor_map.cuh"
#include "trf_wide_sizes.h"

/* kXRows: rows of x of a block, at most. kDecodingBlocks: blocks of a cluster that decode for each other, 1 or 2. */
template <int kXRows, int kDecodingBlocks> struct trf_wide_shape {
    static constexpr uint32_t kConsumers = trf_wide_consumers(kXRows); /* warpgroups */
    static constexpr uint32_t kWgmmaRows64 = 2 / kConsumers;           /* a consumer has so many times 64 rows of W */
    /* units of a work item that the block decodes */
    static constexpr uint32_t kUnits = trf_wide_block_units(kDecodingBlocks);
    static constexpr uint32_t kProducers = trf_wide_max_producers(kXRows, kDecodingBlocks); /* at most */
    static constexpr uint32_t kThreads = trf_wide_threads(kXRows);
    static_assert(kProducers <= TRF_WIDE_MAX_PRODUCERS, "flags and barriers of producers");
};

/* How work items are cut over clusters, blocks and producers. */
struct trf_wide_partition_args {
    trf_smem_layout smem;
    uint32_t panels;       /* regular panels of the layer */
    uint32_t log_k_splits; /* the logarithm of k_splits() */
    uint32_t producers;
    uint32_t x_rows, x_stage_bytes; /* rows of x of a block; the bytes that these take in a stage */
    uint32_t x_ranges;              /* how many ranges x's rows are cut into, each of kDecodingBlocks * x_rows rows */
    uint32_t work_items, clusters;
    uint32_t stages_offset, x_stages_offset; /* in shared memory, multiples of 1024: [producer] */

    /* How many blocks of a cluster share a work item's columns: 1, 2, 4 or 8. If they are several, they do not decode
     * for each other, and have one work item. */
    __device__ __forceinline__ uint32_t k_splits() const { return 1u << log_k_splits; }
    __device__ __forceinline__ uint32_t k_split() const { return blockIdx.x & (k_splits() - 1); } /* this block's */
};

/* Every wide kernel takes it by value. */
struct trf_wide_args {
    trf_tensor_map x_map; /* x as boxes of 32 columns by a block's rows, under the swizzle of 64 bytes */
    trf_product_args product;
    trf_wide_partition_args partition;
};

#if TRF_HAS_SM_90A

/* ---- the order of things: the same for decoders and consumers ---- */

/* A block's part of the panels, and how it is cut over its producers. */
struct trf_wide_k_range {
    uint32_t first, producers;
    uint32_t each, more; /* a producer has `each` panels; producers below `more` have one more */

    __device__ __forceinline__ explicit trf_wide_k_range(const trf_wide_partition_args &p) {
        first = p.panels * p.k_split() >> p.log_k_splits;
        producers = p.producers;
        const uint32_t count = (p.panels * (p.k_split() + 1) >> p.log_k_splits) - first;
        each = count / producers;
        more = count % producers;
    }

    /* A turn is one panel of each producer; if `more` is not 0, only the first `more` producers have one in the
     * last turn. */
    __device__ __forceinline__ uint32_t turns() const { return each + (more ? 1 : 0); }
    __device__ __forceinline__ uint32_t producers_in(uint32_t turn) const { return turn < each ? producers : more; }
    __device__ __forceinline__ uint32_t begin(uint32_t producer) const {
        return first + trf_share_begin(each, more, producer);
    }
    __device__ __forceinline__ uint32_t count(uint32_t producer) const {
        return producer < producers ? each + (producer < more ? 1 : 0) : 0;
    }
};

/* How many fills of stages a slab of this panel takes. */
static __device__ __forceinline__ uint32_t trf_fills_of(const trf_device_view &view, uint32_t panel) {
    return 2 * trf_slab_chunks(view, panel);
}

/* The first band, and the first row of x, of a work item. */
static __device__ __forceinline__ uint32_t trf_first_band(const trf_wide_partition_args &p, uint32_t work_item) {
    return work_item / p.x_ranges * TRF_WIDE_BANDS;
}
template <int kDecodingBlocks>
static __device__ __forceinline__ uint32_t trf_first_x(const trf_wide_partition_args &p, uint32_t work_item) {
    return (work_item % p.x_ranges * kDecodingBlocks + blockIdx.x % kDecodingBlocks) * p.x_rows;
}

/* The block's first work item. */
template <int kDecodingBlocks>
static __device__ __forceinline__ uint32_t trf_first_work_item(const trf_wide_partition_args &p) {
    return blockIdx.x / kDecodingBlocks >> p.log_k_splits;
}

/* ---- barriers and flags of a block ---- */

struct trf_wide_barriers {
    uint64_t full[TRF_WIDE_MAX_PRODUCERS], empty[TRF_WIDE_MAX_PRODUCERS]; /* of the stages of weights and x */
    uint8_t corrupt[2][TRF_WIDE_UNITS][TRF_WIDE_MAX_PRODUCERS];           /* for even and for odd work items */
};

template <class Shape, int kDecodingBlocks>
static __device__ __forceinline__ void trf_init_barriers(trf_wide_barriers &m) {
    if (threadIdx.x != 0)
        return;
    for (uint32_t i = 0; i < Shape::kProducers; i++) {
        trf_mbarrier_init(trf_shared_address(&m.full[i]), TRF_WIDE_UNITS);
        trf_mbarrier_init(trf_shared_address(&m.empty[i]), 4 * Shape::kConsumers * kDecodingBlocks);
    }
    trf_mbarrier_publish();
    for (uint32_t i = 0; i < sizeof m.corrupt; i++)
        (&m.corrupt[0][0][0])[i] = 0;
}

/* ---- decoders ---- */

/* A decoder's way: the panels of its producer, in each of the block's work items. */
struct trf_wide_unit_order {
    const trf_wide_partition_args &p;
    uint32_t whole_rows;         /* of the layer */
    uint32_t unit, begin, count; /* the unit within a work item; first panel and number of panels */
    /* the work item of the slab that the prefetcher enters next, which is ahead of the one being decoded */
    mutable uint32_t work_item;

    /* The layer's unit; in place of one that does not exist, the last one again. */
    __device__ __forceinline__ uint32_t unit_of(uint32_t work_item_) const {
        return min(trf_first_band(p, work_item_) / TRF_WIDE_UNIT_SLABS + unit, (whole_rows - 1) / TRF_WIDE_UNIT_ROWS);
    }
    __device__ __forceinline__ void next_unit(trf_walk &walk) const {
        work_item += p.clusters;
        walk.unit = unit_of(work_item);
        walk.panel = begin;
        walk.stop = begin + count;
    }
    __device__ __forceinline__ trf_walk start() const {
        const uint32_t work_items =
            work_item < p.work_items ? (p.work_items - work_item + p.clusters - 1) / p.clusters : 0;
        return {count && work_items ? unit_of(work_item) : 0, begin, begin + count, count * work_items};
    }
};

/* Stores decoded weights in stages and multiplies nothing. It inherits from the sink that multiplies only for
 * completing fragments. The block's first decoder of a producer also starts the copies of x. */
template <class Product, int kXRows, int kDecodingBlocks> struct trf_wide_sink : Product {
    using Rows = uint4[TRF_WIDE_UNIT_SLABS][4];
    using Shape = trf_wide_shape<kXRows, kDecodingBlocks>;
    const trf_tensor_map &x_map;
    const trf_wide_partition_args &p;
    trf_wide_barriers &barriers;
    const trf_wide_unit_order &unit_order;
    uint32_t walk_panels, next;             /* panels of the whole way, unit after unit; the number of the next one */
    uint32_t producer, fills;               /* fills: how often the producer's stage was filled so far */
    uint32_t fills_left;                    /* fills left in the slab */
    uint32_t stage_address;                 /* shared address of the lane's first 16 bytes in the stage */
    uint32_t x_stage_address, x_col, x_row; /* of the copy of x; the address is 0 if another warp makes the copy */
    uint32_t first[TRF_WIDE_UNIT_SLABS][8]; /* the fragments of the first of two steps */

    __device__ __forceinline__ trf_wide_sink(const trf_wide_args &args, uint32_t lane, trf_wide_barriers &barriers_,
                                             const trf_wide_unit_order &unit_order_, uint32_t producer_,
                                             uint32_t walk_panels_, uint32_t shared)
        : Product(args.product, lane), x_map(args.x_map), p(args.partition), barriers(barriers_),
          unit_order(unit_order_), walk_panels(walk_panels_), next(0), producer(producer_), fills(0), fills_left(0) {
        /* row in an atom of 8 rows of 64 bytes; row / 2 swizzles its columns of 16 bytes */
        const uint32_t row = lane / 4;
        stage_address = shared + args.partition.stages_offset + producer * TRF_WIDE_STAGE_BYTES +
                        unit_order_.unit * (TRF_WIDE_UNIT_ROWS * 2 * TRF_WIDE_STAGE_COLS) + 64 * row +
                        16 * (lane % 4 ^ row / 2);
        x_stage_address = unit_order_.unit % Shape::kUnits == 0
                              ? shared + args.partition.x_stages_offset + producer * args.partition.x_stage_bytes
                              : 0;
    }

    /* Goes to the next slab, which lies in this panel. */
    __device__ __forceinline__ void enter_slab(uint32_t panel) {
        const uint32_t work_item = trf_first_work_item<kDecodingBlocks>(p) + next / unit_order.count * p.clusters;
        x_col = panel * this->a.view.slab_cols;
        x_row = trf_first_x<kDecodingBlocks>(p, work_item);
        fills_left = trf_fills_of(this->a.view, panel);
        next++;
    }

    /* Fills the stage. rows[s][i]: the columns from 8 * (lane % 4) on of row 8 * i + lane / 4 of slab s. */
    __device__ __forceinline__ void fill_stage(const Rows &rows) {
        const uint32_t full = trf_shared_address(&barriers.full[producer]);
        trf_mbarrier_wait(trf_shared_address(&barriers.empty[producer]), fills++ % 2 ^ 1);
        if (x_stage_address && this->lane == 0)
            trf_tma_load_box(x_stage_address, &x_map, x_col, x_row, full);
        x_col += TRF_WIDE_STAGE_COLS;
#pragma unroll
        for (int s = 0; s < TRF_WIDE_UNIT_SLABS; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                trf_sts128(stage_address + 2048 * s + 512 * i, rows[s][i]);
        if (kDecodingBlocks > 1)
#pragma unroll
            for (int s = 0; s < TRF_WIDE_UNIT_SLABS; s++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    trf_st_async128(stage_address + 2048 * s + 512 * i, full, blockIdx.x % 2 ^ 1, rows[s][i]);
    }

    /* Gives the stage to the consumers. They get it once everything has arrived: x, and what a decoder of the other
     * block sends. */
    __device__ __forceinline__ void commit_stage() {
        const uint32_t full = trf_shared_address(&barriers.full[producer]);
        const uint32_t expected = (x_stage_address ? p.x_stage_bytes : 0) +
                                  (kDecodingBlocks > 1 ? TRF_WIDE_UNIT_ROWS * 2 * TRF_WIDE_STAGE_COLS : 0);
        trf_fence_async_proxy();
        __syncwarp();
        if (this->lane != 0)
            return;
        trf_mbarrier_arrive_expect_tx(full, expected);
        if (kDecodingBlocks > 1)
            trf_mbarrier_arrive_cluster(full, blockIdx.x % 2 ^ 1);
    }

    /* Fills stages with zeros for slabs that do not exist. */
    __device__ __forceinline__ void fill_zeros_until(uint32_t ordinal) {
#pragma unroll 1
        while (next < ordinal) {
            enter_slab(unit_order.begin + next % unit_order.count);
#pragma unroll 1
            for (; fills_left; fills_left--) {
                fill_stage({});
                commit_stage();
            }
        }
    }

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        fill_zeros_until(walk_panels - walk.left);
        enter_slab(walk.panel);
        if (Product::kTakesScalePairs)
            this->load_scale_pairs(walk.unit, walk.panel * this->a.view.slab_cols);
    }
    __device__ __forceinline__ void begin_step_pair(int) {}
    static constexpr bool kCopiesX = false;

    __device__ __forceinline__ void step(const uint32_t (*reg)[8], const trf_walk &walk, uint32_t k) {
        if (Product::kTakesScalePairs)
            this->advance_scale_pairs(walk, k);
        if (k % 2 == 0) {
#pragma unroll
            for (int s = 0; s < TRF_WIDE_UNIT_SLABS; s++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    first[s][i] = reg[s][i];
            return;
        }
        Rows rows;
#pragma unroll
        for (int s = 0; s < TRF_WIDE_UNIT_SLABS; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                /* A lane's registers of a fragment: rows lane / 4 and 8 below it, columns 2q and 2q + 8. */
                const int r = i / 2 * 4 + i % 2;
                rows[s][i] = make_uint4(first[s][r], first[s][r + 2], reg[s][r], reg[s][r + 2]);
            }
        fill_stage(rows);
        if (--fills_left) /* the last fill is committed after the verdict */
            commit_stage();
    }

    __device__ __forceinline__ void end_slab(const trf_walk &, bool good) {
        if (!good && this->lane == 0) {
            uint8_t *const flag = &barriers.corrupt[(next - 1) / unit_order.count % 2][unit_order.unit][producer];
            *flag = 1;
            if (kDecodingBlocks > 1) {
                trf_sts8_cluster(trf_shared_address(flag), blockIdx.x % 2 ^ 1, 1);
                trf_fence_cluster();
            }
        }
        commit_stage();
    }
};

/* ---- sums to y ---- */

/* Whether two neighbouring elements of y can be written at once. */
static __device__ __forceinline__ bool trf_writes_two_rows(const trf_product_args &a) {
    return a.y_dtype != TRF_DTYPE_F32 && (uintptr_t)a.y % 4 == 0 && a.y_stride % 2 == 0;
}

/* Writes two sums of a row of W, for rows n and n + 1 of x. Lanes that are 4 apart have neighbouring rows of W: for
 * two_rows they exchange sums, so that each has two neighbours in one row of x. All lanes of the warp call it. */
static __device__ __forceinline__ void trf_write_two_sums(const trf_product_args &a, bool two_rows, uint32_t n,
                                                          uint32_t row, float first, float second) {
    if (!two_rows) {
        if (n < a.m)
            trf_write_y(a, n, row, first);
        if (n + 1 < a.m)
            trf_write_y(a, n + 1, row, second);
        return;
    }
    const uint32_t odd = threadIdx.x / 4 % 2;
    const float other = __shfl_xor_sync(0xFFFFFFFFu, odd ? first : second, 4);
    if (n + odd >= a.m)
        return;
    uint16_t *const to = (uint16_t *)a.y + (uint64_t)(n + odd) * a.y_stride + (row - odd);
    *reinterpret_cast<uint32_t *>(to) = trf_round_two(a.y_dtype, odd ? other : first, odd ? second : other);
}

/* Where blocks that split a work item send sums. An *accumulator tile* is the sums of 16 rows of W by 8 rows of x. Each
 * block adds up every k_splits-th x tile, and every block sends it its sums of these. They lie where the stages were,
 * as [x tile][16 rows][sending block] of TRF_ACC_TILE_BYTES. */
static __device__ __forceinline__ uint32_t trf_acc_tile_at(const trf_wide_partition_args &p, uint32_t acc_tile,
                                                           uint32_t from) {
    return p.stages_offset + ((acc_tile << p.log_k_splits) + from) * TRF_ACC_TILE_BYTES + 16 * (threadIdx.x % 32);
}

/* All warps of the block add up its accumulator tiles, in the order of blocks, and write y. */
static __device__ __forceinline__ void trf_add_acc_tiles(const trf_wide_args &args, uint32_t shared) {
    const trf_product_args &a = args.product;
    const trf_wide_partition_args &p = args.partition;
    constexpr uint32_t kHigh = TRF_WIDE_ROWS / 16;
    const uint32_t rank = p.k_split(), lane = threadIdx.x % 32,
                   acc_tiles = (p.x_rows / 8 + p.k_splits() - 1 - rank >> p.log_k_splits) * kHigh,
                   first_row = trf_first_band(p, trf_first_work_item<1>(p)) * TRF_SLAB_ROWS + lane / 4,
                   first_x = trf_first_x<1>(p, trf_first_work_item<1>(p)) + 2 * (lane % 4);
    const bool two_rows = trf_writes_two_rows(a);
#pragma unroll 1
    for (uint32_t acc_tile = threadIdx.x / 32; acc_tile < acc_tiles; acc_tile += blockDim.x / 32) {
        const float4 sum = trf_add_partials<4>(
            p.k_splits(), 0, 1, [&](uint32_t from) { return shared + trf_acc_tile_at(p, acc_tile, from); });
        const uint32_t row = first_row + acc_tile % kHigh * 16,
                       n = first_x + 8 * ((acc_tile / kHigh << p.log_k_splits) + rank);
        if (row >= a.whole_rows) /* this is the same for all lanes */
            continue;
        const float scale = trf_scale_sum(a, row, 1.0f), scale_below = trf_scale_sum(a, row + 8, 1.0f);
        trf_write_two_sums(a, two_rows, n, row, scale * sum.x, scale * sum.y);
        trf_write_two_sums(a, two_rows, n, row + 8, scale_below * sum.z, scale_below * sum.w);
    }
}

/* ---- consumers ---- */

template <class Type, int kXRows, int kDecodingBlocks, int kWarpgroup> struct trf_wide_consumer {
    using Shape = trf_wide_shape<kXRows, kDecodingBlocks>;
    static constexpr int kWgmmaRows64 = Shape::kWgmmaRows64, kProducers = Shape::kProducers;
    static constexpr uint32_t warpgroup = kWarpgroup;
    const trf_product_args &a;
    const trf_wide_partition_args &p;
    trf_wide_barriers &barriers;
    uint32_t shared;
    uint32_t warp, lane; /* warp: its number in the warpgroup */
    /* as trf_wgmma has them, for rows from 64 * (kWgmmaRows64 * warpgroup + b) on */
    float sum[kWgmmaRows64][kXRows / 2];

    __device__ __forceinline__ trf_wide_consumer(const trf_wide_args &args, trf_wide_barriers &barriers_,
                                                 uint32_t shared_)
        : a(args.product), p(args.partition), barriers(barriers_), shared(shared_), warp(threadIdx.x / 32 % 4),
          lane(threadIdx.x % 32) {}

    __device__ __forceinline__ void sync_warpgroup() const {
        asm volatile("barrier.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
    }

    __device__ __forceinline__ void release_stage(uint32_t producer) const {
        const uint32_t empty = trf_shared_address(&barriers.empty[producer]);
        if (lane != 0)
            return;
        trf_mbarrier_arrive(empty);
        if (kDecodingBlocks > 1)
            trf_mbarrier_arrive_cluster(empty, blockIdx.x % 2 ^ 1);
    }

    /* Starts the products of a stage by kRows rows of x. A slab has an even number of fills, so that index gives the
     * barrier's phase. */
    template <int kRows> __device__ __forceinline__ void multiply(uint32_t producer, uint32_t index) {
        trf_mbarrier_wait(trf_shared_address(&barriers.full[producer]), index % 2);
        if (kDecodingBlocks > 1)
            trf_fence_async_proxy(); /* orders what the other block sent */
        const uint64_t w = trf_wgmma_descriptor(shared + p.stages_offset + producer * TRF_WIDE_STAGE_BYTES +
                                                warpgroup * (kWgmmaRows64 * 64 * 2 * TRF_WIDE_STAGE_COLS)),
                       x = trf_wgmma_descriptor(shared + p.x_stages_offset +
                                                producer * (kRows * 2 * TRF_WIDE_STAGE_COLS));
        trf_wgmma_fence();
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int b = 0; b < kWgmmaRows64; b++)
                trf_wgmma<kRows>(Type(), sum[b], w + (b * (64 * 2 * TRF_WIDE_STAGE_COLS) + 32 * half) / 16,
                                 x + 32 * half / 16);
        trf_wgmma_commit();
    }

    /* Multiplies the fills of a work item: in each turn, and for each index in the turn, one fill of each producer that
     * has a panel. */
    template <int kRows> __device__ __forceinline__ void multiply_work_item(const trf_wide_k_range &k_range) {
        constexpr uint32_t kNone = UINT32_MAX;
        const uint32_t all = a.view.slab_cols / TRF_WIDE_STAGE_COLS;
        /* The layer's last panel may be narrow. It is the last panel of the last producer that has panels. */
        const uint32_t narrow = trf_fills_of(a.view, k_range.begin(k_range.producers) - 1),
                       narrow_turn = k_range.each ? k_range.each - 1 : 0;
        uint32_t unreleased = kNone; /* the producer of the previous stage, if that is still to be released */
#pragma unroll 1
        for (uint32_t turn = 0; turn < k_range.turns(); turn++)
#pragma unroll 1
            for (uint32_t index = 0; index < all; index++) {
                const uint32_t active = k_range.producers_in(turn) - (turn == narrow_turn && index >= narrow ? 1 : 0);
#pragma unroll
                for (int producer = 0; producer < kProducers; producer++) {
                    if (producer >= active)
                        break;
                    /* If there is only one producer, its next stage can come only when this one is free. */
                    if (producer == 0 && unreleased == 0) {
                        trf_wgmma_wait<0>();
                        release_stage(0);
                        unreleased = kNone;
                    }
                    multiply<kRows>(producer, index);
                    trf_wgmma_wait<1>();
                    if (producer > 0)
                        release_stage(producer - 1);
                    else if (unreleased != kNone)
                        release_stage(unreleased);
                }
                unreleased = active ? active - 1 : kNone;
            }
        trf_wgmma_wait<0>();
        trf_wgmma_settle_sums(sum);
        if (unreleased != kNone)
            release_stage(unreleased);
    }

    /* Multiplies by as many rows of x as the block has. */
    __device__ __forceinline__ void multiply_rows(const trf_wide_k_range &k_range) {
        if constexpr (kXRows == 64) {
            if (p.x_rows == 48)
                return multiply_work_item<48>(k_range);
        } else {
            if (p.x_rows == 80)
                return multiply_work_item<80>(k_range);
            if (p.x_rows == 96)
                return multiply_work_item<96>(k_range);
            if (p.x_rows == 112)
                return multiply_work_item<112>(k_range);
        }
        multiply_work_item<kXRows>(k_range);
    }

    /* Does all of the block's work items. */
    __device__ __forceinline__ void multiply_all(const trf_wide_k_range &k_range) {
#pragma unroll 1
        for (uint32_t work_item = trf_first_work_item<kDecodingBlocks>(p), parity = 0; work_item < p.work_items;
             work_item += p.clusters, parity ^= 1) {
#pragma unroll
            for (int b = 0; b < kWgmmaRows64; b++)
#pragma unroll
                for (int i = 0; i < kXRows / 2; i++)
                    sum[b][i] = 0;
            multiply_rows(k_range);
            mark_corrupt(parity);
            if (kDecodingBlocks == 1 && p.k_splits() > 1)
                send_acc_tiles();
            else
                finish(work_item);
        }
    }

    /* ---- the end of a work item ---- */

    /* Sets the sums of rows to NaN if one of their slabs was corrupt. */
    __device__ __forceinline__ void mark_corrupt(uint32_t parity) {
        uint8_t(*const flags)[TRF_WIDE_MAX_PRODUCERS] = &barriers.corrupt[parity][kWgmmaRows64 * warpgroup];
#pragma unroll
        for (int b = 0; b < kWgmmaRows64; b++) {
            bool bad = false;
            for (uint32_t i = 0; i < TRF_WIDE_MAX_PRODUCERS; i++)
                bad |= flags[b][i] != 0;
            if (bad)
#pragma unroll
                for (int i = 0; i < kXRows / 2; i++)
                    sum[b][i] = __uint_as_float(0x7FC00000u);
        }
        /* Now all warps have read the flags. The next flags that are set are for a work item that decoders reach only
         * after these warps have released stages. */
        sync_warpgroup();
        if (threadIdx.x % 128 < sizeof flags[0] * kWgmmaRows64)
            flags[0][threadIdx.x % 128] = 0;
    }

    /* Sends the sums to the blocks that add them up. */
    __device__ __forceinline__ void send_acc_tiles() {
        const uint32_t at = shared + trf_acc_tile_at(p, 4 * kWgmmaRows64 * warpgroup + warp, p.k_split());
        trf_cluster_arrive(p.k_splits()); /* all blocks are done with their stages */
        trf_cluster_wait(p.k_splits());
#pragma unroll
        for (int t = 0; t < kXRows / 8; t++) {
            if (t >= p.x_rows / 8)
                break;
#pragma unroll
            for (int b = 0; b < kWgmmaRows64; b++)
                trf_cluster_store(at + (t & -p.k_splits()) * (TRF_WIDE_ROWS / 16 * TRF_ACC_TILE_BYTES) +
                                      (4 * b << p.log_k_splits) * TRF_ACC_TILE_BYTES,
                                  t & (p.k_splits() - 1),
                                  make_float4(sum[b][4 * t], sum[b][4 * t + 1], sum[b][4 * t + 2], sum[b][4 * t + 3]));
        }
    }

    /* Writes the block's own sums to y, 8 rows of x at a time. The current ones are in sum[b][0 ... 3], and the others
     * move up after each round. This is a loop, since code that runs once would cost more than these moves. */
    __device__ __forceinline__ void finish(uint32_t work_item) {
        const bool two_rows = trf_writes_two_rows(a);
        uint32_t n = trf_first_x<kDecodingBlocks>(p, work_item) + 2 * (lane % 4);
        uint32_t row[kWgmmaRows64]; /* the first of two rows, which are 8 apart */
        float scale[kWgmmaRows64][2];
#pragma unroll
        for (int b = 0; b < kWgmmaRows64; b++) {
            row[b] = trf_first_band(p, work_item) * TRF_SLAB_ROWS + 64 * (kWgmmaRows64 * warpgroup + b) + 16 * warp +
                     lane / 4;
            for (int h = 0; h < 2; h++)
                scale[b][h] = row[b] < a.whole_rows ? trf_scale_sum(a, row[b] + 8 * h, 1.0f) : 0;
        }
#pragma unroll 1
        for (uint32_t x_tile = 0; x_tile < p.x_rows / 8; x_tile++, n += 8)
#pragma unroll
            for (int b = 0; b < kWgmmaRows64; b++) {
#pragma unroll
                for (int h = 0; h < 2; h++)
                    if (row[b] < a.whole_rows) /* this is the same for all lanes */
                        trf_write_two_sums(a, two_rows, n, row[b] + 8 * h, scale[b][h] * sum[b][2 * h],
                                           scale[b][h] * sum[b][2 * h + 1]);
#pragma unroll
                for (int i = 0; i < kXRows / 2 - 4; i++)
                    sum[b][i] = sum[b][i + 4];
            }
    }
};

/* Blocks of a cluster wait for each other; those that split a work item then add up its sums. */
template <class Shape, int kDecodingBlocks>
static __device__ __forceinline__ void trf_end_wide_cluster(const trf_wide_args &args, uint32_t shared) {
    const uint32_t k_splits = args.partition.k_splits();
    if (kDecodingBlocks > 1) { /* the other block may arrive at this block's barriers until it is done */
        trf_cluster_arrive(kDecodingBlocks);
        trf_cluster_wait(kDecodingBlocks);
    } else if (k_splits > 1) {
        if (threadIdx.x / 32 >= 4 * Shape::kConsumers) { /* consumers have done so in send_acc_tiles */
            trf_cluster_arrive(k_splits);
            trf_cluster_wait(k_splits);
        }
        trf_cluster_arrive(k_splits);
        trf_cluster_wait(k_splits);
        trf_add_acc_tiles(args, shared);
    }
}

/* ---- the kernel ---- */

template <class Codec, class Type, int kXRows, int kDecodingBlocks>
static __device__ __forceinline__ void trf_wide_block(const trf_wide_args &args) {
    const trf_product_args &a = args.product;
    const trf_wide_partition_args &p = args.partition;
    using Shape = trf_wide_shape<kXRows, kDecodingBlocks>;
    using Product = trf_warp_product<Codec, Type, TRF_WIDE_UNIT_SLABS, 1, false, false>;
    constexpr int kP = kDefaultP<Codec>, kLog = TRF_WIDE_TABLE_LOG;
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint2 constants[2];
    __shared__ trf_wide_barriers barriers;
    const uint32_t shared = trf_shared_address(shared_memory), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t decoder = warp - 4 * Shape::kConsumers; /* a large number for warps that are no decoders */
    const trf_device_view &view = a.view;
    trf_allow_successor();
    const trf_table_slots<kP> table_source(view);
    const trf_wide_k_range k_range(p);
    trf_init_barriers<Shape, kDecodingBlocks>(barriers);

    const bool decodes = decoder < p.producers * Shape::kUnits;
    const uint32_t producer = decoder / Shape::kUnits;
    const trf_wide_unit_order unit_order = {p,
                                            a.whole_rows,
                                            decoder % Shape::kUnits + blockIdx.x % kDecodingBlocks * Shape::kUnits,
                                            k_range.begin(producer),
                                            decodes ? k_range.count(producer) : 0,
                                            trf_first_work_item<kDecodingBlocks>(p)};
    const trf_int_planes planes = trf_int_planes_of(view.raw_bits);
    const trf_walk walk = unit_order.start();
    trf_prefetcher<TRF_WIDE_UNIT_SLABS, kShortRing> prefetcher;
    if (decodes)
        trf_start_walk<Codec>(prefetcher, view, p.smem, planes, walk, unit_order,
                              shared + p.smem.first_warp + decoder * p.smem.warp_bytes, lane);
    trf_build_constants<Codec, kP, kLog>(view, table_source, shared, p.smem, constants);
    if (kDecodingBlocks == 1) {
        __syncthreads();
    } else { /* the barriers of the other block must be set up, too */
        trf_cluster_arrive(kDecodingBlocks);
        trf_cluster_wait(kDecodingBlocks);
    }
    trf_wait_for_predecessor();

    if (decodes) {
        const trf_rans_params<kP, kLog> params =
            trf_rans_params_of<kP, kLog>(view, shared_memory, p.smem.table_log, trf_shared_address(constants), lane);
        trf_wide_sink<Product, kXRows, kDecodingBlocks> sink(args, lane, barriers, unit_order, producer, walk.left,
                                                             shared);
        trf_walk_slabs<Codec>(view, p.smem, planes, prefetcher, params, shared + p.smem.lane_pair_masks, unit_order,
                              UINT32_MAX, lane, sink);
        sink.fill_zeros_until(walk.left);
        trf_cp_async_wait<0>();
    } else if (warp < 4) {
        trf_wide_consumer<Type, kXRows, kDecodingBlocks, 0>(args, barriers, shared).multiply_all(k_range);
    } else if (Shape::kConsumers > 1 && warp < 8) {
        trf_wide_consumer<Type, kXRows, kDecodingBlocks, Shape::kConsumers - 1>(args, barriers, shared)
            .multiply_all(k_range);
    }
    __syncwarp();
    trf_end_wide_cluster<Shape, kDecodingBlocks>(args, shared);
}

#endif

template <class Codec, class Type, int kXRows, int kDecodingBlocks>
__global__ void __launch_bounds__(trf_wide_shape<kXRows, kDecodingBlocks>::kThreads, 1)
    trf_wide(const __grid_constant__ trf_wide_args args) {
#if TRF_HAS_SM_90A
    trf_wide_block<Codec, Type, kXRows, kDecodingBlocks>(args);
#endif
}

#endif
