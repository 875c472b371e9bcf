/* SPDX-License-Identifier: Apache-2.0 */
/* The size of coded FP8 E4M3 at a real size: bits a weight of drawn matrices, exceptions, and what the GPU's kernels
 * ask of a layer. */
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "trf_encode.h"
#include "trf_split.h"
#include "trf_symbol_model.h"
#include "trf_validate.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 4096,
    COLS = 4096,
    BLOCK = 128
};

/* Normally distributed numbers, as many as the matrix has weights. The caller frees them. */
static float *draw(void) {
    float *numbers = malloc((size_t)ROWS * COLS * sizeof *numbers);
    ck_assert_ptr_nonnull(numbers);
    test_rng rng = {43};
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++)
        numbers[i] = (float)test_normal(&rng);
    return numbers;
}

/* Quantizes blocks of side x side numbers to E4M3, each with a scale that takes its largest magnitude to 448. */
static void quantize(const float *numbers, uint32_t side, uint8_t *weights) {
    for (uint32_t row = 0; row < ROWS; row += side)
        for (uint32_t col = 0; col < COLS; col += side) {
            const size_t first = (size_t)row * COLS + col;
            float most = 0;
            for (uint32_t r = 0; r < side; r++)
                for (uint32_t c = 0; c < side; c++)
                    most = fmaxf(most, fabsf(numbers[first + (size_t)r * COLS + c]));
            for (uint32_t r = 0; r < side; r++)
                for (uint32_t c = 0; c < side; c++) {
                    const size_t at = first + (size_t)r * COLS + c;
                    test_put_weight(weights, TRF_DTYPE_F8_E4M3, at, 448.0 * numbers[at] / most);
                }
        }
}

typedef struct outcome {
    double bits, exceptions; /* a weight; of all weights, the share */
    trf_blob_view view;
    uint32_t max_frequency;
} outcome;

/* Encodes, validates, decodes, compares. The view's pointers are gone afterwards. */
static outcome encode(const uint8_t *weights, trf_favor favor) {
    const double count = (double)ROWS * COLS;
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_F8_E4M3, ROWS, COLS);
    trf_encode_options options;
    trf_encode_options_init(&options);
    options.favor = favor;
    void *blob, *back = malloc((size_t)ROWS * COLS);
    uint64_t bytes;
    trf_layer_report report;
    trf_error err = {0};
    trf_layer *layer;
    outcome o = {0};
    ck_assert_ptr_nonnull(back);
    ck_assert_msg(trf_encode_layer(&matrix, &options, &blob, &bytes, &report, &err) == TRF_OK, "%s", err.message);
    ck_assert_msg(trf_blob_validate(blob, bytes, &o.view, &err) == TRF_OK, "%s", err.message);
    ck_assert_int_eq(trf_layer_from_memory(blob, bytes, &layer, &err), TRF_OK);
    ck_assert_int_eq(trf_layer_decode(layer, back, (size_t)ROWS * COLS, 0, &err), TRF_OK);
    ck_assert_mem_eq(back, weights, (size_t)ROWS * COLS);
    o.bits = 8.0 * (double)bytes / count;
    o.exceptions = (double)report.exceptions / count;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        if (o.view.frequency[s] > o.max_frequency)
            o.max_frequency = o.view.frequency[s];
    trf_layer_free(layer);
    trf_free(blob);
    free(back);
    return o;
}

/* The GPU's faster kernels take the layer, with as few ends of rANS streams as the format has. */
static void expect_default_kernels(const outcome *o, uint32_t class_bits) {
    const uint32_t p = class_bits == 2 ? TRF_QUADS_PROBABILITY_BITS : TRF_PAIRS_PROBABILITY_BITS;
    ck_assert_uint_eq(o->view.header.class_bits, class_bits);
    ck_assert_uint_eq(o->view.header.probability_bits, p);
    ck_assert_uint_eq(o->view.header.state_bits, p);
    ck_assert_uint_eq(o->view.header.slab_cols, TRF_MAX_SLAB_COLS);
    ck_assert_uint_le(o->max_frequency, TRF_DEFAULT_P_MAX_FREQUENCY);
}

/* The entropy of the exponents and 4 raw bits are 6.55 bits with either kind of scales. Blobs of this size have at
 * least 0.11 bit for ends of rANS streams, padding, counts and metadata. loop: whether each block has a scale. */
START_TEST(bits_a_weight) {
    static const double kMostBits[2][2] = {{7.19, 6.71}, {7.03, 6.71}}, kMostExceptions[2] = {0.0001, 0.0005};
    float *numbers = draw();
    uint8_t *weights = malloc((size_t)ROWS * COLS);
    ck_assert_ptr_nonnull(weights);
    quantize(numbers, _i ? BLOCK : ROWS, weights);
    for (int favor = 0; favor < 2; favor++) {
        const outcome o = encode(weights, (trf_favor)favor);
        ck_assert_double_lt(o.bits, kMostBits[_i][favor]);
        ck_assert_double_lt(o.exceptions, kMostExceptions[favor]);
        expect_default_kernels(&o, favor == TRF_FAVOR_SIZE ? 4 : 2);
    }
    free(numbers);
    free(weights);
}
END_TEST

/* Under an exponent offset, weights of the largest exponent are coded like others; NaNs, zeros and what lies below the
 * classes are exceptions. */
START_TEST(largest_exponent_under_an_offset) {
    enum {
        SIDE = 256
    };
    uint8_t *weights = malloc(SIDE * SIDE);
    uint64_t expected = 0;
    test_rng rng = {44};
    for (uint32_t i = 0; i < SIDE * SIDE; i++) { /* exponents 11 to 15, nearly all of them below 15 */
        const uint32_t exponent = test_below(&rng, 100) ? 11 + test_below(&rng, 4) : 15;
        weights[i] = (uint8_t)(test_below(&rng, 2) << 7 | exponent << 3 | test_below(&rng, 7));
        if (test_below(&rng, 4000) == 0)
            weights[i] = i % 2 ? 0x7F : 0x03, expected++;
    }
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_F8_E4M3, SIDE, SIDE);
    trf_encode_options options;
    trf_encode_options_init(&options);
    void *blob;
    uint64_t bytes;
    trf_layer_report report;
    trf_blob_view view;
    trf_error err = {0};
    ck_assert_int_eq(trf_encode_layer(&matrix, &options, &blob, &bytes, &report, &err), TRF_OK);
    ck_assert_int_eq(trf_blob_validate(blob, bytes, &view, &err), TRF_OK);
    ck_assert_int_eq(view.extension.exponent_offset, 3);
    ck_assert_uint_ge(report.exceptions, expected);
    ck_assert_uint_lt(report.exceptions, expected + SIDE * SIDE / 1000); /* 1 % have exponent 15 */
    trf_free(blob);
    free(weights);
}
END_TEST

/* Where the likeliest symbol would have a few more slots than the faster kernels hold, it gets what they hold; where
 * that would cost much, it keeps them. */
START_TEST(frequencies_for_the_faster_kernels) {
    static const double kShare[] = {0.45, 0.55, 0.9}; /* of the likeliest symbol */
    static const int kFits[] = {1, 1, 0};
    uint64_t counts[TRF_ALPHABET];
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        counts[s] = s < 32 ? 1000000 : 0;
    counts[5] = (uint64_t)(31e6 * kShare[_i] / (1 - kShare[_i]));
    trf_symbol_model model, general;
    trf_normalize(&model, counts, 2, TRF_QUADS_PROBABILITY_BITS, TRF_EXCEPTION_COST);
    uint32_t sum = 0;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        sum += model.frequency[s];
    ck_assert_uint_eq(sum, 1u << TRF_QUADS_PROBABILITY_BITS);
    ck_assert_int_eq(model.frequency[5] <= TRF_DEFAULT_P_MAX_FREQUENCY, kFits[_i]);
    /* With other probability bits the faster kernels are out of question. */
    trf_normalize(&general, counts, 2, TRF_QUADS_PROBABILITY_BITS + 1, TRF_EXCEPTION_COST);
    ck_assert_uint_gt(general.frequency[5], TRF_DEFAULT_P_MAX_FREQUENCY);
}
END_TEST

/* A layer of few symbols keeps larger frequencies: 512 slots need three symbols of at most 255. */
START_TEST(too_few_symbols_for_small_frequencies) {
    uint64_t counts[TRF_ALPHABET] = {[7] = 500, [9] = 501};
    trf_symbol_model model;
    trf_normalize(&model, counts, 2, TRF_QUADS_PROBABILITY_BITS, TRF_EXCEPTION_COST);
    ck_assert_uint_eq(model.frequency[7] + model.frequency[9], 1u << TRF_QUADS_PROBABILITY_BITS);
}
END_TEST

/* Pairs of FP8 have wide slabs whatever the layer's size, quads of small layers narrow ones. */
START_TEST(width_of_slabs) {
    const trf_codec codec = _i ? TRF_CODEC_E5M2 : TRF_CODEC_E4M3;
    ck_assert_int_eq(trf_lossless_codec(_i ? TRF_DTYPE_F8_E5M2 : TRF_DTYPE_F8_E4M3), codec);
    ck_assert_uint_eq(trf_choose_slab_cols(codec, 4, 512, 512), TRF_MAX_SLAB_COLS);
    ck_assert_uint_eq(trf_choose_slab_cols(codec, 4, 8192, 8192), TRF_MAX_SLAB_COLS);
    ck_assert_uint_eq(trf_choose_slab_cols(codec, 2, 512, 512), TRF_MIN_SLAB_COLS);
    ck_assert_uint_eq(trf_choose_slab_cols(codec, 2, 8192, 8192), TRF_MAX_SLAB_COLS);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("fp8_size");
    TCase *tests = tcase_create("fp8_size");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, bits_a_weight, 0, 2);
    tcase_add_test(tests, largest_exponent_under_an_offset);
    tcase_add_loop_test(tests, frequencies_for_the_faster_kernels, 0, 3);
    tcase_add_test(tests, too_few_symbols_for_small_frequencies);
    tcase_add_loop_test(tests, width_of_slabs, 0, 2);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
