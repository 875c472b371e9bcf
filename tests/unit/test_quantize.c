/* SPDX-License-Identifier: Apache-2.0 */
/* The quantizer of the int codec, compared with plain computations in long double, and with theory. */
#include "common/run_suite.h"
#include "quantize_layer.h"

typedef struct granularity_choice {
    trf_granularity granularity;
    uint32_t scale_group_size;
} granularity_choice;

static const granularity_choice choices[] = {
    {TRF_GRANULARITY_TENSOR, 0},        {TRF_GRANULARITY_CHANNEL, 0},      {TRF_GRANULARITY_SCALE_GROUP, 16},
    {TRF_GRANULARITY_SCALE_GROUP, 128}, {TRF_GRANULARITY_SCALE_GROUP, 48}, {TRF_GRANULARITY_SCALE_GROUP, 1 << 20},
    {TRF_GRANULARITY_SCALE_BLOCK, 16},  {TRF_GRANULARITY_SCALE_BLOCK, 80}, {TRF_GRANULARITY_SCALE_BLOCK, 1 << 20},
};
enum {
    NUM_CHOICES = sizeof choices / sizeof *choices
};
static const trf_dtype dtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_F16, TRF_DTYPE_BF16};

START_TEST(codes_are_exact) {
    const granularity_choice *choice = &choices[_i % NUM_CHOICES];
    static const uint32_t shapes[][2] = {{1, 1}, {3, 17}, {131, 301}, {70, 2065}, {37, 16}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        layer l;
        layer_init(&l, dtypes[_i / NUM_CHOICES], shapes[s][0], shapes[s][1]);
        layer_fill(&l, 5 + s);
        layer_set(&l, 0, -0.04);
        trf_quantizer *q = quantizer_of(&l, 4, choice->granularity, choice->scale_group_size, 2);
        static const double steps[] = {0.003, 0.02, 0.3, 1, 2.5};
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
            free(check_codes(q, &l, steps[i], TRF_MAX_CODE, NULL));
        trf_quantizer_free(q);

        q = quantizer_of(&l, 0, choice->granularity, choice->scale_group_size, 1);
        int16_t *codes = check_codes(q, &l, trf_quantizer_int8_step(q), 127, NULL);
        if (layer_num_weights(&l) == 1)
            ck_assert_int_eq(codes[0], -127);
        free(codes);
        trf_quantizer_free(q);
        free(l.weights);
    }
}
END_TEST

START_TEST(ties_go_to_even) {
    layer l;
    layer_init(&l, TRF_DTYPE_F32, 2, 254);
    for (int i = 0; i < 254; i++) {
        layer_set(&l, (uint64_t)i, i == 0 ? 127 : i / 2 - 63.5);
        layer_set(&l, 254 + (uint64_t)i,
                  (i == 0 ? 127 : i - 126.5) * 0x1.4p-9); /* scales whose inverse is no binary fraction */
    }
    trf_quantizer *q = quantizer_of(&l, 0, TRF_GRANULARITY_CHANNEL, 0, 1);
    int16_t *codes = check_codes(q, &l, trf_quantizer_int8_step(q), 127, NULL);
    ck_assert(scale_of(q, 0) == 1);
    ck_assert(scale_of(q, 1) == 0x1.4p-9f);
    for (int i = 1; i < 254; i++)
        ck_assert_int_eq(codes[254 + i] & 1, 0);
    ck_assert_int_eq(codes[254 + 126], 0); /* -0.5 */
    ck_assert_int_eq(codes[254 + 127], 0);
    ck_assert_int_eq(codes[254 + 128], 2);
    free(codes);
    trf_quantizer_free(q);
    free(l.weights);
}
END_TEST

START_TEST(blocks_give_the_codes_of_the_whole) {
    layer l;
    layer_init(&l, TRF_DTYPE_BF16, 150, 2300);
    layer_fill(&l, 3);
    trf_quantizer *q = quantizer_of(&l, 5, choices[_i].granularity, choices[_i].scale_group_size, 1);
    int16_t *codes = check_codes(q, &l, 0.1, TRF_MAX_CODE, NULL), *block = malloc(256 * 256 * sizeof *block);
    uint16_t *values = malloc(256 * 256 * sizeof *values);
    double whole[2] = {0, 0}, energy = 0, error_energy = 0;
    trf_quantizer_codes(q, 0, 150, 0, 2300, l.weights, codes, &whole[0], &whole[1]);
    for (uint32_t row = 0; row < 150; row += 64) {
        for (uint32_t col = 0; col < 2300; col += 256) {
            uint32_t rows = 150 - row < 64 ? 150 - row : 64, cols = 2300 - col < 256 ? 2300 - col : 256;
            read_layer(&l, row, rows, col, cols, values, NULL);
            trf_quantizer_codes(q, row, rows, col, cols, values, block, &energy, &error_energy);
            for (uint32_t r = 0; r < rows; r++)
                ck_assert_mem_eq(block + r * cols, codes + (uint64_t)(row + r) * 2300 + col, cols * sizeof *codes);
        }
    }
    ck_assert(fabs(energy / whole[0] - 1) < 1e-12 && fabs(error_energy / whole[1] - 1) < 1e-12);
    free(codes);
    free(block);
    free(values);
    trf_quantizer_free(q);
    free(l.weights);
}
END_TEST

/* Sizes for which ranges hold several region rows, parts of one, and parts of one row. */
START_TEST(threads_change_nothing) {
    static const uint32_t shapes[][2] = {{700, 1500}, {40, 40000}, {20, 300000}};
    const granularity_choice *choice = &choices[_i];
    for (int s = 0; s < 3; s++) {
        if (test_quick() && s != _i % 3)
            continue;
        layer l;
        layer_init(&l, TRF_DTYPE_F16, shapes[s][0], shapes[s][1]);
        for (uint64_t i = 0; i < layer_num_weights(&l); i++)
            layer_set(&l, i, (double)(i * 2654435761u % 1999) * 1e-4 - 0.1);
        double first[TRF_NUM_CODES], counts[TRF_NUM_CODES];
        void *table = NULL;
        for (int threads = 1; threads <= 8; threads += threads < 4 ? 1 : 4) {
            trf_quantizer *q = quantizer_of(&l, 4, choice->granularity, choice->scale_group_size, threads);
            trf_quantizer_estimate(q, 0.07, counts);
            trf_quantizer_set_step(q, 0.07);
            uint64_t bytes;
            const void *scales = trf_quantizer_table(q, &bytes);
            ck_assert_uint_eq(bytes, num_scale_regions(q, &l) * (trf_quantizer_scale_group_size(q) ? 2 : 4));
            if (threads == 1) {
                table = malloc(bytes);
                memcpy(table, scales, bytes);
                memcpy(first, counts, sizeof first);
                double n = (double)layer_num_weights(&l), squares = 0;
                for (uint64_t i = 0; i < layer_num_weights(&l); i++)
                    squares += layer_get(&l, i) * layer_get(&l, i);
                if (bytes <= 4)
                    ck_assert(fabs(scale_of(q, 0) / (0.07 * sqrt(squares / n)) - 1) < 0x1p-10);
            }
            ck_assert_mem_eq(table, scales, bytes);
            ck_assert_mem_eq(first, counts, sizeof first);
            trf_quantizer_free(q);
        }
        free(table);
        free(l.weights);
    }
}
END_TEST

START_TEST(estimates_match_codes) {
    layer l;
    layer_init(&l, dtypes[_i / 3], 1500, 1400); /* 2.1 million weights, twice the sample */
    layer_fill(&l, 11);
    const granularity_choice choice = choices[_i % 3 + (_i % 3 == 2)];
    trf_quantizer *q = quantizer_of(&l, 4, choice.granularity, choice.scale_group_size, 2);
    int16_t *codes = malloc(layer_num_weights(&l) * sizeof *codes);
    static const double steps[] = {0.02, 0.1, 0.33, 1, 2, 3.9};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        double counts[TRF_NUM_CODES], estimate[TRF_NUM_CODES], energy = 0, error_energy = 0, total = 0;
        if (steps[s] < trf_quantizer_min_step(q))
            continue;
        trf_quantizer_set_step(q, steps[s]);
        trf_quantizer_codes(q, 0, 1500, 0, 1400, l.weights, codes, &energy, &error_energy);
        count_codes(codes, layer_num_weights(&l), counts);
        trf_quantizer_estimate(q, steps[s], estimate);
        for (int i = 0; i < TRF_NUM_CODES; i++) {
            EXPECT(estimate[i] >= 0);
            total += estimate[i];
        }
        ck_assert(fabs(total / (double)layer_num_weights(&l) - 1) < 1e-9);
        double actual = entropy(counts), estimated = entropy(estimate);
        ck_assert_msg(fabs(estimated - actual) <= 0.005 * actual, "step %g: %g bits estimated, %g are", steps[s],
                      estimated, actual);
    }
    free(codes);
    trf_quantizer_free(q);
    free(l.weights);
}
END_TEST

START_TEST(int8_estimate_is_complete) {
    layer l;
    layer_init(&l, TRF_DTYPE_BF16, 64, 512);
    layer_fill(&l, 12);
    trf_quantizer *q = quantizer_of(&l, 0, TRF_GRANULARITY_CHANNEL, 0, 1);
    double counts[TRF_NUM_CODES], estimate[TRF_NUM_CODES];
    int16_t *codes = check_codes(q, &l, trf_quantizer_int8_step(q), 127, NULL);
    count_codes(codes, layer_num_weights(&l), counts);
    trf_quantizer_estimate(q, trf_quantizer_int8_step(q), estimate);
    ck_assert(counts[TRF_MAX_CODE + 127] + counts[TRF_MAX_CODE - 127] >= 64);
    ck_assert(fabs(entropy(estimate) - entropy(counts)) <= 0.005 * entropy(counts));
    for (int code = 128; code <= TRF_MAX_CODE; code++)
        EXPECT(estimate[TRF_MAX_CODE + code] == 0 && estimate[TRF_MAX_CODE - code] == 0);
    free(codes);
    trf_quantizer_free(q);
    free(l.weights);
}
END_TEST

/* Gaussian weights, a step of s sigma: D = s^2 / 12 and, to the next order,
 * H = log2(sqrt(2 pi e) / s) + s^2 / (24 ln 2). */
START_TEST(gaussian_error_is_what_theory_says) {
    layer l;
    layer_init(&l, TRF_DTYPE_F32, 1024, 1024);
    uint64_t seed = 1;
    for (uint64_t i = 0; i < layer_num_weights(&l); i++)
        layer_set(&l, i, 0.02 * random_normal(&seed));
    trf_quantizer *q = quantizer_of(&l, 4, choices[_i].granularity, choices[_i].scale_group_size, 2);
    for (double bits = 3; bits <= 8; bits++) {
        double step = sqrt(2 * 3.141592653589793 * 2.718281828459045) * exp2(-bits), counts[TRF_NUM_CODES], error;
        int16_t *codes = check_codes(q, &l, step, TRF_MAX_CODE, &error);
        count_codes(codes, layer_num_weights(&l), counts);
        double expected = bits + step * step / (24 * log(2));
        ck_assert_msg(fabs(entropy(counts) - expected) < (choices[_i].scale_group_size == 16 ? 0.04 : 0.005),
                      "%g bits, not %g", entropy(counts), expected);
        ck_assert_msg(fabs(error / (step / sqrt(12)) - 1) < 0.01, "error %g, not %g", error, step / sqrt(12));
        free(codes);
    }
    trf_quantizer_free(q);
    free(l.weights);
}
END_TEST

START_TEST(range_of_steps_reaches_all_codes_and_none) {
    layer l;
    layer_init(&l, TRF_DTYPE_F32, 64, 256);
    layer_fill(&l, 4);
    layer_set(&l, 777, 40); /* an outlier of some 700 root mean squares */
    trf_quantizer *q = quantizer_of(&l, 4, choices[_i].granularity, choices[_i].scale_group_size, 1);
    double low = trf_quantizer_min_step(q), high = trf_quantizer_max_step(q);
    ck_assert(low > 0 && high > low && isfinite(high));
    int16_t *codes = check_codes(q, &l, low, TRF_MAX_CODE, NULL);
    if (choices[_i].granularity == TRF_GRANULARITY_TENSOR)
        ck_assert_int_eq(codes[777], TRF_MAX_CODE);
    else
        ck_assert_int_ge(abs(codes[777]), TRF_MAX_CODE - 1);
    free(codes);
    codes = check_codes(q, &l, high, 0, NULL);
    free(codes);
    free(check_codes(q, &l, low * 0.01, TRF_MAX_CODE, NULL)); /* enlarges every scale */
    trf_quantizer_free(q);
    free(l.weights);
}
END_TEST

START_TEST(zeros_are_codable) {
    layer l;
    layer_init(&l, TRF_DTYPE_BF16, 33, 70);
    for (int filled = 0; filled < 2; filled++) {
        for (int k = 0; k < NUM_CHOICES; k++) {
            for (int bits = 0; bits <= 4; bits += 4) {
                trf_quantizer *q = quantizer_of(&l, bits, choices[k].granularity, choices[k].scale_group_size, 1);
                ck_assert(trf_quantizer_min_step(q) > 0 && trf_quantizer_max_step(q) > trf_quantizer_min_step(q));
                double counts[TRF_NUM_CODES];
                trf_quantizer_estimate(q, 0.1, counts);
                ck_assert(counts[TRF_MAX_CODE] >= 33 * 70 - filled - 1e-6);
                int16_t *codes = check_codes(q, &l, bits ? 0.1 : trf_quantizer_int8_step(q), TRF_MAX_CODE, NULL);
                ck_assert_int_eq(codes[0], 0);
                free(codes);
                trf_quantizer_free(q);
            }
        }
        layer_set(&l, 0, -0.0);
        layer_set(&l, 100, 3);
    }
    free(l.weights);
}
END_TEST

/* Weights from 2^-149 to 2^127, alone and side by side. */
START_TEST(extreme_magnitudes_are_coded) {
    static const double sizes[] = {1e-45, 1e-40, 1e-38, 1e-30, 1e30, 3e38, 1};
    for (int s = 0; s < 8; s++) {
        layer l;
        layer_init(&l, _i % 2 ? TRF_DTYPE_BF16 : TRF_DTYPE_F32, 64, 96);
        uint64_t seed = 8;
        for (uint64_t i = 0; i < layer_num_weights(&l); i++)
            layer_set(&l, i, (random_unit(&seed) * 2 - 1) * sizes[s < 7 ? (uint64_t)s : i / 160 % 7]);
        const granularity_choice *choice = &choices[_i / 2];
        trf_quantizer *q = quantizer_of(&l, 4, choice->granularity, choice->scale_group_size, 1);
        double error;
        free(check_codes(q, &l, 0.01, TRF_MAX_CODE, NULL));
        free(check_codes(q, &l, 0.2, TRF_MAX_CODE, &error));
        if (s > 2 && s < 7)
            ck_assert_msg(error > 0.05 && error < 0.07, "size %g: error %g", sizes[s], error);
        trf_quantizer_free(q);
        q = quantizer_of(&l, 0, choice->granularity, choice->scale_group_size, 1);
        free(check_codes(q, &l, trf_quantizer_int8_step(q), 127, NULL));
        trf_quantizer_free(q);
        free(l.weights);
    }
}
END_TEST

/* The largest numbers of a dtype must not come back as infinities. */
START_TEST(dequantized_weights_are_finite) {
    static const double largest[] = {FLT_MAX, 65504, 0x1.FEp127};
    layer l;
    layer_init(&l, dtypes[_i % 3], 48, 64);
    uint64_t seed = 2;
    for (uint64_t i = 0; i < layer_num_weights(&l); i++)
        layer_set(&l, i,
                  i % 3   ? largest[_i % 3] * (2 * random_unit(&seed) - 1)
                  : i % 2 ? largest[_i % 3]
                          : -largest[_i % 3]);
    int16_t *codes = malloc(layer_num_weights(&l) * sizeof *codes);
    for (int bits = 0; bits <= 4; bits += 4) {
        trf_quantizer *q = quantizer_of(&l, bits, choices[_i / 3].granularity, choices[_i / 3].scale_group_size, 1);
        for (double step = 0.003; step < 3; step *= 1.7) {
            double energy = 0, error_energy = 0;
            trf_quantizer_set_step(q, bits ? step : trf_quantizer_int8_step(q));
            trf_quantizer_codes(q, 0, 48, 0, 64, l.weights, codes, &energy, &error_energy);
            for (uint64_t i = 0; i < layer_num_weights(&l); i++) {
                float scale = scale_of(q, scale_region_of(q, &l, i));
                EXPECT(isfinite(dequantized(&l, codes[i], scale)));
                EXPECT(fabs(layer_get(&l, i) - codes[i] * (double)scale) <= (bits ? 1 : 0.5001) * (double)scale);
            }
            ck_assert(isfinite(error_energy));
        }
        trf_quantizer_free(q);
    }
    free(codes);
    free(l.weights);
}
END_TEST

/* Scale groups from 1 down to 2^-40 of the largest: scales keep 11 bits down to 2^-28 (only 2^-14 and above
 * matters). */
START_TEST(f16_scales_are_precise) {
    layer l;
    layer_init(&l, TRF_DTYPE_F32, 41, 64);
    for (int top = -100; top <= 120; top += 20) {
        for (uint64_t i = 0; i < layer_num_weights(&l); i++)
            layer_set(&l, i, ldexp((i % 3 ? 1.2345 : -1.7) + 1e-3 * (double)(i % 50), top - (int)(i / 64)));
        trf_quantizer *q = quantizer_of(&l, 0, TRF_GRANULARITY_SCALE_GROUP, 64, 1);
        trf_quantizer_set_step(q, trf_quantizer_int8_step(q));
        uint64_t bytes;
        const uint16_t *table = trf_quantizer_table(q, &bytes);
        ck_assert_uint_eq(bytes, 82);
        for (int row = 0; row < 41; row++) {
            double absmax = 0;
            for (int i = 0; i < 64; i++)
                absmax = fmax(absmax, fabs(layer_get(&l, (uint64_t)(row * 64 + i))));
            ck_assert_uint_ge(table[row], 0x400); /* a normal number */
            ck_assert_uint_lt(table[row], 0x7C00);
            if (row <= 28 && absmax / 127 >= FLT_MIN)
                ck_assert_msg(fabs(scale_of(q, (uint64_t)row) / (absmax / 127) - 1) <= 0x1p-11, "2^%d, row %d", top,
                              row);
        }
        trf_quantizer_free(q);
    }
    free(l.weights);
}
END_TEST

START_TEST(weights_that_are_not_finite_are_named) {
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    static const char *const names[] = {"is NaN", "is Inf", "is -Inf"};
    for (int k = 0; k < NUM_CHOICES; k++) {
        if (!test_tries(k + _i))
            continue;
        layer l;
        layer_init(&l, dtypes[_i % 3], 500, 1030);
        layer_set(&l, 499 * 1030 + 3, NAN);
        layer_set(&l, 300 * 1030 + 1029, bad[_i / 3]);
        trf_encode_options options = {
            .bits = 4, .granularity = choices[k].granularity, .scale_group_size = choices[k].scale_group_size};
        for (options.threads = 1; options.threads <= 4; options.threads++) {
            trf_quantizer *q = (trf_quantizer *)&l;
            trf_error err;
            ck_assert_int_eq(trf_quantizer_create(&l.source, &options, &q, &err), TRF_ERR_ARGUMENT);
            ck_assert_ptr_null(q);
            ck_assert_msg(strstr(err.message, "row 300, column 1029") && strstr(err.message, names[_i / 3]), "%s",
                          err.message);
        }
        free(l.weights);
    }
}
END_TEST

START_TEST(arguments_are_checked) {
    layer l;
    layer_init(&l, TRF_DTYPE_F32, 4, 4);
    static const trf_encode_options bad[] = {
        {.bits = 1.9},
        {.bits = 8.1},
        {.bits = NAN},
        {.bits = -1},
        {.granularity = (trf_granularity)5},
        {.granularity = TRF_GRANULARITY_SCALE_GROUP},
        {.granularity = TRF_GRANULARITY_SCALE_GROUP, .scale_group_size = 24},
        {.granularity = TRF_GRANULARITY_SCALE_BLOCK, .scale_group_size = (1 << 20) + 16},
    };
    trf_encode_options good = {.bits = 8};
    trf_quantizer *q;
    trf_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(trf_quantizer_create(&l.source, &bad[i], &q, &err), TRF_ERR_ARGUMENT);
    l.source.dtype = TRF_DTYPE_I8;
    ck_assert_int_eq(trf_quantizer_create(&l.source, &good, &q, NULL), TRF_ERR_ARGUMENT);
    l.source.dtype = TRF_DTYPE_F32;
    l.source.rows = 0;
    ck_assert_int_eq(trf_quantizer_create(&l.source, &good, &q, &err), TRF_ERR_ARGUMENT);
    l.source.rows = 4;
    l.fails = 1;
    ck_assert_int_eq(trf_quantizer_create(&l.source, &good, &q, &err), TRF_ERR_IO);
    ck_assert_uint_eq(err.offset, 7);
    ck_assert_ptr_null(q);
    trf_quantizer_free(NULL);
    free(l.weights);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("quantize");
    TCase *tests = tcase_create("quantize");
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, codes_are_exact, 0, 3 * NUM_CHOICES);
    tcase_add_test(tests, ties_go_to_even);
    tcase_add_loop_test(tests, blocks_give_the_codes_of_the_whole, 0, NUM_CHOICES);
    tcase_add_loop_test(tests, estimates_match_codes, 0, 9);
    tcase_add_test(tests, int8_estimate_is_complete);
    tcase_add_loop_test(tests, gaussian_error_is_what_theory_says, 0, 4);
    tcase_add_loop_test(tests, range_of_steps_reaches_all_codes_and_none, 0, NUM_CHOICES);
    tcase_add_test(tests, zeros_are_codable);
    tcase_add_loop_test(tests, extreme_magnitudes_are_coded, 0, 2 * NUM_CHOICES);
    tcase_add_loop_test(tests, dequantized_weights_are_finite, 0, 3 * NUM_CHOICES);
    tcase_add_test(tests, f16_scales_are_precise);
    tcase_add_test(tests, arguments_are_checked);
    suite_add_tcase(suite, tests);
    TCase *threads = tcase_create("threads");
    tcase_set_tags(threads, "threads");
    tcase_set_timeout(threads, 240);
    tcase_add_loop_test(threads, threads_change_nothing, 0, NUM_CHOICES);
    tcase_add_loop_test(threads, weights_that_are_not_finite_are_named, 0, 9);
    suite_add_tcase(suite, threads);
    return run_suite(suite);
}
