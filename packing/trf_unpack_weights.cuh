/* SPDX-License-Identifier: Apache-2.0 */
/* How the kernel that unpacks lines (trf_unpack_line.cuh) reads packed slabs, for each kind of packed layer. A type of
 * these has what a warp needs to know of the line, and is made for the neighbouring packed tiles of a warp:
 *
 *   kTileBytes, kSlabBytes
 *   words                   what a lane loads of a packed slab, by load(); from: the packed slab's first byte
 *   begin_slab(view, row)   comes before unpack_slab of a slab whose even registers have this row
 *   unpack_slab(...)        sets the registers of a lane's part of a packed slab: the weights in their own scale
 *
 * view: for FP8, trf_packed8_view's part. tile: its number in the band. All lanes call each function. */
#ifndef TRF_UNPACK_WEIGHTS_CUH
#define TRF_UNPACK_WEIGHTS_CUH

#include "trf_pack_lane.h"
#include "trf_packed8_reader.h"
#include "trf_warp.cuh"

/* ---- packed BF16 layers ---- */

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

/* Packed BF16 layers, all zeroing or all not. */
template <bool kZeroing> struct trf_unpack_bf16 {
    static constexpr uint32_t kTileBytes = TRF_PACKED_TILE_BYTES, kSlabBytes = TRF_PACKED_SLAB_BYTES;
    typedef trf_unpack_words words;
    trf_line_to_unpack line;
    trf_halves_rescale rescale[2];

    __device__ __forceinline__ trf_unpack_bf16(const trf_packed_view &view, uint32_t band, uint32_t tile, uint32_t lane)
        : line(trf_find_line_to_unpack(view, band, tile, lane)) {}

    static __device__ __forceinline__ words load(const uint8_t *from, uint32_t lane) {
        return trf_load_unpack_words(from, lane);
    }
    __device__ __forceinline__ void begin_slab(const trf_packed_view &view, uint32_t row) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            rescale[i] = trf_halves_rescale_of(trf_packed_row_exponent(&view, row + 8 * i));
    }
    __device__ __forceinline__ void unpack_slab(const trf_packed_view &view, const words &of_slab, uint32_t tile,
                                                uint32_t slab, uint32_t lane,
                                                uint32_t a[TRF_PACKED_LANE_REGISTERS]) const {
        const uint32_t lane_record = trf_packed_record(tile, slab, 0, lane, 0, 0, 0);
        const bool is_stored = line.stored >> tile % TRF_PACKED_LINE_TILES & 1;
        const bool match = lane < line.records && (line.word ^ lane_record) >> 25 == 0;
        const uint32_t matches = __ballot_sync(kAllLanes, match);
        trf_read_packed_slab<kZeroing>(view, line, of_slab, tile, slab, lane, is_stored, rescale, a);
        trf_warp_patch(a, line, matches, lane_record, !is_stored, rescale);
    }
};

/* ---- packed FP8 layers ---- */

/* The mask of those of a line's records that tiles have, bit i for word i, in all lanes. word: lane l has word l of the
 * line. mask: the line's, in all lanes. max_records: of a line. */
static __device__ __forceinline__ uint32_t trf_packed8_records_of(uint32_t word, uint32_t mask, uint32_t lane,
                                                                  uint32_t max_records) {
    const uint32_t like_records = __ballot_sync(kAllLanes, trf_packed8_is_record(word, lane, max_records)),
                   end = (like_records + 1) & ~like_records; /* the bit of the first word that is no record */
    const bool is_of_tile = trf_packed8_has_records(mask, trf_packed_record_tile(word));
    return __ballot_sync(kAllLanes, is_of_tile) & (end - 1);
}

/* kInTurns: TRF_PACKED8_IN_TURNS. Else it goes by the line alone, not by the layer's flags, as trf_unpack8 does. */
template <bool kInTurns> struct trf_unpack_fp8 {
    static constexpr uint32_t kTileBytes = TRF_PACKED8_TILE_BYTES, kSlabBytes = TRF_PACKED8_SLAB_BYTES;
    typedef trf_words4 words; /* w0 and w1 of step 0, and of step 1 */
    uint32_t line_word;       /* lane l has word l */
    uint32_t records;         /* mask of the words that are records of packed tiles that have some */
    uint32_t high[2], low[2]; /* of even and of odd registers */

    /* tile: the warp's first one, which is even; the next one has the same constants. */
    __device__ __forceinline__ trf_unpack_fp8(const trf_packed_view &view, uint32_t band, uint32_t tile, uint32_t lane)
        : line_word(trf_packed_line_of(&view, band, tile)[lane]) {
        const uint32_t pair = __shfl_sync(kAllLanes, line_word, trf_packed8_pair_word(tile));
        records = trf_packed8_records_of(line_word, __shfl_sync(kAllLanes, line_word, TRF_PACKED8_MASK_WORD), lane,
                                         trf_packed8_max_records(kInTurns ? TRF_PACKED8_IN_TURNS : 0));
        high[0] = high[1] = trf_packed8_high(pair);
        low[0] = low[1] = trf_packed8_low(pair);
        if constexpr (kInTurns) {
            const uint32_t second = __shfl_sync(kAllLanes, line_word, trf_packed8_second_pair_word(tile));
            high[1] = trf_packed8_high(second);
            low[1] = trf_packed8_low(second);
        }
    }

    static __device__ __forceinline__ words load(const uint8_t *from, uint32_t lane) {
        return *(const trf_words4 *)(from + trf_packed8_codes_offset(0, lane, 0));
    }
    __device__ __forceinline__ void begin_slab(const trf_packed_view &, uint32_t) {}
    __device__ __forceinline__ void unpack_slab(const trf_packed_view &, const words &codes, uint32_t tile,
                                                uint32_t slab, uint32_t lane,
                                                uint32_t a[TRF_PACKED_LANE_REGISTERS]) const {
        const uint32_t lane_record = trf_packed_record(tile, slab, 0, lane, 0, 0, 0);
        const bool match = (records >> lane & 1) && (line_word ^ lane_record) >> 25 == 0;
        for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++)
            trf_form_packed8_in_turns(a + 4 * step, codes.word[2 * step], codes.word[2 * step + 1], high, low);
        for (uint32_t left = __ballot_sync(kAllLanes, match); left; left &= left - 1) {
            const uint32_t record = __shfl_sync(kAllLanes, line_word, __ffs((int)left) - 1);
            trf_packed_slab_patch_bits(a, lane_record, record, trf_packed_record_bits(record));
        }
    }
};

#endif
