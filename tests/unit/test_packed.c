/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and unpacking: every bit pattern, odd shapes, zeros, offsets of rows, what is refused; sizes; the product. */
#include "common/expect.h"
#include "common/packed_layer.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "trf_number_formats.h"
#include "trf_packed_form.h"
#include "trf_packed_validate.h"
#include "trf_unpack.h"

#include <check.h>
#include <float.h>
#include <math.h>

/* ---- weights ---- */

static const uint32_t kShapes[][2] = {{1, 1}, {15, 33}, {64, 32}, {65, 1025}, {1000, 3000}, {3, 5000}, {700, 31}};
enum {
    SHAPES = sizeof kShapes / sizeof *kShapes
};

/* Fills in weights of which none is an exception, so that a test itself adds all exceptions. */
static void fill_window(test_rng *rng, packed_layer *layer, uint32_t base) {
    for (size_t i = 0; i < (size_t)layer->rows * layer->cols; i++) {
        const uint32_t random = (uint32_t)test_random(rng);
        layer->weights[i] = (uint16_t)((random & 0x807F) | (base + 1 + (random >> 16) % 15) << 7);
    }
}

static void fill_normal(test_rng *rng, packed_layer *layer) {
    test_fill_normal(rng, layer->weights, TRF_DTYPE_BF16, (size_t)layer->rows * layer->cols, 0.02);
}

/* Replaces one weight in so many. */
static void sprinkle(test_rng *rng, packed_layer *layer, uint32_t one_in, const uint16_t *bits, uint32_t count) {
    for (size_t i = 0; i < (size_t)layer->rows * layer->cols; i++)
        if (test_below(rng, one_in) == 0)
            layer->weights[i] = bits[test_below(rng, count)];
}

static void pack_and_check(packed_layer *layer, const trf_packed_window *window) {
    trf_error err;
    ck_assert_msg(packed_layer_pack(layer, window, &err) == TRF_OK, "%s", err.message);
    ck_assert(packed_layer_is_right(layer));
}

/* ---- round trips ---- */

START_TEST(normal_weights_of_any_shape) {
    test_rng rng = {1 + (uint64_t)_i};
    packed_layer layer = packed_layer_make(kShapes[_i][0], kShapes[_i][1], 0);
    fill_normal(&rng, &layer);
    pack_and_check(&layer, NULL);
    ck_assert_uint_eq(layer.head.flags, 0);
    ck_assert_uint_eq(layer.head.num_stored, 0);
    packed_layer_free(&layer);
}
END_TEST

START_TEST(outliers_and_specials) {
    static const uint16_t kBits[] = {0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x7FBF, 0x0001, 0x807F,
                                     0x0000, 0x8000, 0x4580, 0xC2F7, 0x2000, 0x9234, 0x0080};
    test_rng rng = {100 + (uint64_t)_i};
    packed_layer layer = packed_layer_make(kShapes[_i][0], kShapes[_i][1], 0);
    fill_normal(&rng, &layer);
    sprinkle(&rng, &layer, 8000, kBits, sizeof kBits / sizeof *kBits);
    layer.weights[0] = kBits[_i]; /* the first weight of a line, and the last one */
    layer.weights[(size_t)layer.rows * layer.cols - 1] = kBits[_i + 4];
    pack_and_check(&layer, NULL);
    ck_assert_uint_ge(layer.head.num_records, layer.rows * layer.cols > 1 ? 2 : 1);
    packed_layer_free(&layer);
}
END_TEST

/* _i: tenths of zeros of either sign, and below one in a hundred. */
START_TEST(zeros) {
    const double share = _i < 10 ? _i / 10.0 : 1e-2 / pow(10, _i - 9);
    for (int shape = 0; shape < SHAPES; shape++) {
        if (!test_tries(_i + shape))
            continue;
        test_rng rng = {200 + (uint64_t)(_i * SHAPES + shape)};
        packed_layer layer = packed_layer_make(kShapes[shape][0], kShapes[shape][1], 0);
        fill_normal(&rng, &layer);
        const trf_packed_window_rows chosen = trf_packed_window_rows_of(layer.rows);
        uint64_t zeros = 0; /* of the rows that choose the window */
        for (size_t i = 0; i < (size_t)layer.rows * layer.cols; i++)
            if (test_uniform(&rng) < share) {
                const size_t row = i / layer.cols;
                layer.weights[i] &= 0x8000;
                zeros += row % chosen.step == 0 && row / chosen.step < chosen.count;
            }
        pack_and_check(&layer, NULL);
        ck_assert_uint_eq(layer.head.flags & TRF_PACKED_ZEROING,
                          zeros > (uint64_t)chosen.count * layer.cols / TRF_PACKED_WEIGHTS_A_ZERO);
        packed_layer_free(&layer);
    }
}
END_TEST

START_TEST(row_offsets) {
    test_rng rng = {300 + (uint64_t)_i};
    packed_layer layer = packed_layer_make(kShapes[_i][0], kShapes[_i][1], 1);
    fill_normal(&rng, &layer);
    for (uint32_t row = 0; row < layer.rows; row++) {
        layer.row_offsets[row] = (int8_t)((int32_t)test_below(&rng, 161) - 80);
        for (uint32_t col = 0; col < layer.cols; col++) {
            uint16_t *weight = layer.weights + (size_t)row * layer.cols + col;
            int exact = 1;
            *weight = (uint16_t)trf_scale_bf16(*weight, layer.row_offsets[row], &exact);
        }
    }
    pack_and_check(&layer, NULL);
    if (layer.rows * layer.cols > 1000) /* as without their scales */
        ck_assert(layer.head.base >= 105 && layer.head.base <= 110);
    packed_layer_free(&layer);
}
END_TEST

/* In the scale of base 112 every pattern has a place. Each pattern is a record once, 20 of them in a line of one
 * tile. */
START_TEST(every_pattern_as_a_record) {
    const trf_packed_window window = {112, (uint32_t)_i};
    const uint32_t each = 20, bands = (65536 + each - 1) / each;
    test_rng rng = {400 + (uint64_t)_i};
    packed_layer layer = packed_layer_make(bands * TRF_PACKED_TILE_ROWS, TRF_PACKED_TILE_COLS, 0);
    fill_window(&rng, &layer, window.base);
    for (uint32_t pattern = 0; pattern < 65536; pattern++)
        layer.weights[pattern / each * TRF_PACKED_TILE_WEIGHTS + pattern % each * 101 + pattern % 100] =
            (uint16_t)pattern;
    pack_and_check(&layer, &window);
    ck_assert_uint_eq(layer.head.num_stored, 0);
    ck_assert_uint_eq(layer.head.num_records, 65536 - (_i ? 15 * 256 + 2 : 16 * 256));
    packed_layer_free(&layer);
}
END_TEST

/* Each pattern occurs twice in stored tiles, of which there are two in each band of 17 tiles. */
START_TEST(every_pattern_in_stored_tiles) {
    const trf_packed_window window = {112, (uint32_t)_i};
    const uint32_t tiles = 40, bands = 32;
    test_rng rng = {500 + (uint64_t)_i};
    packed_layer layer = packed_layer_make(bands * TRF_PACKED_TILE_ROWS, tiles * TRF_PACKED_TILE_COLS, 0);
    fill_window(&rng, &layer, window.base);
    uint32_t pattern = 0;
    for (uint32_t band = 0; band < bands; band++)
        for (uint32_t tile = band % 7; tile < tiles; tile += 33)
            for (uint32_t i = 0; i < TRF_PACKED_TILE_WEIGHTS; i++)
                layer.weights[(size_t)(band * 64 + i / 32) * layer.cols + tile * 32 + i % 32] =
                    (uint16_t)(pattern++ * 40503); /* odd: all of them */
    ck_assert_uint_ge(pattern, 65536);
    pack_and_check(&layer, &window);
    ck_assert_uint_eq(layer.head.num_stored, pattern / TRF_PACKED_TILE_WEIGHTS);
    packed_layer_free(&layer);
}
END_TEST

/* A weight can be packed exactly if it has a place in the window's scale. */
START_TEST(patterns_are_refused_where_they_are_inexact) {
    packed_layer layer = packed_layer_make(1, 1, 0);
    for (uint32_t pattern = 0; pattern < 65536; pattern += test_quick() ? 7 : 1)
        for (uint32_t base = 1; base <= TRF_PACKED_MAX_BASE; base += 34) {
            const trf_packed_window window = {base, pattern % 2};
            trf_error err;
            int exact = 1;
            layer.weights[0] = (uint16_t)pattern;
            (void)trf_scale_bf16(pattern, 112 - (int32_t)base, &exact);
            const trf_status status = packed_layer_pack(&layer, &window, &err);
            EXPECT(status == (exact ? TRF_OK : TRF_ERR_UNSUPPORTED));
            if (status == TRF_OK)
                EXPECT(packed_layer_is_right(&layer));
            else
                EXPECT(strstr(err.message, "row 0, column 0") != NULL);
        }
    packed_layer_free(&layer);
}
END_TEST

START_TEST(constants) {
    for (uint32_t exponent = 0; exponent < 256; exponent++) {
        packed_layer layer = packed_layer_make(100, 200, 0);
        for (size_t i = 0; i < 20000; i++)
            layer.weights[i] = (uint16_t)(exponent << 7 | (i % 3 ? 0x8000 : 0) | (exponent ? 5 : 0));
        const trf_status status = packed_layer_pack(&layer, NULL, NULL);
        ck_assert_int_eq(status, exponent < 255 ? TRF_OK : TRF_ERR_UNSUPPORTED); /* NaNs alone: all would be stored */
        if (status == TRF_OK)
            ck_assert(packed_layer_is_right(&layer) && layer.head.num_records == 0);
        packed_layer_free(&layer);
    }
}
END_TEST

/* Heavy tails: stored tiles among others, or a clean refusal. */
START_TEST(tails_are_stored_or_refused) {
    int packed = 0;
    for (int round = 0; round < test_rounds(24); round++) {
        test_rng rng = {600 + (uint64_t)round};
        packed_layer layer = packed_layer_make(200 + test_below(&rng, 200), 1 + test_below(&rng, 3000), round % 2);
        trf_error err;
        fill_normal(&rng, &layer);
        for (uint32_t burst = test_below(&rng, 12); burst > 0; burst--) {
            const size_t at = test_below(&rng, layer.rows * layer.cols);
            for (size_t i = at; i < (size_t)layer.rows * layer.cols && i < at + 20 * (size_t)layer.cols;
                 i += 1 + (i % 30 == 0 ? layer.cols - 31 : 0) % layer.cols)
                layer.weights[i] = (uint16_t)(0x4000 | test_random(&rng) % 0x500);
        }
        const trf_status status = packed_layer_pack(&layer, NULL, &err);
        if (status == TRF_OK)
            ck_assert(packed_layer_is_right(&layer));
        else
            ck_assert_msg(status == TRF_ERR_UNSUPPORTED && strstr(err.message, "bits a weight"), "%s", err.message);
        packed += status == TRF_OK && layer.head.num_stored > 0;
        packed_layer_free(&layer);
    }
    ck_assert_int_gt(packed, 0);
}
END_TEST

START_TEST(random_bits_are_refused) {
    test_rng rng = {700};
    packed_layer layer = packed_layer_make(300, 400, 0);
    for (size_t i = 0; i < 120000; i++)
        layer.weights[i] = (uint16_t)test_random(&rng);
    ck_assert_int_eq(packed_layer_pack(&layer, NULL, NULL), TRF_ERR_UNSUPPORTED);
    packed_layer_free(&layer);
}
END_TEST

START_TEST(other_weights_than_the_heads) {
    test_rng rng = {701};
    packed_layer layer = packed_layer_make(100, 2000, 0);
    fill_window(&rng, &layer, 108);
    pack_and_check(&layer, NULL);
    const trf_pack_input input = packed_layer_input(&layer);
    layer.weights[7] = 0x4000; /* a record more */
    ck_assert_int_eq(trf_pack(&input, &layer.head, layer.packed, NULL), TRF_ERR_MISMATCH);
    for (int i = 0; i < 60; i++) /* a stored tile more */
        layer.weights[(size_t)i * layer.cols] = 0x4000;
    ck_assert_int_eq(trf_pack(&input, &layer.head, layer.packed, NULL), TRF_ERR_MISMATCH);
    layer.weights[7] = 0x7F00; /* no place */
    ck_assert_int_eq(trf_pack(&input, &layer.head, layer.packed, NULL), TRF_ERR_MISMATCH);
    packed_layer_free(&layer);
}
END_TEST

/* ---- sizes ---- */

START_TEST(bits_of_normal_weights) {
    const uint32_t size = test_quick() ? 1024 : 4096;
    test_rng rng = {900};
    packed_layer layer = packed_layer_make(size, size, 0);
    fill_normal(&rng, &layer);
    pack_and_check(&layer, NULL);
    const double bits = 8.0 * (double)layer.head.common.buffer_bytes / ((double)size * size);
    ck_assert_double_le(bits, 12.05);
    ck_assert_double_ge(bits, 12.01);
    packed_layer_free(&layer);
}
END_TEST

/* ---- the product ---- */

/* Expects that every y is within the error of a plain F32 product, and is NaN where it must be. */
static void check_product(const packed_layer *layer, uint32_t m, test_rng *rng) {
    trf_packed_view view;
    float *x = malloc((size_t)m * layer->cols * sizeof *x), *y = malloc((size_t)m * layer->rows * sizeof *y);
    ck_assert(x && y);
    ck_assert_int_eq(trf_validate_packed(layer->packed, layer->head.common.buffer_bytes, &view, NULL), TRF_OK);
    for (size_t i = 0; i < (size_t)m * layer->cols; i++)
        x[i] = (float)test_normal(rng);
    ck_assert_int_eq(trf_multiply_packed(&view, x, m, y, NULL), TRF_OK);
    for (size_t i = 0; i < m; i++)
        for (size_t row = 0; row < layer->rows; row++) {
            double sum = 0, magnitude = 0;
            for (size_t col = 0; col < layer->cols; col++) {
                const double w = (double)trf_bf16_to_f32(layer->weights[row * layer->cols + col]);
                sum += w * (double)x[i * layer->cols + col];
                magnitude += fabs(w * (double)x[i * layer->cols + col]);
            }
            const double is = (double)y[i * layer->rows + row];
            const double bound = magnitude * (FLT_EPSILON / 2) * (2 + sqrt(layer->cols));
            if (isnan(sum) || isinf(sum))
                EXPECT(isnan(sum) ? isnan(is) : is == sum);
            else
                EXPECT(fabs(is - sum) <= bound);
        }
    free(x);
    free(y);
}

START_TEST(product_is_near_double) {
    static const uint16_t kSpecials[] = {0x7F80, 0x7FC1, 0x4400, 0x0000, 0x8000, 0x0013};
    const uint32_t rows = _i / 2 ? 130 : 15, cols = _i / 2 ? 1100 : 33;
    test_rng rng = {1000 + (uint64_t)_i};
    packed_layer layer = packed_layer_make(rows, cols, _i % 2);
    fill_normal(&rng, &layer);
    for (uint32_t row = 0; _i % 2 && row < rows; row++) {
        layer.row_offsets[row] = (int8_t)((int32_t)test_below(&rng, 41) - 20);
        for (uint32_t col = 0; col < cols; col++) {
            uint16_t *weight = layer.weights + (size_t)row * cols + col;
            *weight = trf_f32_to_bf16(ldexpf(trf_bf16_to_f32(*weight), layer.row_offsets[row]));
        }
    }
    if (_i >= 4)
        sprinkle(&rng, &layer, _i >= 6 ? 3 : 9000, kSpecials + (_i >= 6 ? 3 : 0), _i >= 6 ? 2 : 6);
    pack_and_check(&layer, NULL);
    check_product(&layer, 5, &rng);
    packed_layer_free(&layer);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed");
    TCase *tcase = tcase_create("packed");
    tcase_add_loop_test(tcase, normal_weights_of_any_shape, 0, SHAPES);
    tcase_add_loop_test(tcase, outliers_and_specials, 0, SHAPES);
    tcase_add_loop_test(tcase, zeros, 0, 14);
    tcase_add_loop_test(tcase, row_offsets, 0, SHAPES);
    tcase_add_loop_test(tcase, every_pattern_as_a_record, 0, 2);
    tcase_add_loop_test(tcase, every_pattern_in_stored_tiles, 0, 2);
    tcase_add_test(tcase, patterns_are_refused_where_they_are_inexact);
    tcase_add_test(tcase, constants);
    tcase_add_test(tcase, tails_are_stored_or_refused);
    tcase_add_test(tcase, random_bits_are_refused);
    tcase_add_test(tcase, other_weights_than_the_heads);
    tcase_add_test(tcase, bits_of_normal_weights);
    tcase_add_loop_test(tcase, product_is_near_double, 0, 8);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
