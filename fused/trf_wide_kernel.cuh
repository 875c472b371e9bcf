/* y = x . W^T for batches above 32, by warpgroups (sm_90a).
 *
 * An *item* is 128 rows of W (4 bands of 32), a range of its columns, and 64 or 128 rows of x. A block has two kinds of warps:
 *   consumers   one or two warpgroups: products of 64 rows of W by all rows of x, both operands in shared memory, sums in registers
 *   decoders    16 or 12 warps, each with slabs of one band; what they decode goes to a *stage* of 128 rows by 32 columns, to which x is copied beside
 * Decoders work in *streams* of 4 warps, one for each band; each stream has consecutive columns of slabs, all go on at once, and consumers take their stages in
 * turns: round by round of slabs, then 32 columns of each stream after the other.
 *
 * A cluster of two blocks either *shares* decoded weights: both have the same item but for the rows of x, each decodes two of the bands and stores them in both.
 * Or `splits` blocks cut an item's columns among them, and add their sums at the end, in a fixed order.
 *
 * Shared memory: trf_shared_plan of the decoders, stages of 8 KiB (one a stream), copies of x. Registers: 96 a thread (20 warps: more would get 80).
 * What limits it: docs/performance.md. */
#ifndef TRF_WIDE_KERNEL_CUH
#define TRF_WIDE_KERNEL_CUH

#include "trf_fused_kernel.cuh"
#include "trf_wide_ptx.cuh"

static constexpr uint32_t kWideBands = 4, kWideRows = kWideBands * TRF_SLAB_ROWS; /* of an item */
static constexpr uint32_t kStageCols = 32, kStageBytes = kWideRows * 2 * kStageCols;
static constexpr uint32_t kMostStreams = 6;
static constexpr uint32_t kSumCols = 16;              /* rows of x whose sums are finished at once */
static constexpr uint32_t kSumStride = kWideRows + 4; /* floats: lanes of a store fall on all banks */
static constexpr uint32_t kSumsBytes = 9216;          /* of [kSumCols][kSumStride] floats, rounded up */

/* The decode table's size: a bank for each lane. */
static __host__ __device__ constexpr uint32_t trf_wide_table_log(int class_bits) {
    return trf_fused_table_log(class_bits, 1);
}

/* kColumns: rows of x of a block. kShare: blocks of a cluster that decode for each other, 1 or 2. */
template <int kColumns, int kShare> struct trf_wide_shape {
    static constexpr uint32_t kConsumers = kColumns / 64;           /* warpgroups */
    static constexpr uint32_t kBlocks = 2 / kConsumers;             /* of 64 rows, of a consumer */
    static constexpr uint32_t kDecoders = kColumns == 64 ? 16 : 12; /* warps */
    static constexpr uint32_t kBands = kWideBands / kShare;         /* that the block decodes */
    static constexpr uint32_t kStreams = kDecoders / kBands;
    static constexpr uint32_t kThreads = 32 * (4 * kConsumers + kDecoders);
    static constexpr uint32_t kXStageBytes = kColumns * 2 * kStageCols;
    static_assert(kStreams <= kMostStreams, "flags and barriers of streams");
};

struct alignas(64) trf_tensor_map {
    uint8_t bytes[128];
};

struct trf_wide_args {
    trf_tensor_map x_map; /* of x: boxes of 32 columns by a block's rows, under the swizzle of 64 bytes */
    trf_fused_args f;     /* without its cut */
    uint32_t cols;        /* of slabs */
    uint32_t
        splits; /* blocks of a cluster that share an item's columns: 1, 2 or 4. If several, they do not decode for each other, and have one item. */
    uint32_t x_groups; /* of the rows of x that blocks have which decode for each other */
    uint32_t items, clusters;
    uint32_t stages, x_stages; /* shared offsets, multiples of 1024 */
};

#if TRF_WARPGROUPS

/* ---- the order of things: the same for decoders and consumers ---- */

/* A block's part of the columns of slabs, and how its streams cut it. */
struct trf_wide_part {
    uint32_t first, streams;
    uint32_t each, more; /* streams have `each` columns, those below `more` one more */

    __device__ __forceinline__ trf_wide_part(const trf_wide_args &a, uint32_t streams_) {
        const uint32_t split = a.splits > 1 ? blockIdx.x % a.splits : 0;
        first = a.cols * split / a.splits;
        streams = streams_;
        const uint32_t count = a.cols * (split + 1) / a.splits - first;
        each = count / streams;
        more = count % streams;
    }

    __device__ __forceinline__ uint32_t rounds() const { return each + (more ? 1 : 0); }
    __device__ __forceinline__ uint32_t active(uint32_t round) const { return round < each ? streams : more; }
    __device__ __forceinline__ uint32_t begin(uint32_t stream) const {
        return first + trf_share_begin(each, more, stream);
    }
    __device__ __forceinline__ uint32_t count(uint32_t stream) const { return each + (stream < more ? 1 : 0); }
};

/* Stages of the slab in this column. */
static __device__ __forceinline__ uint32_t trf_stages_of(const trf_device_view &view, uint32_t col) {
    return 2 * trf_slab_chunks(view, col);
}

/* What an item is of. */
static __device__ __forceinline__ uint32_t trf_first_band(const trf_wide_args &a, uint32_t item) {
    return item / a.x_groups * kWideBands;
}
template <int kColumns, int kShare>
static __device__ __forceinline__ uint32_t trf_first_x(const trf_wide_args &a, uint32_t item) {
    return (item % a.x_groups * kShare + blockIdx.x % kShare) * kColumns;
}

/* The block's first one. */
template <int kShare> static __device__ __forceinline__ uint32_t trf_first_item(const trf_wide_args &a) {
    return blockIdx.x / (kShare * a.splits);
}

/* ---- barriers and flags of a block ---- */

struct trf_wide_meeting {
    uint64_t full[kMostStreams], empty[kMostStreams]; /* stages; with them x */
    uint8_t corrupt[2][kWideBands][kMostStreams];     /* of an even and an odd item */
};

template <class Shape, int kShare> static __device__ __forceinline__ void trf_open_barriers(trf_wide_meeting &m) {
    if (threadIdx.x != 0)
        return;
    for (uint32_t i = 0; i < Shape::kStreams; i++) {
        trf_barrier_init(trf_shared_address(&m.full[i]), kWideBands);
        trf_barrier_init(trf_shared_address(&m.empty[i]), 4 * Shape::kConsumers * kShare);
    }
    trf_barrier_publish();
    for (uint32_t i = 0; i < sizeof m.corrupt; i++)
        (&m.corrupt[0][0][0])[i] = 0;
}

/* ---- decoders ---- */

/* A decoder's way: its stream's columns of each of the block's items. */
struct trf_wide_grid {
    const trf_wide_args &a;
    uint32_t band, begin, count; /* band of an item; columns */
    mutable uint32_t item;       /* of the slab that is staged next */

    __device__ __forceinline__ uint32_t
    band_of(uint32_t item_) const { /* bands that are not there: the last once more */
        return min(trf_first_band(a, item_) + band, a.f.whole_rows / TRF_SLAB_ROWS - 1);
    }
    __device__ __forceinline__ void next_band(trf_walk &walk) const {
        item += a.clusters;
        walk.band = band_of(item);
        walk.col = begin;
        walk.stop = begin + count;
    }
    __device__ __forceinline__ trf_walk start() const {
        const uint32_t items = item < a.items ? (a.items - item + a.clusters - 1) / a.clusters : 0;
        return {count && items ? band_of(item) : 0, begin, begin + count, count * items};
    }
};

/* Leaves decoded weights in stages. The block's first decoder of a stream has x copied to them, too. */
template <class Product, int kColumns, int kShare> struct trf_wide_sink : Product {
    using Shape = trf_wide_shape<kColumns, kShare>;
    const trf_wide_args &wide;
    trf_wide_meeting &meeting;
    const trf_wide_grid &grid;
    uint32_t on_way, next;          /* slabs: of the whole way; the next one */
    uint32_t stream, stages;        /* stages: that the stream has had */
    uint32_t left;                  /* stages of the slab */
    uint32_t place;                 /* shared address of the lane's first 16 bytes in the stage */
    uint32_t x_place, x_col, x_row; /* of x's copy; 0: another warp has it made */

    __device__ __forceinline__ trf_wide_sink(const trf_wide_args &args, uint32_t lane, trf_wide_meeting &meeting_,
                                             const trf_wide_grid &grid_, uint32_t stream_, uint32_t on_way_,
                                             uint32_t shared)
        : Product(args.f, lane), wide(args), meeting(meeting_), grid(grid_), on_way(on_way_), next(0), stream(stream_),
          stages(0), left(0) {
        const uint32_t row = lane / 4; /* of an atom of 8 rows of 64 bytes; row / 2 swizzles its columns of 16 bytes */
        place = shared + args.stages + stream * kStageBytes + grid_.band * (TRF_SLAB_ROWS * 2 * kStageCols) + 64 * row +
                16 * (lane % 4 ^ row / 2);
        x_place = grid_.band % Shape::kBands == 0 ? shared + args.x_stages + stream * Shape::kXStageBytes : 0;
    }

    /* To the next slab, which lies in this column. */
    __device__ __forceinline__ void enter(uint32_t col) {
        const uint32_t item = trf_first_item<kShare>(wide) + next / grid.count * wide.clusters;
        x_col = col * this->a.view.slab_cols;
        x_row = trf_first_x<kColumns, kShare>(wide, item);
        left = trf_stages_of(this->a.view, col);
        next++;
    }

    /* rows[i]: of row 8 * i + lane / 4 the columns from 8 * (lane % 4) on. */
    __device__ __forceinline__ void leave(const uint4 (&rows)[4]) {
        const uint32_t full = trf_shared_address(&meeting.full[stream]);
        trf_barrier_wait(trf_shared_address(&meeting.empty[stream]), stages++ % 2 ^ 1);
        if (x_place && this->lane == 0)
            trf_copy_box(x_place, &wide.x_map, x_col, x_row, full);
        x_col += kStageCols;
#pragma unroll
        for (int i = 0; i < 4; i++)
            trf_sts128(place + 512 * i, rows[i]);
        if (kShare > 1)
#pragma unroll
            for (int i = 0; i < 4; i++)
                trf_send128(place + 512 * i, full, blockIdx.x % 2 ^ 1, rows[i]);
    }

    /* Consumers may have the stage, once all that is on its way has arrived: x, and what a decoder of the other block sends. */
    __device__ __forceinline__ void hand_over() {
        const uint32_t full = trf_shared_address(&meeting.full[stream]);
        const uint32_t expected =
            (x_place ? Shape::kXStageBytes : 0) + (kShare > 1 ? TRF_SLAB_ROWS * 2 * kStageCols : 0);
        trf_fence_for_products();
        __syncwarp();
        if (this->lane != 0)
            return;
        trf_barrier_expect(full, expected);
        if (kShare > 1)
            trf_barrier_arrive_at(full, blockIdx.x % 2 ^ 1);
    }

    /* Slabs that are not there are zeros. */
    __device__ __forceinline__ void reach(uint32_t ordinal) {
#pragma unroll 1
        while (next < ordinal) {
            enter(grid.begin + next % grid.count);
#pragma unroll 1
            for (; left; left--) {
                leave({});
                hand_over();
            }
        }
    }

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        reach(on_way - walk.left);
        enter(walk.col);
    }
    __device__ __forceinline__ void begin_pair(int) {}
    __device__ __forceinline__ void chunk_ahead() {}
    __device__ __forceinline__ void slab_ahead(const trf_walk &) {}

    __device__ __forceinline__ void step(const uint32_t (*reg)[8], const trf_walk &, uint32_t k) {
        if (k % 2 == 0) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                this->held[i] = reg[0][i];
            return;
        }
        uint4 rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = i / 2 * 4 + i % 2; /* of fragments: rows lane / 4 and 8 further on, columns 2q and 2q + 8 */
            rows[i] = make_uint4(this->held[r], this->held[r + 2], reg[0][r], reg[0][r + 2]);
        }
        leave(rows);
        if (--left) /* the last one waits for the verdict */
            hand_over();
    }

    __device__ __forceinline__ void end_slab(const trf_walk &, bool good) {
        if (!good && this->lane == 0) {
            uint8_t *const flag = &meeting.corrupt[(next - 1) / grid.count % 2][grid.band][stream];
            *flag = 1;
            if (kShare > 1) {
                trf_sts8_at(trf_shared_address(flag), blockIdx.x % 2 ^ 1, 1);
                trf_fence_cluster();
            }
        }
        hand_over();
    }
};

/* ---- consumers ---- */

template <class Type, int kColumns, int kShare, int kGroup> struct trf_wide_consumer {
    using Shape = trf_wide_shape<kColumns, kShare>;
    static constexpr int kBlocks = Shape::kBlocks, kPasses = kColumns / kSumCols, kStreams = Shape::kStreams;
    static constexpr uint32_t kPassBytes = kWideRows * kSumCols * 4; /* of a block's sums */
    static constexpr uint32_t group = kGroup;                        /* warpgroup */
    const trf_wide_args &a;
    trf_wide_meeting &meeting;
    uint32_t shared;
    uint32_t warp, lane;              /* of the warpgroup: the warp */
    float sum[kBlocks][kColumns / 2]; /* as trf_wgmma has them, of rows 64 * (kBlocks * group + b) on */

    __device__ __forceinline__ trf_wide_consumer(const trf_wide_args &args, trf_wide_meeting &meeting_,
                                                 uint32_t shared_)
        : a(args), meeting(meeting_), shared(shared_), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {}

    __device__ __forceinline__ void meet() const { asm volatile("barrier.sync %0, 128;" ::"r"(1 + group) : "memory"); }

    __device__ __forceinline__ void meet_all() const {
        asm volatile("barrier.sync %0, %1;" ::"n"(1 + Shape::kConsumers), "n"(128 * Shape::kConsumers) : "memory");
    }

    __device__ __forceinline__ void release_stage(uint32_t stream) const {
        const uint32_t empty = trf_shared_address(&meeting.empty[stream]);
        if (lane != 0)
            return;
        trf_barrier_arrive(empty);
        if (kShare > 1)
            trf_barrier_arrive_at(empty, blockIdx.x % 2 ^ 1);
    }

    /* Starts the products of a stage. The stages of a slab are even in number, so that index tells a barrier's phase. */
    __device__ __forceinline__ void multiply(uint32_t stream, uint32_t index) {
        trf_barrier_wait(trf_shared_address(&meeting.full[stream]), index % 2);
        if (kShare > 1)
            trf_fence_for_products(); /* what the other block sent */
        const uint64_t w = trf_operand(shared + a.stages + stream * kStageBytes +
                                       group * (kBlocks * 64 * 2 * kStageCols)),
                       x = trf_operand(shared + a.x_stages + stream * Shape::kXStageBytes);
        trf_products_begin();
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int b = 0; b < kBlocks; b++)
                trf_wgmma(Type(), sum[b], w + (b * (64 * 2 * kStageCols) + 32 * half) / 16, x + 32 * half / 16);
        trf_products_commit();
    }

    /* The stages of an item. Those of all streams with one index make a turn. */
    __device__ __forceinline__ void multiply_item(const trf_wide_part &part) {
        constexpr uint32_t kNone = UINT32_MAX;
        const uint32_t all = a.f.view.slab_cols / kStageCols;
        /* The layer's last column may be narrow: of the last stream that has columns, the last one. */
        const uint32_t narrow = trf_stages_of(a.f.view, part.begin(kStreams) - 1),
                       narrow_round = part.each ? part.each - 1 : 0;
        uint32_t tail = kNone; /* the stream of the turn before that is to be released */
#pragma unroll 1
        for (uint32_t round = 0; round < part.rounds(); round++)
#pragma unroll 1
            for (uint32_t index = 0; index < all; index++) {
                const bool in_narrow = round == narrow_round;
                const uint32_t active = part.active(round) - (in_narrow && index >= narrow ? 1 : 0);
                uint32_t last =
                    0; /* a bit for each stream whose last stage this is: it is kept, for sums come to lie there */
                if (index + 1 == all)
                    last = round == part.each ? (1u << part.more) - 1 : round + 1 == part.each ? -1u << part.more : 0;
                if (in_narrow && index + 1 == narrow)
                    last |= 1u << (part.active(round) - 1);
#pragma unroll
                for (int stream = 0; stream < kStreams; stream++) {
                    if (stream >= active)
                        break;
                    if (stream == 0 && tail == 0) { /* the only one: its next stage comes when this one is free */
                        trf_products_wait<0>();
                        release_stage(0);
                        tail = kNone;
                    }
                    multiply(stream, index);
                    trf_products_wait<1>();
                    if (stream > 0 && !(last >> (stream - 1) & 1))
                        release_stage(stream - 1);
                    if (stream == 0 && tail != kNone)
                        release_stage(tail);
                }
                tail = active == 0 || (last >> (active - 1) & 1) ? kNone : active - 1;
            }
        trf_products_wait<0>();
        trf_products_done(sum);
        if (tail != kNone)
            release_stage(tail);
    }

    /* All of the block's items. */
    __device__ __forceinline__ void run(const trf_wide_part &part) {
#pragma unroll 1
        for (uint32_t item = trf_first_item<kShare>(a), turn = 0; item < a.items; item += a.clusters, turn ^= 1) {
#pragma unroll
            for (int b = 0; b < kBlocks; b++)
#pragma unroll
                for (int i = 0; i < kColumns / 2; i++)
                    sum[b][i] = 0;
            multiply_item(part);
            finish(item, turn);
#pragma unroll 1
            for (uint32_t stream = 0; stream < kStreams; stream++)
                if (part.count(stream))
                    release_stage(stream);
        }
    }

    /* ---- the end of an item ---- */

    __device__ __forceinline__ void mark_corrupt(uint32_t turn) {
#pragma unroll
        for (int b = 0; b < kBlocks; b++) {
            const uint8_t *const flags = meeting.corrupt[turn][2 * (kBlocks * group + b) + warp / 2];
            bool bad = false;
            for (uint32_t i = 0; i < kMostStreams; i++)
                bad |= flags[i] != 0;
            if (bad)
#pragma unroll
                for (int i = 0; i < kColumns / 2; i++)
                    sum[b][i] = __uint_as_float(0x7FC00000u);
        }
    }

    /* Shared address, in whichever block, of the sums of a pass that block `from` has sent; the h-th 16 bytes of this thread's of block b. */
    __device__ __forceinline__ uint32_t sent(uint32_t pass, uint32_t from, uint32_t to, uint32_t b, uint32_t h) const {
        const uint32_t place = pass / a.splits * (a.splits - 1) + (from < to ? from : from - 1);
        return shared + a.stages + kSumsBytes + place * kPassBytes + ((kBlocks * group + b) * 2 + h) * (128 * 16) +
               16 * (threadIdx.x % 128);
    }

    /* Each block of the cluster gets the others' sums of its passes, and adds them. */
    __device__ __forceinline__ void add_splits(uint32_t rank) {
        trf_cluster_arrive(a.splits);
        trf_cluster_wait(a.splits);
#pragma unroll
        for (int pass = 0; pass < kPasses; pass++)
#pragma unroll
            for (int b = 0; b < kBlocks; b++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float *const v = &sum[b][8 * pass + 4 * h];
                    const uint32_t to = pass % a.splits;
                    if (to != rank)
                        trf_cluster_store(sent(pass, rank, to, b, h), to, make_float4(v[0], v[1], v[2], v[3]));
                }
        trf_cluster_arrive(a.splits);
        trf_cluster_wait(a.splits);
#pragma unroll
        for (int pass = 0; pass < kPasses; pass++)
            if (pass % a.splits == rank)
#pragma unroll 1
                for (uint32_t from = 0; from < a.splits; from++)
#pragma unroll
                    for (int b = 0; from != rank && b < kBlocks; b++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            const float4 v = trf_lds128f(sent(pass, from, rank, b, h));
                            float *const s = &sum[b][8 * pass + 4 * h];
                            s[0] += v.x;
                            s[1] += v.y;
                            s[2] += v.z;
                            s[3] += v.w;
                        }
    }

    /* Sums of 16 rows of x to [row of x][row of W] in shared memory: lanes that store side by side are then of neighbouring rows of W. */
    __device__ __forceinline__ void turn_sums(uint32_t pass) const {
#pragma unroll
        for (int p = 0; p < kPasses; p++)
            if (p == (int)pass)
#pragma unroll
                for (int b = 0; b < kBlocks; b++)
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const uint32_t n = i / 4 * 8 + 2 * (lane % 4) + i % 2,
                                       row = 64 * (kBlocks * group + b) + 16 * warp + lane / 4 + 8 * (i / 2 % 2);
                        trf_sts32f(shared + a.stages + 4 * (n * kSumStride + row), sum[b][8 * p + i]);
                    }
    }

    __device__ __forceinline__ void finish(uint32_t item, uint32_t turn) {
        constexpr uint32_t kRowsHere = 64 * kBlocks, kSharers = 128 / kRowsHere; /* threads that have a row */
        const uint32_t thread = threadIdx.x % 128, here = kRowsHere * group + thread % kRowsHere;
        const uint32_t row = trf_first_band(a, item) * TRF_SLAB_ROWS + here,
                       rank = a.splits > 1 ? blockIdx.x % a.splits : 0;
        const float scale = row < a.f.whole_rows ? trf_scale_sum(a.f, row, 1.0f) : 0;
        mark_corrupt(turn);
        meet_all(); /* products are done with the stages */
        if (kShare == 1 && a.splits > 1)
            add_splits(rank);
#pragma unroll 1
        for (uint32_t pass = rank; pass < kPasses; pass += a.splits) {
            const uint32_t first_x = trf_first_x<kColumns, kShare>(a, item) + pass * kSumCols;
            turn_sums(pass);
            meet();
            if (row < a.f.whole_rows)
#pragma unroll 8
                for (uint32_t n = thread / kRowsHere; n < kSumCols; n += kSharers)
                    if (first_x + n < a.f.m)
                        trf_store_y(a.f, first_x + n, row,
                                    scale * trf_lds32f(shared + a.stages + 4 * (n * kSumStride + here)));
            meet();
        }
        if (thread < kRowsHere / TRF_SLAB_ROWS) /* the flags that mark_corrupt of this warpgroup has read */
            for (uint32_t i = 0; i < kMostStreams; i++)
                meeting.corrupt[turn][kRowsHere / TRF_SLAB_ROWS * group + thread][i] = 0;
        meet();
    }
};

/* ---- the kernel ---- */

template <class Form, class Type, int kColumns, int kShare>
static __device__ __forceinline__ void trf_wide_block(const trf_wide_args &a) {
    using Shape = trf_wide_shape<kColumns, kShare>;
    using Product = trf_product<Form, Type, 1, 1, false, false>;
    constexpr int kP = kUsualP<Form>, kLog = trf_wide_table_log(Form::kClassBits);
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint2 constants;
    __shared__ trf_wide_meeting meeting;
    const uint32_t shared = trf_shared_address(shared_memory), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t blocks = kShare * a.splits, decoder = warp - 4 * Shape::kConsumers; /* of other warps: large */
    const trf_device_view &view = a.f.view;
    trf_allow_successor();
    const trf_table_source<kP> table_source(view);
    const trf_wide_part part(a, Shape::kStreams);
    trf_open_barriers<Shape, kShare>(meeting);

    const bool decodes = decoder < Shape::kDecoders;
    const uint32_t stream = decoder / Shape::kBands;
    const trf_wide_grid grid = {a, decoder % Shape::kBands + blockIdx.x % kShare * Shape::kBands, part.begin(stream),
                                decodes ? part.count(stream) : 0, trf_first_item<kShare>(a)};
    const trf_int_planes planes = trf_int_planes_of(view.raw_bits);
    const trf_walk walk = grid.start();
    trf_stager<1> stager;
    if (decodes)
        trf_start<Form>(stager, view, a.f.shared, planes, walk, grid,
                        shared + a.f.shared.warps + decoder * a.f.shared.warp_bytes, lane);
    trf_build_constants<Form, kP, kLog>(view, table_source, shared, a.f.shared, &constants);
    trf_cluster_arrive(blocks);
    trf_cluster_wait(blocks);
    trf_wait_for_predecessor();

    if (decodes) {
        const trf_lane_rule<kP, kLog> rule =
            trf_lane_rule_of<kP, kLog>(view, shared_memory, a.f.shared.table_log, trf_shared_address(&constants), lane);
        trf_wide_sink<Product, kColumns, kShare> sink(a, lane, meeting, grid, stream, walk.left, shared);
        trf_walk_slabs<Form>(view, a.f.shared, planes, stager, rule, shared + a.f.shared.pair_masks, grid, UINT32_MAX,
                             lane, sink);
        sink.reach(walk.left);
        trf_copy_wait<0>();
    } else if (warp < 4) {
        trf_wide_consumer<Type, kColumns, kShare, 0>(a, meeting, shared).run(part);
    } else if constexpr (Shape::kConsumers > 1) {
        trf_wide_consumer<Type, kColumns, kShare, 1>(a, meeting, shared).run(part);
    }
    __syncwarp();
    if (kShare == 1 && a.splits > 1 && decodes) /* as add_splits does */
        for (int i = 0; i < 2; i++) {
            trf_cluster_arrive(blocks);
            trf_cluster_wait(blocks);
        }
    if (kShare > 1) { /* others may arrive at this block's barriers until they are done */
        trf_cluster_arrive(blocks);
        trf_cluster_wait(blocks);
    }
}

#endif

template <class Form, class Type, int kColumns, int kShare>
__global__ void __launch_bounds__(trf_wide_shape<kColumns, kShare>::kThreads, 1)
    trf_wide(const __grid_constant__ trf_wide_args a) {
#if TRF_WARPGROUPS
    trf_wide_block<Form, Type, kColumns, kShare>(a);
#endif
}

#endif
