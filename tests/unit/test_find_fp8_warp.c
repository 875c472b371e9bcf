/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that looks for FP8 in dense weights, in emulated blocks (tests/warp) with threads in any order: it finds
 * the scales that the reference finds on the CPU, they explain as many weights as they should, and it finds none
 * elsewhere. What is packed by them has the weights bit for bit. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/expect.h"
#include "common/fp8_matrices.h"
#include "common/packed_weight_kinds.h"
#include "common/run_suite.h"
#include "trf_block_scales.h"
#include "trf_packed8_form.h"
#include "trf_packed8_head.h"
#include "trf_unpack8.h"
#include "warp/warp_find_fp8.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

typedef struct outcome {
    trf_found_fp8 found;
    float *scales;
    uint32_t *pairs;
    uint64_t count;
} outcome;

enum {
    SIDE = TRF_FOUND_FP8_BLOCK
};

static void outcome_free(outcome *result) {
    free(result->scales);
    free(result->pairs);
}

/* Checks that the reference has the same outcome. */
static void check_reference(const trf_rows_to_pack *rows, int checks_all, const outcome *result) {
    const uint32_t down = (rows->num_rows - 1) / SIDE + 1, across = (rows->cols - 1) / SIDE + 1;
    float *scales = malloc(sizeof *scales * across);
    trf_found_fp8 found = {0};
    for (uint32_t row = 0; row < down && !found.refused; row++)
        if (trf_find_block_scales(rows, row, checks_all, scales, &found) && !result->found.refused)
            EXPECT(memcmp(scales, result->scales + (size_t)row * across, sizeof *scales * across) == 0);
    ck_assert_uint_eq(found.refused, result->found.refused);
    if (!found.refused)
        EXPECT(memcmp(&found, &result->found, sizeof found) == 0);
    free(scales);
}

/* Looks at a copy of the matrix that is exactly as large, or has gaps. */
static outcome look_as(test_rng *rng, const fp8_matrix *m, int checks_all) {
    static const size_t more[] = {0, 0, 1, 8};
    outcome result = {.count = trf_found_fp8_blocks(m->rows, m->cols)};
    dense_rows dense = dense_rows_copy(m->weights, m->rows, m->cols, test_below(rng, 3) * 4, more[test_below(rng, 4)]);
    const trf_rows_to_pack rows = {dense.at, dense.stride, 0, m->rows, m->cols};
    result.scales = malloc(result.count * sizeof *result.scales);
    result.pairs = malloc(result.count * sizeof *result.pairs);
    memset(result.scales, 0xFF, result.count * sizeof *result.scales);
    memset(result.pairs, 0xFF, result.count * sizeof *result.pairs);
    const trf_found_scales to = {result.scales, result.pairs};
    warp_find_fp8(&rows, &to, &result.found, checks_all,
                  (warp_grid){1 + test_below(rng, 5), (uint32_t)test_random(rng)});
    check_reference(&rows, checks_all, &result);
    for (uint64_t i = 0; !result.found.refused && i < result.count; i++) {
        uint32_t pair;
        EXPECT(trf_packed8_find_pair(result.scales[i], &pair) && pair == result.pairs[i]);
    }
    dense_rows_free(&dense);
    return result;
}

/* The same with all weights checked. Without that, the same is refused, for what is no FP8 is seen at once. */
static outcome look(test_rng *rng, const fp8_matrix *m) {
    outcome result = look_as(rng, m, 1), trusting = look_as(rng, m, 0);
    if (trusting.found.refused)
        ck_assert_uint_eq(result.found.refused, 1);
    outcome_free(&trusting);
    return result;
}

/* Counts the weights that are codes by no pair of their block. */
static uint64_t count_misfits(const fp8_matrix *m, const outcome *result) {
    const uint32_t across = (m->cols + SIDE - 1) / SIDE;
    uint64_t misfits = 0;
    for (uint64_t block = 0; block < result->count; block++) {
        uint8_t is_weight[1 << 16] = {0};
        const uint32_t row = (uint32_t)(block / across) * SIDE, col = block % across * SIDE;
        for (uint32_t code = 0; code < 256; code++)
            if ((code & 0x7F) != 0x7F)
                is_weight[trf_packed8_weight(code, result->pairs[block])] = 1;
        for (uint32_t r = row; r < row + SIDE && r < m->rows; r++)
            for (uint32_t c = col; c < col + SIDE && c < m->cols; c++)
                misfits += !is_weight[m->weights[(size_t)r * m->cols + c]];
    }
    return misfits;
}

static uint64_t count_zeros(const fp8_matrix *m) {
    uint64_t zeros = 0;
    for (size_t i = 0; i < (size_t)m->rows * m->cols; i++)
        zeros += (m->weights[i] & 0x7FFF) == 0;
    return zeros;
}

static void expect_found(const fp8_matrix *m, const outcome *result, uint64_t misfits) {
    ck_assert_uint_eq(result->found.refused, 0);
    ck_assert_uint_eq(result->found.misfits, misfits);
    uint32_t has_low = 0;
    for (uint64_t block = 0; block < result->count; block++)
        has_low |= result->pairs[block] >> 16 != 0;
    ck_assert_uint_eq(result->found.has_low, has_low);
    ck_assert_uint_eq(count_misfits(m, result), misfits);
    ck_assert_uint_eq(result->found.numbers, (uint64_t)m->rows * m->cols - count_zeros(m) - misfits);
}

static const uint32_t kShapes[][2] = {{32, 32},   {17, 300},  {300, 515}, {130, 260},
                                      {64, 1001}, {255, 127}, {128, 129}, {3, 40}};

/* loop: shapes. With one scale, too, each block finds some scale. */
START_TEST(every_shape) {
    test_rng rng = {100 + (uint64_t)_i};
    const uint32_t rows = kShapes[_i][0], cols = kShapes[_i][1];
    for (int g = 0; g < 2; g++) {
        fp8_matrix m = fp8_dequantized(&rng, rows, cols, g ? 128 : rows, g ? 128 : cols);
        outcome result = look(&rng, &m);
        expect_found(&m, &result, 0);
        outcome_free(&result);
        free(m.weights);
    }
}
END_TEST

/* Large scales and small ones, of all sets of mantissas, with the codes of both ends. */
START_TEST(every_set) {
    const trf_mantissa_set *sets = trf_mantissa_sets();
    test_rng rng = {5};
    fp8_matrix m = fp8_new_matrix(128, 128);
    const int step = getenv("TRF_TEST_QUICK") ? 37 : 5;
    for (uint32_t s = test_below(&rng, (uint32_t)step); s < TRF_MANTISSA_SETS; s += (uint32_t)step) {
        const uint32_t exponent = s % 3 ? 27 + s * 37 % 107 : s % 2 ? 27 : 133;
        const float scale = trf_f32_from_bits(exponent << 23 | sets[s].scale_mantissa);
        for (uint32_t i = 0; i < 128 * 128; i++) {
            const uint32_t code = test_below(&rng, 256);
            m.weights[i] = fp8_scaled((code & 0x7F) == 0x7F ? code - 1 : code, scale);
        }
        outcome result = look(&rng, &m);
        expect_found(&m, &result, 0);
        outcome_free(&result);
    }
    free(m.weights);
}
END_TEST

/* The largest codes, and all that tell the set, may be outside of the sample. */
START_TEST(what_the_sample_does_not_have) {
    test_rng rng = {6};
    for (int kind = 0; kind < 3; kind++) {
        fp8_matrix m = fp8_dequantized(&rng, 128, 128, 128, 128);
        for (uint32_t i = 0; i < 128 * 128; i++) {
            const uint32_t row = i / 128;
            if (kind == 0 && row % 8 == 0) /* zeros alone */
                m.weights[i] = 0;
            else if (kind == 1 && row % 8 == 0) /* one number, which many sets have */
                m.weights[i] = fp8_scaled(0x38, 0.001357f);
            else if (kind == 1)
                m.weights[i] = fp8_scaled(test_below(&rng, 0x7F), 0.001357f);
            else if (kind == 2) /* the sample is small: the exponent that does for it does not for the rest */
                m.weights[i] =
                    fp8_scaled(row % 8 ? 0x70 + test_below(&rng, 15) : 0x28 + test_below(&rng, 16), 0.001357f);
        }
        outcome result = look(&rng, &m);
        expect_found(&m, &result, 0);
        outcome_free(&result);
        free(m.weights);
    }
}
END_TEST

START_TEST(exceptions) {
    test_rng rng = {7};
    fp8_matrix m = fp8_dequantized(&rng, 400, 700, 128, 128);
    fp8_spoil(&rng, &m, 1000);
    outcome result = look(&rng, &m);
    ck_assert_uint_eq(result.found.refused, 0);
    expect_found(&m, &result, count_misfits(&m, &result));
    ck_assert_uint_gt(result.found.misfits, 100);
    ck_assert_uint_lt(result.found.misfits, 400);
    outcome_free(&result);
    fp8_spoil(&rng, &m, 100);
    result = look(&rng, &m);
    ck_assert_uint_eq(result.found.refused, 1);
    outcome_free(&result);
    free(m.weights);
}
END_TEST

/* loop: kinds. What is made of few numbers is made of codes; the caller decides whether that proves anything. */
START_TEST(others) {
    test_rng rng = {200 + (uint64_t)_i};
    fp8_matrix m = fp8_other_matrix(&rng, _i);
    outcome result = look(&rng, &m);
    if (_i == FP8_OTHER_ZEROS || _i == FP8_OTHER_CONSTANTS)
        expect_found(&m, &result, 0);
    else
        ck_assert_uint_eq(result.found.refused, 1);
    if (_i == FP8_OTHER_ZEROS)
        ck_assert(result.pairs[0] == 247u << 7 && result.found.numbers == 0);
    outcome_free(&result);
    free(m.weights);
}
END_TEST

/* Infinite numbers and NaNs alone are no codes, and denormal ones neither. */
START_TEST(no_normal_number) {
    static const uint16_t odd[] = {0x7F80, 0x7FC0, 0x0001, 0x807F};
    test_rng rng = {8};
    for (int i = 0; i < 4; i++) {
        fp8_matrix m = fp8_new_matrix(40, 50);
        for (uint32_t k = 0; k < 40 * 50; k++)
            m.weights[k] = odd[i];
        outcome result = look(&rng, &m);
        ck_assert_uint_eq(result.found.refused, 1);
        outcome_free(&result);
        free(m.weights);
    }
}
END_TEST

/* Tiny weights alone, whose scale would lie below the least that has constants. */
START_TEST(weights_below_every_scale) {
    test_rng rng = {9};
    fp8_matrix m = fp8_new_matrix(128, 130);
    for (uint32_t i = 0; i < 128 * 130; i++)
        m.weights[i] = (uint16_t)(i / 130 % 8 ? (1 + test_below(&rng, 9)) << 7 : 0);
    outcome result = look(&rng, &m);
    ck_assert_uint_eq(result.found.refused, 1);
    outcome_free(&result);
    free(m.weights);
}
END_TEST

/* Codes about 1, of which the sample has as many as it needs, and one code that is far larger, in a row that the sample
 * does not have: the scale reaches it all the same, at the first try. Were it a NaN, the weights would be checked. */
START_TEST(the_largest_weight_alone) {
    test_rng rng = {10};
    for (uint32_t code = 0x50; code <= 0x7F; code++) {
        fp8_matrix m = fp8_new_matrix(128, 128);
        const float scale = 0.001357f;
        for (uint32_t i = 0; i < 128 * 128; i++)
            m.weights[i] = fp8_scaled(0x30 + test_below(&rng, 32), scale);
        m.weights[128 * 77 + 5] = code == 0x7F ? 0x7FC0 : fp8_scaled(code, scale);
        outcome result = look_as(&rng, &m, 0);
        ck_assert_uint_eq(result.found.refused, 0);
        ck_assert_uint_eq(result.found.misfits, code == 0x7F);
        ck_assert_uint_eq(result.found.numbers, code == 0x7F ? 128 * 128 - 1 : 128 * 16);
        ck_assert_uint_eq(count_misfits(&m, &result), code == 0x7F);
        outcome_free(&result);
        free(m.weights);
    }
}
END_TEST

/* ---- packing by what was found ---- */

/* Packs the matrix as FP8. @return the outcome; *packed is malloc'd. */
static trf_pack8_state pack(test_rng *rng, const fp8_matrix *m, const outcome *found, trf_packed8_head *head,
                            uint8_t **packed) {
    *head = (trf_packed8_head){0};
    ck_assert_int_eq(trf_size_packed8(m->rows, m->cols, head, NULL), TRF_OK);
    *packed = aligned_alloc(TRF_PACKED_ALIGNMENT, head->common.buffer_bytes);
    const trf_packed8_view view = trf_packed8_view_of(head, *packed);
    const trf_pack8_scales scales = {.table = found->scales,
                                     .pairs = found->pairs,
                                     .granularity = TRF_GRANULARITY_SCALE_BLOCK,
                                     .scale_group_size = SIDE,
                                     .scale_cols = (m->cols - 1) / SIDE + 1};
    const trf_rows_to_pack rows = {m->weights, m->cols, 0, m->rows, m->cols};
    trf_pack8_state state = {0};
    warp_pack8_pairs(&view, &scales, &state, (warp_grid){3, (uint32_t)test_random(rng)});
    warp_pack8(&view, &scales, &rows, &state, (warp_grid){3, (uint32_t)test_random(rng)});
    return state;
}

/* loop: shapes, with all weights checked, or not. Codes of all kinds, 0x80 among them, and what is no code: NaNs,
 * infinities, denormal BF16. A block's sample need not have its largest weight. */
START_TEST(packs_the_weights) {
    static const uint16_t odd[] = {0x7FC0, 0xFF80, 0x0001, 0x8000, 0x4F4F, 0x807F};
    test_rng rng = {300 + (uint64_t)_i};
    const int shape = _i / 2, checks_all = _i % 2;
    fp8_matrix m = fp8_dequantized(&rng, kShapes[shape][0], kShapes[shape][1], 128, 128);
    const uint64_t all = (uint64_t)m.rows * m.cols, most = all / 2000;
    for (uint32_t i = 0; i < most && i < 12; i++)
        m.weights[test_random(&rng) % all] = odd[i % 6];
    outcome found = look_as(&rng, &m, 1), same = found;
    if (!checks_all) {
        found = look_as(&rng, &m, 0);
        EXPECT(memcmp(found.scales, same.scales, sizeof *found.scales * found.count) == 0);
        found.found = same.found;
        outcome_free(&same);
    }
    ck_assert_uint_eq(found.found.refused, 0);
    trf_packed8_head head;
    uint8_t *packed;
    const trf_pack8_state state = pack(&rng, &m, &found, &head, &packed);
    ck_assert(state.no_pair == 0 && state.full_line == 0);
    ck_assert_uint_eq(state.num_records, found.found.misfits);
    ck_assert_uint_eq(state.has_low, found.found.has_low);
    const trf_packed8_view view = trf_packed8_view_of(&head, packed);
    uint16_t *again = malloc(sizeof *again * all);
    trf_unpack8(&view, again, m.cols);
    EXPECT(memcmp(again, m.weights, sizeof *again * all) == 0);
    free(again);
    free(packed);
    outcome_free(&found);
    free(m.weights);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("find_fp8_warp");
    TCase *tests = tcase_create("find_fp8_warp");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, every_shape, 0, sizeof kShapes / sizeof kShapes[0]);
    tcase_add_test(tests, every_set);
    tcase_add_test(tests, what_the_sample_does_not_have);
    tcase_add_test(tests, exceptions);
    tcase_add_loop_test(tests, others, 0, FP8_OTHER_KINDS);
    tcase_add_test(tests, no_normal_number);
    tcase_add_test(tests, weights_below_every_scale);
    tcase_add_test(tests, the_largest_weight_alone);
    tcase_add_loop_test(tests, packs_the_weights, 0, 2 * (sizeof kShapes / sizeof kShapes[0]));
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
#endif
