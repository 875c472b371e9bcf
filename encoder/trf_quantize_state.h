/* SPDX-License-Identifier: Apache-2.0 */
/* What a quantizer holds, for the two files that implement it. */
#ifndef TRF_QUANTIZE_STATE_H
#define TRF_QUANTIZE_STATE_H

#include "trf_number_formats.h"
#include "trf_quantize.h"

enum {
    TRF_MAX_INT8_CODE = 127,
    TRF_WIDENED_WEIGHTS = 1024,  /* weights widened to F32 at a time: stays in the L1 cache; a multiple of 16 */
    TRF_QUANTIZE_SUMS = 8,       /* partial sums of a row's weights, whose fixed order still vectorizes */
    TRF_HISTOGRAM_OCTAVES = 32,  /* from 2^-12 magnitudes on, which is below half of any min_step */
    TRF_HISTOGRAM_BIN_BITS = 11, /* mantissa bits that tell bins apart */
    TRF_HISTOGRAM_BINS = TRF_HISTOGRAM_OCTAVES << TRF_HISTOGRAM_BIN_BITS,
    TRF_HISTOGRAM_LOWEST = (127 - 12) << 23, /* F32 bits of 2^-12 */
};

struct trf_quantizer {
    trf_dtype dtype;
    uint32_t rows, cols;
    trf_granularity granularity;
    uint32_t scale_group_size;
    int max_code;
    double dtype_max;
    uint32_t scale_region_rows, scale_region_cols; /* what a scale region spans */
    uint32_t scale_regions_per_row;
    uint64_t num_scale_regions;
    float *absmax, *magnitude; /* [num_scale_regions] */
    void *table;               /* [num_scale_regions] */
    int32_t scale_exponent;
    double table_factor;       /* 2^scale_exponent */
    double min_peak, max_peak; /* of absmax / magnitude over the scale regions that are not all zeros */
    double sampled_weights;
    uint32_t *tail[2]; /* positive, negative; [TRF_HISTOGRAM_BINS + 1]: sampled weights in this bin or a higher one */
};

static inline void trf_widen(trf_dtype dtype, const void *weights, uint64_t first, uint32_t count, float *out) {
    if (dtype == TRF_DTYPE_F32) {
        memcpy(out, (const float *)weights + first, count * sizeof *out);
    } else if (dtype == TRF_DTYPE_BF16) {
        const uint16_t *in = (const uint16_t *)weights + first;
        for (uint32_t i = 0; i < count; i++)
            out[i] = trf_bf16_to_f32(in[i]);
    } else {
        const uint16_t *in = (const uint16_t *)weights + first;
        for (uint32_t i = 0; i < count; i++)
            out[i] = trf_f16_to_f32(in[i]);
    }
}

/* @return how many of `count` columns from `col` on lie in the same scale region. */
static inline uint32_t trf_cols_in_scale_region(const trf_quantizer *q, uint32_t col, uint32_t count) {
    uint32_t left = q->scale_region_cols - col % q->scale_region_cols;
    return left < count ? left : count;
}

#endif
