/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes every weight of a layer's regular slabs and writes it to memory.
 *
 * There is one persistent block on each multiprocessor. The slabs, band by band, are divided into equal shares, one for
 * each warp. Example: an H200 has 132 multiprocessors. With bf16 quads of 8192 x 8192 (256 bands of 32 slabs of 256
 * columns) each of them gets 13 warps, which makes 4.8 slabs for each of 1,716 warps.
 *
 *     panel    0   1   2   3   4   5   6   7   8   9  10  11  12  13       31
 *     band 0           | warp 0        | warp 1            | warp 2            | ...   |  warps 0 to 12 are block 0's,
 *     band 1           | ...                                                           |  13 to 25 are block 1's
 *     ...
 *     band 255         |                                             ... |  warp 1715  |
 *
 * A warp decodes its share as the fused kernels do (trf_slab_walk.cuh has the picture), but stores the fragments. In
 * two steps a lane gets 8 neighbouring columns of four rows, which are 16 bytes of each row for 16-bit weights; the
 * four lanes of a row have 64 bytes. Stores of 64 bytes at a time reach 88 % of the rate of stores of 256 at a time. So
 * warps first gather the weights of eight steps in shared memory, if there is space for that, and enough work for the
 * fewer warps that then have room (trf_decode_choice.c):
 *
 *     steps       0, 1       2, 3       4, 5       6, 7
 *     row 0   | 64 bytes | 64 bytes | 64 bytes | 64 bytes |   ->  256 bytes of row 0 of the band: lanes 0 to 15
 *     row 1   | 64 bytes | 64 bytes | 64 bytes | 64 bytes |   ->  256 bytes of row 1: lanes 16 to 31, and so on
 *     ...
 *
 * Shared memory of a block, in bytes: what the walk takes, and 8,192 (TRF_GATHER_BYTES) for each warp that gathers.
 * With bf16 quads, the smaller table and rans_bytes = 912, as in trf_slab_walk.cuh, that is
 *     13 warps that gather            32,768 + 512 + 544 + 13 * (4,384 + 8,192) + 544   = 197,856
 *     16 warps that do not            32,768 + 512 + 544 + 16 * 4,384 + 544             = 104,512
 * and at most 1,024 bytes of static shared memory, out of the 232,448 that a block of an H200 can have. There is room
 * for at most 15 warps that gather.
 *
 * Registers: at most 128 a thread with 16 warps. What limits it:
 * docs/notebook/2026-11-23-two-step-decoding.md. */
#ifndef TRF_DECODE_SLABS_CUH
#define TRF_DECODE_SLABS_CUH

#include "trf_decode_choice.h"
#include "trf_slab_walk.cuh"

/* How a launch of the decoding family walks and writes: what is the same for layers of one shape and codec that are
 * decoded alike. Packing also walks with it, and uses only smem, regular_panels and num_slabs. */
struct trf_write_call {
    trf_smem_layout smem;
    uint32_t regular_panels; /* regular panels, at least 1 */
    uint32_t num_slabs;      /* regular slabs, including the places of stored tiles: whole bands times regular_panels */
    trf_decode_as as;
    trf_write_format format;
    trf_write_method method;
};

/* Makes a call for a layer; num_slabs and regular_panels are the layer's. */
static inline trf_write_call trf_write_call_of(const trf_device_view *view, trf_decode_as as,
                                               const trf_decode_choice *chosen) {
    return {chosen->smem, trf_regular_panels(view),      trf_regular_slabs(view),
            as,           trf_write_format_of(view, as), chosen->method};
}

/* Every kernel of one layer takes it by value. */
struct trf_write_args {
    trf_device_view view;
    trf_write_call call;
    void *weights; /* [rows][cols] */
};

/* ---- stores: a lane's columns of one row ---- */

static __device__ __forceinline__ void trf_put(uint8_t *to, uint4 v) { *reinterpret_cast<uint4 *>(to) = v; }
static __device__ __forceinline__ void trf_put(uint8_t *to, uint2 v) { *reinterpret_cast<uint2 *>(to) = v; }

/* Stores weights one by one, from a word that holds 4 / kBytes of them. */
template <int kBytes> static __device__ __forceinline__ void trf_put_word(uint8_t *to, uint32_t word) {
    if (kBytes == 4) {
        *reinterpret_cast<uint32_t *>(to) = word;
    } else if (kBytes == 2) {
        reinterpret_cast<uint16_t *>(to)[0] = (uint16_t)word;
        reinterpret_cast<uint16_t *>(to)[1] = (uint16_t)(word >> 16);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = (uint8_t)(word >> 8 * i);
    }
}

template <int kBytes> static __device__ __forceinline__ void trf_put_words(uint8_t *to, uint4 v) {
    trf_put_word<kBytes>(to, v.x);
    trf_put_word<kBytes>(to + 4, v.y);
    trf_put_word<kBytes>(to + 8, v.z);
    trf_put_word<kBytes>(to + 12, v.w);
}

template <int kBytes> static __device__ __forceinline__ void trf_put_words(uint8_t *to, uint2 v) {
    trf_put_word<kBytes>(to, v.x);
    trf_put_word<kBytes>(to + 4, v.y);
}

/* ---- the sink of a walk ---- */

/* kBytes: bytes of a weight as it is written. kMayGather: whether call.method may be TRF_METHOD_GATHERED. */
template <class Codec, int kBytes, bool kMayGather> struct trf_write_sink {
    static constexpr uint32_t kCodec = Codec::kCodec;
    static constexpr bool kScales = Codec::kScaledFp8 || (Codec::kInt && kBytes != 1);
    const trf_device_view &view;
    const trf_write_call &call;
    uint8_t *weights;
    uint32_t lane;
    uint64_t row_bytes;
    uint32_t gather;      /* shared address of the warp's TRF_GATHER_BYTES */
    uint32_t gathered;    /* bytes of each row that are gathered */
    uint8_t *gathered_to; /* where the gathered rows begin in memory */
    uint8_t *to;          /* where the lane's first row and column of the current step pair are in memory */
    uint32_t col;         /* that column's number in the layer */
    bool odd;             /* whether this is the second step of the pair */
    bool has_offsets, has_col_offsets;    /* of the current slab */
    uint32_t row_offsets[TRF_WRITE_ROWS]; /* D plus the row's offset, as trf_exponent_offsets makes them */
    uint2 col_offsets;                    /* of the lane's 8 columns */
    /* what the first step of the pair gave: kBytes words a row, none if kBytes is 4 */
    uint32_t kept[2 * TRF_WRITE_ROWS];
    uint32_t row;       /* the lane's first row, in the layer */
    uint32_t scale_end; /* first column after those that the loaded scales are for */
    float scale[TRF_WRITE_ROWS];

    __device__ __forceinline__ trf_write_sink(const trf_device_view &view_, const trf_write_call &call_, void *weights_,
                                              uint32_t lane_, uint32_t gather_)
        : view(view_), call(call_), weights((uint8_t *)weights_), lane(lane_), row_bytes((uint64_t)view_.cols * kBytes),
          gather(gather_), kept(), scale() {}

    /* ---- exponent offsets and scales ---- */

    __device__ __forceinline__ void load_row_offsets(const trf_walk &walk) {
        uint32_t mode = 0;
        if (view.row_offsets || view.col_offsets)
            mode = trf_bounded_predictor_mode(
                &view, __ldg(&view.tiles[(uint64_t)(walk.unit / TRF_BANDS_PER_TILE) * view.num_tile_cols +
                                         walk.panel * view.slab_cols / TRF_TILE_SIZE]
                                  .predictor_mode));
        has_offsets = mode || view.exponent_offset;
        has_col_offsets = mode & TRF_PREDICT_COL;
#pragma unroll
        for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
            const int32_t by_row = mode & TRF_PREDICT_ROW ? __ldg(view.row_offsets + row + 8 * r) : 0;
            const int32_t offset = view.exponent_offset + by_row;
            row_offsets[r] = trf_exponent_offsets(kCodec, offset, offset);
        }
    }

    /* All eight columns of a lane are in one scale group. */
    __device__ __forceinline__ void load_scales() {
#pragma unroll
        for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++)
            scale[r] = trf_device_scale(&view, row + 8 * r, col);
        scale_end = view.scale_group_size ? (col / view.scale_group_size + 1) * view.scale_group_size : 0xFFFFFFFFu;
    }

    /* ---- what the walk calls ---- */

    static constexpr bool kCopiesX = false;
    __device__ __forceinline__ void prefetch_chunk() {}
    __device__ __forceinline__ void prefetch_slab(const trf_walk &) {}

    /* All that elements depend on. A sink that makes them and has no memory to write them to calls this alone. */
    __device__ __forceinline__ void begin_elements(const trf_walk &walk) {
        row = walk.unit * TRF_SLAB_ROWS + trf_lane_row_at(lane, 0);
        col = walk.panel * view.slab_cols + trf_lane_col_at(lane, 0);
        scale_end = col;
        if (!Codec::kInt)
            load_row_offsets(walk);
    }

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        begin_elements(walk);
        to = weights + row * row_bytes + (uint64_t)col * kBytes;
        gathered_to =
            weights + (uint64_t)walk.unit * TRF_SLAB_ROWS * row_bytes + (uint64_t)walk.panel * view.slab_cols * kBytes;
        gathered = 0;
    }

    __device__ __forceinline__ void begin_step_pair(int) {
        odd = false;
        if (!Codec::kInt && has_col_offsets)
            col_offsets = __ldg(reinterpret_cast<const uint2 *>(view.col_offsets + col));
        if (kScales && col >= scale_end)
            load_scales();
    }

    __device__ __forceinline__ void complete_fragments(uint32_t *reg) {
        trf_step_elements(kCodec, view.class_value[0], reg);
        if (!Codec::kInt && has_offsets) {
            if (has_col_offsets)
                trf_step_offsets(kCodec, row_offsets, 1, odd ? col_offsets.y : col_offsets.x, reg);
            else
                trf_step_offsets(kCodec, row_offsets, 0, 0, reg);
        }
        if (Codec::kScaledFp8)
            trf_step_scales(scale, reg);
    }

    /* Returns the exception's element as it is listed. */
    __device__ __forceinline__ uint32_t exception_bits(uint32_t, uint32_t exception, const trf_walk &) const {
        return trf_exception_element(exception);
    }

    __device__ __forceinline__ bool gathers() const { return kMayGather && call.method == TRF_METHOD_GATHERED; }

    /* Writes what was gathered to memory. */
    __device__ __forceinline__ void flush() {
        const uint32_t at = trf_gather_byte(lane);
        __syncwarp();
        if (at < gathered) {
            uint8_t *place = gathered_to + trf_gather_row(lane, 0) * row_bytes + at;
#pragma unroll 4
            for (uint32_t i = 0; i < TRF_SLAB_ROWS / 2; i++, place += 2 * row_bytes)
                trf_put(place, trf_lds128(gather + trf_gather_at(trf_gather_row(lane, i), at)));
        }
        __syncwarp();
        gathered_to += gathered;
        gathered = 0;
    }

    /* Stores the words of the lane's four rows, `at` bytes after the lane's place in each row. */
    template <class Words> __device__ __forceinline__ void put_rows(const Words *words, uint32_t at) const {
        if (call.method == TRF_METHOD_SCALAR) {
#pragma unroll
            for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++)
                trf_put_words<kBytes>(to + 8 * r * row_bytes + at, words[r]);
        } else {
#pragma unroll
            for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++)
                trf_put(to + 8 * r * row_bytes + at, words[r]);
        }
    }

    /* Stores 16-bit weights in shared memory, after those that are gathered already. */
    __device__ __forceinline__ void gather_rows(const uint4 *words) const {
        const uint32_t first =
            gather + trf_gather_at(trf_lane_row_at(lane, 0), gathered + kBytes * trf_lane_col_at(lane, 0));
#pragma unroll
        for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) /* 8 rows further, bytes are swapped in the same way */
            trf_sts128(first + 8 * r * TRF_GATHER_ROW_BYTES, words[r]);
    }

    /* The next three functions take the elements of a step, for kBytes of 1, 2 and 4. reg: the elements. */
    __device__ __forceinline__ void step_of_1(const uint32_t *reg) {
        uint2 words[TRF_WRITE_ROWS];
#pragma unroll
        for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
            const uint32_t word = trf_bits_of_four(reg[trf_row_register(r, 0)], reg[trf_row_register(r, 1)]);
            words[r] = make_uint2(kept[r], word);
            kept[r] = word;
        }
        if (odd)
            put_rows(words, 0);
    }

    __device__ __forceinline__ void step_of_2(const uint32_t *reg) {
        uint4 words[TRF_WRITE_ROWS];
#pragma unroll
        for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
            const uint32_t first = trf_bits_of_two(kCodec, call.format, reg[trf_row_register(r, 0)], scale[r]),
                           second = trf_bits_of_two(kCodec, call.format, reg[trf_row_register(r, 1)], scale[r]);
            words[r] = make_uint4(kept[2 * r], kept[2 * r + 1], first, second);
            kept[2 * r] = first;
            kept[2 * r + 1] = second;
        }
        if (odd && gathers())
            gather_rows(words);
        else if (odd)
            put_rows(words, 0);
    }

    __device__ __forceinline__ void step_of_4(const uint32_t *reg) {
        uint4 words[TRF_WRITE_ROWS];
#pragma unroll
        for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
            const uint32_t first = reg[trf_row_register(r, 0)], second = reg[trf_row_register(r, 1)];
            words[r] =
                make_uint4(trf_bits_of_f32(kCodec, first, 0, scale[r]), trf_bits_of_f32(kCodec, first, 1, scale[r]),
                           trf_bits_of_f32(kCodec, second, 0, scale[r]), trf_bits_of_f32(kCodec, second, 1, scale[r]));
        }
        put_rows(words, odd ? 16 : 0);
    }

    __device__ __forceinline__ void step(const uint32_t (*reg)[8], const trf_walk &, uint32_t) {
        if (kBytes == 1)
            step_of_1(reg[0]);
        else if (kBytes == 2)
            step_of_2(reg[0]);
        else
            step_of_4(reg[0]);
        if (odd) {
            to += TRF_STEP_PAIR_COLS * kBytes;
            col += TRF_STEP_PAIR_COLS;
            if (gathers() && (gathered += TRF_STEP_PAIR_COLS * kBytes) == TRF_GATHER_ROW_BYTES)
                flush();
        }
        odd = !odd;
    }

    /* Overwrites a slab whose verdict is bad with NaNs, or with codes 0. */
    __device__ __forceinline__ void end_slab(const trf_walk &walk, bool good) {
        if (gathers() && gathered) /* the last slab of a band may be narrow */
            flush();
        if (good)
            return;
        __syncwarp(); /* all lanes have stored */
        const uint32_t bits = trf_decoded_corrupt_bits(&view, call.as), width = 64 * trf_slab_chunks(view, walk.panel);
#pragma unroll 1
        for (uint32_t r = 0; r < TRF_SLAB_ROWS; r++)
#pragma unroll 1
            for (uint32_t c = lane; c < width; c += TRF_LANES)
                trf_store_decoded_bits(
                    weights, kBytes,
                    ((uint64_t)walk.unit * TRF_SLAB_ROWS + r) * view.cols + walk.panel * view.slab_cols + c, bits);
    }
};

/* ---- the kernel ---- */

/* A warp's slabs: share number `share` out of `shares` equal shares of slabs first to first + num_slabs - 1. Slabs are
 * counted as in a call: band by band, with regular_panels in each band. */
struct trf_slab_share {
    uint32_t first, num_slabs;
    uint64_t share, shares;
};

/* Walks a warp's slabs, with the table and buffers of a part of the block that has them in common. All warps of the
 * block call it, and it has a barrier of the block. warp: counted in the part. part_memory: where its shared memory
 * begins; constants: two, which it shares. build_constants() builds the tables of all parts. make_sink(lane, behind)
 * makes the walk's sink; behind: shared address of what the warp has after its buffers. */
template <class Codec, int kP, int kLog, class BuildConstants, class MakeSink>
static __device__ __forceinline__ void
trf_walk_part_share(const trf_device_view &view, const trf_write_call &call, const trf_slab_share &own, uint32_t warp,
                    const uint8_t *part_memory, uint2 *constants, const BuildConstants &build_constants,
                    const MakeSink &make_sink) {
    const uint32_t shared = trf_shared_address(part_memory), lane = threadIdx.x % TRF_LANES;
    const uint32_t begin = own.first + (uint32_t)(own.num_slabs * own.share / own.shares),
                   end = own.first + (uint32_t)(own.num_slabs * (own.share + 1) / own.shares);
    const trf_walk walk = {begin / call.regular_panels, begin % call.regular_panels, call.regular_panels, end - begin};
    const trf_int_planes planes = trf_int_planes_of(view.raw_bits);
    const uint32_t memory = shared + call.smem.first_warp + warp * call.smem.warp_bytes;
    const trf_all_panels_order unit_order = {call.regular_panels};

    trf_prefetcher<1> prefetcher;
    trf_start_walk<Codec>(prefetcher, view, call.smem, planes, walk, unit_order, memory, lane);
    build_constants();
    __syncthreads();

    auto sink = make_sink(lane, memory + call.smem.slab_bytes);
    trf_walk_slabs<Codec>(
        view, call.smem, planes, prefetcher,
        trf_rans_params_of<kP, kLog>(view, part_memory, call.smem.table_log, trf_shared_address(constants), lane),
        shared + call.smem.lane_pair_masks, unit_order, 0xFFFFFFFF, lane, sink);
    trf_cp_async_wait<0>();
}

/* Does so where the whole block has one table. */
template <class Codec, int kP, int kLog, class MakeSink>
static __device__ __forceinline__ void trf_walk_share(const trf_device_view &view, const trf_write_call &call,
                                                      const trf_slab_share &own, const uint8_t *shared_memory,
                                                      uint2 *constants, const MakeSink &make_sink) {
    const trf_table_slots<kP> table_source(view);
    trf_walk_part_share<Codec, kP, kLog>(
        view, call, own, threadIdx.x / TRF_LANES, shared_memory, constants,
        [&]() {
            trf_build_constants<Codec, kP, kLog>(view, table_source, trf_shared_address(shared_memory), call.smem,
                                                 constants);
        },
        make_sink);
}

/* Decodes and writes a warp's slabs. It is called in the same way. */
template <class Codec, int kBytes, int kP>
static __device__ __forceinline__ void trf_write_slabs(const trf_device_view &view, const trf_write_call &call,
                                                       void *weights, const trf_slab_share &own,
                                                       const uint8_t *shared_memory, uint2 *constants) {
    constexpr bool kMayGather = kP && trf_may_gather(Codec::kCodec, kBytes);
    constexpr int kLog = kP ? trf_write_table_log(Codec::kCodec, kBytes) : 0;
    trf_walk_share<Codec, kP, kLog>(view, call, own, shared_memory, constants, [&](uint32_t lane, uint32_t gather) {
        return trf_write_sink<Codec, kBytes, kMayGather>(view, call, weights, lane, gather);
    });
}

template <class Codec, int kBytes, int kP>
__global__ void __launch_bounds__(TRF_MAX_WRITE_WARPS *TRF_LANES, 1)
    trf_decode_slabs(const __grid_constant__ trf_write_args a) {
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint2 constants[2];
    const uint32_t warps = blockDim.x / TRF_LANES, warp = threadIdx.x / TRF_LANES;
    const trf_slab_share own = {0, a.call.num_slabs, (uint64_t)blockIdx.x * warps + warp, (uint64_t)gridDim.x * warps};
    trf_write_slabs<Codec, kBytes, kP>(a.view, a.call, a.weights, own, shared_memory, constants);
}

typedef void (*trf_write_kernel)(trf_write_args);

/* default_p: whether trf_has_default_p. */
template <class Codec, int kBytes> static trf_write_kernel trf_write_kernel_of(bool default_p) {
    return default_p ? trf_decode_slabs<Codec, kBytes, kDefaultP<Codec>> : trf_decode_slabs<Codec, kBytes, 0>;
}

/* The kernel of a codec that writes `bytes` bytes a weight; there is one function for each .cu of the family. */
trf_write_kernel trf_write_kernel_bf16(uint32_t class_bits, uint32_t bytes, bool default_p); /* 2 or 4 bytes */
trf_write_kernel trf_write_kernel_fp16(uint32_t class_bits, bool default_p);                 /* 2 */
trf_write_kernel trf_write_kernel_fp8(uint32_t codec, uint32_t class_bits, uint32_t bytes, bool default_p); /* 1 or 2 */
trf_write_kernel trf_write_kernel_scaled_fp8(uint32_t class_bits, bool default_p);                          /* 2 */
trf_write_kernel trf_write_kernel_int(uint32_t class_bits, uint32_t bytes, bool default_p); /* 1, 2 or 4 */

#endif
