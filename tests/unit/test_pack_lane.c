/* SPDX-License-Identifier: Apache-2.0 */
/* What a lane does when a device packs (trf_pack_lane.h), compared with the same done weight by weight: registers in
 * every scale and window, octets of rows, the order of records, the choice of stored tiles. What it does when single
 * rows are looked up (trf_unpack_row_lane.h), compared with whole packed slabs. */
#include "common/expect.h"
#include "common/packed_weight_kinds.h"
#include "common/run_suite.h"
#include "trf_unpack_row_lane.h"

#include <check.h>

/* ---- two weights in a register ---- */

/* Expects that trf_scale_formed scales what 16 weights of any bits form as trf_scale_halves does. */
static void check_formed(uint32_t bits, trf_halves_rescale scale) {
    for (uint32_t zeroing = 0; zeroing < 2; zeroing++) {
        const trf_words4 raw = {{bits, bits * 3, bits * 5, bits * 7}};
        const trf_words2 index = {{bits * 9 & bits * 11, bits * 13}};
        uint32_t a[TRF_PACKED_LANE_REGISTERS];
        trf_packed_slab_form(a, raw, index, zeroing);
        for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
            EXPECT(!scale.takes_formed || trf_scale_formed(a[i], scale, zeroing) == trf_scale_halves(a[i], scale));
    }
}

/* loop: all possible shifts, -254 to 240. */
START_TEST(halves_are_scaled_like_single_weights) {
    test_rng rng = {1 + (uint64_t)_i};
    const int32_t shift = _i - 254;
    const trf_halves_rescale scale = trf_halves_rescale_of(shift);
    if (test_quick() && _i % 16)
        return;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const uint32_t other = (uint32_t)test_random(&rng) & 0xFFFF;
        int exact = 1;
        const uint32_t expected = trf_scale_bf16(bits, shift, &exact), beside = trf_scale_bf16(other, shift, &exact);
        EXPECT(trf_scale_halves(bits | other << 16, scale) == (expected | beside << 16));
        EXPECT(trf_scale_halves(other | bits << 16, scale) == (beside | expected << 16));
        EXPECT(trf_scale_halves(bits | bits << 16, scale) == (expected | expected << 16));
        check_formed(bits | other << 16, scale);
    }
}
END_TEST

static void check_packed_half(uint32_t before, uint32_t after, int flag, int32_t base, uint32_t zeroing,
                              int32_t offset) {
    int exact = 1;
    const uint32_t scaled = trf_scale_bf16(before, TRF_PACKED_EXPONENT - base - offset, &exact);
    EXPECT(flag == trf_packed_fits(before, base, zeroing, offset));
    EXPECT(after == (flag ? scaled : before));
    EXPECT(exact || !flag);
}

/* loop: bases 0 to 239. */
START_TEST(halves_fit_like_single_weights) {
    test_rng rng = {1000 + (uint64_t)_i};
    const int32_t base = _i;
    if (test_quick() && _i % 16)
        return;
    for (int round = 0; round < 20; round++) {
        const uint32_t zeroing = base == 0 || round % 2;
        const int32_t offset = round < 4 ? 0 : (int32_t)test_below(&rng, 256) - 128;
        const trf_row_to_window row = trf_row_to_window_of(base, zeroing, offset);
        for (uint32_t bits = 0; bits < 65536; bits += 1 + test_below(&rng, 3)) {
            const uint32_t other = (uint32_t)test_random(&rng) & 0xFFFF;
            uint32_t reg = bits | other << 16;
            const uint32_t ones = trf_pack_halves(&reg, row, zeroing);
            EXPECT((ones & ~0x00010001u) == 0);
            check_packed_half(bits, reg & 0xFFFF, ones & 1, base, zeroing, offset);
            check_packed_half(other, reg >> 16, ones >> 16, base, zeroing, offset);
        }
    }
}
END_TEST

/* ---- octets ---- */

START_TEST(octets_are_loaded_and_stored) {
    test_rng rng = {2000};
    for (int round = 0; round < 4000; round++) {
        const uint32_t rows = 1 + test_below(&rng, 3), cols = 1 + test_below(&rng, 40), first = test_below(&rng, 100);
        const uint32_t row = first + test_below(&rng, 4) - 1, col = 8 * test_below(&rng, 6);
        const size_t shift = test_below(&rng, 9), more = round % 2 ? test_below(&rng, 9) : (8 - cols % 8) % 8;
        const int there = row - first < rows;
        uint16_t weights[3 * 40], expected[8] = {0};
        for (size_t i = 0; i < rows * cols; i++)
            weights[i] = (uint16_t)test_random(&rng);
        for (uint32_t i = 0; there && i < 8 && col + i < cols; i++)
            expected[i] = weights[(row - first) * cols + col + i];
        dense_rows from = dense_rows_copy(weights, rows, cols, shift, more);
        const trf_dense_rows source = trf_dense_rows_of(from.at, from.stride, first, rows, cols, 2);
        const trf_words4 octet = trf_load_octet(&source, row, col);
        EXPECT(memcmp(&octet, expected, sizeof octet) == 0);
        dense_rows_free(&from);

        dense_rows to = dense_rows_make(rows, cols, round % 3 ? 2 : 4, shift, more);
        const trf_dense_rows target = trf_dense_rows_of(to.at, to.stride, first, rows, cols, to.weight_bytes);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t c = 0; c < 48; c += 8) /* also after the last column */
                trf_store_octet(&target, first + r, c, trf_load_octet(&source, first + r + rows, c)); /* zeros */
        trf_store_octet(&target, row, col, octet);
        for (uint32_t r = 0; r < rows; r++) {
            uint16_t row_weights[40] = {0};
            for (uint32_t i = 0; there && row - first == r && i < 8 && col + i < cols; i++)
                row_weights[col + i] = expected[i];
            EXPECT(dense_row_is(&to, r, row_weights));
        }
        EXPECT(dense_rows_gaps_untouched(&to));
        dense_rows_free(&to);
    }
}
END_TEST

/* ---- a lane of a packed slab ---- */

/* Every weight of a packed slab is where trf_packed_place_of says: in a register of the lane, in a bit of its masks and
 * in a record. */
START_TEST(lanes_have_the_weights_that_they_should) {
    for (uint32_t row = 0; row < TRF_PACKED_SLAB_ROWS; row++)
        for (uint32_t col = 0; col < TRF_PACKED_TILE_COLS; col++) {
            const trf_packed_place place = trf_packed_place_of(row, col);
            const uint32_t bit = 8 * place.step + 2 * place.reg + place.half, reg = 4 * place.step + place.reg;
            trf_words4 rows[2] = {{{0}}}, back[2];
            uint32_t a[TRF_PACKED_LANE_REGISTERS], flags = 0;
            rows[row / 8].word[col / 8] = 0x1234u << 16 * (col % 2);
            trf_packed_slab_from_rows(a, rows);
            EXPECT(a[reg] == 0x1234u << 16 * place.half && trf_packed_slab_weight(a, bit) == 0x1234);
            trf_packed_slab_to_rows(a, back);
            EXPECT(memcmp(rows, back, sizeof rows) == 0);
            for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
                flags =
                    trf_packed_slab_add_flags(flags, 0x00010001u & (i == reg ? 0xFFFF0000u >> 16 * place.half : ~0u));
            EXPECT(flags != TRF_PACKED_SLAB_ALL_FLAGS && trf_packed_slab_unflagged(flags) == 1u << bit);
            trf_packed_slab_clear(a, ~(1u << bit) & 0xFFFF);
            EXPECT(a[reg] == 0x1234u << 16 * place.half);
            trf_packed_slab_clear(a, 1u << bit);
            EXPECT(a[reg] == 0);
            const uint32_t own = trf_packed_record(5, 3, 0, place.lane, 0, 0, 0);
            const trf_halves_rescale other = trf_halves_rescale_of(100), none = trf_halves_rescale_of(0);
            const trf_halves_rescale scale[2] = {row < 8 ? none : other, row < 8 ? other : none};
            const uint32_t record = trf_packed_record(5, 3, place.step, place.lane, place.reg, place.half, 0x4321);
            EXPECT(trf_packed_slab_record(own, bit, 0x4321) == record);
            trf_packed_slab_patch(a, own, record, scale);
            EXPECT(trf_packed_slab_weight(a, bit) == 0x4321);
            trf_packed_slab_patch(a, trf_packed_record(5, 2, 0, place.lane, 0, 0, 0), record & 0xFFFF0000u, scale);
            EXPECT(trf_packed_slab_weight(a, bit) == 0x4321);
            /* the lane's row and column: the first ones that it has */
            const uint32_t lane_row = 100 + place.lane / 4, lane_col = 200 + 2 * (place.lane % 4);
            EXPECT(trf_packed_slab_there(lane_row, lane_col, 100 + row + 1, 200 + col + 1) >> bit & 1);
            EXPECT(!(trf_packed_slab_there(lane_row, lane_col, 100 + row, 400) >> bit & 1));
            EXPECT(!(trf_packed_slab_there(lane_row, lane_col, 400, 200 + col) >> bit & 1));
        }
}
END_TEST

START_TEST(slabs_form_what_they_unformed) {
    test_rng rng = {3000 + (uint64_t)_i};
    for (int round = 0; round < 2000; round++) {
        uint32_t a[TRF_PACKED_LANE_REGISTERS], b[TRF_PACKED_LANE_REGISTERS];
        for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
            a[i] = ((uint32_t)test_random(&rng) & 0x87FF87FFu) | 0x38003800u | (_i ? 0x00800080u : 0);
        trf_words4 raw;
        trf_words2 index;
        trf_packed_slab_unform(a, &raw, &index);
        trf_packed_slab_form(b, raw, index, (uint32_t)_i);
        EXPECT(memcmp(a, b, sizeof a) == 0);
    }
}
END_TEST

/* ---- a lane of a single row ---- */

START_TEST(rows_are_formed_as_slabs_are) {
    test_rng rng = {3500 + (uint64_t)_i};
    const uint32_t zeroing = (uint32_t)_i;
    for (int round = 0; round < 2000; round++) {
        trf_words4 raw, slab_rows[2];
        trf_words2 index;
        uint32_t a[TRF_PACKED_LANE_REGISTERS], words[TRF_OCTETS];
        for (uint32_t w = 0; w < 4; w++)
            raw.word[w] = (uint32_t)test_random(&rng);
        index.word[0] = (uint32_t)test_random(&rng);
        index.word[1] = (uint32_t)test_random(&rng);
        trf_packed_slab_form(a, raw, index, zeroing);
        trf_packed_slab_to_rows(a, slab_rows);
        for (uint32_t odd = 0; odd < 2; odd++) {
            trf_packed_row_form(words, raw, index, odd, zeroing);
            EXPECT(memcmp(words, slab_rows[odd].word, sizeof words) == 0);
        }
    }
}
END_TEST

/* Records of any place: those of the row are put where they belong, in the lane that has them, and no others. */
START_TEST(records_are_put_in_their_row) {
    test_rng rng = {3600};
    const trf_halves_rescale none[2] = {trf_halves_rescale_of(0), trf_halves_rescale_of(0)};
    for (int round = 0; round < 200000; round++) {
        const uint32_t row = test_below(&rng, 1000), tile = test_below(&rng, TRF_PACKED_LINE_TILES);
        const trf_packed_row at = trf_packed_row_of(row);
        const uint32_t quarter = test_below(&rng, 4), lane = at.first_lane + quarter;
        const uint32_t own = trf_packed_record(tile, at.slab, 0, lane, 0, 0, 0);
        /* a bit or none differs from a record of the lane's own */
        const uint32_t flip = test_below(&rng, 4) ? 1u << (17 + test_below(&rng, 15)) : 0;
        const uint32_t record = ((own | ((uint32_t)test_random(&rng) & 0x0107FFFFu)) ^ flip);
        uint32_t a[TRF_PACKED_LANE_REGISTERS] = {0}, words[TRF_OCTETS] = {0};
        trf_words4 rows[2];
        EXPECT(at.band == row / 64 && trf_packed_row_in_tile(at.slab, at.first_lane, at.odd) == row % 64);
        trf_packed_slab_patch(a, own, record, none);
        trf_packed_slab_to_rows(a, rows);
        const uint32_t col = trf_packed_col_in_tile(trf_packed_record_step(record), trf_packed_record_lane(record),
                                                    trf_packed_record_reg(record), trf_packed_record_half(record));
        const int is_of_row = trf_packed_row_in_tile(trf_packed_record_slab(record), trf_packed_record_lane(record),
                                                     trf_packed_record_reg(record)) == row % 64;
        EXPECT(trf_packed_row_has_record(&at, record) == is_of_row);
        if (is_of_row)
            trf_packed_row_patch(words, tile, quarter, record, trf_packed_record_bits(record));
        EXPECT(memcmp(words, rows[at.odd].word, sizeof words) == 0);
        EXPECT(trf_packed_row_stored_offset(&at, lane, col / 8) ==
               trf_packed_stored_offset(at.slab, lane, col / 16) + 4 * (at.odd + col / 8 % 2 * 2));
    }
}
END_TEST

/* ---- stored tiles ---- */

START_TEST(stored_tiles_are_those_with_most_records) {
    test_rng rng = {4000};
    for (int round = 0; round < 20000; round++) {
        uint32_t before[TRF_PACKED_LINE_TILES], counts[TRF_PACKED_LINE_TILES], total = 0, left = 0, least = ~0u;
        for (uint32_t i = 0; i < TRF_PACKED_LINE_TILES; i++)
            total += before[i] = counts[i] =
                test_below(&rng, 4) ? test_below(&rng, 3) : test_below(&rng, 1 + round % 30);
        const uint32_t stored = trf_choose_stored_tiles(counts, total);
        for (uint32_t i = 0; i < TRF_PACKED_LINE_TILES; i++) {
            EXPECT(counts[i] == (stored >> i & 1 ? 0 : before[i]));
            left += counts[i];
            least = stored >> i & 1 && before[i] < least ? before[i] : least;
        }
        EXPECT(left <= TRF_PACKED_MAX_RECORDS && (stored == 0 || left + least > TRF_PACKED_MAX_RECORDS));
        for (uint32_t i = 0; stored && i < TRF_PACKED_LINE_TILES; i++) {
            const uint32_t later = i < 31 ? stored >> (i + 1) : 0;
            EXPECT(stored >> i & 1 || before[i] <= least);
            for (uint32_t j = 0; !(stored >> i & 1) && later >> j; j++) /* an equal one after it is not preferred */
                EXPECT(!(later >> j & 1) || before[i + 1 + j] != before[i]);
        }
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pack_lane");
    TCase *tcase = tcase_create("pack_lane");
    tcase_add_loop_test(tcase, halves_are_scaled_like_single_weights, 0, 495);
    tcase_add_loop_test(tcase, halves_fit_like_single_weights, 0, TRF_PACKED_MAX_BASE + 1);
    tcase_add_test(tcase, octets_are_loaded_and_stored);
    tcase_add_test(tcase, lanes_have_the_weights_that_they_should);
    tcase_add_loop_test(tcase, slabs_form_what_they_unformed, 0, 2);
    tcase_add_loop_test(tcase, rows_are_formed_as_slabs_are, 0, 2);
    tcase_add_test(tcase, records_are_put_in_their_row);
    tcase_add_test(tcase, stored_tiles_are_those_with_most_records);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
