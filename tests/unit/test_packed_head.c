/* SPDX-License-Identifier: Apache-2.0 */
/* What heads of packed layers are made of: the window, the rows that choose it, sizes, how many stored tiles pay, and
 * views. unit.packed_validate has what is refused. */
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_packed_head.h"

#include <check.h>
#include <string.h>

/* ---- windows ---- */

START_TEST(windows_have_most_weights) {
    uint64_t exponents[256] = {0};
    ck_assert_uint_eq(trf_choose_packed_window(exponents, 0).base, 1);
    ck_assert_uint_eq(trf_choose_packed_window(exponents, 1).base, 0);
    exponents[0] = exponents[255] = 1000; /* zeros, denormals, Inf and NaN have no place in it */
    exponents[254] = 3;
    ck_assert_uint_eq(trf_choose_packed_window(exponents, 0).base, TRF_PACKED_MAX_BASE);
    exponents[100] = 2, exponents[115] = 2;
    ck_assert_uint_eq(trf_choose_packed_window(exponents, 0).base, 100);
    ck_assert_uint_eq(trf_choose_packed_window(exponents, 1).base, TRF_PACKED_MAX_BASE); /* 15 cover one alone */
    exponents[110] = 2;
    ck_assert_uint_eq(trf_choose_packed_window(exponents, 1).base, 95); /* 110 at most: 96 to 110, the lowest */
    ck_assert_uint_eq(trf_packed_is_zeroing(0, 5), 0);
    ck_assert_uint_eq(trf_packed_is_zeroing(1, 5), 1);
    ck_assert_uint_eq(trf_packed_is_zeroing(1, TRF_PACKED_WEIGHTS_A_ZERO), 0);
}
END_TEST

/* The definition: the lowest of the windows that have most of the exponents 1 to 254. */
static uint32_t define_base(const uint64_t exponents[256], uint32_t zeroing) {
    const uint32_t first = zeroing ? 0 : 1;
    uint32_t best = first;
    uint64_t most = 0;
    for (uint32_t base = first; base + 15 <= 254; base++) {
        uint64_t covered = 0;
        for (uint32_t exponent = 1; exponent <= 254; exponent++)
            covered += exponent >= base + zeroing && exponent <= base + 15 ? exponents[exponent] : 0;
        if (covered > most)
            best = base, most = covered;
    }
    return best;
}

START_TEST(windows_are_those_of_the_definition) {
    test_rng rng = {41};
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t exponents[256];
        const uint32_t kinds = 2 + i % 40; /* of counts, few of which let windows have as many weights */
        for (uint32_t exponent = 0; exponent < 256; exponent++)
            exponents[exponent] = test_below(&rng, kinds) * (i % 3 ? test_below(&rng, 2) : (uint64_t)1 << i % 50);
        for (uint32_t zeroing = 0; zeroing < 2; zeroing++) {
            const trf_packed_window is = trf_choose_packed_window(exponents, zeroing);
            EXPECT(is.base == define_base(exponents, zeroing) && is.zeroing == zeroing);
        }
    }
    const uint64_t none[256] = {0};
    ck_assert_uint_eq(trf_choose_packed_window(none, 2).zeroing, 1); /* any number but 0 */
}
END_TEST

START_TEST(windows_in_heads) {
    for (uint32_t base = 0; base <= TRF_PACKED_MAX_BASE; base++)
        for (uint32_t zeroing = 0; zeroing < 2; zeroing++) {
            trf_packed_head head = {.codec = 9, .base = 99, .flags = 99};
            trf_packed_head_set_window(&head, (trf_packed_window){base, zeroing});
            EXPECT(head.codec == TRF_CODEC_BF16 && head.base == base && head.flags == zeroing);
        }
}
END_TEST

/* 1 to 239, and 0 where the index 0 stands for zeros. */
START_TEST(windows_that_heads_may_have) {
    for (uint32_t base = 0; base < 256; base++)
        for (uint32_t zeroing = 0; zeroing < 2; zeroing++) {
            trf_packed_head head = {0};
            trf_error err = {.offset = 0};
            EXPECT(trf_size_packed(70, 90, 0, 1, &head, NULL) == TRF_OK);
            trf_packed_head_set_window(&head, (trf_packed_window){base, zeroing});
            trf_packed_head_seal(&head);
            const trf_status status = trf_check_packed_head(&head, head.common.buffer_bytes, &err);
            EXPECT(status == (base >= 1 - zeroing && base <= 239 ? TRF_OK : TRF_ERR_HEADER));
            EXPECT(status == TRF_OK || err.offset == offsetof(trf_packed_head, base));
        }
}
END_TEST

/* All rows of up to 128, and else 128 that lie evenly. */
START_TEST(rows_that_choose_a_window) {
    for (uint32_t rows = 1; rows < 1000; rows++) {
        const trf_packed_window_rows chosen = trf_packed_window_rows_of(rows);
        ck_assert_uint_eq(chosen.count, rows < 128 ? rows : 128);
        ck_assert_uint_eq(chosen.step, rows < 128 ? 1 : rows / 128);
    }
    ck_assert_uint_eq(trf_packed_window_rows_of(TRF_PACKED_MAX_SIDE).step, (1u << 24) - 1);
}
END_TEST

/* ---- sizes ---- */

START_TEST(sizes_never_overflow) {
    static const uint64_t kMost = 1ull << 32;
    trf_packed_head head;
    ck_assert_int_eq(trf_size_packed(kMost, kMost, 1, 0, &head, NULL), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_size_packed(1ull << 31, 1, 0, 0, &head, NULL), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_size_packed(1, UINT64_MAX, 0, 0, &head, NULL), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_size_packed(0, 1, 0, 0, &head, NULL), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_size_packed(64, 64, 0, 3, &head, NULL), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_size_packed(kMost / 2 - 1, kMost / 2 - 1, 1, kMost, &head, NULL), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_size_packed(kMost / 2 - 1, kMost / 2 - 1, 1, kMost - 1, &head, NULL), TRF_OK);
    ck_assert_uint_eq(head.padded_rows, 1u << 31);
    ck_assert_uint_eq(head.num_tiles, 1ull << 51);
    ck_assert_uint_eq(head.num_lines, 1ull << 46);
    ck_assert_uint_eq(head.lines_offset, 256 + (1ull << 31));
    ck_assert_uint_eq(head.tiles_offset, head.lines_offset + (1ull << 53));
    ck_assert_uint_eq(head.stored_offset, head.tiles_offset + (3072ull << 51));
    ck_assert_uint_eq(head.common.buffer_bytes, head.stored_offset + ((1ull << 32) - 1) * 4096);
    ck_assert(trf_packed_pays(&head));
}
END_TEST

/* Lines, packed tiles and stored ones take 13 bits a weight at most: 3328 bytes for each packed tile. */
START_TEST(stored_tiles_that_pay) {
    static const uint32_t sides[] = {1, 32, 64, 577, 1024, 1025, 5000, 100000, TRF_PACKED_MAX_SIDE};
    for (uint32_t i = 0; i < 81; i++) {
        trf_packed_head head;
        EXPECT(trf_size_packed(sides[i / 9], sides[i % 9], i % 2, 0, &head, NULL) == TRF_OK);
        const uint64_t most = trf_packed_most_stored(&head), rest = 128 * head.num_lines + 3072 * head.num_tiles;
        EXPECT(rest + 4096 * most <= 3328 * head.num_tiles && rest + 4096 * (most + 1) > 3328 * head.num_tiles);
        if (most >= UINT32_MAX)
            continue;
        head.num_stored = (uint32_t)most;
        EXPECT(trf_packed_pays(&head));
        head.num_stored++;
        EXPECT(!trf_packed_pays(&head));
    }
}
END_TEST

/* ---- views ---- */

START_TEST(views) {
    static const uint32_t sides[] = {1, 32, 33, 64, 65, 1024, 1025, 5000};
    for (uint32_t i = 0; i < 128; i++) {
        const uint32_t rows = sides[i / 8 % 8], cols = sides[i % 8], has_offsets = i / 64, stored = i % 2;
        trf_packed_head head = {0};
        EXPECT(trf_size_packed(rows, cols, (int)has_offsets, stored, &head, NULL) == TRF_OK);
        trf_packed_head_set_window(&head, (trf_packed_window){i + 1, i % 3 == 0});
        const uint8_t *const memory = (const uint8_t *)&head;
        const trf_packed_view view = trf_packed_view_of(&head, memory);
        EXPECT((const uint8_t *)view.row_offsets == (has_offsets ? memory + 256 : NULL));
        EXPECT((const uint8_t *)view.lines == memory + head.lines_offset);
        EXPECT(view.tiles == memory + head.tiles_offset && view.stored == memory + head.stored_offset);
        EXPECT(view.rows == rows && view.cols == cols && view.num_stored == stored);
        EXPECT(view.bands == (rows + 63) / 64 && view.tiles_per_band == (cols + 31) / 32);
        EXPECT(view.lines_per_band == (cols + 1023) / 1024);
        EXPECT(view.base == (int32_t)i + 1 && view.zeroing == (i % 3 == 0));
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed_head");
    TCase *tests = tcase_create("packed_head");
    tcase_add_test(tests, windows_have_most_weights);
    tcase_add_test(tests, windows_are_those_of_the_definition);
    tcase_add_test(tests, windows_in_heads);
    tcase_add_test(tests, windows_that_heads_may_have);
    tcase_add_test(tests, rows_that_choose_a_window);
    tcase_add_test(tests, sizes_never_overflow);
    tcase_add_test(tests, stored_tiles_that_pay);
    tcase_add_test(tests, views);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
