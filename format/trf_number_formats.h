/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between the number formats of weights, in portable C and CUDA. Widening is exact; narrowing rounds once,
 * to nearest even. 16- and 8-bit floats travel as their bit patterns.
 *
 * NaNs stay NaNs: widening keeps the payload; narrowing keeps its top bits and sets the quiet bit. */
#ifndef TRF_NUMBER_FORMATS_H
#define TRF_NUMBER_FORMATS_H

#include "trf_blob.h"

#include <string.h>

TRF_HD uint32_t trf_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

TRF_HD float trf_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

TRF_HD float trf_bf16_to_f32(uint16_t bf16) { return trf_f32_from_bits((uint32_t)bf16 << 16); }

/* Branchless, so that loops over it vectorize. */
TRF_HD float trf_f16_to_f32(uint16_t f16) {
    uint32_t magnitude = f16 & 0x7FFFu, sign = (uint32_t)(f16 & 0x8000u) << 16;
    uint32_t rebias = magnitude >= 0x7C00u ? 224u << 23 : 112u << 23; /* 15 to 127; Inf and NaN: 31 to 255 */
    uint32_t normal = (magnitude << 13) + rebias;
    uint32_t denormal = trf_f32_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t mask = -(uint32_t)(magnitude < 0x400u); /* gcc does not vectorize a choice between the two */
    return trf_f32_from_bits(sign | (denormal & mask) | (normal & ~mask));
}

/* E4M3 has no infinities; S.1111.111 is its NaN (the type that safetensors calls F8_E4M3). */
TRF_HD float trf_e4m3_to_f32(uint8_t e4m3) {
    uint32_t magnitude = e4m3 & 0x7Fu, sign = (uint32_t)(e4m3 & 0x80u) << 24;
    uint32_t normal = magnitude == 0x7Fu ? 0x7FC00000u : (magnitude << 20) + (120u << 23);
    uint32_t denormal = trf_f32_bits((float)(int32_t)magnitude * 0x1p-9f);
    return trf_f32_from_bits(sign | (magnitude < 8u ? denormal : normal));
}

/* E5M2 is the upper byte of an IEEE half. */
TRF_HD float trf_e5m2_to_f32(uint8_t e5m2) { return trf_f16_to_f32((uint16_t)(e5m2 << 8)); }

/* Rounds the bits of a binary64 number without its sign to an IEEE format that has mantissa_bits (below 32) bits of
 * mantissa, the exponent bias `bias` and the all-ones exponent max_exponent. Overflow gives infinity, as rounding to
 * nearest does. */
TRF_HD uint32_t trf_f64_round_magnitude(uint64_t magnitude, int mantissa_bits, int bias, uint32_t max_exponent) {
    const uint64_t infinity = 0x7FFull << 52, fraction = (1ull << 52) - 1;
    if (magnitude > infinity)
        return max_exponent << mantissa_bits | 1u << (mantissa_bits - 1) |
               (uint32_t)((magnitude & fraction) >> (52 - mantissa_bits));
    int exponent = (int)(magnitude >> 52) - 1023, lowest = 1 - bias;
    if (exponent <
        lowest - mantissa_bits - 1) /* below half of the smallest denormal; binary64 denormals are here too */
        return 0;
    if (exponent > bias)
        return max_exponent << mantissa_bits;
    uint64_t significand = (magnitude & fraction) | 1ull << 52;
    int dropped = 52 - mantissa_bits + (exponent < lowest ? lowest - exponent : 0);
    uint64_t kept = significand >> dropped, rest = significand & ((1ull << dropped) - 1), half = 1ull << (dropped - 1);
    kept += rest > half || (rest == half && (kept & 1));
    /* A carry out of the significand runs into the exponent, up to infinity, which is what it should do. */
    uint32_t exponent_field = exponent < lowest ? 0 : (uint32_t)(exponent + bias - 1);
    return (exponent_field << mantissa_bits) + (uint32_t)kept;
}

TRF_HD uint64_t trf_f64_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

TRF_HD uint16_t trf_f64_to_f16(double value) {
    uint64_t bits = trf_f64_bits(value);
    return (uint16_t)((bits >> 63) << 15 | trf_f64_round_magnitude(bits & (UINT64_MAX >> 1), 10, 15, 31));
}

TRF_HD uint16_t trf_f64_to_bf16(double value) {
    uint64_t bits = trf_f64_bits(value);
    return (uint16_t)((bits >> 63) << 15 | trf_f64_round_magnitude(bits & (UINT64_MAX >> 1), 7, 127, 255));
}

TRF_HD float trf_f64_to_f32(double value) { return (float)value; }

TRF_HD uint16_t trf_f32_to_f16(float value) { return trf_f64_to_f16((double)value); }

TRF_HD uint16_t trf_f32_to_bf16(float value) {
    uint32_t bits = trf_f32_bits(value);
    uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? bits >> 16 | 0x40u : rounded);
}

/* The number of an E4M3 code times an F32 scale, as F32 and then as BF16, each rounded to nearest even: FORMAT.md
 * section
 * 5. scale: in the range of trf_is_fp8_scale, so that no product is denormal or infinite, however the CPU is set up to
 * treat denormals. A NaN's code counts as +-480, which its bits would be. */
TRF_HD uint16_t trf_scale_fp8(uint32_t code, float scale) {
    const uint32_t magnitude = code & 0x7Fu;
    const uint32_t denormal = trf_f32_bits((float)(int32_t)magnitude * 0x1p-9f);
    const uint32_t normal = (magnitude << 20) + (120u << 23), mask = -(uint32_t)(magnitude < 8u); /* as above */
    const uint32_t value = (denormal & mask) | (normal & ~mask);
    const uint32_t product = trf_f32_bits(trf_f32_from_bits(value) * scale);
    return (uint16_t)((code & 0x80u) << 8 | (product + 0x7FFFu + (product >> 16 & 1)) >> 16);
}

/* Whether a number may be a scale of scaled FP8. */
TRF_HD int trf_is_fp8_scale(float scale) { return scale >= 0x1p-100f && scale <= 0x1p100f; }

/* An F16 scale of the int codec times 2^exponent (-126 to 126), rounded once: FORMAT.md section 3. */
TRF_HD float trf_f16_scale(uint16_t f16, int32_t exponent) {
    return trf_f16_to_f32(f16) * trf_f32_from_bits((uint32_t)(exponent + 127) << 23);
}

#endif
