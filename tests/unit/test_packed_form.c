/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights in registers: forming and its inverse for every index and raw byte, places, records, scales. */
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_number_formats.h"
#include "trf_packed_form.h"

#include <check.h>
#include <math.h>

/* ---- places ---- */

START_TEST(places_are_those_of_mma_fragments) {
    uint32_t seen[TRF_PACKED_TILE_WEIGHTS] = {0};
    for (uint32_t row = 0; row < 2 * TRF_PACKED_TILE_ROWS; row++)
        for (uint32_t col = 0; col < 2 * TRF_PACKED_TILE_COLS; col++) {
            const trf_packed_place place = trf_packed_place_of(row, col);
            /* The PTX ISA, m16n8k16, A: row group or group + 8; two columns from 2 * thread in group on, then two 8
             * further on. */
            const uint32_t group = place.lane / 4, thread = place.lane % 4;
            EXPECT(row == 64 * place.band + 16 * place.slab + group + (place.reg & 1 ? 8 : 0));
            EXPECT(col == 32 * place.tile + 16 * place.step + 2 * thread + place.half + (place.reg & 2 ? 8 : 0));
            EXPECT(trf_packed_row_in_tile(place.slab, place.lane, place.reg) == row % 64);
            EXPECT(trf_packed_col_in_tile(place.step, place.lane, place.reg, place.half) == col % 32);
            seen[trf_packed_stored_half(place.slab, place.lane, place.step, place.reg, place.half)]++;
        }
    for (uint32_t i = 0; i < TRF_PACKED_TILE_WEIGHTS; i++)
        EXPECT(seen[i] == 4);
}
END_TEST

START_TEST(words_fill_a_tile) {
    uint32_t seen[TRF_PACKED_TILE_BYTES / 4] = {0};
    for (uint32_t slab = 0; slab < TRF_PACKED_SLABS; slab++)
        for (uint32_t lane = 0; lane < TRF_LANES; lane++)
            for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++) {
                seen[trf_packed_raw_offset(slab, lane, step, 0) / 4]++;
                seen[trf_packed_raw_offset(slab, lane, step, 2) / 4]++;
                seen[trf_packed_index_offset(slab, lane, step) / 4]++;
                ck_assert_uint_eq(trf_packed_raw_offset(slab, lane, step, 1),
                                  trf_packed_raw_offset(slab, lane, step, 0));
            }
    for (uint32_t i = 0; i < TRF_PACKED_TILE_BYTES / 4; i++)
        EXPECT(seen[i] == 1);
}
END_TEST

START_TEST(records_ascend_with_their_places) {
    uint32_t last = 0;
    for (uint32_t place = 0; place < 1u << 16; place++) {
        const uint32_t tile = place >> 11, slab = place >> 9 & 3, step = place >> 8 & 1, lane = place >> 3 & 31;
        const uint32_t reg = place >> 1 & 3, half = place & 1, bits = place * 40503u & 0xFFFF;
        const uint32_t record = trf_packed_record(tile + 64, slab, step, lane, reg, half, bits);
        EXPECT(place == 0 || record > last);
        EXPECT(trf_packed_record_tile(record) == tile && trf_packed_record_slab(record) == slab);
        EXPECT(trf_packed_record_step(record) == step && trf_packed_record_lane(record) == lane);
        EXPECT(trf_packed_record_reg(record) == reg && trf_packed_record_half(record) == half);
        EXPECT(trf_packed_record_bits(record) == bits);
        EXPECT(trf_packed_record_stored_half(record) == trf_packed_stored_half(slab, lane, step, reg, half));
        uint32_t a[4] = {1, 2, 3, 4};
        const uint32_t before = a[reg];
        trf_patch_packed(a, record);
        EXPECT((a[reg] >> 16 * half & 0xFFFF) == bits);
        EXPECT(((a[reg] ^ before) & (half ? 0xFFFFu : 0xFFFF0000u)) == 0);
        for (uint32_t i = 0; i < 4; i++)
            EXPECT(i == reg || a[i] == i + 1);
        last = record;
    }
}
END_TEST

/* ---- forming ---- */

static void set_bits(uint32_t *word, uint32_t from, uint32_t width, uint32_t value) {
    for (uint32_t bit = 0; bit < width; bit++) {
        const uint32_t at = (from + bit) % 32;
        *word = (*word & ~(1u << at)) | (value >> bit & 1) << at;
    }
}

/* What an index, a sign and a mantissa stand for. In a zeroing layer, a mantissa with index 0 is a denormal times
 * 2^112. */
static uint32_t defined_half(uint32_t index, uint32_t raw, int zeroing) {
    const uint32_t sign = raw >> 7 << 15, mantissa = raw & 0x7F;
    if (!zeroing)
        return sign | (112 | index) << 7 | mantissa;
    const float value = trf_bf16_to_f32((uint16_t)(sign | index << 7 | mantissa));
    return trf_f32_to_bf16(ldexpf(value, 112));
}

/* One weight takes all indices and raw bytes; the lane's others are random. _i: register, half, variant. */
START_TEST(forms_every_index_and_raw_byte) {
    const uint32_t reg = (uint32_t)_i % 4, half = (uint32_t)_i / 4 % 2;
    const int zeroing = _i / 8;
    test_rng rng = {77 + (uint64_t)_i};
    for (uint32_t index = 0; index < 16; index++)
        for (uint32_t raw = 0; raw < 256; raw++) {
            uint32_t words[2] = {(uint32_t)test_random(&rng), (uint32_t)test_random(&rng)};
            uint32_t indices = (uint32_t)test_random(&rng), a[4], back[2], back_indices;
            set_bits(&words[reg / 2], 8 * trf_packed_mantissa_byte(reg, half), 7, raw & 0x7F);
            set_bits(&words[reg / 2], 8 * trf_packed_sign_byte(reg, half) + 7, 1, raw >> 7);
            set_bits(&indices, trf_packed_index_bit(reg, half), 4, index);
            if (zeroing)
                trf_form_packed_zeroing(a, words[0], words[1], indices);
            else
                trf_form_packed(a, words[0], words[1], indices);
            EXPECT((a[reg] >> 16 * half & 0xFFFF) == defined_half(index, raw, zeroing));
            if (zeroing && (trf_packed_rotate_right(indices, trf_packed_index_bit(reg, half)) & 15) == 0)
                continue; /* lifted denormals have no index */
            trf_unform_packed(a, back, &back_indices);
            if (!zeroing)
                EXPECT(back[0] == words[0] && back[1] == words[1] && back_indices == indices);
            else
                EXPECT((trf_packed_rotate_right(back_indices, trf_packed_index_bit(reg, half)) & 15) == index);
        }
}
END_TEST

/* Forms and unforms all registers at once, as a zeroing layer may have them. */
START_TEST(unforms_what_a_zeroing_layer_has) {
    test_rng rng = {5};
    for (int round = 0; round < test_rounds(20000); round++) {
        uint32_t a[4], again[4], raw[2], index;
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t bits = (uint32_t)test_random(&rng), exponent = bits >> 7 & 15;
            const uint32_t half = exponent ? (bits & 0x807F) | (112 | exponent) << 7 : bits & 0x8000;
            a[i / 2] = i % 2 ? a[i / 2] | half << 16 : half;
        }
        trf_unform_packed(a, raw, &index);
        trf_form_packed_zeroing(again, raw[0], raw[1], index);
        EXPECT(memcmp(a, again, sizeof a) == 0);
    }
}
END_TEST

START_TEST(lifting_is_multiplying) {
    for (uint32_t half = 0; half < 1u << 16; half++) {
        if ((half >> 7 & 0xFF) >= 143)
            continue;
        const float value = ldexpf(trf_bf16_to_f32((uint16_t)half), 112);
        EXPECT(trf_packed_lift_half(half) == trf_f32_to_bf16(value));
        EXPECT(trf_packed_lift(half | (half ^ 0x8000) << 16) ==
               (trf_packed_lift_half(half) | trf_packed_lift_half(half ^ 0x8000) << 16));
    }
}
END_TEST

/* ---- scales ---- */

/* _i: the shift, from -384 on. All shifts that a base and a row's offset can make, there and back. */
START_TEST(scales_exactly_or_says_so) {
    const int32_t shift = _i - 384;
    for (uint32_t bits = 0; bits < 1u << 16; bits++) {
        int exact = 1, back_exact = 1;
        const uint32_t scaled = trf_scale_bf16(bits, shift, &exact);
        const double value = (double)trf_bf16_to_f32((uint16_t)bits), expected = ldexp(value, shift);
        if (isnan(value) || isinf(value)) {
            EXPECT(scaled == bits && exact);
            continue;
        }
        const double is = (double)trf_bf16_to_f32((uint16_t)scaled);
        EXPECT(exact == (is == expected && !isinf(is)));
        EXPECT(scaled >> 15 == bits >> 15);
        EXPECT(!exact || (trf_scale_bf16(scaled, -shift, &back_exact) == bits && back_exact));
    }
}
END_TEST

START_TEST(fits_are_the_exponents_of_the_window) {
    for (uint32_t bits = 0; bits < 1u << 16; bits++)
        for (int32_t offset = -3; offset <= 3; offset++)
            for (uint32_t zeroing = 0; zeroing < 2; zeroing++)
                for (int32_t base = zeroing ? 0 : 1; base <= TRF_PACKED_MAX_BASE; base += 119) {
                    const int32_t exponent = bits >> 7 & 0xFF, from = base + (int32_t)zeroing;
                    int fits =
                        exponent >= 1 && exponent <= 254 && exponent - offset >= from && exponent - offset <= base + 15;
                    if ((bits & 0x7FFF) == 0)
                        fits = zeroing != 0;
                    EXPECT(trf_packed_fits(bits, base, zeroing, offset) == fits);
                }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed_form");
    TCase *tcase = tcase_create("packed_form");
    tcase_add_test(tcase, places_are_those_of_mma_fragments);
    tcase_add_test(tcase, words_fill_a_tile);
    tcase_add_test(tcase, records_ascend_with_their_places);
    tcase_add_loop_test(tcase, forms_every_index_and_raw_byte, 0, 16);
    tcase_add_test(tcase, unforms_what_a_zeroing_layer_has);
    tcase_add_test(tcase, lifting_is_multiplying);
    tcase_add_loop_test(tcase, scales_exactly_or_says_so, 0, 769);
    tcase_add_test(tcase, fits_are_the_exponents_of_the_window);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
