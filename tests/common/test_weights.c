/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers and weights. */
#include "test_weights.h"

#include "trf_number_formats.h"

#include <math.h>

/* SplitMix64 (Steele, Lea and Flood 2014). */
uint64_t test_random(test_rng *rng) {
    uint64_t z = rng->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint32_t test_below(test_rng *rng, uint32_t bound) { return (uint32_t)((test_random(rng) >> 32) * bound >> 32); }

double test_uniform(test_rng *rng) { return ((double)(test_random(rng) >> 12) + 0.5) * 0x1p-52; }

double test_normal(test_rng *rng) {
    double radius = sqrt(-2 * log(test_uniform(rng)));
    return radius * cos(6.283185307179586 * test_uniform(rng));
}

/* Bailey 1994: polar form without a chi-square sample. */
double test_student(test_rng *rng, double freedom) {
    double radius = sqrt(freedom * (pow(test_uniform(rng), -2 / freedom) - 1));
    return radius * cos(6.283185307179586 * test_uniform(rng));
}

static uint8_t f64_to_fp8(double value, int mantissa_bits, int bias, uint32_t max_exponent) {
    uint64_t bits = trf_f64_bits(value);
    return (uint8_t)((bits >> 63) << 7 |
                     trf_f64_round_magnitude(bits & (UINT64_MAX >> 1), mantissa_bits, bias, max_exponent));
}

void test_put_weight(void *weights, trf_dtype dtype, size_t index, double value) {
    uint8_t *bytes = weights;
    uint16_t *halves = weights;
    switch (dtype) {
    case TRF_DTYPE_F32:
        ((float *)weights)[index] = (float)value;
        break;
    case TRF_DTYPE_F16:
        halves[index] = trf_f64_to_f16(value);
        break;
    case TRF_DTYPE_BF16:
        halves[index] = trf_f64_to_bf16(value);
        break;
    case TRF_DTYPE_F8_E4M3:
        bytes[index] = f64_to_fp8(value, 3, 7, 15);
        break;
    case TRF_DTYPE_F8_E5M2:
        bytes[index] = f64_to_fp8(value, 2, 15, 31);
        break;
    default:
        bytes[index] = (uint8_t)(int8_t)fmax(-128, fmin(127, rint(value)));
        break;
    }
}

void test_fill_normal(test_rng *rng, void *weights, trf_dtype dtype, size_t count, double sigma) {
    for (size_t i = 0; i < count; i++)
        test_put_weight(weights, dtype, i, sigma * test_normal(rng));
}

void test_fill_student(test_rng *rng, void *weights, trf_dtype dtype, size_t count, double freedom, double sigma) {
    for (size_t i = 0; i < count; i++)
        test_put_weight(weights, dtype, i, sigma * test_student(rng, freedom));
}

void test_fill_patterns(void *weights, trf_dtype dtype, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (dtype == TRF_DTYPE_F32)
            ((float *)weights)[i] = trf_f32_from_bits((uint32_t)i * 2654435761u);
        else if (trf_dtype_bytes(dtype) == 2)
            ((uint16_t *)weights)[i] = (uint16_t)(i * 40503u);
        else
            ((uint8_t *)weights)[i] = (uint8_t)(i * 157u);
}
