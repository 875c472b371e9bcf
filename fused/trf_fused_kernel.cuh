/* y = x . W^T from the blob.
 *
 * Clusters of blocks, one block a multiprocessor. A cluster has consecutive units; its blocks cut the columns of slabs among them. A block walks a
 * *group* of its units at once: `parts` warps a unit, a part of the block's columns each. Behind each group the warps of the cluster add up the sums of those
 * that share a unit, through shared memory, and write y. Where one warp has all columns of a unit it writes y itself.
 *
 * The cut may also *straddle*: groups times columns are cut evenly among blocks, whose first and last groups may be shared with others. Sums of those go to the
 * workspace, and a second kernel adds them up, in the order of blocks.
 *
 * No sum depends on timing: who adds does not either. With an epilogue what is y here are sums in the workspace (trf_fused_epilogue.cuh).
 *
 * x: the smallest batches read it through the L1 cache, a block's columns only; larger ones have it in shared memory: a copy for each warp that walks two slabs
 * (trf_copies_x), or a window that warps share (trf_has_window; trf_fused_window.cuh).
 *
 * Shared memory: trf_shared_plan, with warps' copies of x in it, then windows, then sums if they cannot lie in the warps' buffers or, behind one meeting more, in place of those or of windows. Registers: 96 to 128 a thread with 16 to 20 warps, 168 with 12, 255 with 8.
 * What limits it: docs/performance.md. */
#ifndef TRF_FUSED_KERNEL_CUH
#define TRF_FUSED_KERNEL_CUH

#include "trf_even_runs.h"
#include "trf_fused_epilogue.cuh"
#include "trf_fused_window.cuh"

/* The decode table's size. With quads, one slab a warp waits for each look-up, and wants a bank for each lane; two hide that of the other. */
static __host__ __device__ constexpr uint32_t trf_fused_table_log(int class_bits, int slabs) {
    return class_bits == 2 && slabs == 2 ? kSmallTableLog : kTableLog;
}

/* What a block has: items [begin, end), an item being one of `cols` columns of a group of units. */
struct trf_block_share {
    uint32_t unit, units; /* first unit of group 0; units from there on */
    uint32_t col, cols;   /* first column; columns of a group, at least 1 */
    uint32_t begin, end;

    __device__ __forceinline__ void find(const trf_fused_args &a) {
        if (a.straddles) {
            unit = col = 0;
            units = a.units;
            cols = max(a.cols_each, 1u);
            begin = trf_share_begin(a.units_each, a.units_more, blockIdx.x); /* items here */
            end = trf_share_begin(a.units_each, a.units_more, blockIdx.x + 1);
            return;
        }
        const uint32_t cluster = blockIdx.x / a.cluster, rank = blockIdx.x % a.cluster;
        unit = trf_share_begin(a.units_each, a.units_more, cluster);
        units = a.units_each + (cluster < a.units_more ? 1 : 0);
        col = trf_share_begin(a.cols_each, a.cols_more, rank);
        cols = max(a.cols_each + (rank < a.cols_more ? 1 : 0), 1u);
        begin = 0;
        end = (units + a.group - 1) / a.group * cols; /* no columns, no units */
    }

    /* Columns of group g that are the block's, from the first of `cols`. */
    __device__ __forceinline__ uint32_t from(uint32_t g) const { return max(begin, g * cols) - g * cols; }
    __device__ __forceinline__ uint32_t to(uint32_t g) const { return min(end, (g + 1) * cols) - g * cols; }
};

/* A warp's way: of each of the block's groups one unit, a part of the block's columns. */
struct trf_part_grid {
    const trf_block_share &share;
    uint32_t group, part, parts;

    /* The part's columns [col, stop) of group g. */
    __device__ __forceinline__ void enter_group(trf_walk &walk, uint32_t g) const {
        const uint32_t from = share.from(g), count = share.to(g) - from;
        walk.col = share.col + from + count * part / parts;
        walk.stop = share.col + from + count * (part + 1) / parts;
    }

    /* To the next group in which the part has columns; there is one. */
    __device__ __forceinline__ void next_band(trf_walk &walk) const {
        do {
            walk.band += group;
            enter_group(walk, (walk.band - share.unit) / group);
        } while (walk.col == walk.stop);
    }

    /* place: of the warp's unit in its group. */
    __device__ __forceinline__ trf_walk start(uint32_t place) const {
        trf_walk walk = {share.unit + place, 0, 0, 0};
        for (uint32_t g = share.begin / share.cols; g * share.cols < share.end && g * group + place < share.units;
             g++) {
            trf_walk of_group;
            enter_group(of_group, g);
            if (walk.left == 0) {
                walk.band = share.unit + g * group + place;
                walk.col = of_group.col;
                walk.stop = of_group.stop;
            }
            walk.left += of_group.stop - of_group.col;
        }
        return walk;
    }
};

/* Pieces of x that `slabs` slabs side by side take. */
static __device__ __forceinline__ uint32_t trf_window_pieces(const trf_fused_args &a, uint32_t slabs) {
    return a.view.slab_cols > a.window_cols ? 2 * slabs : slabs;
}

/* The product of a warp, with x from where it is. */
template <class Product, int kTiles> struct trf_fused_sink : Product {
    trf_x_window<kTiles> x_window;
    uint32_t on_way; /* slabs on the warp's way */
    uint32_t next;   /* piece of x */
    uint32_t chunks; /* left of the piece at hand */

    __device__ __forceinline__ trf_fused_sink(const trf_fused_args &args, uint32_t lane, const trf_window_way &way,
                                              uint32_t on_way_)
        : Product(args, lane), x_window(way), on_way(on_way_) {}

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        Product::begin_slab(walk);
        if (!Product::kWindow)
            return;
        next = trf_window_pieces(this->a, on_way - walk.left);
        chunks = 0;
    }

    __device__ __forceinline__ void begin_pair(int half) {
        Product::begin_pair(half);
        if (!Product::kWindow || half != 0)
            return;
        if (chunks == 0) {
            x_window.need(this->a, next + 1);
            x_window.stepped = true;
            this->window = x_window.piece(this->a, next++) + 16 * this->lane;
            chunks = this->a.window_cols / 64;
        }
        chunks--;
    }
};

/* Where a block leaves the sums of a unit that it shares with others: its own partials of group g, of which it has two at most. */
static __device__ __forceinline__ float *trf_partial_of(const trf_fused_args &a, uint32_t block, bool first_group,
                                                        uint32_t place, uint32_t pieces) {
    return a.partials + ((uint64_t)(2 * block + (first_group ? 0 : 1)) * a.group + place) * pieces * 128;
}

/* ---- sums of warps that share a unit ----
 * A *task* is one piece of one unit of the group; block `task % cluster` adds it up. In clusters of several blocks warps send their sums there, where [task / cluster]
 * [block][part] stand side by side; a block alone has them where its warps left them. */

template <class Product>
static __device__ __forceinline__ void trf_leave_sums(Product &product, const trf_fused_args &a, uint32_t sums,
                                                      uint32_t warp, uint32_t place, uint32_t part) {
    const uint32_t lane = threadIdx.x % 32, in_piece = trf_piece_place(a.m, lane, lane % 4);
    const uint32_t rank = blockIdx.x % a.cluster;
    product.each_piece([&](uint32_t piece, float4 v) {
        if (a.cluster == 1) {
            trf_cluster_store(sums + warp * a.sums_stride + piece * kPieceBytes + in_piece, 0, v);
        } else {
            const uint32_t task = place * Product::kPieces + piece;
            const uint32_t slot = (task / a.cluster * a.cluster + rank) * a.parts + part;
            trf_cluster_store(sums + slot * kPieceBytes + in_piece, task % a.cluster, v);
        }
    });
}

/* Adds up what lies at shared addresses at(0) ... at(count - 1), in order, kAtOnce loads at a time; each of `sharers` lanes has every so many of them from its `share` on. All lanes of the warp call it; those with share 0 have
 * the sum. */
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

/* Adds up the block's tasks of units [first, first + units), by blocks and parts in order, and writes y, or the block's partials if it has not all columns of
 * these units. For the smallest batches, of which few lanes have sums, others add some of them. */
template <class Product>
static __device__ __forceinline__ void trf_finish_group(const trf_fused_args &a, uint32_t sums, uint32_t first,
                                                        uint32_t units, float *partials) {
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const uint32_t rank = blockIdx.x % a.cluster, count = a.cluster * a.parts;
    const uint32_t sharers = a.m <= 2 ? 4 : a.m <= 4 ? 2 : 1; /* lanes that add for one */
    const uint32_t q = lane % (4 / sharers), share = lane % 4 / (4 / sharers);
    const uint32_t in_piece = sums + trf_piece_place(a.m, lane, q);
    const uint32_t step = a.cluster > 1 ? kPieceBytes : a.group * a.sums_stride;
#pragma unroll 1
    for (uint32_t task = rank + a.cluster * warp; task < units * Product::kPieces; task += a.cluster * warps) {
        const uint32_t unit = task / Product::kPieces, piece = task % Product::kPieces;
        const uint32_t at = in_piece + (a.cluster > 1 ? task / a.cluster * count * kPieceBytes
                                                      : unit * a.sums_stride + piece * kPieceBytes);
        const float4 sum = trf_add_shares<8>(count, share, sharers, [&](uint32_t i) { return at + i * step; });
        if (share || 2 * q >= a.m)
            continue;
        if (partials)
            *reinterpret_cast<float4 *>(partials + 128 * task + 4 * lane) = sum;
        else
            trf_finish_sums(a, lane, q, (first + unit) * Product::kRows, piece / Product::kColumnTiles,
                            piece % Product::kColumnTiles, sum);
    }
}

template <class Form, class Type, int kP, int kSlabs, int kTiles, bool kScaled, int kWarps>
static __device__ __forceinline__ void trf_fused_block(const trf_fused_args &a) {
    using Product = trf_product<Form, Type, kSlabs, kTiles, kScaled, kP == 0>;
    constexpr int kLog = kP == 0 ? 0 : trf_fused_table_log(Form::kClassBits, kSlabs);
    static_assert(!Product::kWindow || kWarps / 2 <= 15, "a barrier for each part of two warps or more");
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint2 constants;
    __shared__ trf_block_share share; /* here, since the loop over slabs has no registers to spare */
    __shared__ trf_window_way ways[Product::kWindow ? kWarps : 1];
    const uint32_t shared = trf_shared_address(shared_memory), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    trf_allow_successor();
    if (!a.sums_over_x) /* else blocks may send sums when all are done with x, not when all are there */
        trf_cluster_arrive(a.cluster);
    const trf_table_source<kP> table_source(a.view);

    const uint32_t place = warp % a.group, part = warp / a.group;
    trf_block_share share_at_start;
    share_at_start.find(a);
    const trf_part_grid grid_at_start = {share_at_start, a.group, part, a.parts};
    const trf_walk walk = part < a.parts ? grid_at_start.start(place) : trf_walk{};
    const trf_int_planes planes = trf_int_planes_of(a.view.raw_bits);
    trf_stager<kSlabs> stager;
    trf_start<Form>(stager, a.view, a.shared, planes, walk, grid_at_start,
                    shared + a.shared.warps + warp * a.shared.warp_bytes, lane);
    trf_build_constants<Form, kP, kLog>(a.view, table_source, shared, a.shared, &constants);
    if (threadIdx.x == 0)
        share = share_at_start;
    if (Product::kWindow && threadIdx.x < a.parts) {
        const trf_walk of_part = trf_part_grid{share_at_start, a.group, threadIdx.x, a.parts}.start(0);
        const uint32_t pieces = trf_window_pieces(a, 1),
                       width = a.straddles ? share_at_start.cols : max(of_part.stop - of_part.col, 1u);
        ways[threadIdx.x] = {shared + a.window + threadIdx.x * 2 * trf_window_piece_bytes(a.window_cols, kTiles),
                             threadIdx.x * a.group,
                             threadIdx.x +
                                 1, /* unused where a part is one warp: these may be more than there are barriers */
                             (a.straddles ? 0 : of_part.col) * pieces,
                             (a.straddles ? of_part.col : 0) * pieces,
                             width * pieces,
                             of_part.left * pieces};
    }
    __syncthreads();
    trf_wait_for_predecessor();

    const trf_part_grid grid = {share, a.group, part, a.parts};
    trf_fused_sink<Product, kTiles> sink(a, lane, ways[Product::kWindow ? min(part, a.parts - 1) : 0], walk.left);
    if (Product::kWindow && part < a.parts && ways[part].total)
        sink.x_window.copy(a);
    uint32_t on_way = 0; /* slabs of the part, up to the end of the group at hand */
    const trf_lane_rule<kP, kLog> rule =
        trf_lane_rule_of<kP, kLog>(a.view, shared_memory, a.shared.table_log, trf_shared_address(&constants), lane);
    if (Product::kCopies)
        sink.window = shared + a.shared.warps + warp * a.shared.warp_bytes + kSlabs * a.shared.slab_bytes + 16 * lane;
    if (stager.bytes[0])
        sink.slab_ahead(stager.entered);
    if (Product::kCopies)
        trf_copy_commit();
    const bool joins = a.cluster * a.parts > 1;
    const uint32_t first_group = share.begin / share.cols;
#pragma unroll 1
    for (uint32_t g = first_group; g * share.cols < share.end; g++) {
        const uint32_t first = share.unit + g * a.group, here = min(a.group, share.units - g * a.group);
        const uint32_t unit = first + place;
        const bool partial = share.to(g) - share.from(g) < share.cols; /* other blocks have the rest */
        trf_walk_slabs<Form>(a.view, a.shared, planes, stager, rule, shared + a.shared.pair_masks, grid, unit, lane,
                             sink);
        if (Product::kWindow && part < a.parts) {
            trf_walk of_group;
            grid.enter_group(of_group, g);
            on_way += of_group.stop - of_group.col;
            sink.x_window.stepped = false; /* the way may have ended soon behind a copy */
            sink.x_window.need(a, trf_window_pieces(a, on_way));
        }
        float *const partials =
            partial ? trf_partial_of(a, blockIdx.x, g == first_group, 0, Product::kPieces) : nullptr;
        if (!joins) {
            if (place < here && part == 0) {
                if (partial)
                    sink.each_piece([&](uint32_t piece, float4 v) {
                        *reinterpret_cast<float4 *>(partials + 128 * (place * Product::kPieces + piece) + 4 * lane) = v;
                    });
                else
                    sink.finish(unit);
            }
            sink.clear();
            continue;
        }
        const bool last = (g + 1) * share.cols >= share.end;
        if (last) { /* sums may lie in the warps' buffers */
            trf_copy_wait<0>();
            __syncwarp();
        }
        if (a.sums_over_x)
            trf_cluster_arrive(a.cluster);
        if (a.cluster > 1 || g > first_group)
            trf_cluster_wait(a.cluster); /* the blocks are there; sums of the group before are read */
        if (part < a.parts)
            trf_leave_sums<Product>(sink, a, shared + a.sums, warp, place, part);
        trf_cluster_arrive(a.cluster);
        trf_cluster_wait(a.cluster);
        trf_finish_group<Product>(a, shared + a.sums, first, here, partials);
        if (!last)
            trf_cluster_arrive(a.cluster);
        sink.clear();
    }
    trf_copy_wait<0>();
    if (a.with.y)
        trf_finish_with(a, share.unit * Product::kRows, min((share.unit + share.units) * Product::kRows, a.whole_rows));
    else
        trf_each_tail_place(a, [&](uint32_t n, uint32_t row) { trf_store_y(a, n, row, 0.0f); });
}

template <class Form, class Type, int kP, int kSlabs, int kTiles, bool kScaled, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) trf_fused(const __grid_constant__ trf_fused_args a) {
    if constexpr (kP == 0 || TRF_LARGE_SHARED)
        trf_fused_block<Form, Type, kP, kSlabs, kTiles, kScaled, kWarps>(a);
}

/* Adds up the partials of units that blocks share, and writes their y; with an epilogue that of all units. A warp for each piece of each unit of the layer. */
static __global__ void __launch_bounds__(256)
    trf_fused_finish(const __grid_constant__ trf_fused_args a, uint32_t slabs, uint32_t tiles) {
    const uint32_t lane = threadIdx.x % 32, task = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const uint32_t pieces = 2 * slabs * tiles, unit = task / pieces, piece = task % pieces, g = unit / a.group;
    trf_allow_successor();
    trf_wait_for_predecessor();
    if (unit >= a.units || 2 * (lane % 4) >= a.m)
        return;
    const uint32_t cols = a.cols_each, begin = g * cols, first = trf_share_of(a.units_each, a.units_more, begin),
                   last = trf_share_of(a.units_each, a.units_more, begin + cols - 1);
    const uint32_t first_row = unit * slabs * TRF_SLAB_ROWS;
    if (first != last) {
        float4 sum = {};
#pragma unroll 4
        for (uint32_t block = first; block <= last; block++) {
            /* Those behind the first block begin inside the group. */
            const bool its_first = block > first || trf_share_begin(a.units_each, a.units_more, block) >= begin;
            sum = trf_add(sum,
                          __ldcg(reinterpret_cast<const float4 *>(
                              trf_partial_of(a, block, its_first, unit % a.group, pieces) + 128 * piece + 4 * lane)));
        }
        trf_finish_sums(a, lane, lane % 4, first_row, piece / tiles, piece % tiles, sum);
    }
    if (a.with.y)
        trf_finish_piece_with(a, lane, first_row, piece / tiles, piece % tiles);
}

#endif
