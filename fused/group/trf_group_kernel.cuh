/* SPDX-License-Identifier: Apache-2.0 */
/* Products of several layers in one launch: computes y = x . W^T for each of them, for batches up to 8.
 *
 * There are two uses. *Layers*: the host shares out clusters of blocks among a few layers, and a cluster has units of
 * one of them. *Experts*: layers of one shape, where only the device knows how many rows of x each one has. A block
 * finds its part from the counts (trf_expert_share.h), and goes through the experts of that part, one after the other.
 * No unit lies in several clusters, and there is no second kernel: no sum depends on timing.
 *
 * How a block's units are walked: clusters of several blocks work as trf_fused_kernel.cuh describes, in waves of units,
 * with a barrier after each wave. A cluster of one block uses *stream-K*: the panels of its units, one unit after the
 * other, are cut into as many equal shares as the block has warps. A warp writes y of the units of which it has all
 * panels. Of its first and its last unit it may have only some panels. It leaves the sums of these: those of the first
 * unit in a place beside all buffers, those of the last one in its own buffers, which it no longer needs. After one
 * barrier the block adds them up in the order of warps.
 *
 * Example: three layers of 4096 x 4096 in BF16 (quads), with one row of x each, on 132 multiprocessors. There are 43
 * blocks a layer and 16 warps a block. Each warp walks one slab at a time, so a unit has 32 rows; a layer has 128 units
 * of 16 panels each. Blocks have two or three units.
 *
 *     layer 0: blocks 0 to 42           layer 1: blocks 43 to 85         layer 2: blocks 86 to 128     (three idle)
 *
 *     block 0, three units, 48 panels: 3 for each of 16 warps
 *       unit 0 (rows  0 to 31) |w0 |w1 |w2 |w3 |w4 |5|  |: a warp whose share ends, or begins, in the middle of a unit
 *       unit 1 (rows 32 to 63) |5|w6 |w7 |w8 |w9 |w10|     leaves sums for each of the two; here w5 has 1 panel of
 *       unit 2 (rows 64 to 95) |10|w11|w12|w13|w14|w15|    unit 0 and 2 of unit 1, w10 has 2 of unit 1 and 1 of unit 2
 *
 *     pipeline of a warp: as trf_fused_kernel.cuh has it
 *     shared memory, bytes   table 65536 | masks 512 | guard 544 | 16 warps x 4416 | guard 544 | sums 16 x 1024: 154176
 *
 * A layer's arguments lie in shared memory here, since they change from block to block; the loop over slabs reads those
 * that it needs once a slab. The layout of shared memory, which it reads at every step, is the same for the whole
 * launch. trf_fused_kernel.cuh has a kernel for one layer, whose arguments are constants.
 *
 * Shared memory: trf_smem_layout, then the warps' sums. Registers: as many as fused kernels with one x tile. */
#ifndef TRF_GROUP_KERNEL_CUH
#define TRF_GROUP_KERNEL_CUH

#include "trf_edge_warp.cuh"
#include "trf_fused_kernel.cuh"
#include "trf_group_launch.h"
#include "trf_stream_k.h"

/* A layer's product and its partition. */
struct trf_group_layer_args {
    trf_product_args product;
    trf_partition_args partition;
};

/* What experts have in common. */
struct trf_expert_args {
    trf_group_layer_args common; /* m is not set; x, y, edge_sums: of the first token; view: of any expert */
    const trf_expert *experts;   /* device, [count] */
    const uint32_t *offsets;     /* device, [count + 1] */
    uint32_t count, max_tokens;
    trf_expert_cost_model cost_model;
};

/* Every grouped kernel takes it by value. */
struct trf_group_args {
    trf_smem_layout smem;  /* the same for every layer */
    uint32_t sums_offset;  /* in shared memory */
    uint32_t cluster_size; /* blocks of a cluster; 1 for experts */
    uint32_t count;        /* number of layers; 0: these are experts */
    uint32_t first_cluster[TRF_GROUP_MAX_LAYERS + 1];
    union {
        trf_group_layer_args layers[TRF_GROUP_MAX_LAYERS];
        trf_expert_args experts;
    };
};
static_assert(sizeof(trf_group_args) <= 4096, "kernels take 4 KiB of arguments everywhere");

/* What the threads of a block share. */
struct trf_group_block {
    trf_group_layer_args layer; /* the current layer */
    trf_block_share share;
    uint2 constants[2];
    trf_stream_k stream_k; /* shares of the warps, in clusters of one block */
    /* The block writes part number remainder_rank, out of remainder_blocks, of the rows from whole_rows on. */
    uint32_t remainder_rank, remainder_blocks;
    uint32_t expert, pass, unit; /* experts: where the block continues */
    uint64_t left;               /* units that the block still has to do */
};

/* Copies words from the kernel's arguments. All lanes of a warp read the same place, which is one access to constant
 * memory. */
static __device__ __forceinline__ void trf_copy_arguments(trf_group_layer_args &to, const trf_group_layer_args &from) {
    static_assert(sizeof to % 4 == 0, "whole words");
    constexpr uint32_t kWords = sizeof to / 4, kWarps = 8, kEach = (kWords + kWarps - 1) / kWarps;
    const uint32_t *const words = reinterpret_cast<const uint32_t *>(&from), warp = threadIdx.x / 32;
    if (warp >= kWarps)
        return;
    uint32_t word[kEach]; /* all loads are under way before the first word is stored */
#pragma unroll
    for (uint32_t i = 0; i < kEach; i++)
        word[i] = words[min(warp + i * kWarps, kWords - 1)];
#pragma unroll
    for (uint32_t i = 0; i < kEach; i++)
        reinterpret_cast<uint32_t *>(&to)[min(warp + i * kWarps, kWords - 1)] = word[i];
}

/* ---- layers ---- */

static __device__ __forceinline__ void trf_enter_layer(const trf_group_args &g, trf_group_block &b) {
    const uint32_t cluster = blockIdx.x / g.cluster_size, rank = blockIdx.x % g.cluster_size;
    uint32_t layer = 0;
    while (cluster >= g.first_cluster[layer + 1])
        layer++;
    const trf_partition_args &p = g.layers[layer].partition;
    trf_copy_arguments(b.layer, g.layers[layer]);
    if (threadIdx.x == 0) {
        const uint32_t own = cluster - g.first_cluster[layer],
                       units = p.share_quotient + (own < p.share_remainder ? 1 : 0);
        b.share.unit = trf_share_begin(p.share_quotient, p.share_remainder, own);
        b.share.units = units;
        b.share.panel = trf_share_begin(p.panel_quotient, p.panel_remainder, rank);
        b.share.panels = max(p.panel_quotient + (rank < p.panel_remainder ? 1 : 0), 1u);
        b.share.begin = 0;
        b.share.end = (units + p.wave_units - 1) / p.wave_units * b.share.panels;
        b.stream_k = trf_stream_k_of(b.share.units, b.share.panels, blockDim.x / 32);
        b.remainder_rank = blockIdx.x - g.first_cluster[layer] * g.cluster_size;
        b.remainder_blocks = (g.first_cluster[layer + 1] - g.first_cluster[layer]) * g.cluster_size;
    }
    __syncthreads();
}

/* ---- experts: warp 0 finds out for all warps what the block does ---- */

static __device__ __forceinline__ trf_expert_tokens trf_tokens_of(const trf_expert_args &e, uint32_t expert) {
    if (expert >= e.count)
        return trf_expert_tokens{};
    return trf_expert_tokens_of(e.offsets[expert], e.offsets[expert + 1], e.max_tokens);
}

/* Counts passes over the 32 experts from `first` on. Returns those of this lane's expert; *up_to becomes the sum of
 * these up to this lane, and *in_all the sum of all. */
static __device__ __forceinline__ uint32_t trf_scan_passes(const trf_expert_args &e, uint32_t first, uint32_t lane,
                                                           uint32_t *up_to, uint32_t *in_all) {
    const uint32_t passes = trf_expert_passes(trf_tokens_of(e, first + lane).count);
    *up_to = passes;
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        const uint32_t before = __shfl_up_sync(0xFFFFFFFFu, *up_to, distance);
        *up_to += lane >= distance ? before : 0;
    }
    *in_all = __shfl_sync(0xFFFFFFFFu, *up_to, 31);
    return passes;
}

static __device__ __forceinline__ uint64_t trf_count_work_items(const trf_expert_args &e, uint32_t lane) {
    uint64_t work_items = 0;
#pragma unroll 4
    for (uint32_t first = 0; first < e.count; first += 32)
        work_items += trf_expert_passes(trf_tokens_of(e, first + lane).count);
#pragma unroll
    for (uint32_t distance = 16; distance; distance /= 2)
        work_items += __shfl_xor_sync(0xFFFFFFFFu, work_items, distance);
    return work_items;
}

/* Finds the expert and the pass of a work item, which is counted from expert `first` on and must exist. */
static __device__ __forceinline__ void trf_find_work_item(const trf_expert_args &e, uint32_t first, uint64_t work_item,
                                                          uint32_t lane, uint32_t *expert, uint32_t *pass) {
    for (;; first += 32) {
        uint32_t up_to, in_all;
        const uint32_t passes = trf_scan_passes(e, first, lane, &up_to, &in_all);
        const uint32_t beyond = __ballot_sync(0xFFFFFFFFu, work_item < up_to);
        if (beyond) {
            const int which = __ffs((int)beyond) - 1;
            *expert = first + (uint32_t)which;
            *pass = (uint32_t)work_item - __shfl_sync(0xFFFFFFFFu, up_to - passes, which);
            return;
        }
        if (first + 32 >= e.count) { /* happens only if offsets change while they are in use */
            *expert = *pass = 0;
            return;
        }
        work_item -= in_all;
    }
}

/* Finds the block's share and its first work item. */
static __device__ __forceinline__ void trf_find_expert_share(const trf_expert_args &e, trf_group_block &b,
                                                             uint32_t lane) {
    const uint64_t work_items = trf_count_work_items(e, lane);
    if (work_items == 0) {
        b.left = 0;
        return;
    }
    int one_work_item_each;
    trf_expert_cost(&e.cost_model, work_items, gridDim.x, &one_work_item_each);
    const trf_expert_share share =
        trf_expert_share_of(&e.cost_model, work_items, gridDim.x, one_work_item_each, blockIdx.x);
    if (share.begin < share.end)
        trf_find_work_item(e, 0, share.begin / e.cost_model.units, lane, &b.expert, &b.pass);
    b.unit = (uint32_t)(share.begin % e.cost_model.units);
    b.left = share.end - share.begin;
}

/* Sets the block's arguments for the current work item: as many of its units as the block has. */
static __device__ __forceinline__ void trf_enter_expert(const trf_expert_args &e, trf_group_block &b) {
    const trf_expert &expert = e.experts[b.expert];
    const trf_product_args &common = e.common.product;
    trf_product_args &a = b.layer.product;
    for (uint32_t i = threadIdx.x; i < sizeof(trf_device_view) / 4; i += blockDim.x)
        reinterpret_cast<uint32_t *>(&a.view)[i] = __ldg(reinterpret_cast<const uint32_t *>(&expert.view) + i);
    if (threadIdx.x == blockDim.x - 1) {
        const trf_expert_tokens tokens = trf_tokens_of(e, b.expert);
        const uint32_t before = b.pass * TRF_EXPERT_PASS_TOKENS;
        const uint64_t row = tokens.first + (uint64_t)before, y_bytes = common.y_dtype == TRF_DTYPE_F32 ? 4 : 2;
        const uint32_t stop = (uint32_t)min((uint64_t)e.cost_model.units, b.unit + b.left);
        a.m = min(tokens.count - before, (uint32_t)TRF_EXPERT_PASS_TOKENS);
        a.x = (const uint8_t *)common.x + 2 * row * common.x_stride;
        a.y = (uint8_t *)common.y + y_bytes * row * common.y_stride;
        a.edge_sums = __ldg(&expert.has_edges) ? common.edge_sums + row * common.view.rows : nullptr;
        b.share.unit = b.unit;
        b.share.units = e.common.partition.units ? stop - b.unit : 0; /* a layer may have edges only */
        b.share.panel = 0;
        b.share.panels = e.cost_model.panels;
        b.stream_k = trf_stream_k_of(b.share.units, b.share.panels, blockDim.x / 32);
        b.remainder_rank = 0;
        b.remainder_blocks = stop == e.cost_model.units ? 1 : 0;
    }
    __syncthreads();
}

/* Starts to bring to the L2 cache what blocks need of an expert, before they know which one they enter: the whole array
 * of trf_expert, and the decode tables. */
static __device__ __forceinline__ void trf_prefetch_experts(const trf_expert_args &e) {
    const uint32_t lane = threadIdx.x % 32, decode_table_bytes = 4u << e.common.product.view.probability_bits,
                   at = blockIdx.x * blockDim.x + threadIdx.x;
    if ((uint64_t)at * 128 < (uint64_t)e.count * sizeof(trf_expert))
        trf_prefetch_l2(reinterpret_cast<const uint8_t *>(e.experts) + at * 128ull);
    /* the last warp does this, as warp 0 finds out what the block does */
    if (threadIdx.x / 32 != blockDim.x / 32 - 1 || blockIdx.x >= e.count)
        return;
    const uint8_t *const decode_table = reinterpret_cast<const uint8_t *>(e.experts[blockIdx.x].view.decode_table);
    if (lane * 128 < decode_table_bytes)
        trf_prefetch_l2(decode_table + lane * 128);
}

/* Enters the block's first layer or work item. @return whether the block has anything to do. All threads call this and
 * the next function. */
static __device__ __forceinline__ bool trf_enter_first(const trf_group_args &g, trf_group_block &b) {
    if (g.count) {
        trf_enter_layer(g, b);
        return true;
    }
    trf_prefetch_experts(g.experts);
    trf_copy_arguments(b.layer, g.experts.common);
    trf_wait_for_predecessor(); /* it may have made the offsets */
    if (threadIdx.x < 32)
        trf_find_expert_share(g.experts, b, threadIdx.x);
    __syncthreads();
    if (b.left == 0)
        return false;
    trf_enter_expert(g.experts, b);
    return true;
}

/* Enters the block's next work item. @return whether there is one. */
static __device__ __forceinline__ bool trf_enter_next(const trf_group_args &g, trf_group_block &b) {
    if (g.count)
        return false;
    __syncthreads(); /* all threads have read sums and arguments */
    if (threadIdx.x < 32) {
        const trf_expert_args &e = g.experts;
        const uint64_t done = min((uint64_t)(e.cost_model.units - b.unit), b.left);
        uint32_t expert = b.expert, pass = b.pass + 1;
        if (b.left > done && pass >= trf_expert_passes(trf_tokens_of(e, expert).count))
            trf_find_work_item(e, expert + 1, 0, threadIdx.x, &expert, &pass);
        __syncwarp(); /* all lanes have read b */
        if (threadIdx.x == 0) {
            b.left -= done;
            b.expert = expert;
            b.pass = pass;
            b.unit = 0;
        }
    }
    __syncthreads();
    if (b.left == 0)
        return false;
    trf_enter_expert(g.experts, b);
    return true;
}

/* ---- the walk ---- */

/* Writes the block's part of the rows from whole_rows on, which have edges only. */
static __device__ __forceinline__ void trf_store_remainder(const trf_group_block &b) {
    const trf_product_args &a = b.layer.product;
    const uint32_t count = a.view.rows - a.whole_rows;
    const uint64_t places = b.remainder_blocks ? (uint64_t)count * a.m : 0,
                   stride = (uint64_t)b.remainder_blocks * blockDim.x;
    for (uint64_t i = (uint64_t)b.remainder_rank * blockDim.x + threadIdx.x; i < places; i += stride)
        trf_write_y(a, (uint32_t)(i / count), a.whole_rows + (uint32_t)(i % count), 0.0f);
}

/* A warp's way. In clusters of several blocks see trf_split_k_unit_order; otherwise it is a share of the panels, one
 * unit after the other. */
struct trf_group_unit_order {
    const trf_group_block &b;
    bool is_stream_k;
    uint32_t unit_in_wave, k_split;

    __device__ __forceinline__ trf_split_k_unit_order split_k() const {
        return {b.share, b.layer.partition.wave_units, k_split, b.layer.partition.k_splits};
    }

    __device__ __forceinline__ void next_unit(trf_walk &walk) const {
        if (!is_stream_k) {
            split_k().next_unit(walk);
            return;
        }
        walk.unit++;
        walk.panel = 0;
        walk.stop = b.share.panels;
    }

    __device__ __forceinline__ trf_walk start(uint32_t warp) const {
        if (!is_stream_k)
            return k_split < b.layer.partition.k_splits ? split_k().start(unit_in_wave) : trf_walk{};
        const uint32_t begin = trf_stream_k_begin(&b.stream_k, warp), end = trf_stream_k_begin(&b.stream_k, warp + 1);
        return {b.share.unit + begin / b.share.panels, begin % b.share.panels, b.share.panels, end - begin};
    }
};

/* ---- sums in clusters of one block ---- */

/* Returns the shared address of the sums that a warp leaves for the unit that its share begins in, or for the one that
 * it ends in. */
static __device__ __forceinline__ uint32_t trf_partial_sums_at(const trf_group_args &g, const trf_group_block &b,
                                                               uint32_t shared, uint32_t warp, bool begins) {
    return shared + (begins ? g.sums_offset + warp * b.layer.partition.sums_stride
                            : g.smem.first_warp + warp * g.smem.warp_bytes);
}

/* Called when the warp has walked its columns of the block's unit number `unit`: writes y, or leaves the sums. */
template <class Product>
static __device__ __forceinline__ void trf_end_unit(const trf_group_args &g, const trf_group_block &b, Product &product,
                                                    uint32_t unit, uint32_t shared, uint32_t warp, uint32_t lane) {
    if (trf_stream_k_owns_sum(&b.stream_k, warp, unit)) {
        product.finish(b.share.unit + unit);
        return;
    }
    const bool begins = trf_stream_k_begins_in(&b.stream_k, warp, unit);
    if (!begins) { /* sums go to the warp's own buffers, and the share ends here */
        trf_cp_async_wait<0>();
        __syncwarp();
    }
    const uint32_t to =
        trf_partial_sums_at(g, b, shared, warp, begins) + trf_acc_tile_offset(product.a.m, lane, lane % 4);
    product.each_acc_tile(
        [&](uint32_t acc_tile, float4 v) { trf_cluster_store(to + acc_tile * TRF_ACC_TILE_BYTES, 0, v); });
}

/* Adds up, in order, what warps have left of a unit, and writes y, for this warp's accumulator tiles of it. In the
 * smallest batches few lanes have sums of their own; other lanes add some for them. */
template <class Product>
static __device__ __forceinline__ void trf_add_unit(const trf_group_args &g, const trf_group_block &b, uint32_t unit,
                                                    uint32_t shared, uint32_t warp, uint32_t lane) {
    const trf_product_args &a = b.layer.product;
    uint32_t first, last;
    trf_stream_k_sharers(&b.stream_k, unit, &first, &last);
    const uint32_t count = last - first + 1,
                   adders = a.m <= 2   ? 4
                            : a.m <= 4 ? 2
                                       : 1, /* lanes that add for each lane's sums */
        q = lane % (4 / adders), adder = lane % 4 / (4 / adders);
    const bool first_begins = trf_stream_k_begins_in(&b.stream_k, first, unit);
#pragma unroll 1
    for (uint32_t acc_tile = warp - first; count > 1 && acc_tile < Product::kAccTiles; acc_tile += count) {
        const uint32_t in_tile = acc_tile * TRF_ACC_TILE_BYTES + trf_acc_tile_offset(a.m, lane, q);
        const float4 sum = trf_add_partials<4>(count, adder, adders, [&](uint32_t n) {
            return trf_partial_sums_at(g, b, shared, first + n, n || first_begins) + in_tile;
        });
        if (!adder && 2 * q < a.m)
            trf_finish_sums(a, lane, q, (b.share.unit + unit) * Product::kRows, acc_tile / Product::kAccTileXTiles,
                            acc_tile % Product::kAccTileXTiles, sum);
    }
}

/* Adds up the units that the warp shares with others: the ones that its share begins and ends in. */
template <class Product>
static __device__ __forceinline__ void trf_add_shared_units(const trf_group_args &g, const trf_group_block &b,
                                                            uint32_t shared, uint32_t warp, uint32_t lane) {
    const uint32_t begin = trf_stream_k_begin(&b.stream_k, warp), end = trf_stream_k_begin(&b.stream_k, warp + 1),
                   first = begin / b.stream_k.k_blocks, last = (end - 1) / b.stream_k.k_blocks;
    if (begin == end)
        return;
#pragma unroll 1
    for (uint32_t unit = first; unit <= last; unit += max(last - first, 1u))
        trf_add_unit<Product>(g, b, unit, shared, warp, lane);
}

/* ---- sums of clusters ---- */

/* Called when the block has walked its columns of wave n: the cluster adds up the sums and writes y. */
template <class Product>
static __device__ __forceinline__ void trf_end_wave(const trf_group_args &g, const trf_group_block &b, Product &product,
                                                    uint32_t n, uint32_t unit_in_wave, uint32_t k_split,
                                                    uint32_t shared, uint32_t warp) {
    const trf_partition_args &p = b.layer.partition;
    trf_cluster_wait(g.cluster_size); /* the cluster's blocks have started; sums of the wave before have been read */
    if (k_split < p.k_splits)
        trf_send_partial_sums<Product>(product, p, shared + g.sums_offset, warp, unit_in_wave, k_split);
    trf_cluster_arrive(g.cluster_size);
    trf_cluster_wait(g.cluster_size);
    trf_finish_wave<Product>(product.a, p, shared + g.sums_offset, b.share.unit + n * p.wave_units,
                             min(p.wave_units, b.share.units - n * p.wave_units), nullptr);
    if ((n + 1) * b.share.panels < b.share.end)
        trf_cluster_arrive(g.cluster_size);
}

/* ---- the product ---- */

template <class Codec, class Type, int kSlabs>
static __device__ __forceinline__ void trf_multiply_block_layer(const trf_group_args &g, trf_group_block &b,
                                                                const uint8_t *shared_memory) {
    using Product = trf_warp_product<Codec, Type, kSlabs, 1, false, false>;
    constexpr int kP = kDefaultP<Codec>, kLog = trf_fused_table_log(Codec::kClassBits, kSlabs);
    const trf_product_args &a = b.layer.product;
    const uint32_t shared = trf_shared_address(shared_memory), warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                   wave_units = b.layer.partition.wave_units;
    const bool is_stream_k = g.cluster_size == 1;
    const trf_table_slots<kP> table_source(a.view);
    const trf_group_unit_order unit_order = {b, is_stream_k, warp % wave_units, warp / wave_units};
    const trf_walk walk = unit_order.start(warp);
    const trf_int_planes planes = trf_int_planes_of(a.view.raw_bits);
    trf_prefetcher<kSlabs> prefetcher;
    trf_start_walk<Codec>(prefetcher, a.view, g.smem, planes, walk, unit_order,
                          shared + g.smem.first_warp + warp * g.smem.warp_bytes, lane);
    trf_build_constants<Codec, kP, kLog>(a.view, table_source, shared, g.smem, b.constants);
    __syncthreads();
    trf_wait_for_predecessor();

    Product product(a, lane);
    const trf_rans_params<kP, kLog> params =
        trf_rans_params_of<kP, kLog>(a.view, shared_memory, g.smem.table_log, trf_shared_address(b.constants), lane);
    if (prefetcher.bytes[0])
        product.prefetch_slab(prefetcher.entered);
    /* n counts units of the warp's share, or waves of the block */
    uint32_t n = is_stream_k ? walk.unit - b.share.unit : 0;
    const uint32_t end = is_stream_k ? walk.left ? n + (walk.panel + walk.left - 1) / b.share.panels + 1 : n
                                     : b.share.end / b.share.panels;
#pragma unroll 1
    for (; n < end; n++) {
        trf_walk_slabs<Codec>(a.view, g.smem, planes, prefetcher, params, shared + g.smem.lane_pair_masks, unit_order,
                              b.share.unit +
                                  (is_stream_k ? n : n * b.layer.partition.wave_units + unit_order.unit_in_wave),
                              lane, product);
        if (is_stream_k)
            trf_end_unit(g, b, product, n, shared, warp, lane);
        else
            trf_end_wave(g, b, product, n, unit_order.unit_in_wave, unit_order.k_split, shared, warp);
        product.clear();
    }
    trf_cp_async_wait<0>();
    if (is_stream_k) {
        __syncthreads();
        trf_add_shared_units<Product>(g, b, shared, warp, lane);
    }
    trf_store_remainder(b);
}

template <class Codec, class Type, int kSlabs, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) trf_grouped(const __grid_constant__ trf_group_args g) {
    if constexpr (TRF_LARGE_SHARED) {
        extern __shared__ __align__(1024) uint8_t shared_memory[];
        __shared__ trf_group_block b;
        trf_allow_successor();
        trf_cluster_arrive(g.cluster_size);
        bool more = trf_enter_first(g, b);
#pragma unroll 1
        while (more) {
            trf_multiply_block_layer<Codec, Type, kSlabs>(g, b, shared_memory);
            more = trf_enter_next(g, b);
        }
    }
}

#endif
