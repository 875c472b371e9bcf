/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of packed layers against PACKED.md's words, weight by weight, in layers whose lines and tiles are any
 * bytes: which records count, which stored tiles there are, whose constants a row has. The address sanitizer sees that
 * they stay inside. unit.packed and unit.packed8 have layers that were packed. */
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_number_formats.h"
#include "trf_packed8_head.h"
#include "trf_packed8_reader.h"
#include "trf_packed_head.h"
#include "trf_packed_reader.h"

#include <check.h>
#include <stdlib.h>

enum { /* two bands of two lines, the second of which has three tiles */
    ROWS = 77,
    COLS = 1099,
    BANDS = 2,
    TILES = 35
};

/* Any bytes, and each line as `draw` makes it of them. @return memory of exactly so many bytes. */
static uint8_t *make_memory(test_rng *rng, uint64_t bytes, uint64_t lines_offset,
                            void (*draw)(test_rng *rng, uint32_t *line)) {
    uint8_t *memory = aligned_alloc(TRF_PACKED_ALIGNMENT, bytes);
    ck_assert_ptr_nonnull(memory);
    for (uint64_t at = 0; at < bytes; at++)
        memory[at] = (uint8_t)test_random(rng);
    for (uint32_t line = 0; line < 2 * BANDS; line++)
        draw(rng, (uint32_t *)(memory + lines_offset) + TRF_PACKED_LINE_WORDS * line);
    return memory;
}

/* ---- BF16 ---- */

enum {
    STORED = 9
};

/* Few tiles are stored, and some of these do not exist; the number of records may be too large. */
static void draw_line(test_rng *rng, uint32_t *line) {
    static const uint32_t counts[] = {0, 1, 28, 29, 30, UINT32_MAX};
    line[TRF_PACKED_COUNT_WORD] = counts[test_below(rng, 6)];
    line[TRF_PACKED_STORED_WORD] &= (uint32_t)test_random(rng) & (uint32_t)test_random(rng);
    line[TRF_PACKED_FIRST_STORED_WORD] = test_below(rng, 5) ? test_below(rng, STORED + 2) : UINT32_MAX;
    for (uint32_t i = 1; i < TRF_PACKED_MAX_RECORDS; i += 7) /* of the same place, and of the same tile */
        line[i] = test_below(rng, 2) ? line[i - 1] ^ 1 : line[i - 1] ^ 1u << (16 + test_below(rng, 11));
}

/* Bits of the weight in the window's scale. */
static uint32_t define_bits(const trf_packed_view *view, uint32_t row, uint32_t col) {
    const trf_packed_place p = trf_packed_place_of(row, col);
    const uint32_t *line = view->lines + 32 * (2 * p.band + p.tile / 32);
    const uint32_t tile = p.tile % 32, stored = line[30];
    if (stored >> tile & 1) {
        uint64_t number = line[31];
        for (uint32_t other = 0; other < tile; other++)
            number += stored >> other & 1;
        const uint32_t half = trf_packed_stored_half(p.slab, p.lane, p.step, p.reg, p.half);
        return number < STORED ? ((const uint16_t *)(view->stored + 4096 * number))[half] : 0;
    }
    const uint8_t *from = view->tiles + 3072 * (TILES * p.band + p.tile);
    const uint32_t *raw = (const uint32_t *)(from + trf_packed_raw_offset(p.slab, p.lane, p.step, 0));
    const uint32_t index = *(const uint32_t *)(from + trf_packed_index_offset(p.slab, p.lane, p.step));
    uint32_t a[4];
    if (view->zeroing)
        trf_form_packed_zeroing(a, raw[0], raw[1], index);
    else
        trf_form_packed(a, raw[0], raw[1], index);
    uint32_t bits = a[p.reg] >> 16 * p.half & 0xFFFF;
    const uint32_t place = trf_packed_record(tile, p.slab, p.step, p.lane, p.reg, p.half, 0) >> 16;
    for (uint32_t i = 0; i < 29 && i < line[29]; i++)
        if (line[i] >> 16 == place)
            bits = line[i] & 0xFFFF;
    return bits;
}

/* loop: rounds; every other layer is zeroing, and every third one has row offsets. */
START_TEST(weights_of_any_bytes) {
    test_rng rng = {51 + (uint64_t)_i};
    trf_packed_head head = {0};
    ck_assert_int_eq(trf_size_packed(ROWS, COLS, _i % 3 == 0, STORED, &head, NULL), TRF_OK);
    trf_packed_head_set_window(&head, (trf_packed_window){100 + (uint32_t)_i, _i % 2 == 1});
    uint8_t *memory = make_memory(&rng, head.common.buffer_bytes, head.lines_offset, draw_line);
    const trf_packed_view view = trf_packed_view_of(&head, memory);
    for (uint32_t row = 0; row < 64 * BANDS; row++)
        for (uint32_t col = test_quick() ? row % 3 : 0; col < 32 * TILES; col += test_quick() ? 3 : 1) {
            const trf_packed_place p = trf_packed_place_of(row, col);
            const uint32_t due = define_bits(&view, row, col);
            uint32_t a[4];
            trf_read_packed_step(&view, p.band, p.tile, p.slab, p.step, p.lane, a);
            EXPECT((a[p.reg] >> 16 * p.half & 0xFFFF) == due);
            EXPECT(trf_packed_is_padding(&view, p.band, p.tile, row % 64, col % 32) == (row >= ROWS || col >= COLS));
            const int32_t exponent = 100 + _i - 112 + (_i % 3 ? 0 : (int8_t)memory[256 + row]);
            int exact = 1;
            EXPECT(trf_packed_row_exponent(&view, row) == exponent);
            EXPECT(trf_read_packed_weight(&view, row, col) == trf_scale_bf16(due, exponent, &exact));
        }
    free(memory);
}
END_TEST

START_TEST(stored_tiles_of_lines) {
    test_rng rng = {58};
    for (uint32_t round = 0; round < 1000; round++) {
        uint32_t line[TRF_PACKED_LINE_WORDS] = {0};
        line[30] = (uint32_t)test_random(&rng);
        line[31] = round % 2 ? UINT32_MAX : (uint32_t)round;
        uint64_t number = line[31];
        for (uint32_t tile = 0; tile < 32; tile++) {
            const int is_stored = (int)(line[30] >> tile & 1);
            EXPECT(trf_packed_is_stored(line, tile + 32 * (round % 3)) == is_stored);
            EXPECT(trf_packed_stored_number(line, tile + 32 * (round % 3)) == number);
            number += (uint64_t)is_stored;
        }
    }
}
END_TEST

/* ---- FP8 ---- */

/* Some lines have no tile with records, some words the place 0, and some records the same one. */
static void draw_line8(test_rng *rng, uint32_t *line) {
    if (test_below(rng, 4) == 0)
        line[TRF_PACKED8_MASK_WORD] = 0;
    if (test_below(rng, 2))
        line[0] &= 0xFFFF;
    if (test_below(rng, 2))
        line[2 + test_below(rng, 20)] &= 0xFFFF;
    line[1] = test_below(rng, 2) ? line[0] ^ 1 : line[0] ^ 1u << (16 + test_below(rng, 11));
}

static uint32_t define_weight(const trf_packed8_view *view, uint32_t row, uint32_t col) {
    const trf_packed_place p = trf_packed_place_of(row, col);
    const uint32_t *line = view->packed.lines + 32 * (2 * p.band + p.tile / 32);
    const uint32_t tile = p.tile % 32, in_turns = view->flags & 4, most = in_turns ? 15 : 23;
    const uint32_t *words = (const uint32_t *)(view->packed.tiles + 2048 * (TILES * p.band + p.tile) + 512 * p.slab +
                                               16 * p.lane + 8 * p.step);
    const uint32_t pair = line[in_turns && row / 8 % 2 ? 15 + tile / 4 : 24 + tile / 4];
    uint32_t a[4];
    trf_spread_packed8(a, words[0], words[1]);
    uint32_t bits = trf_packed8_weight(trf_packed8_code_of(a[p.reg] >> 16 * p.half & 0xFFFF), pair);
    const uint32_t place = trf_packed_record(tile, p.slab, p.step, p.lane, p.reg, p.half, 0) >> 16;
    if (line[23] >> tile & 1)
        for (uint32_t i = 0; i < most && (i == 0 || line[i] >> 16 != 0); i++)
            if (line[i] >> 16 == place)
                bits = line[i] & 0xFFFF;
    return bits;
}

/* loop: flags, of which only one matters. */
START_TEST(weights_of_any_bytes8) {
    test_rng rng = {61 + (uint64_t)_i};
    trf_packed8_head head = {.flags = (uint32_t)_i};
    ck_assert_int_eq(trf_size_packed8(ROWS, COLS, &head, NULL), TRF_OK);
    uint8_t *memory = make_memory(&rng, head.common.buffer_bytes, head.lines_offset, draw_line8);
    const trf_packed8_view view = trf_packed8_view_of(&head, memory);
    for (uint32_t row = 0; row < 64 * BANDS; row++)
        for (uint32_t col = test_quick() ? row % 3 : 0; col < 32 * TILES; col += test_quick() ? 3 : 1) {
            const trf_packed_place p = trf_packed_place_of(row, col);
            uint32_t a[4];
            trf_read_packed8_step(&view, p.band, p.tile, p.slab, p.step, p.lane, a);
            EXPECT((a[p.reg] >> 16 * p.half & 0xFFFF) == define_weight(&view, row, col));
        }
    free(memory);
}
END_TEST

START_TEST(records_of_lines) {
    uint32_t line[TRF_PACKED_LINE_WORDS] = {0};
    for (uint32_t in_turns = 0; in_turns < 2; in_turns++) {
        const uint32_t flags = in_turns ? TRF_PACKED8_IN_TURNS : 0, most = in_turns ? 15 : 23;
        for (uint32_t count = 0; count < TRF_PACKED_LINE_WORDS; count++) {
            for (uint32_t i = 0; i < TRF_PACKED_LINE_WORDS; i++)
                line[i] = i < count ? i << 16 | 5 : 5; /* the first one has the place 0 */
            line[TRF_PACKED8_MASK_WORD] = 1u << count;
            EXPECT(trf_packed8_line_records(line, flags) == (count < 1 ? 1 : count < most ? count : most));
            line[TRF_PACKED8_MASK_WORD] = 0;
            EXPECT(trf_packed8_line_records(line, flags) == 0);
        }
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed_reader");
    TCase *tests = tcase_create("packed_reader");
    tcase_add_loop_test(tests, weights_of_any_bytes, 0, 6);
    tcase_add_test(tests, stored_tiles_of_lines);
    tcase_add_loop_test(tests, weights_of_any_bytes8, 0, 8);
    tcase_add_test(tests, records_of_lines);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
