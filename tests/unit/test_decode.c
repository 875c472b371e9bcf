/* SPDX-License-Identifier: Apache-2.0 */
/* The tile decoders. Each is compared with the elements from which the tests' own slow encoder made random tiles of
 * every codec; and on corrupt rANS streams all of them must agree on the verdict and stay inside the tile. */
#include "common/decoders.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_tile.h"
#include "trf_number_formats.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static decoder decoders[3];
static uint32_t num_decoders;

enum {
    GUARD = 7,
    CANARY = 0x5A5A
};

/* The memory that a tile is decoded to: rows with a canary after each, and no more. */
typedef struct target {
    uint16_t *elements;
    uint32_t rows, cols;
    size_t stride;
} target;

static target make_target(const test_tile *tile) {
    target to = {.rows = tile->view.header.rows, .cols = tile->view.header.cols};
    to.stride = to.cols + GUARD;
    to.elements = malloc(to.rows * to.stride * sizeof *to.elements);
    ck_assert_ptr_nonnull(to.elements);
    for (size_t i = 0; i < to.rows * to.stride; i++)
        to.elements[i] = CANARY;
    return to;
}

static void check_canaries(const target *to, const char *what) {
    for (uint32_t row = 0; row < to->rows; row++)
        for (uint32_t i = 0; i < GUARD; i++)
            if (to->elements[row * to->stride + to->cols + i] != CANARY)
                ck_abort_msg("%s: wrote behind row %u", what, row);
}

static void check_elements(const target *to, const uint16_t *due, size_t due_stride, const char *what) {
    for (uint32_t row = 0; row < to->rows; row++)
        for (uint32_t col = 0; col < to->cols; col++) {
            uint32_t found = to->elements[row * to->stride + col], expected = due[row * due_stride + col];
            if (found != expected) /* Check notes every assertion in a file, which is too slow for each element */
                ck_abort_msg("%s: row %u column %u is %04x, not %04x", what, row, col, found, expected);
        }
}

static void describe(const test_tile_request *request, const char *decoder_name, char text[256]) {
    snprintf(text, 256,
             "%s codec %u c %u r %u %ux%u slabs of %u p %u L %u mode %u offset %d symbols %u rate %g stored %d",
             decoder_name, request->codec, request->class_bits, request->raw_bits, request->rows, request->cols,
             request->slab_cols, request->probability_bits, request->state_bits, request->predictor_mode,
             request->exponent_offset, request->symbols, request->exception_rate, request->stored);
}

static void check_request(test_rng *rng, const test_tile_request *request) {
    static trf_decode_table table;
    test_tile *tile = test_tile_make(rng, request);
    trf_error err;
    ck_assert_msg(trf_blob_check_tile(&tile->view, 0, tile->bytes, &err) == TRF_OK, "%s", err.message);
    trf_decode_table_init(&table, &tile->view);
    for (uint32_t d = 0; d < num_decoders; d++) {
        char what[256];
        describe(request, decoders[d].name, what);
        target to = make_target(tile);
        trf_status status = decoders[d].decode(&tile->view, &table, 0, tile->bytes, to.elements, to.stride, &err);
        ck_assert_msg(status == TRF_OK, "%s: %s", what, err.message);
        check_elements(&to, tile->elements, request->cols, what);
        check_canaries(&to, what);
        free(to.elements);
    }
    test_tile_free(tile);
}

START_TEST(random_tiles) { test_tiles_at_random((uint32_t)_i, 120, check_request); }
END_TEST

START_TEST(every_shape) { test_tiles_of_every_shape((uint32_t)_i, check_request); }
END_TEST

START_TEST(every_int_width) { test_tiles_of_int((uint32_t)_i, check_request); }
END_TEST

/* ---- corrupt streams ---- */

/* Changes something that only decoding can detect: words, start states, the split of words between lane pairs. */
static void corrupt(test_rng *rng, test_tile *tile, const trf_tile_shape *shape) {
    uint32_t slab = test_below(rng, shape->num_slabs);
    const trf_slab_location location = trf_locate_slab(shape, tile->bytes, slab, tile->view.header.raw_bits);
    uint8_t *states = tile->bytes + location.rans_streams, *lane_pair_words = states + 64;
    uint32_t words = 0, lane_pair = test_below(rng, 16), other = test_below(rng, 16);
    for (uint32_t i = 0; i < 16; i++)
        words += lane_pair_words[i];
    switch (test_below(rng, 4)) {
    case 0: /* a state */
        states[test_below(rng, 64)] ^= (uint8_t)(1u << test_below(rng, 8));
        break;
    case 1: /* many states: long rANS streams that overrun */
        for (uint32_t i = 0; i < 64; i++)
            states[i] = (uint8_t)(1 + test_below(rng, 255));
        break;
    case 2: /* words move from one lane pair to another, also from the first and the last one */
        while (lane_pair_words[lane_pair] && lane_pair_words[other] < 255 && test_below(rng, 8)) {
            lane_pair_words[lane_pair]--;
            lane_pair_words[other]++;
        }
        break;
    default:
        if (words)
            states[84 + 4 * trf_rans_exception_count(states) + test_below(rng, 2 * words)] ^=
                (uint8_t)(1u << test_below(rng, 8));
        break;
    }
    test_tile_seal(tile);
}

static void check_corrupt_tile(test_rng *rng, const test_tile_request *request, uint32_t *rejected) {
    static trf_decode_table table;
    test_tile *tile = test_tile_make(rng, request);
    trf_tile_shape shape = trf_tile_shape_of(&tile->view.header, 0, tile->meta.coding);
    trf_decode_table_init(&table, &tile->view);
    for (int round = 0; round < 6; round++) {
        trf_error err;
        corrupt(rng, tile, &shape);
        if (trf_blob_check_tile(&tile->view, 0, tile->bytes, NULL) != TRF_OK)
            break; /* a start state of 0 */
        target first = make_target(tile);
        trf_status due = trf_decode_tile_ref(&tile->view, &table, 0, tile->bytes, first.elements, first.stride, NULL);
        ck_assert(due == TRF_OK || due == TRF_ERR_RANS);
        *rejected += due == TRF_ERR_RANS;
        for (uint32_t d = 0; d < num_decoders; d++) {
            char what[256];
            describe(request, decoders[d].name, what);
            target to = make_target(tile);
            trf_status status = decoders[d].decode(&tile->view, &table, 0, tile->bytes, to.elements, to.stride, &err);
            ck_assert_msg(status == due, "%s: %d, not %d", what, status, due);
            if (status == TRF_OK)
                check_elements(&to, first.elements, first.stride, what);
            else
                ck_assert_uint_eq(err.offset, tile->meta.data_offset);
            check_canaries(&to, what);
            free(to.elements);
        }
        free(first.elements);
    }
    test_tile_free(tile);
}

START_TEST(corrupt_rans_streams) {
    uint32_t rejected = 0;
    test_rng rng = {4000 + (uint64_t)_i};
    for (int round = 0; round < test_rounds(60); round++) {
        test_tile_request request = test_tile_random_request_of(&rng, (uint32_t)_i);
        if (!request.stored)
            check_corrupt_tile(&rng, &request, &rejected);
    }
    ck_assert_int_gt((int)rejected, test_rounds(40));
}
END_TEST

/* rANS streams that are good except for words that no lane takes. */
START_TEST(unused_words) {
    static trf_decode_table table;
    test_rng rng = {6000 + (uint64_t)_i};
    for (uint32_t unused = 1; unused < 4; unused++) {
        test_tile_request request = test_tile_random_request_of(&rng, (uint32_t)_i);
        request.rows = request.cols = 64;
        request.stored = 0;
        request.unused_words = unused;
        test_tile *tile = test_tile_make(&rng, &request);
        ck_assert_int_eq(trf_blob_check_tile(&tile->view, 0, tile->bytes, NULL), TRF_OK);
        trf_decode_table_init(&table, &tile->view);
        for (uint32_t d = 0; d < num_decoders; d++) {
            target to = make_target(tile);
            trf_status status = decoders[d].decode(&tile->view, &table, 0, tile->bytes, to.elements, to.stride, NULL);
            ck_assert_msg(status == TRF_ERR_RANS, "%s: %s", decoders[d].name, trf_status_name(status));
            free(to.elements);
        }
        test_tile_free(tile);
    }
}
END_TEST

/* ---- values ---- */

/* A layer of one stored tile, whose elements become values of the codec's dtype and of F32. */
START_TEST(values_of_dtypes) {
    static const struct {
        trf_codec codec;
        trf_dtype dtype;
    } kPairs[] = {{TRF_CODEC_BF16, TRF_DTYPE_BF16},    {TRF_CODEC_BF16, TRF_DTYPE_F32},
                  {TRF_CODEC_FP16, TRF_DTYPE_F16},     {TRF_CODEC_E4M3, TRF_DTYPE_F8_E4M3},
                  {TRF_CODEC_E5M2, TRF_DTYPE_F8_E5M2}, {TRF_CODEC_INT, TRF_DTYPE_I8}};
    enum {
        ROWS = 5,
        COLS = 37
    };
    trf_tile_meta meta = {.coding = TRF_TILE_STORED};
    trf_blob_view view = {.header = {.codec = kPairs[_i].codec,
                                     .source_dtype = kPairs[_i].dtype,
                                     .rows = ROWS,
                                     .cols = COLS,
                                     .num_tile_rows = 1,
                                     .num_tile_cols = 1,
                                     .slab_cols = 256},
                          .num_tiles = 1,
                          .tiles = &meta};
    const size_t bytes = trf_dtype_bytes(kPairs[_i].dtype);
    uint16_t elements[ROWS * 64];
    float values[ROWS * COLS], f32[ROWS * COLS];
    for (int i = 0; i < ROWS * 64; i++)
        elements[i] = bytes == 1 ? (uint16_t)(kPairs[_i].codec == TRF_CODEC_INT ? (int8_t)(i * 7) : i * 7 & 0xFF)
                                 : (uint16_t)(i * 997);
    trf_elements_to_dtype(&view, 0, elements, 64, values, COLS);
    trf_elements_to_f32(&view, 0, elements, 64, f32, COLS, 0);
    for (int row = 0; row < ROWS; row++)
        for (int col = 0; col < COLS; col++) {
            uint16_t element = elements[row * 64 + col];
            int at = row * COLS + col;
            float due = kPairs[_i].codec == TRF_CODEC_BF16   ? trf_bf16_to_f32(element)
                        : kPairs[_i].codec == TRF_CODEC_FP16 ? trf_f16_to_f32(element)
                        : kPairs[_i].codec == TRF_CODEC_E4M3 ? trf_e4m3_to_f32((uint8_t)element)
                        : kPairs[_i].codec == TRF_CODEC_E5M2 ? trf_e5m2_to_f32((uint8_t)element)
                                                             : (float)(int16_t)element;
            ck_assert_uint_eq(trf_f32_bits(f32[at]), trf_f32_bits(due));
            if (bytes == 4)
                ck_assert_uint_eq(trf_f32_bits(values[at]), (uint32_t)element << 16);
            else if (bytes == 2)
                ck_assert_uint_eq(((uint16_t *)values)[at], element);
            else
                ck_assert_uint_eq(((uint8_t *)values)[at], element & 0xFF);
        }
}
END_TEST

/* Dequantized weights are code * scale rounded once, for scales that make ties, denormals and overflow. */
START_TEST(scaled_codes) {
    static const float kScales[] = {
        1,        0.75f,      1.5f,      0x1.01p-3f,  0x1.81p-7f,      0x1.fffffep-1f, 0x1.234567p-20f,
        0x1p-24f, 0x1.5p-26f, 0x1p-133f, 0x1.8p-140f, 0x1.fffffep127f, 0x1.fp6f,       0x1.002p5f};
    static const trf_dtype kTypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F16, TRF_DTYPE_F32};
    enum {
        COLS = 256
    };
    trf_tile_meta meta = {.coding = TRF_TILE_STORED};
    test_rng rng = {5};
    for (int round = 0; round < test_rounds(1200); round++) {
        float scale =
            round < (int)(sizeof kScales / sizeof *kScales) ? kScales[round] : (float)exp(20 * test_normal(&rng));
        trf_blob_view view = {.header = {.codec = TRF_CODEC_INT,
                                         .source_dtype = kTypes[_i],
                                         .rows = 1,
                                         .cols = COLS,
                                         .num_tile_rows = 1,
                                         .num_tile_cols = 1,
                                         .slab_cols = 256},
                              .extension = {.granularity = TRF_GRANULARITY_TENSOR, .scale_dtype = TRF_SCALE_F32},
                              .num_tiles = 1,
                              .tiles = &meta,
                              .scales = &scale,
                              .num_scales = 1,
                              .scale_cols = 1};
        uint16_t codes[COLS];
        float values[COLS], f32[COLS], plain[COLS];
        for (int i = 0; i < COLS; i++)
            codes[i] = (uint16_t)((int)test_below(&rng, 2 * TRF_MAX_CODE + 1) - TRF_MAX_CODE);
        trf_elements_to_dtype(&view, 0, codes, COLS, values, COLS);
        trf_elements_to_f32(&view, 0, codes, COLS, f32, COLS, 0);
        trf_elements_to_f32(&view, 0, codes, COLS, plain, COLS, 1);
        for (int i = 0; i < COLS; i++) {
            double exact = (double)(int16_t)codes[i] * (double)scale;
            uint32_t due = trf_f32_bits((float)exact), found = trf_f32_bits(values[i]);
            int good = trf_f32_bits(f32[i]) == due && plain[i] == (float)(int16_t)codes[i];
            if (kTypes[_i] != TRF_DTYPE_F32) {
                due = kTypes[_i] == TRF_DTYPE_BF16 ? trf_f64_to_bf16(exact) : trf_f64_to_f16(exact);
                found = ((uint16_t *)values)[i];
            }
            if (!good || found != due)
                ck_abort_msg("%d * %a is %08x, not %08x", (int16_t)codes[i], (double)scale, found, due);
        }
    }
}
END_TEST

START_TEST(choice_of_decoder) {
    const char *best = trf_decode_tile_best_name();
    ck_assert_int_eq(setenv("TRF_SIMD", "scalar", 1), 0);
    ck_assert_str_eq(trf_decode_tile_best_name(), "scalar");
    ck_assert(trf_decode_tile_best() == trf_decode_tile_ref);
    ck_assert_int_eq(setenv("TRF_SIMD", "avx2", 1), 0);
    ck_assert_str_eq(trf_decode_tile_best_name(), num_decoders > 1 ? "avx2" : "scalar");
    ck_assert_int_eq(setenv("TRF_SIMD", "avx512", 1), 0);
    ck_assert_str_eq(trf_decode_tile_best_name(), best);
    unsetenv("TRF_SIMD");
}
END_TEST

int main(void) {
    unsetenv("TRF_SIMD");
    num_decoders = find_decoders(decoders);
    Suite *suite = suite_create("decode");
    TCase *tiles = tcase_create("tiles"), *values = tcase_create("values");
    tcase_set_timeout(tiles, 240);
    tcase_add_loop_test(tiles, random_tiles, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(tiles, every_shape, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(tiles, every_int_width, 0, TRF_MAX_INT_RAW_BITS + 1);
    tcase_add_loop_test(tiles, corrupt_rans_streams, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(tiles, unused_words, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(values, values_of_dtypes, 0, 6);
    tcase_add_loop_test(values, scaled_codes, 0, 3);
    tcase_add_test(values, choice_of_decoder);
    suite_add_tcase(suite, tiles);
    suite_add_tcase(suite, values);
    return run_suite(suite);
}
