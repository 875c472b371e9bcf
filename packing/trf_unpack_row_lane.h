/* SPDX-License-Identifier: Apache-2.0 */
/* What a lane does when a single row of a packed layer is looked up, in C and CUDA. It gives the same as
 * trf_unpack_row and trf_unpack8_row.
 *
 * The four lanes of a quartet have a row of a packed tile. Each of their registers 0 and 2 of a step, or 1 and 3, has
 * two neighbouring weights of the row; the other registers have the row that is eight rows away. So a lane forms four
 * registers instead of eight: word w of these is columns 8w + 2c and 8w + 2c + 1 of the tile for lane c of the quartet,
 * that is, word c of the row's octet w (trf_pack_lane.h). */
#ifndef TRF_UNPACK_ROW_LANE_H
#define TRF_UNPACK_ROW_LANE_H

#include "trf_pack_lane.h"
#include "trf_packed8_form.h"

/* Where a row is in the packed tiles of its band. */
typedef struct trf_packed_row {
    uint32_t band, slab;
    uint32_t first_lane; /* of the quartet */
    uint32_t odd;        /* 0: registers 0 and 2 of a step are the row's; 1: registers 1 and 3 */
} trf_packed_row;

TRF_HD trf_packed_row trf_packed_row_of(uint32_t row) {
    const trf_packed_place place = trf_packed_place_of(row, 0);
    const trf_packed_row at = {place.band, place.slab, place.lane, place.reg};
    return at;
}

/* Rotates to the right by 0 to 31 bits, which need not be known when this is compiled. */
TRF_HD uint32_t trf_packed_rotate_by(uint32_t word, uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __funnelshift_r(word, word, bits);
#else
    return bits ? trf_packed_rotate_right(word, bits) : word;
#endif
}

/* Forms the row's four words from a lane's raw and index words, in the window's scale and without exceptions. odd: as
 * in trf_packed_row. */
TRF_HD void trf_packed_row_form(uint32_t words[TRF_OCTETS], trf_words4 raw, trf_words2 index, uint32_t odd,
                                uint32_t zeroing) {
    const uint32_t mask = odd ? ~TRF_PACKED_SIGN_MANTISSA_MASK : TRF_PACKED_SIGN_MANTISSA_MASK;
    const uint32_t turn_bits = odd ? 8 : 0;
    for (uint32_t w = 0; w < TRF_OCTETS; w++) {
        const uint32_t step_index = index.word[w / 2];
        const uint32_t indices = w % 2 ? trf_packed_rotate_right(step_index, 4) : step_index;
        const uint32_t exponents =
            zeroing ? indices & TRF_PACKED_INDICES : trf_packed_and_or(indices, TRF_PACKED_INDICES, TRF_PACKED_112);
        words[w] = trf_packed_rotate_by(trf_packed_select(mask, raw.word[w], exponents), turn_bits);
        if (zeroing)
            words[w] = trf_packed_lift(words[w]);
    }
}

/* The same for a packed FP8 layer. codes: w0 and w1 of step 0, and of step 1. high, low: from trf_packed8_high and
 * trf_packed8_low. */
TRF_HD void trf_packed8_row_form(uint32_t words[TRF_OCTETS], trf_words4 codes, uint32_t odd, uint32_t high,
                                 uint32_t low) {
    for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++) {
        uint32_t spread[4];
        trf_spread_packed8(spread, codes.word[2 * step], codes.word[2 * step + 1]);
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t of_row = odd ? spread[2 * i + 1] : spread[2 * i];
            words[2 * step + i] = trf_packed8_fma(of_row, high, trf_packed8_mul(of_row, low));
        }
    }
}

/* Where word w of a lane lies in a stored tile, in bytes. lane: of the packed slab. */
TRF_HD uint32_t trf_packed_row_stored_offset(const trf_packed_row *row, uint32_t lane, uint32_t w) {
    return trf_packed_stored_offset(row->slab, lane, w / 2) + 4 * (row->odd + w % 2 * 2);
}

/* Whether a record is of this row, in any packed tile of its line. */
TRF_HD int trf_packed_row_has_record(const trf_packed_row *row, uint32_t record) {
    const uint32_t wanted = trf_packed_record(0, row->slab, 0, row->first_lane, row->odd, 0, 0);
    const uint32_t same = trf_packed_record(0, TRF_PACKED_SLABS - 1, 0, TRF_LANES - 4, 1, 0, 0);
    return ((record ^ wanted) & same) == 0;
}

/* Puts a record of the row over a lane's words, if it is for this packed tile and lane. tile: its number in the line.
 * quarter: which lane of the quartet. bits: the record's weight in its own scale. */
TRF_HD void trf_packed_row_patch(uint32_t words[TRF_OCTETS], uint32_t tile, uint32_t quarter, uint32_t record,
                                 uint32_t bits) {
    const uint32_t at = 2 * trf_packed_record_step(record) + trf_packed_record_reg(record) / 2;
    const uint32_t shift = 16 * trf_packed_record_half(record), keep = 0xFFFF0000u >> shift;
    const int is_for_lane = trf_packed_record_tile(record) == tile && trf_packed_record_lane(record) % 4 == quarter;
    for (uint32_t w = 0; w < TRF_OCTETS; w++) /* no word is indexed at run time */
        words[w] = is_for_lane && w == at ? (words[w] & keep) | bits << shift : words[w];
}

#endif
