/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels are told about a product and its partition, a warp's accumulators, and how a finished sum gets to y.
 *
 * Decoded weights are the A fragments of mma.m16n8k16, and x is B. A *unit* is the one or two bands of 32 rows that a
 * warp walks at the same time. */
#ifndef TRF_WARP_PRODUCT_CUH
#define TRF_WARP_PRODUCT_CUH

#include "trf_add4.cuh"
#include "trf_epilogue.h"
#include "trf_fused_variant.h"
#include "trf_layer_traits.h"
#include "trf_packed8_form.h"
#include "trf_slab_walk.cuh"

/* What is computed. Every kernel gets it by value, and the partition below, too. */
struct trf_product_args {
    trf_device_view view;
    const void *x;               /* [m][x_stride], 16-bit, 16-byte aligned rows */
    void *y;                     /* [m][y_stride]; with an epilogue the sums in the workspace, and y_dtype is F32 */
    const float *edge_sums;      /* what the edges add, laid out like y, or NULL */
    uint32_t x_stride, y_stride; /* elements */
    uint32_t m, y_dtype;
    /* rows in whole bands: a multiple of 32; 0 if a fused or grouped product has no regular panels */
    uint32_t whole_rows;
    uint32_t use_row_offsets;
    /* How many warps copy the same columns of x, by way of the L1 cache. 0: fewer than three; they bypass the L1
     * cache. */
    uint32_t x_sharers;
};

/* How a layer's units are cut over clusters, a cluster's columns over its blocks, and a block's share over its warps
 * (trf_fused_kernel.cuh has a picture). */
struct trf_partition_args {
    uint32_t cluster_size; /* blocks of a cluster */
    uint32_t k_splits;     /* split-K within a block: warps that share a unit's columns */
    uint32_t wave_units;   /* units of a wave, which a block walks at once; wave_units * k_splits warps have work */
    uint32_t units;        /* of the layer, of whole bands */
    /* A cluster's share of the layer: share_quotient units, and one more in the first share_remainder clusters. With
     * stream-K it is a block's share, counted in wave panels. */
    uint32_t share_quotient, share_remainder;
    /* A block's share of the panels of its cluster's units, in the same way. With stream-K: the panels of a wave, and
     * 0. */
    uint32_t panel_quotient, panel_remainder;
    uint32_t sums_stride; /* from one warp's sums to the next in shared memory, if a block is alone */
};

/* The partition for kernels of one layer. */
struct trf_fused_partition_args : trf_partition_args {
    trf_smem_layout smem;
    uint32_t is_stream_k; /* the columns of a wave's units may be shared by several blocks */
    float *partials;      /* is_stream_k: [blocks][2][wave_units][acc_tiles][128], workspace */
    uint32_t sums_offset; /* in shared memory */
    /* Whether a cluster's sums take the place of the stages of x or, without a pipeline of x, of the warps' buffers.
     * That needs less space, but one more barrier. */
    uint32_t cluster_sums_replace_buffers;
    uint32_t x_stages_offset, x_stage_cols; /* batches above 8: of the pipelines in shared memory, one for each split */
};

/* The kernels of one layer take it by value. It is one parameter, since with three the compiler keeps more in
 * registers. */
struct trf_fused_args {
    trf_product_args product;
    trf_fused_partition_args partition;
    trf_epilogue epilogue;
};

/* ---- fragments ---- */

template <class Type> static __device__ __forceinline__ uint32_t trf_to_type(uint32_t f16x2);
template <> __device__ __forceinline__ uint32_t trf_to_type<trf_f16_type>(uint32_t f16x2) { return f16x2; }
template <> __device__ __forceinline__ uint32_t trf_to_type<trf_bf16_type>(uint32_t f16x2) {
    return trf_f16x2_to_bf16x2(f16x2);
}

/* The exponent that decoded weights lack: trf_layer_exponent is the same in every row, trf_row_exponent is that of one
 * row. They are within +-126, or the product would have been refused. */
static __device__ __forceinline__ int trf_layer_exponent(const trf_device_view &view) {
    return view.exponent_offset + trf_fragment_exponent(view.codec);
}

static __device__ __forceinline__ int trf_row_exponent(const trf_product_args &a, uint32_t row) {
    return trf_layer_exponent(a.view) + (a.use_row_offsets ? (int)__ldg(a.view.row_offsets + row) : 0);
}

/* Applies to a row's sum what its weights lack: their exponent, or their scale if the whole row has one. */
static __device__ __forceinline__ float trf_scale_sum(const trf_product_args &a, uint32_t row, float sum) {
    if (a.view.codec != TRF_CODEC_INT)
        return sum * __uint_as_float((uint32_t)(127 + trf_row_exponent(a, row)) << 23);
    if (a.view.granularity == TRF_GRANULARITY_TENSOR)
        return sum * __ldg((const float *)a.view.scales);
    if (a.view.granularity == TRF_GRANULARITY_CHANNEL)
        return sum * __ldg((const float *)a.view.scales + row);
    return sum;
}

/* Where element (n, row) of y is, and also the sum of the edges that is added to it. */
static __device__ __forceinline__ uint64_t trf_y_place(const trf_product_args &a, uint32_t n, uint32_t row) {
    return (uint64_t)n * a.y_stride + row;
}

/* Returns a sum plus what the edges add to it. */
static __device__ __forceinline__ float trf_add_edges(const trf_product_args &a, uint64_t at, float value) {
    return a.edge_sums ? value + a.edge_sums[at] : value;
}

static __device__ __forceinline__ void trf_write_y(const trf_product_args &a, uint32_t n, uint32_t row, float value) {
    const uint64_t at = trf_y_place(a, n, row);
    trf_write_rounded(a.y, a.y_dtype, at, trf_add_edges(a, at, value));
}

/* Where the i-th sum of a lane belongs: the row of x, for lane % 4 = q and x tile t; and the layer's row, for row block
 * b of the unit that begins at `first_row`. */
static __device__ __forceinline__ uint32_t trf_n_of_sum(uint32_t q, uint32_t t, uint32_t i) {
    return 8 * t + 2 * q + i % 2;
}
static __device__ __forceinline__ uint32_t trf_row_of_sum(uint32_t lane, uint32_t first_row, uint32_t b, uint32_t i) {
    return first_row + 16 * b + lane / 4 + 8 * (i / 2);
}

/* Writes a sum to y: the i-th one of lane (lane / 4, q), of x tile t and row block b of the unit that begins at
 * `first_row`. */
static __device__ __forceinline__ void trf_finish_sum(const trf_product_args &a, uint32_t lane, uint32_t q,
                                                      uint32_t first_row, uint32_t b, uint32_t t, uint32_t i,
                                                      float sum) {
    const uint32_t n = trf_n_of_sum(q, t, i), row = trf_row_of_sum(lane, first_row, b, i);
    if (n < a.m && row < a.whole_rows)
        trf_write_y(a, n, row, trf_scale_sum(a, row, sum));
}

static __device__ __forceinline__ void trf_finish_sums(const trf_product_args &a, uint32_t lane, uint32_t q,
                                                       uint32_t first_row, uint32_t b, uint32_t t, float4 sums) {
    trf_finish_sum(a, lane, q, first_row, b, t, 0, sums.x);
    trf_finish_sum(a, lane, q, first_row, b, t, 1, sums.y);
    trf_finish_sum(a, lane, q, first_row, b, t, 2, sums.z);
    trf_finish_sum(a, lane, q, first_row, b, t, 3, sums.w);
}

/* Returns v plus the v of lane ^ lane_mask. */
static __device__ __forceinline__ float4 trf_add_of_lane(float4 v, uint32_t lane_mask) {
    return make_float4(
        v.x + __shfl_xor_sync(0xFFFFFFFFu, v.x, lane_mask), v.y + __shfl_xor_sync(0xFFFFFFFFu, v.y, lane_mask),
        v.z + __shfl_xor_sync(0xFFFFFFFFu, v.z, lane_mask), v.w + __shfl_xor_sync(0xFFFFFFFFu, v.w, lane_mask));
}

/* Where a lane's part of an accumulator tile lies in shared memory; q is lane % 4. For the smallest batches, parts of
 * the same rows of x lie side by side. */
static __device__ __forceinline__ uint32_t trf_acc_tile_offset(uint32_t m, uint32_t lane, uint32_t q) {
    return 16 * (m <= 4 ? q * 8 + lane / 4 : lane / 4 * 4 + q);
}

/* ---- one warp's accumulators ----
 *
 * sum[b][t][4] belongs to row block b and x tile t. Its elements are of row 16b + lane/4 of the unit (8 more for 2 and
 * 3), and of row 8t + 2(lane%4) of x (1 more for 1 and 3). */
template <class Codec, class Type, int kSlabs, int kXTiles, bool kScaleGroups, bool kRowOffsets>
struct trf_warp_product {
    static constexpr int kRowBlocks = 2 * kSlabs;
    static constexpr uint32_t kRows = kSlabs * TRF_SLAB_ROWS;
    /* kXTiles, for users of this struct: accumulator tiles are numbered [row block][x tile]. */
    static constexpr int kAccTileXTiles = kXTiles;
    static constexpr bool kPipelinedX =
        trf_pipelines_x(kSlabs, kXTiles); /* x comes from the pipeline, two steps at once */
    static constexpr bool kTakesScalePairs = Codec::kSpread;
    static constexpr bool kCopiesX = trf_copies_x_by_warp(Codec::kCodec, kSlabs, kXTiles);
    /* x tiles that come through the L1 cache; 1 where none do, so that arrays are not empty. */
    static constexpr int kLoaded = kPipelinedX || kCopiesX ? 1 : kXTiles;
    const trf_product_args &a;
    uint32_t lane;
    float sum[kRowBlocks][kXTiles][4];
    /* kScaleGroups: the scaled sums of the scale groups before this one. */
    float total[kScaleGroups ? kRowBlocks : 1][kScaleGroups ? kXTiles : 1][4];
    float scale[kScaleGroups ? 2 * kRowBlocks : 1]; /* of rows lane/4 + 8i, in the current scale group */
    /* Spread codes: the scale pair of the slab's row lane/4 + 8(lane%4), in the present 128 columns. Lanes exchange
     * them, since there are no registers for those of all four rows of a lane. */
    uint32_t scale_pair[kSlabs];
    uint32_t step_pairs_left; /* kScaleGroups: step pairs (32 columns) left in the current scale group */
    /* Without kPipelinedX: this lane's x in the chunk that is loaded ahead, for each x tile; or, if x is copied, in the
     * chunk that is copied, for x tile 0. */
    const uint8_t *x_at[kLoaded];
    uint4 ahead[kLoaded]; /* x of the first two steps of the next chunk */
    uint4 x[kLoaded];     /* x of the current two steps */
    /* Shared address of this lane's x: of the next two steps in the pipeline, or of the warp's two copies;
     * [kXTiles][8][64]. */
    uint32_t x_shared;
    uint32_t first_step[8]; /* with kPipelinedX: the fragments of the first of two steps */
    /* 2^-trf_layer_exponent; exceptions are multiplied by it, since trf_scale_sum treats them like other weights */
    float exception_factor;

    __device__ __forceinline__ trf_warp_product(const trf_product_args &args, uint32_t lane_) : a(args), lane(lane_) {
        exception_factor = __uint_as_float((uint32_t)(127 - trf_layer_exponent(a.view)) << 23);
        clear();
    }

    /* Calls f(b, t, i) for every sum. */
    template <class F> static __device__ __forceinline__ void every(F f) {
#pragma unroll
        for (int b = 0; b < kRowBlocks; b++)
#pragma unroll
            for (int t = 0; t < kXTiles; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    f(b, t, i);
    }

    /* What goes to y: with scale groups `total`, to which end_slab adds the remaining sums; else `sum`. */
    __device__ __forceinline__ float &finished_sum(int b, int t, int i) {
        return kScaleGroups ? total[b][t][i] : sum[b][t][i];
    }

    __device__ __forceinline__ void clear() {
        every([&](int b, int t, int i) { sum[b][t][i] = finished_sum(b, t, i) = 0; });
    }

    /* Loads the scales of the scale group that column `col` of the unit's rows lies in. */
    __device__ __forceinline__ void load_scales(uint32_t unit, uint32_t col) {
        const uint32_t scale_group = a.view.scale_group_size, at = col / scale_group;
        step_pairs_left = ((at + 1) * scale_group - col) / 32;
#pragma unroll
        for (int i = 0; i < 2 * kRowBlocks; i++) {
            uint32_t row = min(unit * kRows + lane / 4 + 8 * i, a.view.rows - 1);
            if (a.view.granularity == TRF_GRANULARITY_SCALE_BLOCK)
                row /= scale_group;
            const uint16_t bits = __ldg((const uint16_t *)a.view.scales + (uint64_t)row * a.view.scale_cols + at);
            scale[i] = ldexpf(__half2float(__ushort_as_half(bits)), a.view.scale_exponent);
        }
    }

    /* Loads the scale pairs of the unit's rows in column `col`, a multiple of 128. A scale block has all rows
     * of a unit. */
    __device__ __forceinline__ void load_scale_pairs(uint32_t unit, uint32_t col) {
        const uint32_t size = a.view.scale_group_size, granularity = a.view.granularity;
        const uint32_t *pairs = trf_scale_pairs_of(&a.view);
        if (granularity == TRF_GRANULARITY_SCALE_BLOCK)
            pairs += (uint64_t)(unit * kRows / size) * a.view.scale_cols + col / size;
#pragma unroll
        for (int s = 0; s < kSlabs; s++) {
            const uint32_t row = unit * kRows + s * TRF_SLAB_ROWS + lane / 4 + 8 * (lane % 4);
            scale_pair[s] = __ldg(pairs + (granularity == TRF_GRANULARITY_CHANNEL ? min(row, a.view.rows - 1) : 0));
        }
    }

    /* Spread codes: loads the scale pairs of the next 128 columns when step k is done with those before. */
    __device__ __forceinline__ void advance_scale_pairs(const trf_walk &walk, uint32_t k) {
        const uint32_t next = walk.panel * a.view.slab_cols + 128;
        if (k == 7 && a.view.granularity == TRF_GRANULARITY_SCALE_BLOCK && next < a.view.cols)
            load_scale_pairs(walk.unit, next);
    }

    __device__ __forceinline__ void add_scale_group() {
        every([&](int b, int t, int i) {
            total[b][t][i] = fmaf(scale[2 * b + i / 2], sum[b][t][i], total[b][t][i]);
            sum[b][t][i] = 0;
        });
    }

    /* Where this lane's x of an x tile and a panel is. Rows beyond the batch repeat its last one; their sums are not
     * used. */
    __device__ __forceinline__ const uint8_t *x_of(int x_tile, uint32_t panel) const {
        return (const uint8_t *)a.x + 2 * ((uint64_t)min(8 * x_tile + lane / 4, a.m - 1) * a.x_stride +
                                           panel * a.view.slab_cols + 8 * (lane % 4));
    }

    /* Where x tile t is in the copy of a chunk's first two steps (step_pair 0) or last two (step_pair 1). */
    static __device__ __forceinline__ constexpr uint32_t copied_at(int step_pair, int t) {
        return (step_pair * kXTiles + t) * TRF_X_TILE_BYTES;
    }

    /* Starts the copy of two steps. Rows beyond the batch in the last x tile keep what they held; their sums are not
     * used. */
    __device__ __forceinline__ void copy_x(int step_pair, const uint8_t *from) const {
#pragma unroll
        for (int t = 0; t < kXTiles; t++) {
            const bool here = t + 1 < kXTiles || lane < 4 * (a.m - 8 * t);
            /* Two ways to ask the same thing. Each costs no registers in the kernels that use it; the other one
             * would. */
            const bool shared = kXTiles > 2 ? a.x_sharers != 0 : a.x_sharers > 2;
            trf_cp_async16_if(here, shared, x_shared + copied_at(step_pair, t), from + 16ull * t * a.x_stride);
        }
    }

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        if (kScaleGroups)
            load_scales(walk.unit, walk.panel * a.view.slab_cols);
        if (kTakesScalePairs)
            load_scale_pairs(walk.unit, walk.panel * a.view.slab_cols);
    }

    /* Where x comes through the L1 cache, the first 32 columns of a chunk are loaded two steps ahead, since they are
     * the first of a cache line; the other 32 columns then come from the cache. */
    __device__ __forceinline__ void begin_step_pair(int step_pair) {
        if constexpr (kCopiesX) {
            if (step_pair == 0)
                copy_x(1, x_at[0] + 64);
        } else if constexpr (!kPipelinedX) {
#pragma unroll
            for (int t = 0; t < kXTiles; t++)
                x[t] = step_pair == 0 ? ahead[t] : trf_ldg128(x_at[t] + 64);
        }
    }

    __device__ __forceinline__ void prefetch_chunk() {
        if constexpr (!kPipelinedX) {
#pragma unroll
            for (int t = 0; t < kLoaded; t++)
                x_at[t] += 128;
            load_ahead();
        }
    }

    /* It is also called before the first slab. */
    __device__ __forceinline__ void prefetch_slab(const trf_walk &walk) {
        if constexpr (!kPipelinedX) {
#pragma unroll
            for (int t = 0; t < kLoaded; t++)
                x_at[t] = x_of(t, walk.panel);
            load_ahead();
        }
    }

    __device__ __forceinline__ void load_ahead() {
        if constexpr (kCopiesX) {
            copy_x(0, x_at[0]);
        } else {
#pragma unroll
            for (int t = 0; t < kLoaded; t++)
                ahead[t] = trf_ldg128(x_at[t]);
        }
    }

    __device__ __forceinline__ void complete_fragments(uint32_t *reg) {
        if (Codec::kFp8 && !Codec::kSpread) {
#pragma unroll
            for (int g = 0; g < 4; g++) {
                const uint32_t bytes = reg[2 * g];
                if (Codec::kCodec == TRF_CODEC_E5M2) { /* a byte is the upper half of an F16 */
                    reg[2 * g] = __byte_perm(bytes, 0, 0x2404);
                    reg[2 * g + 1] = __byte_perm(bytes, 0, 0x3414);
                }
                reg[2 * g] = trf_to_type<Type>(reg[2 * g]);
                reg[2 * g + 1] = trf_to_type<Type>(reg[2 * g + 1]);
            }
        } else if (Codec::kInt) { /* 0x6400 | u is 1024 + u in F16 */
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

    /* Makes weights of spread codes of slab s, times 2^-8 as of E4M3 without scales. They are exact, or the product
     * would have been refused. */
    __device__ __forceinline__ void scale_fragments(int s, uint32_t *reg) const {
#pragma unroll
        for (int i = 0; i < 4; i++) { /* rows lane / 4 + 8i */
            const uint32_t of_row = __shfl_sync(0xFFFFFFFFu, scale_pair[s], i, 4);
            const int first = i / 2 * 4 + i % 2;
            reg[first] = trf_packed8_scale(reg[first], of_row);
            reg[first + 2] = trf_packed8_scale(reg[first + 2], of_row);
        }
    }

    /* The factor of an exception: 2^-trf_row_exponent of the exception's row. */
    __device__ __forceinline__ float row_exception_factor(uint32_t s, uint32_t exception, const trf_walk &walk) const {
        if (!kRowOffsets || !a.use_row_offsets)
            return exception_factor;
        const uint32_t row = walk.unit * kRows + s * TRF_SLAB_ROWS + (exception & 1u << 27 ? 16 : 0) +
                             (exception >> 21) % 8 + (exception & 1u << 25 ? 8 : 0);
        return __uint_as_float((uint32_t)(127 - trf_row_exponent(a, min(row, a.view.rows - 1))) << 23);
    }

    /* An exception's value in the fragment's type, without its row's offset. It is exact, or the product would have
     * been refused. */
    __device__ __forceinline__ uint32_t exception_bits(uint32_t s, uint32_t exception, const trf_walk &walk) const {
        if (Codec::kInt)
            return trf_to_type<Type>(__half_as_ushort(__int2half_rn((int)(int16_t)exception)));
        if (Codec::kCodec == TRF_CODEC_BF16 || Codec::kScaledFp8)
            return __float_as_uint(__uint_as_float(exception << 16) * row_exception_factor(s, exception, walk)) >> 16;
        const uint32_t half =
            Codec::kFp8 ? trf_fp8x2_to_f16x2<Codec::kCodec == TRF_CODEC_E5M2>(exception & 0xFF) & 0xFFFF : exception;
        const float scaled = __half2float(__ushort_as_half((uint16_t)half)) * row_exception_factor(s, exception, walk);
        return trf_to_type<Type>(__half_as_ushort(__float2half_rn(scaled)));
    }

    /* Loads a step's x of x tile t from the copy of its step pair. */
    __device__ __forceinline__ uint2 copied_x(int t, uint32_t k) const {
        return trf_lds64(x_shared + copied_at(k / 2 % 2, t) + k % 2 * 8);
    }

    __device__ __forceinline__ void multiply_copied(const uint32_t (*reg)[8], uint32_t k) {
        uint2 next = copied_x(0, k);
#pragma unroll
        for (int t = 0; t < kXTiles; t++) {
            const uint2 b = next;
            if (t + 1 < kXTiles)
                next = copied_x(t + 1, k);
            multiply_x_tile(reg, t, b.x, b.y);
        }
    }

    __device__ __forceinline__ void multiply_loaded(const uint32_t (*reg)[8], bool second) {
#pragma unroll
        for (int t = 0; t < kLoaded; t++)
            multiply_x_tile(reg, t, second ? x[t].z : x[t].x, second ? x[t].w : x[t].y);
    }

    __device__ __forceinline__ void multiply_x_tile(const uint32_t (*reg)[8], int t, uint32_t b0, uint32_t b1) {
#pragma unroll
        for (int s = 0; s < kSlabs; s++) {
            trf_mma(Type(), sum[2 * s][t], reg[s], b0, b1);
            trf_mma(Type(), sum[2 * s + 1][t], reg[s] + 4, b0, b1);
        }
    }

    /* Multiplies a step pair by all x tiles, each of which is loaded while the one before is multiplied. Moves x_shared
     * on. */
    __device__ __forceinline__ void multiply_step_pair(const uint32_t (*second)[8]) {
        uint4 next = trf_lds128(x_shared);
#pragma unroll
        for (int t = 0; t < kXTiles; t++) {
            const uint4 b = next;
            if (t + 1 < kXTiles)
                next = trf_lds128(x_shared + (t + 1) * TRF_X_TILE_BYTES);
            multiply_x_tile(&first_step, t, b.x, b.y);
            multiply_x_tile(second, t, b.z, b.w);
        }
        x_shared += kXTiles * TRF_X_TILE_BYTES;
    }

    __device__ __forceinline__ void step(const uint32_t (*reg)[8], const trf_walk &walk, uint32_t k) {
        if constexpr (kCopiesX) {
            multiply_copied(reg, k);
        } else if constexpr (!kPipelinedX) {
            multiply_loaded(reg, k % 2);
        } else if (k % 2 == 0) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                first_step[i] = reg[0][i];
        } else {
            multiply_step_pair(reg);
        }
        if (kTakesScalePairs)
            advance_scale_pairs(walk, k);
        if (kScaleGroups && k % 2 == 1 && --step_pairs_left == 0) {
            add_scale_group();
            const uint32_t next = walk.panel * a.view.slab_cols + 16 * (k + 1);
            if (next < a.view.cols)
                load_scales(walk.unit, next);
        }
    }

    __device__ __forceinline__ void end_slab(const trf_walk &, bool good) {
        if (!good)
            every([&](int b, int t, int i) { sum[b][t][i] = __uint_as_float(0x7FC00000u); });
        if (kScaleGroups)
            add_scale_group();
    }

    /* ---- sums as they lie in registers: 16 bytes a lane for each accumulator tile ---- */

    static constexpr uint32_t kAccTiles = kRowBlocks * kXTiles;

    /* Whether any of the lane's sums belong to rows of the batch. */
    __device__ __forceinline__ bool has_sums() const { return 2 * (lane % 4) < a.m; }

    /* Calls put(accumulator tile, the lane's four sums of it) for every accumulator tile. */
    template <class Put> __device__ __forceinline__ void each_acc_tile(Put put) {
        if (!has_sums())
            return;
#pragma unroll
        for (int b = 0; b < kRowBlocks; b++)
#pragma unroll
            for (int t = 0; t < kXTiles; t++)
                put(b * kXTiles + t, make_float4(finished_sum(b, t, 0), finished_sum(b, t, 1), finished_sum(b, t, 2),
                                                 finished_sum(b, t, 3)));
    }

    /* Writes the unit's sums to y. */
    __device__ __forceinline__ void finish(uint32_t unit) {
        every([&](int b, int t, int i) {
            trf_finish_sum(a, lane, lane % 4, unit * kRows, b, t, i, finished_sum(b, t, i));
        });
    }
};

/* Calls put(n, row) for the thread's share of the elements of rows from whole_rows on, which have edges only. */
template <class Put>
static __device__ __forceinline__ void trf_each_remainder_element(const trf_product_args &a, Put put) {
    const uint32_t count = a.view.rows - a.whole_rows;
    const uint64_t places = (uint64_t)count * a.m, stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < places; i += stride)
        put((uint32_t)(i / count), a.whole_rows + (uint32_t)(i % count));
}

#endif
