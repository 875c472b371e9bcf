/* SPDX-License-Identifier: Apache-2.0 */
/* Layers for the tests of the quantizer, and a second implementation of the rules of FORMAT.md that its codes and
 * scales must follow. */
#ifndef QUANTIZE_LAYER_H
#define QUANTIZE_LAYER_H

#include "common/expect.h"
#include "trf_number_formats.h"
#include "trf_quantize.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ---- layers to quantize ---- */

typedef struct layer {
    trf_source source;
    uint8_t *weights; /* dense, in source.dtype */
    int fails;        /* reading fails with TRF_ERR_IO */
} layer;

static inline trf_status read_layer(void *context, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols, void *dst,
                                    trf_error *err) {
    const layer *l = context;
    size_t bytes = trf_dtype_bytes(l->source.dtype);
    if (l->fails)
        return trf_fail(err, TRF_ERR_IO, 7, "no such luck");
    EXPECT((uint64_t)row + rows <= l->source.rows);
    EXPECT((uint64_t)col + cols <= l->source.cols);
    for (uint32_t r = 0; r < rows; r++)
        memcpy((uint8_t *)dst + (size_t)r * cols * bytes,
               l->weights + ((size_t)(row + r) * l->source.cols + col) * bytes, cols * bytes);
    return TRF_OK;
}

static inline void layer_init(layer *l, trf_dtype dtype, uint32_t rows, uint32_t cols) {
    l->source = (trf_source){.dtype = dtype, .rows = rows, .cols = cols, .context = l, .read = read_layer};
    l->weights = calloc((size_t)rows * cols, trf_dtype_bytes(dtype));
    l->fails = 0;
    ck_assert_ptr_nonnull(l->weights);
}

static inline void layer_set(layer *l, uint64_t i, double value) {
    if (l->source.dtype == TRF_DTYPE_F32)
        ((float *)l->weights)[i] = (float)value;
    else
        ((uint16_t *)l->weights)[i] = l->source.dtype == TRF_DTYPE_F16 ? trf_f64_to_f16(value) : trf_f64_to_bf16(value);
}

static inline double layer_get(const layer *l, uint64_t i) {
    if (l->source.dtype == TRF_DTYPE_F32)
        return ((const float *)l->weights)[i];
    uint16_t bits = ((const uint16_t *)l->weights)[i];
    return l->source.dtype == TRF_DTYPE_F16 ? trf_f16_to_f32(bits) : trf_bf16_to_f32(bits);
}

static inline uint64_t layer_num_weights(const layer *l) { return (uint64_t)l->source.rows * l->source.cols; }

static inline double random_unit(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    uint64_t x = (*state ^ *state >> 29) * 0xD6E8FEB86659FD93ull;
    return ((double)(x >> 11) + 0.5) * 0x1p-53;
}

static inline double random_normal(uint64_t *state) {
    double radius = sqrt(-2 * log(random_unit(state)));
    return radius * cos(6.283185307179586 * random_unit(state));
}

/* Fills a layer with rows of different magnitudes, some outliers, and zeros here and there. */
static inline void layer_fill(layer *l, uint64_t seed) {
    for (uint64_t i = 0; i < layer_num_weights(l); i++) {
        double w = 0.02 * random_normal(&seed) * (1 + (double)(i / l->source.cols % 7));
        layer_set(l, i, i % 97 == 0 ? 0 : i % 1009 == 0 ? 12 * w : w);
    }
}

static inline trf_quantizer *quantizer_of(const layer *l, double bits, trf_granularity granularity,
                                          uint32_t scale_group_size, int threads) {
    trf_encode_options options = {
        .bits = bits, .granularity = granularity, .scale_group_size = scale_group_size, .threads = threads};
    trf_quantizer *q = NULL;
    trf_error err;
    trf_status status = trf_quantizer_create(&l->source, &options, &q, &err);
    ck_assert_msg(status == TRF_OK, "%s", status == TRF_OK ? "" : err.message);
    ck_assert_ptr_nonnull(q);
    return q;
}

/* ---- the rules of FORMAT.md, implemented again ---- */

static inline uint64_t scale_regions_across(const trf_quantizer *q, const layer *l) {
    uint32_t g = trf_quantizer_scale_group_size(q);
    return g ? (l->source.cols + g - 1) / g : 1;
}

static inline uint64_t num_scale_regions(const trf_quantizer *q, const layer *l) {
    uint32_t g = trf_quantizer_scale_group_size(q);
    switch (trf_quantizer_granularity(q)) {
    case TRF_GRANULARITY_CHANNEL:
        return l->source.rows;
    case TRF_GRANULARITY_SCALE_GROUP:
        return l->source.rows * scale_regions_across(q, l);
    case TRF_GRANULARITY_SCALE_BLOCK:
        return (l->source.rows + (uint64_t)g - 1) / g * scale_regions_across(q, l);
    default:
        return 1;
    }
}

static inline uint64_t scale_region_of(const trf_quantizer *q, const layer *l, uint64_t i) {
    uint64_t row = i / l->source.cols, col = i % l->source.cols, g = trf_quantizer_scale_group_size(q);
    switch (trf_quantizer_granularity(q)) {
    case TRF_GRANULARITY_CHANNEL:
        return row;
    case TRF_GRANULARITY_SCALE_GROUP:
        return row * scale_regions_across(q, l) + col / g;
    case TRF_GRANULARITY_SCALE_BLOCK:
        return row / g * scale_regions_across(q, l) + col / g;
    default:
        return 0;
    }
}

static inline float scale_of(const trf_quantizer *q, uint64_t scale_region) {
    uint64_t bytes;
    const void *table = trf_quantizer_table(q, &bytes);
    if (trf_quantizer_scale_dtype(q) == TRF_SCALE_F32) {
        EXPECT(trf_quantizer_scale_exponent(q) == 0 && scale_region < bytes / 4);
        return ((const float *)table)[scale_region];
    }
    EXPECT(abs(trf_quantizer_scale_exponent(q)) <= 126 && scale_region < bytes / 2);
    return trf_f16_to_f32(((const uint16_t *)table)[scale_region]) * (float)ldexp(1, trf_quantizer_scale_exponent(q));
}

static inline double dequantized(const layer *l, int code, float scale) {
    double exact = code * (double)scale;
    switch (l->source.dtype) {
    case TRF_DTYPE_F16:
        return trf_f16_to_f32(trf_f64_to_f16(exact));
    case TRF_DTYPE_BF16:
        return trf_bf16_to_f32(trf_f64_to_bf16(exact));
    default:
        return trf_f64_to_f32(exact);
    }
}

/* Sets the step, quantizes the whole layer and checks every code and both energies. @return codes, malloc'd. */
static inline int16_t *check_codes(trf_quantizer *q, const layer *l, double step, int max_code,
                                   double *relative_error) {
    int16_t *codes = malloc(layer_num_weights(l) * sizeof *codes);
    double energy = 0, error_energy = 0, expected = 0, expected_error = 0;
    trf_quantizer_set_step(q, step);
    trf_quantizer_codes(q, 0, l->source.rows, 0, l->source.cols, l->weights, codes, &energy, &error_energy);
    for (uint64_t i = 0; i < layer_num_weights(l); i++) {
        double w = layer_get(l, i);
        float scale = scale_of(q, scale_region_of(q, l, i));
        EXPECT(isfinite(scale) && scale >= FLT_MIN);
        double code = (double)rintl((long double)w / (long double)scale);
        if (codes[i] != code)
            ck_abort_msg("weight %llu, %a: %d, not %g", (unsigned long long)i, w, codes[i], code);
        EXPECT(abs(codes[i]) <= max_code);
        EXPECT(fabs(w - codes[i] * (double)scale) <= 0.5 * scale);
        double error = w - dequantized(l, codes[i], scale);
        expected += w * w;
        expected_error += error * error;
    }
    ck_assert(fabs(energy - expected) <= 1e-12 * expected);
    ck_assert(fabs(error_energy - expected_error) <= 1e-3 * expected_error);
    if (relative_error)
        *relative_error = sqrt(error_energy / energy);
    return codes;
}

static inline double entropy(const double *counts) {
    double total = 0, bits = 0;
    for (int i = 0; i < TRF_NUM_CODES; i++)
        total += counts[i];
    for (int i = 0; i < TRF_NUM_CODES; i++)
        bits -= counts[i] > 0 ? counts[i] * log2(counts[i] / total) : 0;
    return bits / total;
}

static inline void count_codes(const int16_t *codes, uint64_t n, double counts[TRF_NUM_CODES]) {
    memset(counts, 0, TRF_NUM_CODES * sizeof *counts);
    for (uint64_t i = 0; i < n; i++)
        counts[codes[i] + TRF_MAX_CODE]++;
}

#endif
