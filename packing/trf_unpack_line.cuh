/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacks a packed layer in device memory to dense rows. This is the body of the kernel, which also runs on the CPU in
 * emulated warps. It stays inside the view whatever that holds. trf_unpack_rows.cuh looks up single rows.
 *
 * A block takes an exception line, which is 64 rows and 1,024 columns. Each of its 16 warps takes two neighbouring
 * packed tiles, of four packed slabs each. A lane forms its 16 weights of a packed slab, takes them to their own scale,
 * and exchanges words with its quartet until it has an octet (trf_pack_lane.h) of each of two rows, which it stores.
 *
 * A lane keeps one word of the exception line, and a ballot says which records a packed slab has. Mostly there are
 * none; otherwise shuffles pass the records around, in their order.
 *
 * Shared memory: none. Registers: 55, none spilled, for two blocks a multiprocessor.
 *
 * Memory is the limit: for each weight 1.5 bytes are read and two are written. 28672x8192 take 0.22 ms on an H200 and
 * 0.29 on an H100. */
#ifndef TRF_UNPACK_LINE_CUH
#define TRF_UNPACK_LINE_CUH

#include "trf_pack_lane.h"
#include "trf_pack_launch.h"
#include "trf_warp.cuh"

static constexpr uint32_t kUnpackWarps = 16, kUnpackThreads = kUnpackWarps * TRF_LANES;
static constexpr uint32_t kUnpackTilesEach = TRF_PACKED_LINE_TILES / kUnpackWarps; /* tiles of a warp */
static_assert(kUnpackTilesEach * kUnpackWarps == TRF_PACKED_LINE_TILES, "warps share a line's tiles");

struct trf_unpack_args {
    trf_packed_view view;
    trf_dense_rows dense;           /* what is written */
    uint64_t first_line, num_lines; /* the lines of the bands that the rows are in */
};

static inline trf_dense_rows trf_dense_target(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows,
                                              const trf_unpack_target *target) {
    return trf_dense_rows_of(target->weights, target->stride, first_row, num_rows, view->cols, target->weight_bytes);
}

/* num_rows: 1 or more. */
static inline trf_unpack_args trf_unpack_args_of(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows,
                                                 const trf_unpack_target *target) {
    const uint64_t band = first_row / TRF_PACKED_TILE_ROWS;
    const uint64_t end = (first_row + num_rows - 1) / TRF_PACKED_TILE_ROWS + 1;
    return {*view, trf_dense_target(view, first_row, num_rows, target), band * view->lines_per_band,
            (end - band) * view->lines_per_band};
}

/* An exception line as a warp that unpacks holds it, one word in each lane. */
struct trf_line_to_unpack {
    uint32_t word, records, stored;
    uint64_t first_stored;
};

static __device__ __forceinline__ trf_line_to_unpack trf_find_line_to_unpack(const trf_packed_view &view, uint32_t band,
                                                                             uint32_t tile, uint32_t lane) {
    trf_line_to_unpack line;
    line.word = trf_packed_line_of(&view, band, tile)[lane];
    line.records = min(__shfl_sync(kAllLanes, line.word, TRF_PACKED_COUNT_WORD), (uint32_t)TRF_PACKED_MAX_RECORDS);
    line.stored = __shfl_sync(kAllLanes, line.word, TRF_PACKED_STORED_WORD);
    line.first_stored = __shfl_sync(kAllLanes, line.word, TRF_PACKED_FIRST_STORED_WORD);
    return line;
}

/* A lane's words of a packed slab, as they are in memory. */
struct trf_unpack_words {
    trf_words4 raw;
    trf_words2 index;
};

/* from: the packed slab's first byte. */
static __device__ __forceinline__ trf_unpack_words trf_load_unpack_words(const uint8_t *from, uint32_t lane) {
    trf_unpack_words words;
    words.raw = *(const trf_words4 *)(from + trf_packed_slab_raw_at(0, lane));
    words.index = *(const trf_words2 *)(from + trf_packed_slab_index_at(0, lane));
    return words;
}

/* Loads the same part of a stored tile, to registers; zeros if the layer does not have that stored tile. tile: its
 * number in the band. */
static __device__ __forceinline__ void trf_load_stored_packed_slab(const trf_packed_view &view,
                                                                   const trf_line_to_unpack &line, uint32_t tile,
                                                                   uint32_t slab, uint32_t lane,
                                                                   uint32_t a[TRF_PACKED_LANE_REGISTERS]) {
    const uint32_t before = line.stored & ((1u << tile % TRF_PACKED_LINE_TILES) - 1);
    const uint64_t number = line.first_stored + trf_packed_count_bits(before);
    trf_words4 steps[TRF_PACKED_STEPS] = {};
    for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++) {
        if (number < view.num_stored)
            steps[step] = *(const trf_words4 *)(view.stored + TRF_PACKED_STORED_TILE_BYTES * number +
                                                trf_packed_stored_offset(slab, lane, step));
        for (uint32_t i = 0; i < 4; i++)
            a[4 * step + i] = steps[step].word[i];
    }
}

/* Lets each lane patch its registers with those records of the line for which `matches` has a bit, one after the other.
 * lane_record, rescale: as for trf_packed_slab_patch. All lanes of the warp call it, with the same matches. */
static __device__ __forceinline__ void trf_warp_patch(uint32_t a[TRF_PACKED_LANE_REGISTERS],
                                                      const trf_line_to_unpack &line, uint32_t matches,
                                                      uint32_t lane_record, bool patches,
                                                      const trf_halves_rescale rescale[2]) {
    for (uint32_t left = matches; left; left &= left - 1) {
        const uint32_t record = __shfl_sync(kAllLanes, line.word, __ffs((int)left) - 1);
        if (patches)
            trf_packed_slab_patch(a, lane_record, record, rescale);
    }
}

/* Reads a lane's part of a packed slab, in the weights' own scale, without exceptions. tile: its number in the band. */
template <bool kZeroing>
static __device__ __forceinline__ void
trf_read_packed_slab(const trf_packed_view &view, const trf_line_to_unpack &line, const trf_unpack_words &words,
                     uint32_t tile, uint32_t slab, uint32_t lane, bool is_stored, const trf_halves_rescale rescale[2],
                     uint32_t a[TRF_PACKED_LANE_REGISTERS]) {
    if (is_stored)
        trf_load_stored_packed_slab(view, line, tile, slab, lane, a);
    else
        trf_packed_slab_form(a, words.raw, words.index, kZeroing);
    const bool scales_as_formed = !is_stored && rescale[0].takes_formed && rescale[1].takes_formed;
    for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
        if (scales_as_formed)
            a[i] = trf_scale_formed(a[i], rescale[i % 2], kZeroing);
    for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
        if (!scales_as_formed)
            a[i] = trf_scale_halves(a[i], rescale[i % 2]);
}

/* ---- lines ---- */

/* Unpacks one packed slab to octets of two rows. tile: its number in the band. */
template <bool kZeroing>
static __device__ __forceinline__ void trf_unpack_slab(const trf_unpack_args &args, const trf_line_to_unpack &line,
                                                       const trf_unpack_words &words, uint32_t tile, uint32_t slab,
                                                       uint32_t lane, const trf_halves_rescale rescale[2],
                                                       trf_words4 octets[2]) {
    const uint32_t lane_record = trf_packed_record(tile, slab, 0, lane, 0, 0, 0);
    const bool is_stored = line.stored >> tile % TRF_PACKED_LINE_TILES & 1;
    const bool match = lane < line.records && (line.word ^ lane_record) >> 25 == 0;
    const uint32_t matches = __ballot_sync(kAllLanes, match);
    uint32_t a[TRF_PACKED_LANE_REGISTERS];
    trf_read_packed_slab<kZeroing>(args.view, line, words, tile, slab, lane, is_stored, rescale, a);
    trf_warp_patch(a, line, matches, lane_record, !is_stored, rescale);
    trf_packed_slab_to_rows(a, octets);
    trf_quartet_transpose(octets[0].word, lane);
    trf_quartet_transpose(octets[1].word, lane);
}

/* Unpacks a warp's tiles. For each packed slab the loads of both tiles are under way before the first one is
 * unpacked. */
template <bool kZeroing>
static __device__ __forceinline__ void trf_unpack_tiles(const trf_unpack_args &args, uint32_t band, uint32_t tile,
                                                        uint32_t lane) {
    const trf_packed_view &view = args.view;
    const uint32_t tiles = min(view.tiles_per_band - tile, kUnpackTilesEach);
    const uint32_t col = TRF_PACKED_TILE_COLS * tile + TRF_OCTET_WEIGHTS * (lane % 4);
    const bool whole = trf_dense_is_whole(&args.dense, TRF_PACKED_TILE_ROWS * band, TRF_PACKED_TILE_ROWS,
                                          TRF_PACKED_TILE_COLS * tile, TRF_PACKED_TILE_COLS * kUnpackTilesEach);
    const trf_line_to_unpack line = trf_find_line_to_unpack(view, band, tile, lane);
    const uint8_t *from = view.tiles + TRF_PACKED_TILE_BYTES * trf_packed_tile_number(&view, band, tile);
    uint32_t row = TRF_PACKED_TILE_ROWS * band + lane / 4;
    /* It is valid only if whole. */
    uint16_t *to =
        (uint16_t *)args.dense.at + (int64_t)((int64_t)row - args.dense.first_row) * (int64_t)args.dense.stride + col;
#pragma unroll 1
    for (uint32_t slab = 0; slab < TRF_PACKED_SLABS; slab++) {
        trf_unpack_words words[kUnpackTilesEach] = {};
        trf_halves_rescale rescale[2];
#pragma unroll
        for (uint32_t t = 0; t < kUnpackTilesEach; t++)
            if (t < tiles)
                words[t] = trf_load_unpack_words(from + TRF_PACKED_TILE_BYTES * t, lane);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            rescale[i] = trf_halves_rescale_of(trf_packed_row_exponent(&view, row + 8 * i));
#pragma unroll
        for (uint32_t t = 0; t < kUnpackTilesEach; t++) {
            trf_words4 octets[2];
            if (t >= tiles)
                continue;
            trf_unpack_slab<kZeroing>(args, line, words[t], tile + t, slab, lane, rescale, octets);
            if (whole) {
                *(trf_words4 *)(to + TRF_PACKED_TILE_COLS * t) = octets[0];
                *(trf_words4 *)(to + TRF_PACKED_TILE_COLS * t + 8 * args.dense.stride) = octets[1];
            } else {
                trf_store_octet(&args.dense, row, col + TRF_PACKED_TILE_COLS * t, octets[0]);
                trf_store_octet(&args.dense, row + 8, col + TRF_PACKED_TILE_COLS * t, octets[1]);
            }
        }
        row += TRF_PACKED_SLAB_ROWS;
        to += TRF_PACKED_SLAB_ROWS * args.dense.stride;
        from += TRF_PACKED_SLAB_BYTES;
    }
}

template <bool kZeroing> static __device__ __forceinline__ void trf_unpack_lines(const trf_unpack_args &args) {
    const trf_packed_view &view = args.view;
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    for (uint64_t i = blockIdx.x; i < args.num_lines; i += gridDim.x) {
        const uint64_t number = args.first_line + i;
        const uint32_t band = (uint32_t)(number / view.lines_per_band);
        const uint32_t tile =
            (uint32_t)(number % view.lines_per_band) * TRF_PACKED_LINE_TILES + kUnpackTilesEach * warp;
        if (tile < view.tiles_per_band)
            trf_unpack_tiles<kZeroing>(args, band, tile, lane);
    }
}

#endif
