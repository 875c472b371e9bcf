/* y = x . W^T from the blob, for batches up to 64.
 *
 * One persistent block a multiprocessor, whose warps decode slabs of 32 rows x 256 columns straight into the A fragments of mma.m16n8k16; x is the B
 * operand. A *unit* is the one or two bands of 32 rows that a warp walks side by side; an *item* is a range of a unit's tile columns.
 *
 * A block has whole items. Its slabs, unit by unit, are cut into equal runs, one a warp: the warps share units and split K. A run's sums go to
 * shared memory at its end (into the warp's own buffers), or to the workspace when the run goes on into another unit; units that lie within one run go
 * to y at once. Then the block adds up runs in their order, and blocks that share a unit leave their sums in the workspace, where the last one to
 * arrive adds them in the order of blocks.
 *
 * No sum depends on timing: who adds does, in which order does not.
 *
 * Shared memory: trf_shared_plan. Registers: 96 to 128 a thread with 20 or 16 warps. What limits it: docs/performance.md. */
#ifndef TRF_FUSED_KERNEL_CUH
#define TRF_FUSED_KERNEL_CUH

#include "trf_slab_stream.cuh"

/* By value to every fused kernel. */
struct trf_fused_args {
    trf_device_view view;
    trf_shared_plan shared;
    const void *x;         /* [m][x_stride], 16-bit, 16-byte aligned rows */
    uint32_t x_stride;     /* elements */
    uint32_t m, y_dtype;
    void *y;               /* [m][rows] */
    const float *edges;    /* [m][rows], or NULL */
    uint32_t *counters;    /* one a unit, 0 between launches */
    float *run_sums;       /* [blocks][warps][m][unit rows] */
    float *block_sums;     /* [blocks][2][m][unit rows] */
    uint32_t whole_rows;   /* in whole bands: a multiple of 32 */
    uint32_t units;
    uint32_t regular_cols; /* tile columns that are regular */
    uint32_t splits;       /* items of a unit along K */
    uint32_t items;
    uint32_t use_row_offsets;
};

/* ---- fragments ---- */

template <class Type> static __device__ __forceinline__ uint32_t trf_to_type(uint32_t f16x2);
template <> __device__ __forceinline__ uint32_t trf_to_type<trf_f16_type>(uint32_t f16x2) { return f16x2; }
template <> __device__ __forceinline__ uint32_t trf_to_type<trf_bf16_type>(uint32_t f16x2) {
    return trf_f16x2_to_bf16x2(f16x2);
}

/* The exponent that the coded weights of a row lack; within +-126, or the layer would not be here. */
static __device__ __forceinline__ int trf_row_exponent(const trf_fused_args &a, uint32_t row) {
    return a.view.exponent_offset + (a.use_row_offsets ? (int)__ldg(a.view.row_offsets + row) : 0);
}

/* A row's sum in units of y. */
static __device__ __forceinline__ float trf_scale_sum(const trf_fused_args &a, uint32_t row, float sum) {
    if (a.view.codec != TRF_CODEC_INT)
        return sum * __uint_as_float((uint32_t)(127 + trf_row_exponent(a, row)) << 23);
    if (a.view.granularity == TRF_GRANULARITY_TENSOR)
        return sum * __ldg((const float *)a.view.scales);
    if (a.view.granularity == TRF_GRANULARITY_CHANNEL)
        return sum * __ldg((const float *)a.view.scales + row);
    return sum;
}

static __device__ __forceinline__ void trf_store_y(const trf_fused_args &a, uint32_t n, uint32_t row, float value) {
    const uint64_t at = (uint64_t)n * a.view.rows + row;
    if (a.edges)
        value += a.edges[at];
    if (a.y_dtype == TRF_DTYPE_F32)
        ((float *)a.y)[at] = value;
    else if (a.y_dtype == TRF_DTYPE_BF16)
        ((__nv_bfloat16 *)a.y)[at] = __float2bfloat16_rn(value);
    else
        ((__half *)a.y)[at] = __float2half_rn(value);
}

/* ---- one warp's accumulators ----
 * sum[b][t][4]: rows 16b + lane/4 (+8 for 2, 3) of the unit, batch 8t + 2(lane%4) (+1 for 1, 3). */
template <class Form, class Type, int kSlabs, int kTiles, bool kScaled, bool kRowOffsets> struct trf_product {
    static constexpr int kBlocks = 2 * kSlabs;
    static constexpr uint32_t kRows = kSlabs * TRF_SLAB_ROWS;
    const trf_fused_args &a;
    uint32_t lane;
    float sum[kBlocks][kTiles][4];
    float total[kScaled ? kBlocks : 1][kScaled ? kTiles : 1][4]; /* kScaled: of the scale groups before this one */
    float scale[kScaled ? 2 * kBlocks : 1];                      /* of rows lane/4 + 8i, in the group at hand */
    uint32_t pairs_left;                                         /* kScaled: column pairs (32) of the group at hand */
    const uint8_t *x_at;                                         /* this lane's x of the chunk to come */
    uint4 x[kTiles];                                             /* of two steps */
    float down;                                                  /* 2^-exponent_offset */

    __device__ __forceinline__ trf_product(const trf_fused_args &args, uint32_t lane_) : a(args), lane(lane_) {
#pragma unroll
        for (int t = 0; t < kTiles; t++)
            x[t] = make_uint4(0, 0, 0, 0);
        down = __uint_as_float((uint32_t)(127 - a.view.exponent_offset) << 23);
        clear();
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int b = 0; b < kBlocks; b++)
#pragma unroll
            for (int t = 0; t < kTiles; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum[b][t][i] = 0;
                    if (kScaled)
                        total[b][t][i] = 0;
                }
    }

    /* Scales of the group that column `col` of the unit's rows lies in. */
    __device__ __forceinline__ void load_scales(uint32_t unit, uint32_t col) {
        const uint32_t group = a.view.group_size, at = col / group;
        pairs_left = ((at + 1) * group - col) / 32;
#pragma unroll
        for (int i = 0; i < 2 * kBlocks; i++) {
            uint32_t row = min(unit * kRows + lane / 4 + 8 * i, a.view.rows - 1);
            if (a.view.granularity == TRF_GRANULARITY_BLOCK)
                row /= group;
            const uint16_t bits = __ldg((const uint16_t *)a.view.scales + (uint64_t)row * a.view.scale_cols + at);
            scale[i] = ldexpf(__half2float(__ushort_as_half(bits)), a.view.scale_exponent);
        }
    }

    __device__ __forceinline__ void add_group() {
#pragma unroll
        for (int b = 0; b < kBlocks; b++)
#pragma unroll
            for (int t = 0; t < kTiles; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    total[b][t][i] = fmaf(scale[2 * b + i / 2], sum[b][t][i], total[b][t][i]);
                    sum[b][t][i] = 0;
                }
    }

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        /* kTiles = 1: rows beyond the batch repeat its last; their sums are not used. */
        const uint32_t n = kTiles == 1 ? min(lane / 4, a.m - 1) : lane / 4;
        x_at = (const uint8_t *)a.x + 2 * ((uint64_t)n * a.x_stride + walk.col * TRF_TILE_SIZE + 8 * (lane % 4));
        if (kScaled)
            load_scales(walk.band, walk.col * TRF_TILE_SIZE);
    }

    __device__ __forceinline__ void begin_pair(int half) {
#pragma unroll
        for (int t = 0; t < kTiles; t++)
            if (kTiles == 1 || 8 * t + lane / 4 < a.m)
                x[t] = __ldg((const uint4 *)(x_at + 16ull * t * a.x_stride + 64 * half));
        if (half)
            x_at += 128;
    }

    __device__ __forceinline__ void finish_step(uint32_t *reg) {
        if (Form::kFp8) {
            constexpr bool kE5M2 = Form::kCodec == TRF_CODEC_E5M2;
#pragma unroll
            for (int g = 0; g < 4; g++) {
                const uint32_t bytes = __byte_perm(reg[2 * g], 0, 0x3120);
                reg[2 * g] = trf_to_type<Type>(trf_fp8x2_to_f16x2<kE5M2>(bytes));
                reg[2 * g + 1] = trf_to_type<Type>(trf_fp8x2_to_f16x2<kE5M2>(bytes >> 16));
            }
        } else if (Form::kInt) { /* 0x6400 | u is 1024 + u in F16 */
            const __half2 origin = __half2half2(__int2half_rn((int)a.view.class_value[0] - 1024));
#pragma unroll
            for (int g = 0; g < 4; g++) {
                const uint32_t u = reg[2 * g], first = __byte_perm(u, 0x64646464u, 0x4240),
                               second = __byte_perm(u, 0x64646464u, 0x4341);
                const __half2 c0 = __hadd2(*reinterpret_cast<const __half2 *>(&first), origin),
                              c1 = __hadd2(*reinterpret_cast<const __half2 *>(&second), origin);
                reg[2 * g] = trf_to_type<Type>(*reinterpret_cast<const uint32_t *>(&c0));
                reg[2 * g + 1] = trf_to_type<Type>(*reinterpret_cast<const uint32_t *>(&c1));
            }
        }
    }

    /* 2^-offset of the row that an exception stands in. */
    __device__ __forceinline__ float row_down(uint32_t s, uint32_t record, const trf_walk &walk) const {
        if (!kRowOffsets || !a.use_row_offsets)
            return down;
        const uint32_t row = walk.band * kRows + s * TRF_SLAB_ROWS + (record & 1u << 27 ? 16 : 0) + (record >> 21) % 8 +
                             (record & 1u << 25 ? 8 : 0);
        return __uint_as_float((uint32_t)(127 - trf_row_exponent(a, min(row, a.view.rows - 1))) << 23);
    }

    /* An exception's value, without its row's offset, in the fragment's type; exact, or the layer would not be here. */
    __device__ __forceinline__ uint32_t exception_value(uint32_t s, uint32_t record, const trf_walk &walk) const {
        if (Form::kInt)
            return trf_to_type<Type>(__half_as_ushort(__int2half_rn((int)(int16_t)record)));
        if (Form::kCodec == TRF_CODEC_BF16)
            return __float_as_uint(__uint_as_float(record << 16) * row_down(s, record, walk)) >> 16;
        const uint32_t half =
            Form::kFp8 ? trf_fp8x2_to_f16x2<Form::kCodec == TRF_CODEC_E5M2>(record & 0xFF) & 0xFFFF : record;
        const float scaled = __half2float(__ushort_as_half((uint16_t)half)) * row_down(s, record, walk);
        return trf_to_type<Type>(__half_as_ushort(__float2half_rn(scaled)));
    }

    __device__ __forceinline__ void step(const uint32_t (*reg)[8], const trf_walk &walk, uint32_t k) {
#pragma unroll
        for (int t = 0; t < kTiles; t++) {
            const uint32_t b0 = k % 2 ? x[t].z : x[t].x, b1 = k % 2 ? x[t].w : x[t].y;
#pragma unroll
            for (int s = 0; s < kSlabs; s++) {
                trf_mma(Type(), sum[2 * s][t], reg[s], b0, b1);
                trf_mma(Type(), sum[2 * s + 1][t], reg[s] + 4, b0, b1);
            }
        }
        if (kScaled && k % 2 == 1 && --pairs_left == 0) {
            add_group();
            const uint32_t next = walk.col * TRF_TILE_SIZE + 16 * (k + 1);
            if (next < a.view.cols)
                load_scales(walk.band, next);
        }
    }

    __device__ __forceinline__ void end_slab(const trf_walk &, bool good) {
        if (!good) {
#pragma unroll
            for (int b = 0; b < kBlocks; b++)
#pragma unroll
                for (int t = 0; t < kTiles; t++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sum[b][t][i] = __uint_as_float(0x7FC00000u);
        }
        if (kScaled)
            add_group();
    }

    __device__ __forceinline__ float value(int b, int t, int i) const { return kScaled ? total[b][t][i] : sum[b][t][i]; }

    /* put(n, row within the unit, value) for every sum of a batch row n < m. */
    template <class Put> __device__ __forceinline__ void each(Put put) const {
#pragma unroll
        for (int b = 0; b < kBlocks; b++)
#pragma unroll
            for (int t = 0; t < kTiles; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t n = 8 * t + 2 * (lane % 4) + i % 2, row = 16 * b + lane / 4 + 8 * (i / 2);
                    if (n < a.m)
                        put(n, row, value(b, t, i));
                }
    }

    __device__ __forceinline__ void save(float *to) const { /* [m][kRows] */
        each([&](uint32_t n, uint32_t row, float v) { to[n * kRows + row] = v; });
    }
};

/* One finished sum of a unit; place = batch row * unit rows + row. */
template <uint32_t kRows>
static __device__ __forceinline__ void trf_finish(const trf_fused_args &a, uint32_t unit, uint32_t place, float sum) {
    const uint32_t row = unit * kRows + place % kRows;
    if (row < a.whole_rows)
        trf_store_y(a, place / kRows, row, trf_scale_sum(a, row, sum));
}

/* ---- which slabs a block has ---- */

/* First slab (or pair of slabs side by side) of item i: items cut a unit's columns evenly. */
static __device__ __forceinline__ uint32_t trf_item_begin(const trf_fused_args &a, uint32_t item) {
    const uint32_t unit = item / a.splits, part = item % a.splits;
    return unit * a.regular_cols + (uint32_t)((uint64_t)a.regular_cols * part / a.splits);
}

static __device__ __forceinline__ uint32_t trf_first_item(const trf_fused_args &a, uint32_t block) {
    return (uint32_t)((uint64_t)a.items * block / gridDim.x);
}

static __device__ __forceinline__ uint32_t trf_block_of_item(const trf_fused_args &a, uint32_t item) {
    return (uint32_t)((((uint64_t)item + 1) * gridDim.x - 1) / a.items);
}

/* Rows behind the last whole band have edges only. */
static __device__ __forceinline__ void trf_store_tail_rows(const trf_fused_args &a) {
    const uint32_t count = a.view.rows - a.whole_rows;
    const uint64_t places = (uint64_t)count * a.m, stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < places; i += stride)
        trf_store_y(a, (uint32_t)(i / count), a.whole_rows + (uint32_t)(i % count), 0.0f);
}

template <class Form, int kP>
static __device__ __forceinline__ void trf_prologue(const trf_fused_args &a, uint32_t shared) {
    trf_build_table<Form, kP>(a.view, shared, a.shared.table_log);
    trf_build_pair_masks(shared + a.shared.pair_masks);
}

/* ---- runs ---- */

/* A run: slabs [begin, end) of the layer's order, unit by unit. */
struct trf_run {
    uint32_t begin, end;
};

template <int kWarps>
static __device__ __forceinline__ trf_run trf_run_of(uint32_t first, uint32_t count, uint32_t warp) {
    return {first + (uint32_t)((uint64_t)count * warp / kWarps), first + (uint32_t)((uint64_t)count * (warp + 1) / kWarps)};
}

/* Whether a unit's slabs all lie in a run. */
static __device__ __forceinline__ bool trf_has_unit(const trf_run &run, uint32_t unit, uint32_t cols) {
    return run.begin <= unit * cols && (unit + 1) * cols <= run.end;
}

/* A run's product: leaves its sums where the block finds them. */
template <class Product> struct trf_run_sink : Product {
    trf_run run;
    uint32_t unit;  /* at hand */
    float *at_end;  /* [m][rows], shared memory: sums of the run's last unit */
    float *midway;  /* [m][rows], workspace: of its first one, if the run goes on */

    __device__ __forceinline__ trf_run_sink(const trf_fused_args &args, uint32_t lane, const trf_run &run_,
                                            uint32_t unit_, float *at_end_, float *midway_)
        : Product(args, lane), run(run_), unit(unit_), at_end(at_end_), midway(midway_) {}

    __device__ __forceinline__ void leave(uint32_t next_unit, bool run_ends) {
        while (unit < next_unit) {
            if (trf_has_unit(run, unit, this->a.regular_cols)) {
                this->each([&](uint32_t n, uint32_t row, float v) {
                    trf_finish<Product::kRows>(this->a, unit, n * Product::kRows + row, v);
                });
            } else {
                const bool last = run_ends && unit + 1 == next_unit;
                if (last)
                    __syncwarp(); /* at_end lies in buffers that other lanes may be reading */
                this->save(last ? at_end : midway);
            }
            this->clear();
            unit++;
        }
    }

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        if (walk.band != unit)
            leave(walk.band, false);
        Product::begin_slab(walk);
    }
};

/* One sum of a unit over the runs of this block that have a part of it, in their order. */
template <int kWarps>
static __device__ __forceinline__ float trf_add_runs(const trf_fused_args &a, const uint8_t *shared_memory,
                                                     const trf_run &block, uint32_t unit, uint32_t places,
                                                     uint32_t place) {
    const uint32_t unit_begin = unit * a.regular_cols, unit_end = unit_begin + a.regular_cols;
    float sum = 0;
    for (uint32_t w = 0; w < kWarps; w++) {
        const trf_run run = trf_run_of<kWarps>(block.begin, block.end - block.begin, w);
        if (run.begin == run.end || run.end <= unit_begin || run.begin >= unit_end)
            continue;
        if (run.end <= unit_end)
            sum += ((const float *)(shared_memory + a.shared.warps + w * a.shared.warp_bytes))[place];
        else
            sum += a.run_sums[((uint64_t)blockIdx.x * kWarps + w) * places + place];
    }
    return sum;
}

/* Blocks that share a unit: the last to arrive adds. All threads call it, for the block's first and last unit at once; its own sums are in the
 * workspace. shared_units[i]: whether unit[i] is shared. */
template <uint32_t kRows>
static __device__ __forceinline__ void trf_finish_shared_units(const trf_fused_args &a, const uint32_t *unit,
                                                               const bool *is_shared, uint32_t *arrived) {
    __threadfence();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (threadIdx.x == 32 * i && is_shared[i])
            arrived[i] = atomicAdd(a.counters + unit[i], 1u);
    __syncthreads();
    __threadfence();
    const uint32_t places = a.m * kRows;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t first = trf_block_of_item(a, unit[i] * a.splits),
                       last = trf_block_of_item(a, unit[i] * a.splits + a.splits - 1);
        if (!is_shared[i] || arrived[i] != last - first)
            continue;
        for (uint32_t place = threadIdx.x; place < places; place += blockDim.x) {
            float sum = 0;
            for (uint32_t b = first; b <= last; b++) {
                /* A block's slot 0 is for its first unit, 1 for its last. */
                const uint32_t slot = trf_first_item(a, b) / a.splits == unit[i] ? 0 : 1;
                sum += __ldcg(a.block_sums + ((uint64_t)b * 2 + slot) * places + place);
            }
            trf_finish<kRows>(a, unit[i], place, sum);
        }
        if (threadIdx.x == 0)
            a.counters[unit[i]] = 0;
    }
}

template <class Form, class Type, int kP, int kSlabs, int kTiles, bool kScaled, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) trf_fused_linear(const __grid_constant__ trf_fused_args a) {
    using Product = trf_product<Form, Type, kSlabs, kTiles, kScaled, kP == 0>;
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint32_t arrived[2];
    const uint32_t shared = trf_shared_address(shared_memory);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, cols = max(a.regular_cols, 1u);
    trf_allow_successor();

    const trf_run block = {trf_item_begin(a, trf_first_item(a, blockIdx.x)),
                           trf_item_begin(a, trf_first_item(a, blockIdx.x + 1))};
    const uint32_t memory = a.shared.warps + warp * a.shared.warp_bytes;
    {
        const trf_run run = trf_run_of<kWarps>(block.begin, block.end - block.begin, warp);
        const trf_walk walk = {run.begin / cols, run.begin % cols, run.end - run.begin};
        const trf_int_planes planes = trf_int_planes_of(a.view.raw_bits);
        trf_stager<kSlabs> stager;
        trf_start<Form>(stager, a.view, a.shared, planes, walk, a.regular_cols, shared + memory, lane);
        trf_prologue<Form, kP>(a, shared);
        __syncthreads();
        trf_wait_for_predecessor();

        trf_run_sink<Product> sink(a, lane, run, walk.band, (float *)(shared_memory + memory),
                                   a.run_sums + ((uint64_t)blockIdx.x * kWarps + warp) * a.m * Product::kRows);
        trf_walk_slabs<Form>(a.view, a.shared, planes, stager,
                             trf_lane_rule_of<kP>(a.view, shared_memory, a.shared.table_log, lane),
                             shared + a.shared.pair_masks, a.regular_cols, lane, sink);
        if (run.begin < run.end)
            sink.leave((run.end - 1) / cols + 1, true);
    }
    __syncthreads();

    /* Units of this block that no run has whole. */
    const uint32_t unit_begin = block.begin / cols, unit_end = (block.end + cols - 1) / cols;
    const uint32_t places = a.m * Product::kRows, units = block.begin < block.end ? unit_end - unit_begin : 0;
    for (uint32_t i = threadIdx.x; i < units * places; i += blockDim.x) {
        const uint32_t unit = unit_begin + i / places, place = i % places;
        const bool whole = trf_has_unit(block, unit, a.regular_cols);
        if (whole) {
            const uint32_t w =
                (uint32_t)(((uint64_t)(unit * cols - block.begin + 1) * kWarps - 1) / (block.end - block.begin));
            if (trf_has_unit(trf_run_of<kWarps>(block.begin, block.end - block.begin, w), unit, a.regular_cols))
                continue;
        }
        const float sum = trf_add_runs<kWarps>(a, shared_memory, block, unit, places, place);
        if (whole)
            trf_finish<Product::kRows>(a, unit, place, sum);
        else
            a.block_sums[((uint64_t)blockIdx.x * 2 + (unit == unit_begin ? 0 : 1)) * places + place] = sum;
    }
    const uint32_t ends[2] = {unit_begin, unit_end - 1};
    const bool is_shared[2] = {units && !trf_has_unit(block, ends[0], a.regular_cols),
                               units > 1 && !trf_has_unit(block, ends[1], a.regular_cols)};
    if (is_shared[0] || is_shared[1])
        trf_finish_shared_units<Product::kRows>(a, ends, is_shared, arrived);
    trf_store_tail_rows(a);
}

#endif
