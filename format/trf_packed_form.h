/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights in registers, in C and CUDA: forming the A fragments of a matrix product from raw and index words, the
 * way back, and the exact powers of two between the window's scale and the true one.
 *
 * Four weights, the halves of two registers, share a raw word. One register takes its sign and mantissa bits from the
 * places that the mask below sets, the other one takes them from the places between, rotated by a byte. The index words
 * have each register's exponents in the places that its raw bits leave free: those of registers 0 and 1 as they are,
 * those of 2 and 3 four bits above. */
#ifndef TRF_PACKED_FORM_H
#define TRF_PACKED_FORM_H

#include "trf_packed.h"

#define TRF_PACKED_SIGN_MANTISSA_MASK 0x807F807Fu /* sign and mantissa of a register's two weights */
#define TRF_PACKED_INDICES 0x87878787u            /* four indices where exponents have their low four bits */
#define TRF_PACKED_112 0x38383838u                /* the four bits above them: 0111 */

/* ---- instructions: the device's are named, because the compiler joins plain operations less well ---- */

/* mask ? a : b, bit by bit. */
TRF_HD uint32_t trf_packed_select(uint32_t mask, uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    uint32_t to;
    asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(to) : "r"(mask), "r"(a), "r"(b));
    return to;
#else
    return (mask & a) | (~mask & b);
#endif
}

TRF_HD uint32_t trf_packed_and_or(uint32_t a, uint32_t mask, uint32_t set) {
#ifdef __CUDA_ARCH__
    uint32_t to;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(to) : "r"(a), "r"(mask), "r"(set));
    return to;
#else
    return (a & mask) | set;
#endif
}

/* bits: 1 to 31. */
TRF_HD uint32_t trf_packed_rotate_right(uint32_t word, uint32_t bits) {
#ifdef __CUDA_ARCH__
    return bits == 8 ? __byte_perm(word, word, 0x0321) : __funnelshift_r(word, word, bits);
#else
    return word >> bits | word << (32 - bits);
#endif
}

/* One BF16 times 2^112, exact for exponent fields below 143. It is what an fma gives. */
TRF_HD uint32_t trf_packed_lift_half(uint32_t half) {
    uint32_t exponent = half >> 7 & 0xFF, mantissa = half & 0x7F;
    if (exponent == 0 && mantissa == 0)
        return half;
    if (exponent == 0) /* denormal; valid layers have none */
        for (exponent = 1; mantissa < 0x80; exponent--)
            mantissa *= 2;
    return (half & 0x8000) | ((exponent + TRF_PACKED_EXPONENT) & 0xFF) << 7 | (mantissa & 0x7F);
}

/* A register's two weights times 2^112 (factor: 0x77807780) or 1 (0x3F803F80). The fma adds -0, which does not change
 * the sign of a zero. */
TRF_HD uint32_t trf_packed_lift_by(uint32_t reg, uint32_t factor) {
#ifdef __CUDA_ARCH__
    uint32_t to;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(to) : "r"(reg), "r"(factor), "r"(0x80008000u));
    return to;
#else
    return factor == 0x3F803F80u ? reg : trf_packed_lift_half(reg & 0xFFFF) | trf_packed_lift_half(reg >> 16) << 16;
#endif
}
TRF_HD uint32_t trf_packed_lift(uint32_t reg) { return trf_packed_lift_by(reg, 0x77807780u); }

/* ---- fragments ---- */

/* Forms two registers from a raw word and a word of four exponents. The exponents of a[0] are in bits 30:23 and 14:7,
 * those of a[1] in the other bits. */
TRF_HD void trf_form_packed_four(uint32_t *a, uint32_t raw, uint32_t exponents) {
    a[0] = trf_packed_select(TRF_PACKED_SIGN_MANTISSA_MASK, raw, exponents);
    a[1] = trf_packed_rotate_right(trf_packed_select(TRF_PACKED_SIGN_MANTISSA_MASK, exponents, raw), 8);
}

/* Forms a, the four registers of a column step. Their exponents are 112 | index. */
TRF_HD void trf_form_packed(uint32_t a[4], uint32_t raw0, uint32_t raw1, uint32_t index) {
    const uint32_t upper = trf_packed_rotate_right(index, 4);
    trf_form_packed_four(a, raw0, trf_packed_and_or(index, TRF_PACKED_INDICES, TRF_PACKED_112));
    trf_form_packed_four(a + 2, raw1, trf_packed_and_or(upper, TRF_PACKED_INDICES, TRF_PACKED_112));
}

/* The same for a zeroing layer, where index 0 is a zero with its sign. */
TRF_HD void trf_form_packed_zeroing(uint32_t a[4], uint32_t raw0, uint32_t raw1, uint32_t index) {
    trf_form_packed_four(a, raw0, index & TRF_PACKED_INDICES);
    trf_form_packed_four(a + 2, raw1, trf_packed_rotate_right(index, 4) & TRF_PACKED_INDICES);
    for (int i = 0; i < 4; i++)
        a[i] = trf_packed_lift(a[i]);
}

/* How the weights of a layer are formed that may or may not be zeroing: in 6.5 instructions, as those of a zeroing
 * one. */
typedef struct trf_packed_either {
    uint32_t exponents; /* is put over the indices */
    uint32_t factor;    /* of the two weights of a register: 2^112, or 1 */
} trf_packed_either;

TRF_HD trf_packed_either trf_packed_either_of(uint32_t zeroing) {
    const trf_packed_either either = {zeroing ? 0 : (uint32_t)TRF_PACKED_112, zeroing ? 0x77807780u : 0x3F803F80u};
    return either;
}

TRF_HD void trf_form_packed_either(uint32_t a[4], uint32_t raw0, uint32_t raw1, uint32_t index,
                                   trf_packed_either either) {
    trf_form_packed_four(a, raw0, trf_packed_and_or(index, TRF_PACKED_INDICES, either.exponents));
    trf_form_packed_four(a + 2, raw1,
                         trf_packed_and_or(trf_packed_rotate_right(index, 4), TRF_PACKED_INDICES, either.exponents));
    for (int i = 0; i < 4; i++)
        a[i] = trf_packed_lift_by(a[i], either.factor);
}

/* Puts a record's weight in its place among the registers of its lane and step. */
TRF_HD void trf_patch_packed(uint32_t a[4], uint32_t record) {
    const uint32_t reg = trf_packed_record_reg(record), shift = 16 * trf_packed_record_half(record);
    const uint32_t keep = 0xFFFF0000u >> shift, bits = trf_packed_record_bits(record) << shift;
    for (uint32_t i = 0; i < 4; i++) /* no register is indexed at run time */
        a[i] = i == reg ? (a[i] & keep) | bits : a[i];
}

/* Gives the words from which a is formed: raw[0], raw[1] and the index word. Only the low four bits of an exponent
 * count, which are the index of weights of the window and of zeros. */
TRF_HD void trf_unform_packed(const uint32_t a[4], uint32_t raw[2], uint32_t *index) {
    uint32_t exponents[2];
    for (int i = 0; i < 2; i++) {
        const uint32_t turned = a[2 * i + 1] << 8 | a[2 * i + 1] >> 24;
        raw[i] = trf_packed_select(TRF_PACKED_SIGN_MANTISSA_MASK, a[2 * i], turned);
        exponents[i] = trf_packed_select(TRF_PACKED_SIGN_MANTISSA_MASK, turned, a[2 * i]) & TRF_PACKED_INDICES;
    }
    *index = exponents[0] | trf_packed_rotate_right(exponents[1], 28);
}

/* ---- scales ---- */

/* A BF16 times 2^shift. NaNs with their payload, infinities and zeros stay what they are. *exact becomes 0 if the
 * result is not a BF16: it is too large (an infinity is returned), or it is a denormal that lost bits (they are cut
 * off). */
TRF_HD uint32_t trf_scale_bf16(uint32_t bits, int32_t shift, int *exact) {
    const uint32_t sign = bits & 0x8000;
    int32_t exponent = (int32_t)(bits >> 7 & 0xFF);
    uint32_t mantissa = bits & 0x7F;
    if (exponent == 255 || (exponent == 0 && mantissa == 0))
        return bits;
    if (exponent == 0)
        for (exponent = 1; mantissa < 0x80; exponent--)
            mantissa *= 2;
    else
        mantissa |= 0x80;
    exponent += shift;
    if (exponent >= 255) {
        *exact = 0;
        return sign | 0x7F80;
    }
    if (exponent >= 1)
        return sign | (uint32_t)exponent << 7 | (mantissa & 0x7F);
    const int32_t dropped = exponent < -7 ? 8 : 1 - exponent;
    if (mantissa & ((1u << dropped) - 1))
        *exact = 0;
    return sign | mantissa >> dropped;
}

/* Whether a weight needs no record: its exponent field, less its row's offset, is in the window, or it is a zero of a
 * zeroing layer. Denormals need a record. */
TRF_HD int trf_packed_fits(uint32_t bits, int32_t base, uint32_t zeroing, int32_t row_offset) {
    const uint32_t exponent = bits >> 7 & 0xFF;
    if ((bits & 0x7FFF) == 0)
        return zeroing != 0;
    const uint32_t index = exponent - (uint32_t)row_offset - (uint32_t)base; /* an unsigned difference */
    return exponent != 0 && exponent != 255 && index >= zeroing && index < TRF_PACKED_WINDOW;
}

#endif
