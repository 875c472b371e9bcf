/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 weights in registers, in C and CUDA: forming the A fragments of a matrix product from codes and a pair of
 * constants, the way back to codes, and the pair of a scale.
 *
 * Sign and magnitude of an E4M3 code, put to bit 15 and bits 10:4, are the BF16 of the code's value times 2^-120,
 * denormals included. With the constants hi and lo, fma(code, hi, code * lo) is the weight, which is defined as the
 * F32 product code * scale, rounded to BF16. Both are rounded twice, at different places; so the pair of a scale is
 * found by trying. */
#ifndef TRF_PACKED8_FORM_H
#define TRF_PACKED8_FORM_H

#include "trf_number_formats.h"
#include "trf_packed8.h"
#include "trf_packed_form.h"

#define TRF_PACKED8_CODE_MASK 0x87F087F0u /* where the codes of a register's two weights are in BF16 */

/* ---- arithmetic of BF16, as fma.rn.bf16x2 does it ---- */

/* Rounds to BF16, as trf_f64_to_bf16 does, which takes longer: a CPU spends most of its time here when it unpacks. */
TRF_HD uint32_t trf_packed8_round(double value) {
    const uint64_t bits = trf_f64_bits(value), magnitude = bits & (UINT64_MAX >> 1);
    const uint32_t exponent = (uint32_t)(magnitude >> 52), rebias = 1023 - 127;
    if (exponent <= rebias || exponent >= rebias + 254) /* no normal BF16, or perhaps none when it is rounded */
        return trf_f64_to_bf16(value);
    const uint64_t rounded = (magnitude + (UINT64_MAX >> 20) + (magnitude >> 45 & 1)) >> 45;
    return (uint32_t)(bits >> 63 << 15) | ((uint32_t)rounded - (rebias << 7));
}

/* a * b + c, rounded once. Only for numbers whose exact sum a binary64 number holds. */
TRF_HD uint32_t trf_packed8_fma_half(uint32_t a, uint32_t b, uint32_t c) {
    const double product = (double)trf_bf16_to_f32((uint16_t)a) * (double)trf_bf16_to_f32((uint16_t)b);
    return trf_packed8_round(product + (double)trf_bf16_to_f32((uint16_t)c));
}

TRF_HD uint32_t trf_packed8_fma(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __CUDA_ARCH__
    uint32_t to;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(to) : "r"(a), "r"(b), "r"(c));
    return to;
#else
    return trf_packed8_fma_half(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF) | trf_packed8_fma_half(a >> 16, b >> 16, c >> 16)
                                                                          << 16;
#endif
}

/* The product; -0 is added, which does not change the sign of a zero. */
TRF_HD uint32_t trf_packed8_mul(uint32_t a, uint32_t b) { return trf_packed8_fma(a, b, 0x80008000u); }

/* ---- fragments ---- */

/* The codes of a column step, each as a BF16 of 2^-120. */
TRF_HD void trf_spread_packed8(uint32_t a[4], uint32_t w0, uint32_t w1) {
    a[0] = w0 & TRF_PACKED8_CODE_MASK;
    a[1] = (trf_packed_select(0x080F080Fu, w0, w1) << 4) & TRF_PACKED8_CODE_MASK;
    a[2] = trf_packed_rotate_right(trf_packed_select(0x70007000u, w0, w1), 4) & TRF_PACKED8_CODE_MASK;
    a[3] = trf_packed_rotate_right(w1, 24) & TRF_PACKED8_CODE_MASK;
}

/* The constants of a pair, each twice: for both weights of a register. */
TRF_HD uint32_t trf_packed8_high(uint32_t pair) {
#ifdef __CUDA_ARCH__
    return __byte_perm(pair, pair, 0x1010);
#else
    return (pair & 0xFFFF) | pair << 16;
#endif
}
TRF_HD uint32_t trf_packed8_low(uint32_t pair) {
#ifdef __CUDA_ARCH__
    return __byte_perm(pair, pair, 0x3232);
#else
    return pair >> 16 | (pair & 0xFFFF0000u);
#endif
}

/* The weights of a register of spread codes, by the pair of their scale. On a GPU each instruction takes its half of
 * the pair as it is. */
TRF_HD uint32_t trf_packed8_scale(uint32_t spread, uint32_t pair) {
#ifdef __CUDA_ARCH__
    uint32_t to;
    asm("{\n\t.reg .b16 hi, lo;\n\t.reg .b32 high, low, rest;\n\t"
        "mov.b32 {hi, lo}, %2;\n\tmov.b32 high, {hi, hi};\n\tmov.b32 low, {lo, lo};\n\t"
        "fma.rn.bf16x2 rest, %1, low, %3;\n\tfma.rn.bf16x2 %0, %1, high, rest;\n\t}"
        : "=r"(to)
        : "r"(spread), "r"(pair), "r"(0x80008000u));
    return to;
#else
    return trf_packed8_fma(spread, trf_packed8_high(pair), trf_packed8_mul(spread, trf_packed8_low(pair)));
#endif
}

/* Forms a, the four registers of a column step. high, low: from trf_packed8_high and trf_packed8_low. */
TRF_HD void trf_form_packed8(uint32_t a[4], uint32_t w0, uint32_t w1, uint32_t high, uint32_t low) {
    trf_spread_packed8(a, w0, w1);
    for (int i = 0; i < 4; i++)
        a[i] = trf_packed8_fma(a[i], high, trf_packed8_mul(a[i], low));
}

/* The same where the second constant is zero. */
TRF_HD void trf_form_packed8_by_one(uint32_t a[4], uint32_t w0, uint32_t w1, uint32_t high) {
    trf_spread_packed8(a, w0, w1);
    for (int i = 0; i < 4; i++)
        a[i] = trf_packed8_mul(a[i], high);
}

/* The same where registers 0 and 2, and 1 and 3, have constants of their own: a layer in turns. */
TRF_HD void trf_form_packed8_in_turns(uint32_t a[4], uint32_t w0, uint32_t w1, const uint32_t high[2],
                                      const uint32_t low[2]) {
    trf_spread_packed8(a, w0, w1);
    for (int i = 0; i < 4; i++)
        a[i] = trf_packed8_fma(a[i], high[i % 2], trf_packed8_mul(a[i], low[i % 2]));
}

/* A code where it is in a BF16, and back. */
TRF_HD uint32_t trf_packed8_spread_code(uint32_t code) { return (code & 0x80) << 8 | (code & 0x7F) << 4; }
TRF_HD uint32_t trf_packed8_code_of(uint32_t half) { return (half >> 8 & 0x80) | (half >> 4 & 0x7F); }

/* Gives the words from which trf_spread_packed8 makes a, whose halves are spread codes. */
TRF_HD void trf_unspread_packed8(const uint32_t a[4], uint32_t w[2]) {
    const uint32_t v1 = a[1] >> 4, v2 = trf_packed_rotate_right(a[2], 28);
    w[0] = a[0] | (v1 & 0x080F080Fu) | (v2 & 0x70007000u);
    w[1] = (v1 & 0x00700070u) | (v2 & 0x0F080F08u) | trf_packed_rotate_right(a[3], 8);
}

/* ---- weights and the pairs of scales ---- */

/* The definition of a weight, which is that of scaled FP8 in blobs (trf_scale_fp8) but for NaN codes: these give the
 * quiet NaN of their sign without a payload, whatever the scale. scale: one that has a pair. */
TRF_HD uint32_t trf_packed8_define_weight(uint32_t code, float scale) {
    if ((code & 0x7F) == TRF_PACKED8_NAN_CODE)
        return (code & 0x80) << 8 | 0x7FC0;
    return trf_scale_fp8(code, scale);
}

/* The only code that may make a BF16 weight with a scale, whether it does or not: that of the nearest number to the
 * weight divided by the scale. Weights of codes lie within 2^-8 of their quotient, and codes are 2^-5 apart at least,
 * so it does not matter how the quotient is rounded. An infinity or a NaN gives the largest number. inverse: 1 / scale.
 */
TRF_HD uint32_t trf_packed8_nearest_code(uint32_t weight, float inverse) {
    const uint32_t largest = 0x43E00000u, normal = 0x3C800000u; /* 448, and 2^-6, the least normal number */
    const uint32_t exact = trf_f32_bits(trf_f32_from_bits((weight & 0x7FFF) << 16) * inverse),
                   quotient = exact < largest ? exact : largest;
    const uint32_t magnitude = quotient < normal ? (uint32_t)(trf_f32_from_bits(quotient) * 0x1p9f + 0.5f)
                                                 : ((quotient + 0x7FFFF) >> 20) - (120 << 3);
    return (weight >> 8 & 0x80) | magnitude;
}

/* What trf_packed8_nearest_codes multiplies weights by: the inverse of the scale that a pair makes, times 2^-120. */
TRF_HD uint32_t trf_packed8_inverse(uint32_t pair) {
    const float scale = trf_bf16_to_f32((uint16_t)pair) + trf_bf16_to_f32((uint16_t)(pair >> 16));
    const uint32_t inverse = trf_f32_to_bf16(1 / scale);
    return inverse | inverse << 16;
}

/* Gives spread codes of a register's two weights: those that make the weights by the pair, if there are such codes.
 * For weights that are none, among them infinities and NaNs, it gives any numbers. A quotient of BF16 is at most 2^-5.6
 * off, in parts of itself: the weight was rounded to 2^-9, as the product is; the inverse to 2^-9, and to 2^-7 below
 * 2^-126, of a scale that the pair has to 2^-8. Codes are 2^-4 apart, and are rounded to the nearest one. */
TRF_HD uint32_t trf_packed8_nearest_codes(uint32_t weights, uint32_t inverse) {
    const uint32_t quotients = trf_packed8_mul(weights, inverse) & 0x7FFF7FFFu;
    const uint32_t codes = (quotients + 0x00080008u) & 0x7FF07FF0u, signs = weights & 0x80008000u;
#ifdef __CUDA_ARCH__
    return __vminu2(codes, 0x07E007E0u) | signs; /* 448, the largest number */
#else
    const uint32_t low = codes & 0xFFFF, high = codes >> 16;
    return (low < 0x7E0 ? low : 0x7E0) | (high < 0x7E0 ? high : 0x7E0) << 16 | signs;
#endif
}

/* The code of a weight that is an E4M3 number or a NaN: the way back where the scale is 1. */
TRF_HD uint32_t trf_packed8_code_of_number(uint32_t weight) {
    return (weight & 0x7FFF) > 0x7F80 ? (weight >> 8 & 0x80) | TRF_PACKED8_NAN_CODE
                                      : trf_packed8_nearest_code(weight, 1.0f);
}

/* The weight that a kernel forms. */
TRF_HD uint32_t trf_packed8_weight(uint32_t code, uint32_t pair) {
    const uint32_t spread = trf_packed8_spread_code(code);
    return trf_packed8_fma_half(spread, pair & 0xFFFF, trf_packed8_fma_half(spread, pair >> 16, 0x8000));
}

/* Whether a pair gives the weights of a scale for the eight mantissas that codes have. If it does, it does for all
 * codes: their other bits are a sign and an exponent, which are far from the ends of what BF16 and F32 hold. */
TRF_HD int trf_packed8_pair_fits(uint32_t pair, float scale) {
    for (uint32_t mantissa = 0; mantissa < 8; mantissa++) {
        const uint32_t code = 7 << 3 | mantissa; /* 1 to 1.875 */
        if (trf_packed8_weight(code, pair) != trf_packed8_define_weight(code, scale))
            return 0;
    }
    return 1;
}

/* Finds the pair of a scale: hi in bits 15:0, lo in bits 31:16, both times 2^120. It is the first that fits of:
 *   the scale cut off to BF16, and 0;   the next BF16, and 0;   the scale cut off, and the rest, rounded to BF16;
 *   the scale cut off, and each BF16 from 2^-24 to 2^-6 times the scale's power of two.
 * All 2^23 mantissas of an F32 have one of these. +0 has the pair 0.
 * @return whether the scale has a pair: +0 and 2^-100 <= scale < 2^7 have one. */
TRF_HD int trf_packed8_find_pair(float scale, uint32_t *pair) {
    const uint32_t bits = trf_f32_bits(scale), exponent = bits >> 23, lift = TRF_PACKED8_BIAS << 7;
    *pair = 0;
    if (bits == 0)
        return 1;
    if (exponent < TRF_PACKED8_MIN_SCALE_EXPONENT || exponent > TRF_PACKED8_MAX_SCALE_EXPONENT)
        return 0;
    const uint32_t hi = bits >> 16, cut_off = trf_f32_to_bf16(scale - trf_f32_from_bits(hi << 16));
    for (uint32_t up = 0; up < 2; up++)
        if (trf_packed8_pair_fits(*pair = hi + up + lift, scale))
            return 1;
    if (trf_packed8_pair_fits(*pair = hi + lift + ((cut_off + lift) << 16), scale))
        return 1;
    for (uint32_t lo = (exponent - 24) << 7; lo < (exponent - 6) << 7; lo++)
        if (trf_packed8_pair_fits(*pair = hi + lift + ((lo + lift) << 16), scale))
            return 1;
    return 0;
}

#endif
