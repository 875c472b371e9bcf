/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_float.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct small_float {
    int exponent_bits, mantissa_bits;
    uint32_t max_bits; /* of the largest finite value */
    int has_infinity;  /* else the top exponent holds numbers, and all ones is the NaN */
} small_float;

static small_float format_of(trf_dtype dtype) {
    switch (dtype) {
    case TRF_DTYPE_F16:
        return (small_float){5, 10, 0x7bff, 1};
    case TRF_DTYPE_F8_E4M3:
        return (small_float){4, 3, 0x7e, 0};
    case TRF_DTYPE_F8_E5M2:
        return (small_float){5, 2, 0x7b, 1};
    default:
        return (small_float){8, 7, 0x7f7f, 1}; /* BF16 */
    }
}

static int smallest_exponent(small_float format) { return 2 - (1 << (format.exponent_bits - 1)); }

uint32_t cli_float_to_bits(float value, trf_dtype dtype) {
    small_float format = format_of(dtype);
    int smallest = smallest_exponent(format);
    uint32_t sign = signbit(value) ? 1u << (format.exponent_bits + format.mantissa_bits) : 0;
    if (value == 0)
        return sign;
    int exponent;
    frexpf(value, &exponent);
    exponent = exponent - 1 > smallest ? exponent - 1 : smallest;
    /* Below 2^mantissa_bits for a denormal; a carry out of the mantissa moves into the exponent by itself. */
    uint32_t steps = (uint32_t)rintf(ldexpf(fabsf(value), format.mantissa_bits - exponent));
    uint32_t bits = ((uint32_t)(exponent - smallest) << format.mantissa_bits) + steps;
    return sign | (bits < format.max_bits ? bits : format.max_bits);
}

float cli_bits_to_float(uint32_t bits, trf_dtype dtype) {
    if (dtype == TRF_DTYPE_I8)
        return (float)(int8_t)bits;
    small_float format = format_of(dtype);
    uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
    int field = (int)(bits >> format.mantissa_bits & ((1u << format.exponent_bits) - 1));
    uint32_t magnitude = bits & ((1u << (format.exponent_bits + format.mantissa_bits)) - 1);
    float value;
    if (magnitude > format.max_bits)
        value = format.has_infinity && mantissa == 0 ? INFINITY : NAN;
    else if (field == 0)
        value = ldexpf((float)mantissa, smallest_exponent(format) - format.mantissa_bits);
    else
        value = ldexpf((float)(mantissa | 1u << format.mantissa_bits),
                       smallest_exponent(format) + field - 1 - format.mantissa_bits);
    return bits == magnitude ? value : -value;
}

float cli_dtype_max(trf_dtype dtype) { return cli_bits_to_float(format_of(dtype).max_bits, dtype); }

int cli_widen(const void *source, trf_dtype dtype, uint64_t n, float *target) {
    if (dtype == TRF_DTYPE_F32) {
        memcpy(target, source, n * sizeof *target);
        return 0;
    }
    size_t bytes = trf_dtype_bytes(dtype), patterns = (size_t)1 << 8 * bytes;
    float *values = malloc(patterns * sizeof *values);
    if (!values)
        return -1;
    for (size_t i = 0; i < patterns; i++)
        values[i] = cli_bits_to_float((uint32_t)i, dtype);
    for (uint64_t i = 0; i < n; i++)
        target[i] = values[bytes == 2 ? ((const uint16_t *)source)[i] : ((const uint8_t *)source)[i]];
    free(values);
    return 0;
}
