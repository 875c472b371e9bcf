/* y = x . W^T from the blob in columns: for layers with enough rows, and for batches above 8.
 *
 * One persistent block a multiprocessor. Its warps take a *group* of kUnits units and walk the same tile columns at about the same time, so that they share
 * x: through the L1 cache, or, for batches above 8, through a window of two tile columns in shared memory that the block fills one column ahead. With
 * two slabs a warp two warps have a unit, a part of the block's columns each. An item is one tile column of a group; a block has consecutive items, so its first and its last
 * group may be shared with other blocks. Sums of a unit's parts are added through shared memory. Those of a shared unit are left in the workspace, and of
 * the warps that share the unit the last one to come adds them, in the order of blocks.
 *
 * No sum depends on timing: who adds does, in which order does not.
 *
 * Shared memory: trf_shared_plan, then, where units have parts, a quarter of the sums of each unit, or the window, 8 KiB for each 8 rows of x. Registers: 128 a thread with 16 warps, 168 with 12.
 * What limits it: docs/performance.md. */
#ifndef TRF_FUSED_COLUMNS_CUH
#define TRF_FUSED_COLUMNS_CUH

#include "trf_fused_product.cuh"

/* Parts that a unit's columns are cut into. Two make fewer blocks share a unit; with one slab a warp they gained nothing. */
static __host__ __device__ constexpr int trf_column_parts(int slabs) { return slabs == 2 ? 2 : 1; }

/* Bytes through which the sums of a unit's parts are added, 16 rows of it at a time. */
static __host__ __device__ constexpr uint32_t trf_join_bytes(int tiles) { return 4 * 16 * 8 * (uint32_t)tiles; }

/* Bytes of a tile column of x: [8 pairs of steps][8 * tiles rows][64 bytes]. */
static __host__ __device__ constexpr uint32_t trf_window_column_bytes(int tiles) {
    return TRF_TILE_SIZE / 32 * tiles * kWindowTileBytes;
}

/* ---- which slabs a warp has ---- */

/* The block's items [begin, end), unit by unit of a warp: of each of its groups the part of the columns that is the warp's. */
template <int kUnits, int kParts> struct trf_column_grid {
    uint32_t cols, begin, end, part;

    /* The warp's columns [col, stop) of a group; nothing of those that the block does not have. */
    __device__ __forceinline__ void enter_group(trf_walk &walk, uint32_t group) const {
        const uint32_t from = max(begin, group * cols) - group * cols, to = min(end, (group + 1) * cols) - group * cols;
        walk.col = from + (to - from) * part / kParts;
        walk.stop = from + (to - from) * (part + 1) / kParts;
    }

    /* To the next group in which the warp has columns; there is one. */
    __device__ __forceinline__ void next_band(trf_walk &walk) const {
        do {
            walk.band += kUnits;
            enter_group(walk, walk.band / kUnits);
        } while (walk.col == walk.stop);
    }

    /* unit: the warp's in the block's first group. */
    __device__ __forceinline__ trf_walk start(uint32_t unit) const {
        trf_walk walk = {unit, 0, 0, 0};
        for (uint32_t group = begin / cols; group * cols < end; group++) {
            trf_walk of_group;
            enter_group(of_group, group);
            if (walk.left == 0) {
                walk.band = unit + (group - begin / cols) * kUnits;
                walk.col = of_group.col;
                walk.stop = of_group.stop;
            }
            walk.left += of_group.stop - of_group.col;
        }
        return walk;
    }
};

/* ---- x of batches above 8 ---- */

/* x of the block's items, in their order. All warps of the block call each function with equal arguments, at their own pace. */
template <int kTiles, int kWarps> struct trf_x_window {
    static constexpr uint32_t kColumnBytes = trf_window_column_bytes(kTiles);
    uint32_t place;   /* shared address of [2] columns */
    uint32_t meeting; /* that of the warps' barrier */
    uint32_t ready;   /* items whose x is in shared memory, or was */

    __device__ __forceinline__ uint32_t column(uint32_t index) const { return place + index % 2 * kColumnBytes; }

    /* Starts the copy of the ready-th item's x. Part of the thread's next group of copies. */
    __device__ __forceinline__ void copy(const trf_fused_args &a, uint32_t begin) const {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32; /* a warp copies rows, a lane 8 columns */
        const uint32_t col = (begin + ready) % a.regular_cols * TRF_TILE_SIZE + 8 * lane;
        if (col >= a.view.cols)
            return;
        const uint8_t *const from = (const uint8_t *)a.x + 2 * col;
        const uint32_t to = column(ready) + lane / 4 * (kTiles * kWindowTileBytes) + 16 * (lane % 4);
#pragma unroll
        for (uint32_t row = warp; row < 8 * kTiles;
             row += kWarps) /* rows beyond the batch repeat its last; their sums are not used */
            trf_copy16(to + 64 * row, from + 2ull * min(row, a.m - 1) * a.x_stride);
    }

    /* Waits until the x of items up to `index` is there, and starts the copy of the next. stepped: whether the thread has waited for copies
     * since the last call. */
    __device__ __forceinline__ void advance(const trf_fused_args &a, uint32_t begin, uint32_t end, uint32_t index,
                                            bool stepped) {
#pragma unroll 1
        for (; ready <= index; stepped = false) {
            if (!stepped) {
                trf_copy_commit();
                trf_copy_wait<0>();
            }
            trf_meeting_wait(meeting, ready); /* the column before is read, this one written, by all */
            if (++ready < end - begin)
                copy(a, begin);
        }
    }
};

template <class Product, int kTiles, int kWarps> struct trf_column_sink : Product {
    uint32_t begin, end; /* items of the block */
    bool stepped;
    trf_x_window<kTiles, kWarps> x_window;

    /* window, meeting: shared addresses. */
    __device__ __forceinline__ trf_column_sink(const trf_fused_args &args, uint32_t lane, uint32_t begin_,
                                               uint32_t end_, uint32_t window, uint32_t meeting)
        : Product(args, lane), begin(begin_), end(end_), stepped(false), x_window{window, meeting, 0} {
        if (Product::kWindow && begin < end)
            x_window.copy(args, begin);
    }

    /* The x of items up to the block's index-th. */
    __device__ __forceinline__ void need(uint32_t index) {
        if (!Product::kWindow)
            return;
        x_window.advance(this->a, begin, end, index, stepped);
        stepped = false;
    }

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        Product::begin_slab(walk);
        if (!Product::kWindow)
            return;
        const uint32_t index = end - begin - walk.left;
        need(index);
        stepped = true;
        this->window = x_window.column(index) + 16 * this->lane;
    }
};

/* ---- parts ---- */

/* Adds the sums of a unit's second part to its first. place: shared memory, of the unit. barrier: the unit's. */
template <class Product>
static __device__ __forceinline__ void trf_join_parts(Product &product, float *place, uint32_t barrier, uint32_t part) {
    float *const mine = place + 4 * (threadIdx.x % 32);
#pragma unroll
    for (int b = 0; b < Product::kBlocks; b++) {
        trf_warps_barrier<64>(barrier); /* what was there is read */
        if (part == 1)
            product.store_block(b, mine);
        trf_warps_barrier<64>(barrier);
        if (part == 0)
            product.add_block(b, mine);
    }
}

/* ---- units that blocks share ---- */

/* A block's share of the sums of a unit, the block's unit-th of a group, in block_sums. which: 0 in its first group, 1 in its last. */
template <class Product, int kUnits>
static __device__ __forceinline__ float *trf_partial(const trf_fused_args &a, uint32_t unit, uint32_t block,
                                                     uint32_t which) {
    constexpr uint32_t kFloats = Product::kRows * 8 * Product::kColumnTiles;
    return a.block_sums + ((uint64_t)(2 * block + which) * kUnits + unit) * kFloats + Product::fragment_place(a.m);
}

/* Sums of a unit over all blocks that share it, which all have left theirs. */
template <class Product, int kUnits>
static __device__ __forceinline__ void trf_add_partials(Product &product, const trf_fused_args &a, uint32_t unit,
                                                        uint32_t first, uint32_t last) {
    const uint32_t group = unit / kUnits, place = unit % kUnits;
    const uint32_t first_slot =
        trf_first_item(a, first) < group * a.regular_cols ? 1 : 0; /* the others begin inside the group */
    const float *const at = trf_partial<Product, kUnits>(a, place, first, 0);
    const uint64_t stride = trf_partial<Product, kUnits>(a, place, first + 1, 0) - at;
    product.clear();
    if (product.has_fragments())
        product.add_fragments(trf_partial<Product, kUnits>(a, place, first, first_slot), at, stride, last - first + 1);
}

/* At the end: the warp's units that other blocks share, whose sums it has left. place: of its units in their groups. pending: bit 0 for the block's first
 * group, 1 for its last. Of the warps that share a unit the last to come finishes it. */
template <class Product, int kUnits>
static __device__ __forceinline__ void trf_meet(Product &product, const trf_fused_args &a, uint32_t place,
                                                uint32_t pending, uint32_t first_group, uint32_t last_group) {
    const uint32_t cols = a.regular_cols, lane = threadIdx.x % 32;
    const uint32_t group = lane == 0 ? first_group : last_group, unit = group * kUnits + place; /* lanes 0 and 1 */
    const uint32_t first = trf_block_of_item(a, group * cols), last = trf_block_of_item(a, group * cols + cols - 1);
    trf_fence();
    __syncwarp();
    bool is_last = false;
    if (lane < 2 && pending >> lane & 1)
        is_last = atomicAdd(a.counters + unit, 1u) == last - first;
    const uint32_t finish = __ballot_sync(0xFFFFFFFFu, is_last);
    if (!finish)
        return;
    trf_fence();
    if (is_last)
        a.counters[unit] = 0;
#pragma unroll 1
    for (int i = 0; i < 2; i++)
        if (finish >> i & 1) {
            const uint32_t its_unit = __shfl_sync(0xFFFFFFFFu, unit, i);
            trf_add_partials<Product, kUnits>(product, a, its_unit, __shfl_sync(0xFFFFFFFFu, first, i),
                                              __shfl_sync(0xFFFFFFFFu, last, i));
            product.finish(its_unit);
        }
}

template <class Form, class Type, int kP, int kSlabs, int kTiles, bool kScaled, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) trf_fused_columns(const __grid_constant__ trf_fused_args a) {
    using Product = trf_product<Form, Type, kSlabs, kTiles, kScaled, kP == 0>;
    constexpr int kParts = trf_column_parts(kSlabs), kUnits = kWarps / kParts;
    constexpr int kLog = kP == 0 ? 0 : kParts > 1 ? kSmallTableLog : kTableLog;
    static_assert(kParts == 1 || !Product::kWindow, "a window serves warps that walk the same columns");
    using Grid = trf_column_grid<kUnits, kParts>;
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint2 constants;
    __shared__ uint64_t meeting;
    const uint32_t shared = trf_shared_address(shared_memory), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t cols = max(a.regular_cols, 1u), place = warp % kUnits, part = warp / kUnits;
    trf_allow_successor();

    const uint32_t begin = trf_first_item(a, blockIdx.x), end = trf_first_item(a, blockIdx.x + 1);
    const Grid grid = {cols, begin, end, part};
    const trf_walk walk = grid.start(begin / cols * kUnits + place);
    const trf_int_planes planes = trf_int_planes_of(a.view.raw_bits);
    trf_stager<kSlabs> stager;
    trf_start<Form>(stager, a.view, a.shared, planes, walk, grid, shared + a.shared.warps + warp * a.shared.warp_bytes,
                    lane);
    trf_build_constants<Form, kP, kLog>(a.view, shared, a.shared, &constants);
    if (Product::kWindow && threadIdx.x == 0)
        trf_meeting_make(trf_shared_address(&meeting), kWarps);
    __syncthreads();
    trf_wait_for_predecessor();

    /* Behind the plan's: sums of parts, or x. */
    trf_column_sink<Product, kTiles, kWarps> sink(a, lane, begin, end, shared + a.shared.total,
                                                  trf_shared_address(&meeting));
    const trf_lane_rule<kP, kLog> rule =
        trf_lane_rule_of<kP, kLog>(a.view, shared_memory, a.shared.table_log, trf_shared_address(&constants), lane);
    if (stager.bytes[0])
        sink.slab_ahead(stager.entered);
    uint32_t pending = 0;
#pragma unroll 1
    for (uint32_t group = begin / cols; group * cols < end; group++) {
        const uint32_t unit = group * kUnits + place;
        trf_walk_slabs<Form>(a.view, a.shared, planes, stager, rule, shared + a.shared.pair_masks, grid, unit, lane,
                             sink);
        sink.need(min(end, (group + 1) * cols) - begin - 1);
        if (kParts > 1)
            trf_join_parts(static_cast<Product &>(sink),
                           (float *)(shared_memory + a.shared.total + place * trf_join_bytes(kTiles)), 1 + place, part);
        if (unit < a.units && part == 0) {
            if (begin <= group * cols && (group + 1) * cols <= end) {
                sink.finish(unit);
            } else { /* nothing waits for it until all groups are done */
                const uint32_t which = group == begin / cols ? 0 : 1;
                if (sink.has_fragments())
                    sink.store_fragments(trf_partial<Product, kUnits>(a, place, blockIdx.x, which));
                pending |= 1u << which;
            }
        }
        sink.clear();
    }
    if (pending)
        trf_meet<Product, kUnits>(sink, a, place, pending, begin / cols, (end - 1) / cols);
    trf_copy_wait<0>();
    trf_store_tail_rows(a);
}

#endif
