/* SPDX-License-Identifier: Apache-2.0 */
/* How the kernel that looks up rows (trf_unpack_rows.cuh) reads a warp's packed tiles of a row, for each kind of packed
 * layer. A type of these has two functions, which all lanes call one after the other:
 *
 *   load(view, at, row, first_tile, lane)    starts all loads
 *   form(view, at, first_tile, lane, a)      sets the lane's words of the row, in the weights' own scale
 *
 * view: for FP8, trf_packed8_view's part. at: the row's place. first_tile: the warp's, in the band, which has it. Lanes
 * whose tile is after the band's last one load that one's words. */
#ifndef TRF_UNPACK_ROW_WEIGHTS_CUH
#define TRF_UNPACK_ROW_WEIGHTS_CUH

#include "trf_unpack_row_lane.h"
#include "trf_unpack_weights.cuh"

static constexpr uint32_t kPieceTiles = TRF_LANES / TRF_OCTETS;
static constexpr uint32_t kByIdPieces = 2; /* of a warp */
static constexpr uint32_t kByIdTiles = kByIdPieces * kPieceTiles;
static constexpr uint32_t kByIdTileMask = (1u << (kByIdTiles - 1)) * 2 - 1; /* so many bits, up to 32 */

/* ---- packed BF16 layers ---- */

/* A lane's words of a row, before they are formed, and its word of the exception line. */
struct trf_row_words {
    trf_words4 raw[kByIdPieces];
    trf_words2 index[kByIdPieces];
    uint32_t line;
    int32_t exponent; /* trf_packed_row_exponent */
};

/* Starts all loads of a warp. tile: the lane's in the first piece. Lanes whose tile is after the band's last one load
 * that one's words. */
static __device__ __forceinline__ trf_row_words trf_load_row_words(const trf_packed_view &view,
                                                                   const trf_packed_row &at, uint32_t row,
                                                                   uint32_t tile, uint32_t slab_lane,
                                                                   const uint32_t *line) {
    const uint8_t *const band = view.tiles + TRF_PACKED_TILE_BYTES * trf_packed_tile_number(&view, at.band, 0);
    uint4 raw[kByIdPieces];
    uint2 index[kByIdPieces];
#pragma unroll
    for (uint32_t p = 0; p < kByIdPieces; p++) {
        const uint8_t *const from =
            band + (uint64_t)TRF_PACKED_TILE_BYTES * min(tile + kPieceTiles * p, view.tiles_per_band - 1);
        raw[p] = __ldcs((const uint4 *)(from + trf_packed_slab_raw_at(at.slab, slab_lane)));
        index[p] = __ldcs((const uint2 *)(from + trf_packed_slab_index_at(at.slab, slab_lane)));
    }
    trf_row_words words;
    words.line = *line;
    words.exponent = trf_packed_row_exponent(&view, row);
#pragma unroll
    for (uint32_t p = 0; p < kByIdPieces; p++) {
        words.raw[p] = {{raw[p].x, raw[p].y, raw[p].z, raw[p].w}};
        words.index[p] = {{index[p].x, index[p].y}};
    }
    return words;
}

/* What a warp knows of its exception line. */
struct trf_row_line {
    uint32_t stored, first_stored, records;
};

static __device__ __forceinline__ trf_row_line trf_row_line_of(uint32_t word) {
    return {__shfl_sync(kAllLanes, word, TRF_PACKED_STORED_WORD),
            __shfl_sync(kAllLanes, word, TRF_PACKED_FIRST_STORED_WORD),
            min(__shfl_sync(kAllLanes, word, TRF_PACKED_COUNT_WORD), (uint32_t)TRF_PACKED_MAX_RECORDS)};
}

/* Loads a lane's words of a stored tile in place of what was formed; zeros if the layer does not have that stored tile.
 * tile: its number in the line. */
static __device__ __forceinline__ void trf_load_stored_row(const trf_packed_view &view, const trf_packed_row &at,
                                                           const trf_row_line &line, uint32_t tile, uint32_t slab_lane,
                                                           uint32_t words[TRF_OCTETS]) {
    const uint64_t number = (uint64_t)line.first_stored + trf_packed_count_bits(line.stored & ((1u << tile) - 1));
    for (uint32_t w = 0; w < TRF_OCTETS; w++)
        words[w] = number < view.num_stored ? *(const uint32_t *)(view.stored + TRF_PACKED_STORED_TILE_BYTES * number +
                                                                  trf_packed_row_stored_offset(&at, slab_lane, w))
                                            : 0;
}

/* Lets each lane patch its words with the row's records, in their order. tile: the lane's in the first piece, its
 * number in the line. All lanes call it. */
static __device__ __forceinline__ void trf_patch_row(const trf_packed_row &at, const trf_row_line &line,
                                                     const trf_row_words &words, uint32_t tile, uint32_t lane,
                                                     uint32_t (&a)[kByIdPieces][TRF_OCTETS]) {
    const bool is_record = lane < line.records && trf_packed_row_has_record(&at, words.line) &&
                           !(line.stored >> trf_packed_record_tile(words.line) & 1);
    for (uint32_t left = __ballot_sync(kAllLanes, is_record); left; left &= left - 1) {
        const uint32_t record = __shfl_sync(kAllLanes, words.line, __ffs((int)left) - 1);
        int exact = 1;
        const uint32_t bits = trf_scale_bf16(trf_packed_record_bits(record), words.exponent, &exact);
#pragma unroll
        for (uint32_t p = 0; p < kByIdPieces; p++)
            trf_packed_row_patch(a[p], tile + kPieceTiles * p, lane % 4, record, bits);
    }
}

/* Packed BF16 layers, all zeroing or all not. */
template <bool kZeroing> struct trf_unpack_row_bf16 {
    trf_row_words words;

    __device__ __forceinline__ void load(const trf_packed_view &view, const trf_packed_row &at, uint32_t row,
                                         uint32_t first_tile, uint32_t lane) {
        words = trf_load_row_words(view, at, row, first_tile + lane / 4, at.first_lane + lane % 4,
                                   trf_packed_line_of(&view, at.band, first_tile) + lane);
    }
    __device__ __forceinline__ void form(const trf_packed_view &view, const trf_packed_row &at, uint32_t first_tile,
                                         uint32_t lane, uint32_t (&a)[kByIdPieces][TRF_OCTETS]) const {
        const uint32_t slab_lane = at.first_lane + lane % 4,
                       line_tile = (first_tile + lane / 4) % TRF_PACKED_LINE_TILES;
        const trf_row_line line = trf_row_line_of(words.line);
        const trf_halves_rescale rescale = trf_halves_rescale_of(words.exponent);
        const bool has_stored = line.stored >> first_tile % TRF_PACKED_LINE_TILES & kByIdTileMask;
#pragma unroll
        for (uint32_t p = 0; p < kByIdPieces; p++)
            trf_packed_row_form(a[p], words.raw[p], words.index[p], at.odd, kZeroing);
        if (!has_stored && rescale.takes_formed) {
#pragma unroll
            for (uint32_t i = 0; i < kByIdPieces * TRF_OCTETS; i++)
                a[i / TRF_OCTETS][i % TRF_OCTETS] =
                    trf_scale_formed(a[i / TRF_OCTETS][i % TRF_OCTETS], rescale, kZeroing);
        } else {
#pragma unroll
            for (uint32_t p = 0; p < kByIdPieces; p++) {
                if (line.stored >> (line_tile + kPieceTiles * p) & 1)
                    trf_load_stored_row(view, at, line, line_tile + kPieceTiles * p, slab_lane, a[p]);
                for (uint32_t w = 0; w < TRF_OCTETS; w++)
                    a[p][w] = trf_scale_halves(a[p][w], rescale);
            }
        }
        trf_patch_row(at, line, words, line_tile, lane, a);
    }
};

/* ---- packed FP8 layers ---- */

/* kInTurns: TRF_PACKED8_IN_TURNS. Else it goes by the line alone, not by the layer's flags, as trf_unpack8 does. */
template <bool kInTurns> struct trf_unpack_row_fp8 {
    trf_words4 codes[kByIdPieces]; /* w0 and w1 of step 0, and of step 1 */
    uint32_t line;                 /* lane l has word l */

    __device__ __forceinline__ void load(const trf_packed_view &view, const trf_packed_row &at, uint32_t,
                                         uint32_t first_tile, uint32_t lane) {
        const uint8_t *const band = view.tiles + TRF_PACKED8_TILE_BYTES * trf_packed_tile_number(&view, at.band, 0) +
                                    trf_packed8_codes_offset(at.slab, at.first_lane + lane % 4, 0);
        uint4 loaded[kByIdPieces];
#pragma unroll
        for (uint32_t p = 0; p < kByIdPieces; p++)
            loaded[p] = __ldcs(
                (const uint4 *)(band + (uint64_t)TRF_PACKED8_TILE_BYTES *
                                           min(first_tile + lane / 4 + kPieceTiles * p, view.tiles_per_band - 1)));
        line = trf_packed_line_of(&view, at.band, first_tile)[lane];
#pragma unroll
        for (uint32_t p = 0; p < kByIdPieces; p++)
            codes[p] = {{loaded[p].x, loaded[p].y, loaded[p].z, loaded[p].w}};
    }
    __device__ __forceinline__ void form(const trf_packed_view &, const trf_packed_row &at, uint32_t first_tile,
                                         uint32_t lane, uint32_t (&a)[kByIdPieces][TRF_OCTETS]) const {
        const uint32_t tile = first_tile % TRF_PACKED_LINE_TILES + lane / 4, /* of the line, in the first piece */
            mask = __shfl_sync(kAllLanes, line, TRF_PACKED8_MASK_WORD);
#pragma unroll
        for (uint32_t p = 0; p < kByIdPieces; p++) {
            const uint32_t of_piece = tile + kPieceTiles * p,
                           pair = __shfl_sync(kAllLanes, line,
                                              kInTurns && at.odd ? trf_packed8_second_pair_word(of_piece)
                                                                 : trf_packed8_pair_word(of_piece));
            trf_packed8_row_form(a[p], codes[p], at.odd, trf_packed8_high(pair), trf_packed8_low(pair));
        }
        if (mask == 0)
            return;
        const bool is_of_row =
            (trf_packed8_records_of(line, mask, lane, trf_packed8_max_records(kInTurns ? TRF_PACKED8_IN_TURNS : 0)) >>
                 lane &
             1) &&
            trf_packed_row_has_record(&at, line);
        for (uint32_t left = __ballot_sync(kAllLanes, is_of_row); left; left &= left - 1) {
            const uint32_t record = __shfl_sync(kAllLanes, line, __ffs((int)left) - 1);
#pragma unroll
            for (uint32_t p = 0; p < kByIdPieces; p++)
                trf_packed_row_patch(a[p], tile + kPieceTiles * p, lane % 4, record, trf_packed_record_bits(record));
        }
    }
};

#endif
