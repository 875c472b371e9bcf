/* SPDX-License-Identifier: Apache-2.0 */
/* The encoder: what it chooses, what it costs, that its bytes depend only on weights and options, and how it fails. */
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "trf_encode.h"
#include "trf_number_formats.h"
#include "trf_validate.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static test_rng rng;
static double uniform(void) { return test_uniform(&rng); }
static double normal(void) { return test_normal(&rng); }

static uint16_t *gaussian_bf16(size_t n, double sigma) {
    uint16_t *weights = malloc(n * sizeof *weights);
    rng.state = 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < n; i++)
        weights[i] = trf_f32_to_bf16((float)(sigma * normal()));
    return weights;
}

typedef struct encoded {
    void *blob;
    uint64_t bytes;
    trf_layer_report report;
    trf_blob_view view;
} encoded;

/* Encodes, validates, decodes; lossless codecs must give the source back. */
static encoded encode(const void *weights, trf_dtype dtype, uint32_t rows, uint32_t cols,
                      const trf_encode_options *options) {
    encoded e;
    trf_error err = {0};
    const trf_matrix matrix = test_matrix(weights, dtype, rows, cols);
    ck_assert_msg(trf_encode_layer(&matrix, options, &e.blob, &e.bytes, &e.report, &err) == TRF_OK, "%s", err.message);
    ck_assert_msg(trf_blob_validate(e.blob, e.bytes, &e.view, &err) == TRF_OK, "%s", err.message);
    ck_assert_uint_eq(e.report.blob_bytes, e.bytes);
    ck_assert_uint_eq(e.report.exceptions, e.view.extension.exception_count);
    /* Matrix products scale exceptions by 2^-D: denormals of 16 bits must not get smaller, FP8 that became F16 not
     * larger. */
    const int32_t up = trf_dtype_bytes(dtype) == 1 ? 3 : 0;
    ck_assert_int_le(e.view.extension.exponent_offset, up);
    ck_assert_int_ge(e.view.extension.exponent_offset, up - 3);
    trf_layer *layer;
    ck_assert_int_eq(trf_layer_from_memory(e.blob, e.bytes, &layer, &err), TRF_OK);
    size_t size = (size_t)rows * cols * trf_dtype_bytes(dtype);
    void *back = malloc(size);
    ck_assert_msg(trf_layer_decode(layer, back, size, 2, &err) == TRF_OK, "%s", err.message);
    if (dtype != TRF_DTYPE_F32 && (options->codec != TRF_CODEC_INT || dtype == TRF_DTYPE_I8))
        ck_assert_mem_eq(back, weights, size);
    trf_layer_free(layer);
    free(back);
    return e;
}

static double bits_of(const encoded *e) {
    return 8.0 * (double)e->bytes / ((double)e->view.header.rows * e->view.header.cols);
}

static trf_encode_options default_options(trf_favor favor) {
    trf_encode_options options;
    trf_encode_options_init(&options);
    options.favor = favor;
    return options;
}

/* For all kinds of shapes and weights and every option, the weights come back bit for bit. encode() compares them. */
START_TEST(everything_comes_back) {
    static const trf_dtype kDtypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F16, TRF_DTYPE_F8_E4M3, TRF_DTYPE_F8_E5M2,
                                        TRF_DTYPE_I8};
    static const uint32_t kEdges[] = {1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 272, 511, 513};
    const trf_dtype dtype = kDtypes[_i];
    rng.state = 1000u + (uint64_t)_i;
    for (int round = 0; round < test_rounds(60); round++) {
        uint32_t shape[2];
        for (int k = 0; k < 2; k++)
            shape[k] =
                round % 3 ? 1 + test_below(&rng, 600) : kEdges[test_below(&rng, sizeof kEdges / sizeof kEdges[0])];
        size_t n = (size_t)shape[0] * shape[1];
        uint8_t *weights = malloc(n * trf_dtype_bytes(dtype)), *patterns = malloc(n * trf_dtype_bytes(dtype));
        test_fill_patterns(patterns, dtype, n);
        double sigma = dtype == TRF_DTYPE_I8 ? exp2(6 * uniform()) : exp2(-10 + 12 * uniform());
        if (round % 4 == 0)
            memcpy(weights, patterns, n * trf_dtype_bytes(dtype));
        else if (round % 4 == 1)
            test_fill_student(&rng, weights, dtype, n, 3, sigma);
        else
            test_fill_normal(&rng, weights, dtype, n, sigma);
        for (size_t i = 0; i < n && round % 4 == 3; i++) /* a hundredth of anything */
            if (test_below(&rng, 100) == 0)
                memcpy(weights + i * trf_dtype_bytes(dtype), patterns + i * trf_dtype_bytes(dtype),
                       trf_dtype_bytes(dtype));
        trf_encode_options options = default_options((trf_favor)test_below(&rng, 2));
        options.probability_bits = test_below(&rng, 5) ? 8 + test_below(&rng, 4) + 1 : 0;
        options.slab_cols = 128 * test_below(&rng, 3);
        options.verify = (int)test_below(&rng, 2);
        encoded e = encode(weights, dtype, shape[0], shape[1], &options);
        ck_assert_uint_le(e.bytes, n * trf_dtype_bytes(dtype) + e.view.extension.data_offset + 128 * e.view.num_tiles);
        free(e.blob);
        free(weights);
        free(patterns);
    }
}
END_TEST

/* The bits a weight that slabs of 128 columns cost more than those of 256, for which the limits below are. Every 4096
 * weights, instead of every 8192, have 32 lanes with the L = 10 bits of a first state, which carry no information, and
 * half a word of rounding; 16 counts of words; 4 bytes for the number of exceptions; and half of the padding to 16
 * bytes. */
static const double kNarrowSlabs = (32 * (10 + 8) + 8 * (16 + 4 + 8)) * (1.0 / 4096 - 1.0 / 8192);

/* Over one octave of sigma the exponents' distribution takes all its forms. The limits are for 8192 x 8192; a layer of
 * 1024 x 2048 spreads the head's 832 bytes over fewer weights. */
START_TEST(gaussian_bits) {
    double sigma = 0.01 * exp2(_i / 8.0);
    size_t rows = 1024, cols = 2048;
    uint16_t *weights = gaussian_bf16(rows * cols, sigma);
    for (uint32_t slab_cols = 128; slab_cols <= 256; slab_cols += 128) {
        const double more = slab_cols == 128 ? kNarrowSlabs : 0;
        trf_encode_options options = default_options(TRF_FAVOR_SIZE);
        options.slab_cols = slab_cols;
        encoded size = encode(weights, TRF_DTYPE_BF16, rows, cols, &options);
        ck_assert_double_lt(bits_of(&size), 10.75 + more);
        ck_assert_double_lt(bits_of(&size), size.report.entropy_bits + 0.18 + more);
        options.favor = TRF_FAVOR_SPEED;
        encoded speed = encode(weights, TRF_DTYPE_BF16, rows, cols, &options);
        ck_assert_double_lt(bits_of(&speed), 10.95 + more);
        ck_assert_double_lt((double)speed.report.exceptions / ((double)rows * cols), 0.001);
        ck_assert_uint_eq(speed.view.header.class_bits, 2);
        free(size.blob);
        free(speed.blob);
    }
    free(weights);
}
END_TEST

/* Pairs and small layers of floats have narrow slabs, unless the caller says otherwise. */
START_TEST(width_of_slabs) {
    size_t rows = 96, cols = 400;
    uint16_t *weights = gaussian_bf16(rows * cols, 0.02);
    for (int favor = 0; favor < 2; favor++)
        for (uint32_t slab_cols = 0; slab_cols <= 256; slab_cols += 128) {
            trf_encode_options options = default_options((trf_favor)favor);
            options.slab_cols = slab_cols;
            encoded e = encode(weights, TRF_DTYPE_BF16, rows, cols, &options);
            ck_assert_uint_eq(e.view.header.slab_cols, slab_cols ? slab_cols : 128);
            free(e.blob);
        }
    free(weights);
}
END_TEST

START_TEST(large_layers_and_codes_have_wide_slabs) {
    int8_t *codes = calloc(2 * 4112, 2048); /* or BF16 weights, more than 8 M */
    trf_encode_options options = default_options(TRF_FAVOR_SPEED);
    encoded large = encode(codes, TRF_DTYPE_BF16, 4112, 2048, &options),
            small = encode(codes, TRF_DTYPE_I8, 96, 400, &options);
    ck_assert_uint_eq(large.view.header.slab_cols, 256);
    ck_assert_uint_eq(small.view.header.slab_cols, 256);
    free(large.blob);
    free(small.blob);
    free(codes);
}
END_TEST

START_TEST(bytes_do_not_depend_on_threads) {
    size_t rows = 1100, cols = 5000;
    uint16_t *weights = gaussian_bf16(rows * cols, 0.02);
    float *floats = malloc(rows * cols * sizeof *floats);
    for (size_t i = 0; i < rows * cols; i++)
        floats[i] = trf_bf16_to_f32(weights[i]);
    for (int lossy = 0; lossy < 2; lossy++) {
        trf_encode_options options = default_options(TRF_FAVOR_SPEED);
        options.codec = lossy ? TRF_CODEC_INT : TRF_CODEC_AUTO;
        options.bits = lossy ? 4.25 : 0;
        options.threads = 1;
        const void *source = lossy ? (const void *)floats : weights;
        trf_dtype dtype = lossy ? TRF_DTYPE_F32 : TRF_DTYPE_BF16;
        encoded one = encode(source, dtype, rows, cols, &options);
        for (int threads = 2; threads <= 7; threads += 5) {
            options.threads = threads;
            encoded many = encode(source, dtype, rows, cols, &options);
            ck_assert_uint_eq(one.bytes, many.bytes);
            ck_assert_mem_eq(one.blob, many.blob, one.bytes);
            ck_assert(one.report.relative_rms_error == many.report.relative_rms_error);
            free(many.blob);
        }
        free(one.blob);
    }
    free(floats);
    free(weights);
}
END_TEST

/* Rows and columns have very different magnitudes: the predictor must be chosen, and must pay. Offsets of columns are
 * only for TRF_FAVOR_SIZE, since fused products do not take them. */
START_TEST(predictor_modes_are_chosen) {
    size_t rows = 768, cols = 1024;
    uint16_t *weights = malloc(rows * cols * sizeof *weights);
    rng.state = 7;
    int *row_scale = malloc(rows * sizeof *row_scale), *col_scale = malloc(cols * sizeof *col_scale);
    for (size_t r = 0; r < rows; r++)
        row_scale[r] = (int)(uniform() * 12);
    for (size_t c = 0; c < cols; c++)
        col_scale[c] = (int)(uniform() * 12);
    for (size_t i = 0; i < rows * cols; i++)
        weights[i] = trf_f32_to_bf16(
            (float)ldexp(normal() * 0.02, (_i & 1 ? row_scale[i / cols] : 0) - (_i & 2 ? col_scale[i % cols] : 0)));
    for (int favor = 0; favor < 2; favor++) {
        trf_encode_options options = default_options((trf_favor)favor);
        encoded e = encode(weights, TRF_DTYPE_BF16, rows, cols, &options);
        const int expected = favor == TRF_FAVOR_SPEED ? _i & TRF_PREDICT_ROW : _i;
        ck_assert_int_eq(e.view.header.predictor_modes, expected);
        if (expected == _i)
            ck_assert_double_lt(bits_of(&e), 11.05 + kNarrowSlabs);
        if (_i)
            ck_assert_double_gt(e.report.entropy_bits, 11.5); /* what it would cost without */
        free(e.blob);
    }
    free(row_scale);
    free(col_scale);
    free(weights);
}
END_TEST

/* Zeros are an exponent like any other: pruned layers must not pay for them in exceptions. */
START_TEST(pruned_layers) {
    size_t n = 1024 * 1024;
    uint16_t *weights = gaussian_bf16(n, 0.02);
    rng.state = 3;
    for (size_t i = 0; i < n; i++)
        if (uniform() < 0.5)
            weights[i] = 0;
    for (int favor = 0; favor < 2; favor++) {
        trf_encode_options options = default_options((trf_favor)favor);
        encoded e = encode(weights, TRF_DTYPE_BF16, 1024, 1024, &options);
        ck_assert_double_lt((double)e.report.exceptions / (double)n, 0.01);
        /* Quads spend 10 raw bits on a zero as well, and one of their four classes on nothing else. */
        ck_assert_double_lt(bits_of(&e), e.report.entropy_bits + (favor == TRF_FAVOR_SIZE ? 0.25 : 1.5) + kNarrowSlabs);
        free(e.blob);
    }
    free(weights);
}
END_TEST

START_TEST(constant_layers) {
    static const uint16_t kValues[] = {0, 0x8000, 0x3F80, 0x7F80, 0x7FC1, 1};
    size_t rows = 300, cols = 530;
    uint16_t *weights = malloc(rows * cols * sizeof *weights);
    for (size_t i = 0; i < rows * cols; i++)
        weights[i] = kValues[_i];
    for (int favor = 0; favor < 2; favor++) {
        trf_encode_options options = default_options((trf_favor)favor);
        encoded e = encode(weights, TRF_DTYPE_BF16, rows, cols, &options);
        ck_assert_double_lt(bits_of(&e), 11.4); /* slivers are stored */
        ck_assert_uint_eq(e.report.exceptions, 0);
        free(e.blob);
    }
    free(weights);
}
END_TEST

/* Random bits do not shrink: every tile is stored, and the head is all that it costs. */
START_TEST(noise_is_stored) {
    size_t rows = 512, cols = 700;
    uint16_t *weights = malloc(rows * cols * sizeof *weights);
    rng.state = 11;
    for (size_t i = 0; i < rows * cols; i++)
        weights[i] = (uint16_t)(uniform() * 65536);
    trf_encode_options options = default_options(TRF_FAVOR_SIZE);
    encoded e = encode(weights, TRF_DTYPE_BF16, rows, cols, &options);
    for (uint64_t t = 0; t < e.view.num_tiles; t++)
        ck_assert_int_eq(e.view.tiles[t].coding, TRF_TILE_STORED);
    ck_assert_uint_le(e.bytes, rows * cols * 2 + 1200);
    ck_assert_int_eq(e.view.header.predictor_modes, 0);
    free(e.blob);
    free(weights);
}
END_TEST

/* ---- the integer codec ---- */

START_TEST(rate_control_hits_its_bits) {
    static const double kBits[] = {2, 2.5, 3.3, 4.25, 5.7, 8};
    static const trf_granularity kGranularity[] = {TRF_GRANULARITY_TENSOR, TRF_GRANULARITY_CHANNEL,
                                                   TRF_GRANULARITY_SCALE_GROUP, TRF_GRANULARITY_SCALE_BLOCK};
    size_t rows = 1024, cols = 1040;
    rng.state = 5;
    float *weights = malloc(rows * cols * sizeof *weights);
    for (size_t i = 0; i < rows * cols; i++)
        weights[i] = (float)(0.02 * normal());
    for (size_t b = 0; b < sizeof kBits / sizeof kBits[0]; b++)
        for (int k = 0; k < 2 && test_tries((int)b + _i); k++) {
            const trf_favor favor = (trf_favor)k;
            trf_encode_options options = default_options(favor);
            options.slab_cols = (b + (size_t)_i) % 2 ? 128 : 256;
            options.codec = TRF_CODEC_INT;
            options.bits = kBits[b];
            options.granularity = kGranularity[_i];
            options.scale_group_size = _i >= 2 ? 128 : 0;
            encoded e = encode(weights, TRF_DTYPE_F32, rows, cols, &options);
            /* With a scale for each scale group no step comes closer to 2 bits: where classes of one code replace
             * classes of two, the size jumps from 2.03 to 1.77. */
            const int jumps = kBits[b] == 2 && kGranularity[_i] == TRF_GRANULARITY_SCALE_GROUP;
            const double more = options.slab_cols == 128 ? kNarrowSlabs : 0;
            ck_assert_double_lt(fabs(bits_of(&e) - kBits[b]), jumps ? 0.03 + more : 0.01 * kBits[b]);
            /* A bit that the codes do not get is a factor of two in their step. */
            if (kBits[b] == 4.25 && options.granularity <= TRF_GRANULARITY_CHANNEL)
                ck_assert_double_lt(e.report.relative_rms_error,
                                    (favor == TRF_FAVOR_SIZE ? 0.080 : 0.090) * exp2(more));
            free(e.blob);
        }
    free(weights);
}
END_TEST

/* A head of a kilobyte is larger than the codes of some matrices; the codes must not shrink to pay for it. loop:
 * shape. */
START_TEST(few_weights_keep_their_codes) {
    static const uint32_t shapes[][2] = {{16, 16},  {17, 33}, {32, 64},  {2, 1000},
                                         {1, 4096}, {64, 64}, {8, 4096}, {300, 70}};
    static const double kBits[] = {3, 4.25, 6};
    const uint32_t rows = shapes[_i][0], cols = shapes[_i][1];
    const size_t count = (size_t)rows * cols;
    float *weights = malloc(count * sizeof *weights);
    rng.state = 7;
    for (size_t i = 0; i < count; i++)
        weights[i] = (float)(0.02 * normal());
    for (int b = 0; b < 3; b++)
        for (int k = 0; k < 4; k++) {
            trf_encode_options options = default_options((trf_favor)(k % 2));
            options.codec = TRF_CODEC_INT;
            options.bits = kBits[b];
            options.granularity = k < 2 ? TRF_GRANULARITY_TENSOR : TRF_GRANULARITY_CHANNEL;
            encoded e = encode(weights, TRF_DTYPE_F32, rows, cols, &options);
            /* 95 % of the bits remain for the codes, less the ends of lanes in slabs of 128 columns. Gaussian codes of
             * so many bits have this error. */
            const double left = 0.95 * kBits[b] - 0.13 - kNarrowSlabs,
                         due = sqrt(2 * 3.141592653589793 * 2.718281828459045 / 12) * exp2(-left);
            ck_assert_msg(e.report.relative_rms_error < 1.15 * due, "%ux%u, %g bits: error %g, not %g", rows, cols,
                          kBits[b], e.report.relative_rms_error, due);
            free(e.blob);
        }
    free(weights);
}
END_TEST

/* Scale groups and blocks that stick out of a matrix have more scales for its weights than whole ones. The codes must
 * not shrink to pay for them, and here would be zeros. loop: matrix. */
START_TEST(cut_scale_groups_keep_their_codes) {
    static const struct {
        uint32_t rows, cols;
        trf_granularity granularity;
        uint32_t size;
        double bits;
    } cases[] = {
        {1000, 17, TRF_GRANULARITY_SCALE_GROUP, 16, 2},  {1000, 18, TRF_GRANULARITY_SCALE_GROUP, 16, 3},
        {1000, 33, TRF_GRANULARITY_SCALE_GROUP, 32, 2},  {1000, 16, TRF_GRANULARITY_SCALE_GROUP, 128, 2},
        {1000, 2, TRF_GRANULARITY_SCALE_GROUP, 128, 4},  {3000, 1, TRF_GRANULARITY_SCALE_GROUP, 16, 8},
        {1, 1000, TRF_GRANULARITY_SCALE_BLOCK, 16, 2},   {2, 2000, TRF_GRANULARITY_SCALE_BLOCK, 16, 3},
        {17, 1000, TRF_GRANULARITY_SCALE_BLOCK, 16, 2},  {70, 300, TRF_GRANULARITY_SCALE_GROUP, 1 << 20, 2},
        {2000, 1, TRF_GRANULARITY_SCALE_BLOCK, 1024, 4},
    };
    const uint32_t rows = cases[_i].rows, cols = cases[_i].cols;
    const size_t count = (size_t)rows * cols;
    float *weights = malloc(count * sizeof *weights);
    rng.state = 8;
    for (size_t i = 0; i < count; i++)
        weights[i] = (float)(0.02 * normal());
    for (int k = 0; k < 2; k++) {
        trf_encode_options options = default_options((trf_favor)k);
        options.codec = TRF_CODEC_INT;
        options.bits = cases[_i].bits;
        options.granularity = cases[_i].granularity;
        options.scale_group_size = cases[_i].size;
        encoded e = encode(weights, TRF_DTYPE_F32, rows, cols, &options);
        /* The error of few_weights_keep_their_codes, with more room where codes have less than two bits. Scales of
         * whole groups and blocks are part of the bits. */
        const double side = cases[_i].size,
                     asked_for = 16 / (options.granularity == TRF_GRANULARITY_SCALE_BLOCK ? side * side : side),
                     left = 0.95 * options.bits - 0.13 - kNarrowSlabs - asked_for,
                     due = sqrt(2 * 3.141592653589793 * 2.718281828459045 / 12) * exp2(-left);
        ck_assert_msg(e.report.relative_rms_error < (left < 2 ? 1.35 : 1.15) * due, "%ux%u, %g bits: error %g, not %g",
                      rows, cols, options.bits, e.report.relative_rms_error, due);
        free(e.blob);
    }
    free(weights);
}
END_TEST

START_TEST(int4_codes_cost_their_entropy) {
    size_t n = 512 * 512;
    int8_t *codes = malloc(n);
    rng.state = 13;
    for (size_t i = 0; i < n; i++) {
        double code = rint(normal() * 2);
        codes[i] = (int8_t)(code < -8 ? -8 : code > 7 ? 7 : code);
    }
    for (int favor = 0; favor < 2; favor++) {
        trf_encode_options options = default_options((trf_favor)favor);
        encoded e = encode(codes, TRF_DTYPE_I8, 512, 512, &options);
        ck_assert_double_lt(bits_of(&e),
                            e.report.entropy_bits + (favor == TRF_FAVOR_SIZE ? 0.21 + kNarrowSlabs : 0.45));
        free(e.blob);
    }
    free(codes);
}
END_TEST

/* ---- failures ---- */

static uint16_t four_weights[4];

static void reject_matrix(trf_matrix matrix, const trf_encode_options *options) {
    void *blob = NULL;
    uint64_t bytes = 77;
    trf_error err = {0};
    ck_assert_int_eq(trf_encode_layer(&matrix, options, &blob, &bytes, NULL, &err), TRF_ERR_ARGUMENT);
    ck_assert(err.message[0] && err.status == TRF_ERR_ARGUMENT && blob == NULL && bytes == 77);
}

static void reject(trf_dtype dtype, uint32_t rows, uint32_t cols, trf_encode_options options) {
    reject_matrix(test_matrix(four_weights, dtype, rows, cols), &options);
}

START_TEST(bad_arguments) {
    trf_encode_options good = default_options(TRF_FAVOR_SPEED), options = good;
    reject(TRF_DTYPE_BF16, 0, 2, good);
    reject(TRF_DTYPE_BF16, 2, 0, good);
    reject(TRF_DTYPE_F32, 1, 2, good); /* no lossless codec */
    reject((trf_dtype)77, 2, 2, good);
    options.codec = TRF_CODEC_FP16;
    reject(TRF_DTYPE_BF16, 2, 2, options);
    options.codec = TRF_CODEC_INT;
    options.bits = 1.9;
    reject(TRF_DTYPE_BF16, 2, 2, options);
    options.bits = NAN;
    reject(TRF_DTYPE_BF16, 2, 2, options);
    options.bits = 0;
    options.granularity = TRF_GRANULARITY_SCALE_GROUP;
    options.scale_group_size = 24;
    reject(TRF_DTYPE_BF16, 2, 2, options);
    options = good;
    options.probability_bits = 8;
    reject(TRF_DTYPE_BF16, 2, 2, options);
    options = good;
    options.slab_cols = 64;
    reject(TRF_DTYPE_BF16, 2, 2, options);
    options.slab_cols = 128 + (1 << 16); /* the header's 16 bits would have 128 */
    reject(TRF_DTYPE_BF16, 2, 2, options);
    options = good;
    options.favor = (trf_favor)5;
    reject(TRF_DTYPE_BF16, 2, 2, options);
    options = good;
    options.codec = TRF_CODEC_INT;
    four_weights[3] = 0x7FC0; /* NaN has no code */
    reject(TRF_DTYPE_BF16, 2, 2, options);
    void *blob;
    uint64_t bytes;
    ck_assert_int_eq(trf_encode_layer(NULL, &good, &blob, &bytes, NULL, NULL), TRF_ERR_ARGUMENT);
    trf_matrix matrix = test_matrix(NULL, TRF_DTYPE_BF16, 2, 2);
    reject_matrix(matrix, &good);
    matrix.weights = four_weights;
    ck_assert_int_eq(trf_encode_layer(&matrix, &good, NULL, &bytes, NULL, NULL), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_encode_layer(&matrix, &good, &blob, NULL, NULL, NULL), TRF_ERR_ARGUMENT);
    options = good;
    options.struct_bytes = 0;
    reject_matrix(matrix, &options);
    matrix.struct_bytes = 0;
    reject_matrix(matrix, &good);
}
END_TEST

typedef struct fault {
    int reads_left, writes_left, ticks_left;
} fault;

static trf_status read_fault(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols, void *dst,
                             trf_error *err) {
    fault *f = context;
    (void)row, (void)col;
    if (__atomic_fetch_sub(&f->reads_left, 1, __ATOMIC_RELAXED) <= 0)
        return trf_fail(err, TRF_ERR_IO, 123, "read fault");
    memset(dst, 0x3C, (size_t)num_rows * num_cols * 2);
    return TRF_OK;
}
static trf_status write_fault(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *err) {
    fault *f = context;
    (void)bytes, (void)size;
    return __atomic_sub_fetch(&f->writes_left, 1, __ATOMIC_RELAXED) < 0
               ? trf_fail(err, TRF_ERR_IO, offset, "write fault")
               : TRF_OK;
}
static int tick_fault(void *context, uint64_t done, uint64_t total) {
    ck_assert_uint_le(done, total);
    return --((fault *)context)->ticks_left < 0;
}

START_TEST(failures_of_source_sink_and_caller_stop_it) {
    for (int kind = 0; kind < 3; kind++)
        for (int after = 0; after < 5; after++) {
            fault f = {kind == 0 ? after : 1000, kind == 1 ? after : 1000, kind == 2 ? after : 1000};
            trf_source source = {TRF_DTYPE_BF16, 2000, 9000, &f, read_fault, NULL};
            trf_sink sink = {&f, write_fault};
            trf_progress progress = {&f, tick_fault};
            trf_encode_options options = default_options(TRF_FAVOR_SPEED);
            options.codec = TRF_CODEC_BF16; /* AUTO would read more */
            options.threads = 4;
            trf_encoded encoded;
            trf_error err = {0};
            trf_status status = trf_encode_source(&source, &options, &sink, &progress, &encoded, NULL, &err);
            ck_assert_int_eq(status, kind == 2 ? TRF_ERR_CANCELLED : TRF_ERR_IO);
            ck_assert_int_eq(err.status, status);
        }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("encode");
    TCase *tests = tcase_create("encode");
    tcase_add_loop_test(tests, everything_comes_back, 0, 5);
    tcase_add_loop_test(tests, gaussian_bits, 0, 8);
    tcase_add_test(tests, width_of_slabs);
    tcase_add_test(tests, large_layers_and_codes_have_wide_slabs);
    tcase_add_loop_test(tests, predictor_modes_are_chosen, 0, 4);
    tcase_add_test(tests, pruned_layers);
    tcase_add_loop_test(tests, constant_layers, 0, 6);
    tcase_add_test(tests, noise_is_stored);
    tcase_add_loop_test(tests, rate_control_hits_its_bits, 0, 4);
    tcase_add_loop_test(tests, few_weights_keep_their_codes, 0, 8);
    tcase_add_loop_test(tests, cut_scale_groups_keep_their_codes, 0, 11);
    tcase_add_test(tests, int4_codes_cost_their_entropy);
    tcase_add_test(tests, bad_arguments);
    suite_add_tcase(suite, tests);
    TCase *threads = tcase_create("threads");
    tcase_set_tags(threads, "threads");
    tcase_add_test(threads, bytes_do_not_depend_on_threads);
    tcase_add_test(threads, failures_of_source_sink_and_caller_stop_it);
    suite_add_tcase(suite, threads);
    return run_suite(suite);
}
