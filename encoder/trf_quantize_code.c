/* SPDX-License-Identifier: Apache-2.0 */
/* The use of a quantizer: what a step would cost, the scales of a step, and the codes of weights. */
#include "trf_quantize_state.h"

#include <math.h>

static const double min_scale = 0x1p-126, max_scale = 0x1p127;

/* ---- steps ---- */

/* @return how many sampled weights have `boundary` magnitudes or more, if weights are spread evenly within a bin. */
static double tail_beyond(const uint32_t *tail, double boundary) {
    if (boundary <= 0x1p-12)
        return tail[0];
    if (boundary >= 0x1p-12 * ((uint64_t)1 << TRF_HISTOGRAM_OCTAVES))
        return 0;
    uint32_t above = trf_f32_bits((float)boundary) - TRF_HISTOGRAM_LOWEST;
    uint32_t bin = above >> (23 - TRF_HISTOGRAM_BIN_BITS), within = above & ((1u << (23 - TRF_HISTOGRAM_BIN_BITS)) - 1);
    if (bin >= TRF_HISTOGRAM_BINS)
        return 0;
    return tail[bin] - ((double)tail[bin] - tail[bin + 1]) * within / (1u << (23 - TRF_HISTOGRAM_BIN_BITS));
}

void trf_quantizer_estimate(const trf_quantizer *q, double step, double counts[TRF_NUM_CODES]) {
    double each = (double)q->rows * q->cols / q->sampled_weights, nonzero = 0;
    memset(counts, 0, TRF_NUM_CODES * sizeof *counts);
    for (int sign = 0; sign < 2; sign++) {
        double beyond = tail_beyond(q->tail[sign], 0.5 * step);
        nonzero += beyond;
        for (int code = 1; code <= q->max_code && beyond > 0; code++) {
            double next = code < q->max_code ? tail_beyond(q->tail[sign], (code + 0.5) * step) : 0;
            counts[TRF_MAX_CODE + (sign ? -code : code)] = (beyond - next) * each;
            beyond = next;
        }
    }
    counts[TRF_MAX_CODE] = (q->sampled_weights - nonzero) * each;
}

double trf_quantizer_int8_step(const trf_quantizer *q) {
    (void)q;
    return 1.0 / TRF_MAX_INT8_CODE;
}

double trf_quantizer_min_step(const trf_quantizer *q) { return q->min_peak / q->max_code; }

/* A little more than twice the peak, for the rounding of the scale. */
double trf_quantizer_max_step(const trf_quantizer *q) { return 2.002 * q->max_peak; }

/* @return the scale that a scale region would get in a table of unlimited precision. */
static double exact_scale(const trf_quantizer *q, uint64_t scale_region, double step) {
    double scale = q->magnitude[scale_region] * step, least = (double)q->absmax[scale_region] / q->max_code;
    scale = scale > least ? scale : least;
    return scale < min_scale ? min_scale : scale > max_scale ? max_scale : scale;
}

/* The power of two to take out of F16 scales. It puts the range of exponents in the middle of F16's -14 ... 15 or, if
 * the range is too wide for that, the largest exponent at the top. */
static int32_t choose_exponent(const trf_quantizer *q, double step) {
    double least = max_scale, most = min_scale;
    for (uint64_t u = 0; u < q->num_scale_regions; u++) {
        if (q->absmax[u] == 0)
            continue;
        double scale = exact_scale(q, u, step);
        least = scale < least ? scale : least;
        most = scale > most ? scale : most;
    }
    if (most < least) /* zeros only */
        return 0;
    int low = ilogb(least), high = ilogb(most), middle = (low + high) >> 1;
    middle = high - middle > 14 ? high - 14 : middle;
    return middle < 126 ? middle : 126;
}

/* Rounds to the table's dtype, in units of 2^scale_exponent. */
static double round_scale(const trf_quantizer *q, double scale) {
    if (!q->scale_group_size)
        return (float)scale;
    double value = scale / q->table_factor;
    return trf_f16_to_f32(trf_f64_to_f16(value < 0x1p-14 ? 0x1p-14 : value)) * q->table_factor;
}

/* Lowers a rounded scale with which the largest code would dequantize to infinity. This can happen if absmax is at the
 * very end of the dtype's range. */
static double lower_scale(const trf_quantizer *q, double absmax, double scale) {
    double code = rint(absmax / scale);
    if (code < 1 || code * scale <= q->dtype_max)
        return scale;
    scale = round_scale(q, absmax / code);
    if (code * scale > q->dtype_max)
        scale = round_scale(q, absmax / code * (q->scale_group_size ? 1 - 0x1p-11 : 1 - 0x1p-24));
    return scale;
}

void trf_quantizer_set_step(trf_quantizer *q, double step) {
    q->scale_exponent = q->scale_group_size ? choose_exponent(q, step) : 0;
    q->table_factor = ldexp(1, q->scale_exponent);
    for (uint64_t u = 0; u < q->num_scale_regions; u++) {
        double scale = 1;
        if (q->absmax[u] > 0)
            scale = lower_scale(q, q->absmax[u], round_scale(q, exact_scale(q, u, step)));
        else if (q->scale_group_size)
            scale = q->table_factor;
        if (q->scale_group_size)
            ((uint16_t *)q->table)[u] = trf_f64_to_f16(scale / q->table_factor);
        else
            ((float *)q->table)[u] = (float)scale;
    }
}

const void *trf_quantizer_table(const trf_quantizer *q, uint64_t *bytes) {
    *bytes = q->num_scale_regions * (q->scale_group_size ? sizeof(uint16_t) : sizeof(float));
    return q->table;
}

trf_granularity trf_quantizer_granularity(const trf_quantizer *q) { return q->granularity; }

trf_scale_dtype trf_quantizer_scale_dtype(const trf_quantizer *q) {
    return q->scale_group_size ? TRF_SCALE_F16 : TRF_SCALE_F32;
}

uint32_t trf_quantizer_scale_group_size(const trf_quantizer *q) { return q->scale_group_size; }

int32_t trf_quantizer_scale_exponent(const trf_quantizer *q) { return q->scale_exponent; }

/* ---- codes ---- */

static double scale_at(const trf_quantizer *q, uint32_t row, uint32_t col) {
    uint64_t scale_region =
        (uint64_t)(row / q->scale_region_rows) * q->scale_regions_per_row + col / q->scale_region_cols;
    if (!q->scale_group_size)
        return ((const float *)q->table)[scale_region];
    return trf_f16_to_f32(((const uint16_t *)q->table)[scale_region]) * q->table_factor;
}

/* Computes the codes of one scale region's weights, and what they dequantize to, rounded to F32. The quotient is
 * computed in binary64, where it cannot be rounded onto or across a tie: a quotient of 24-bit numbers below 2^10 that
 * is no tie is at least 2^-36 of itself away from one. */
static void quantize_weights(const float *w, uint32_t count, double scale, double limit, int16_t *codes,
                             float *dequantized) {
    const double to_integer = 0x1.8p52; /* adding it leaves no fraction bits, so it rounds to nearest even */
    for (uint32_t i = 0; i < count; i++) {
        double quotient = w[i] / scale;
        quotient = quotient > limit ? limit : quotient;
        quotient = quotient < -limit ? -limit : quotient;
        double code = quotient + to_integer - to_integer;
        codes[i] = (int16_t)(int32_t)code;
        dequantized[i] = (float)(code * scale);
    }
}

/* Rounds F32 values to the dtype; none of them may round to infinity. This is their second rounding, which changes one
 * value in thousands by an ulp. That is good enough for sums of errors. */
static void round_to_dtype(trf_dtype dtype, float *values, uint32_t count) {
    if (dtype == TRF_DTYPE_BF16) {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t bits = trf_f32_bits(values[i]);
            values[i] = trf_f32_from_bits((bits + 0x7FFFu + (bits >> 16 & 1)) & 0xFFFF0000u);
        }
    } else if (dtype == TRF_DTYPE_F16) {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t bits = trf_f32_bits(values[i]);
            uint32_t normal = (bits + 0xFFFu + (bits >> 13 & 1)) & 0xFFFFE000u;
            uint32_t denormal = trf_f32_bits(values[i] + 0.75f - 0.75f);    /* an ulp of 0.75 is F16's least denormal */
            uint32_t mask = -(uint32_t)((bits & 0x7FFFFFFFu) < 113u << 23); /* with ?: gcc does not vectorize */
            values[i] = trf_f32_from_bits((denormal & mask) | (normal & ~mask));
        }
    }
}

static void add_energies(const float *w, const float *dequantized, uint32_t count, double *energy,
                         double *error_energy) {
    uint32_t i = 0;
    for (; i + TRF_QUANTIZE_SUMS <= count; i += TRF_QUANTIZE_SUMS) {
        for (int j = 0; j < TRF_QUANTIZE_SUMS; j++) {
            double weight = w[i + j], error = weight - dequantized[i + j];
            energy[j] += weight * weight;
            error_energy[j] += error * error;
        }
    }
    for (; i < count; i++) {
        double weight = w[i], error = weight - dequantized[i];
        energy[0] += weight * weight;
        error_energy[0] += error * error;
    }
}

void trf_quantizer_codes(const trf_quantizer *q, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                         const void *weights, int16_t *codes, double *energy, double *error_energy) {
    float widened[TRF_WIDENED_WEIGHTS], dequantized[TRF_WIDENED_WEIGHTS];
    double energies[TRF_QUANTIZE_SUMS] = {0}, error_energies[TRF_QUANTIZE_SUMS] = {0};
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c += TRF_WIDENED_WEIGHTS) {
            uint32_t width = cols - c < TRF_WIDENED_WEIGHTS ? cols - c : TRF_WIDENED_WEIGHTS;
            uint64_t first = (uint64_t)r * cols + c;
            trf_widen(q->dtype, weights, first, width, widened);
            for (uint32_t i = 0, length; i < width; i += length) {
                length = trf_cols_in_scale_region(q, col + c + i, width - i);
                double scale = scale_at(q, row + r, col + c + i), limit = q->max_code;
                if (scale * limit > q->dtype_max)
                    limit = floor(q->dtype_max / scale);
                quantize_weights(widened + i, length, scale, limit, codes + first + i, dequantized + i);
            }
            round_to_dtype(q->dtype, dequantized, width);
            add_energies(widened, dequantized, width, energies, error_energies);
        }
    }
    for (int j = 0; j < TRF_QUANTIZE_SUMS; j++) {
        *energy += energies[j];
        *error_energy += error_energies[j];
    }
}
