/* SPDX-License-Identifier: Apache-2.0 */
/* From class look-ups and words of raw bits to matrix fragments: how four neighbouring weights of a lane are put
 * together.
 *
 * A 32-bit *byte word* holds one byte for each of four weights, in the order 0, 2, 1, 3, in which planes hold their
 * fields. Its class part comes from the decode table; the narrow planes supply the bits below that, with one rotation
 * and one lop3 for each plane:
 *   bf16     the exponent                        rotated left by 7, so that bytes 0 and 2 lie on a register's exponents
 *   fp16     exponent[4:0] mantissa[9:7]         likewise, on bits 14:7
 *   fp8      the byte rotated left by 1          a rotation right by 1 brings each sign (stored one byte on) home
 *            or what a product needs of E4M3: F16 (trf_build_four_f16), spread codes (trf_build_four_spread)
 *   int      class index << raw_bits | raw bits
 * In bf16 and fp16 the 8-bit plane has the other 8 bits of each weight: the first register (weights 0, 1) takes them
 * from under kSignMantissaMask, the second one from under its complement, rotated by 8. */
#ifndef TRF_FRAGMENT_CUH
#define TRF_FRAGMENT_CUH

#include "trf_device_view.h"
#include "trf_ptx.cuh"

static constexpr uint32_t kSignMantissaMask = 0x807F807F; /* sign and mantissa[6:0] of a register's two weights */

/* Codec, class bits and raw bits at compile time. The raw bits of int are given at run time, unless kIntRaw says them:
 * without it, each four weights cost instructions for planes that the layer may not have. kScaledFp8: the codec is
 * E4M3, and elements are BF16, codes times scales. kForProduct: E4M3 becomes two registers of what a product takes:
 * elements as F16, times 2^-8 (kAsF16), or codes of scaled FP8 spread over BF16, times 2^-120 (kSpread). */
template <int kCodec_, int kClassBits_, int kIntRaw = 0, bool kForProduct = false, bool kScaledFp8_ = false>
struct trf_codec_config {
    static constexpr bool kScaledFp8 = kScaledFp8_;
    static constexpr bool kAsF16 = kForProduct && !kScaledFp8, kSpread = kForProduct && kScaledFp8;
    static constexpr bool kTurned = kSpread && kClassBits_ == 2; /* class parts are kept one byte on */
    static constexpr int kCodec = kCodec_, kClassBits = kClassBits_;
    static constexpr bool kHasPlane8 = kCodec == TRF_CODEC_BF16 || kCodec == TRF_CODEC_FP16; /* has an 8-bit plane */
    static constexpr bool kFp8 = kCodec == TRF_CODEC_E4M3 || kCodec == TRF_CODEC_E5M2;
    static constexpr bool kInt = kCodec == TRF_CODEC_INT;
    static constexpr bool kKnownRaw = !kInt || kIntRaw != 0;
    static constexpr int kRawExponent = kClassBits == 2 ? 2 : 0; /* exponent bits that are raw with quads */
    static constexpr int kRaw = kCodec == TRF_CODEC_BF16   ? 8 + kRawExponent
                                : kCodec == TRF_CODEC_FP16 ? 11 + kRawExponent
                                : kCodec == TRF_CODEC_E4M3 ? 4 + kRawExponent
                                : kCodec == TRF_CODEC_E5M2 ? 3 + kRawExponent
                                                           : kIntRaw;
    /* raw_bits: those of the layer */
    static __host__ __device__ constexpr uint32_t raw(uint32_t raw_bits) {
        return kKnownRaw ? (uint32_t)kRaw : raw_bits;
    }
    static constexpr int kSymbols = kClassBits == 2 ? 1 : 2; /* symbols for four weights */
    static constexpr int kRotation = kHasPlane8 ? 7 : 0;     /* byte words are kept rotated left by so many bits */
    static __host__ __device__ constexpr bool has(int width) { return (kRaw & width) != 0; }
    /* The lowest bit of the narrow plane of a width within a byte of a byte word. */
    static __host__ __device__ constexpr int low_bit(int width) {
        if (kCodec == TRF_CODEC_E4M3 && kClassBits == 2) /* the sign is in the plane of 2 */
            return width == 4 ? 2 : 0;
        return width == 4 ? 0 : width == 2 ? (has(4) ? 4 : 0) : (has(4) ? 4 : 0) + (has(2) ? 2 : 0);
    }
    static __host__ __device__ constexpr uint32_t mask(int width) {
        uint32_t m = (uint32_t)(((1 << width) - 1) << low_bit(width)) * 0x01010101u;
        return kRotation ? m << kRotation | m >> (32 - kRotation) : m;
    }
};

/* The planes of the int codec's raw bits, at run time. */
struct trf_int_planes {
    uint32_t raw_bits;
    uint32_t mask2, mask1;
    int low_bit2, low_bit1;
};

static __device__ __forceinline__ trf_int_planes trf_int_planes_of(uint32_t raw_bits) {
    trf_int_planes p;
    p.raw_bits = raw_bits;
    p.low_bit2 = raw_bits & 4;
    p.low_bit1 = raw_bits & 6;
    p.mask2 = 0x03030303u << p.low_bit2;
    p.mask1 = 0x01010101u << p.low_bit1;
    return p;
}

/* The byte offset of a plane among a chunk's narrow planes: wider ones come first. */
static __device__ __forceinline__ constexpr uint32_t trf_narrow_at(uint32_t raw_bits, uint32_t width) {
    return (raw_bits & 7 & ~(2 * width - 1)) * (4 * TRF_CHUNK_WEIGHTS);
}

/* A lane's words of narrow planes, as far as the codec config has these planes. */
struct trf_narrow_words {
    uint4 plane4; /* of two steps */
    uint4 plane2; /* of a chunk */
    uint2 plane1;
};

/* Starts the copy of a lane's own words of a chunk's narrow planes. Both places are that of the narrow planes' first
 * byte, plus 16 * lane. */
template <class Codec>
static __device__ __forceinline__ void trf_prefetch_narrow(uint32_t to, const uint8_t *from, uint32_t lane,
                                                           const trf_int_planes &planes) {
    const uint32_t raw = Codec::raw(planes.raw_bits);
    if (raw & 4) {
        trf_cp_async16(to, from);
        trf_cp_async16(to + 512, from + 512);
    }
    if (raw & 2)
        trf_cp_async16(to + trf_narrow_at(raw, 2), from + trf_narrow_at(raw, 2));
    if (raw & 1)
        trf_cp_async8(to + trf_narrow_at(raw, 1) - 8 * lane, from + trf_narrow_at(raw, 1) - 8 * lane);
}

/* Loads the narrow words that are needed from step k (0 to 3) of a chunk on; it is called for every k. at: as above, a
 * shared address. */
template <class Codec>
static __device__ __forceinline__ void trf_load_narrow(trf_narrow_words &n, uint32_t at, uint32_t lane, int k,
                                                       const trf_int_planes &planes) {
    const uint32_t raw = Codec::raw(planes.raw_bits);
    if (k % 2 == 0 && (raw & 4))
        n.plane4 = trf_lds128(at + 512 * (k / 2));
    if (k == 0 && (raw & 2))
        n.plane2 = trf_lds128(at + trf_narrow_at(raw, 2));
    if (k == 0 && (raw & 1))
        n.plane1 = trf_lds64(at + trf_narrow_at(raw, 1) - 8 * lane);
    if (!Codec::kKnownRaw &&
        k == 0) { /* Rotates them to their place in a byte word once, so that all other rotations are by constants. */
        n.plane2.x = __funnelshift_l(n.plane2.x, n.plane2.x, planes.low_bit2);
        n.plane2.y = __funnelshift_l(n.plane2.y, n.plane2.y, planes.low_bit2);
        n.plane2.z = __funnelshift_l(n.plane2.z, n.plane2.z, planes.low_bit2);
        n.plane2.w = __funnelshift_l(n.plane2.w, n.plane2.w, planes.low_bit2);
        n.plane1.x = __funnelshift_l(n.plane1.x, n.plane1.x, planes.low_bit1);
        n.plane1.y = __funnelshift_l(n.plane1.y, n.plane1.y, planes.low_bit1);
    }
}

/* The words of the planes of 4 and of 2 that have weights 4 * g to 4 * g + 3 (g: 0 to 3) of step k. */
static __device__ __forceinline__ uint32_t trf_word_of_plane4(const trf_narrow_words &n, int k, int g) {
    const int pick = 2 * (k % 2) + g / 2;
    return pick == 0 ? n.plane4.x : pick == 1 ? n.plane4.y : pick == 2 ? n.plane4.z : n.plane4.w;
}

static __device__ __forceinline__ uint32_t trf_word_of_plane2(const trf_narrow_words &n, int k) {
    return k == 0 ? n.plane2.x : k == 1 ? n.plane2.y : k == 2 ? n.plane2.z : n.plane2.w;
}

/* Adds the bits of narrow planes to the byte word of weights 4 * g to 4 * g + 3 of step k. bytes: its class part. */
template <class Codec>
static __device__ __forceinline__ uint32_t trf_narrow_bits(const trf_narrow_words &n, int k, int g, uint32_t bytes,
                                                           const trf_int_planes &planes) {
    const uint32_t word4 = trf_word_of_plane4(n, k, g), word2 = trf_word_of_plane2(n, k);
    const uint32_t word1 = k < 2 ? n.plane1.x : n.plane1.y;
    const int down4 = 4 * (g % 2), down2 = 2 * g, down1 = 4 * (k % 2) + g;
    if (!Codec::kKnownRaw) {
        bytes = trf_and_or(trf_rotate_left(word4, 32 - down4), 0x0F0F0F0Fu, bytes);
        bytes = trf_and_or(trf_rotate_left(word2, 32 - down2), planes.mask2, bytes);
        return trf_and_or(trf_rotate_left(word1, 32 - down1), planes.mask1, bytes);
    }
    if (Codec::has(4))
        bytes = trf_and_or(trf_rotate_left(word4, 32 + Codec::kRotation + Codec::low_bit(4) - down4), Codec::mask(4),
                           bytes);
    if (Codec::has(2))
        bytes = trf_and_or(trf_rotate_left(word2, 32 + Codec::kRotation + Codec::low_bit(2) - down2), Codec::mask(2),
                           bytes);
    if (Codec::has(1))
        bytes = trf_and_or(trf_rotate_left(word1, 32 + Codec::kRotation + Codec::low_bit(1) - down1), Codec::mask(1),
                           bytes);
    return bytes;
}

/* A class's bits within a byte of a byte word. */
template <class Codec>
static __device__ __forceinline__ uint32_t trf_class_byte(const trf_device_view &view, uint32_t index) {
    const uint32_t value = (uint32_t)(uint16_t)view.class_value[index];
    uint32_t byte = value; /* bf16 */
    if (Codec::kCodec == TRF_CODEC_FP16 || Codec::kCodec == TRF_CODEC_E5M2)
        byte = value << 3;
    else if (Codec::kCodec == TRF_CODEC_E4M3)
        byte = Codec::kSpread ? value >> 1 | value << 7 : value << (Codec::kAsF16 ? 2 : 4);
    else if (Codec::kInt)
        byte = index << view.raw_bits;
    return byte & 0xFF;
}

/* The class part of a byte word: what the table contributes for one symbol, as an 8-byte entry holds it. For quads it
 * covers all four weights, for pairs weights 0 and 1 (bytes 0 and 2). */
template <class Codec>
static __device__ __forceinline__ uint32_t trf_class_part_of(const trf_device_view &view, uint32_t symbol) {
    uint32_t x = 0;
#pragma unroll
    for (int q = 0; q < 8 / Codec::kClassBits; q++) {
        const uint32_t index = symbol >> (Codec::kClassBits * q) & ((1 << Codec::kClassBits) - 1);
        x |= trf_class_byte<Codec>(view, index) << (8 * ((0x3120 >> (4 * q)) & 3));
    }
    constexpr int kLeft = Codec::kTurned ? 8 : Codec::kRotation;
    return kLeft ? __funnelshift_l(x, x, kLeft) : x;
}

/* The same in 16 bits, for 4-byte entries: a *short class part*. For quads its nibbles say which byte of
 * trf_class_palette each byte of the byte word is. A class has its low two bits clear, so that rotating the word left
 * by 7 means rotating its bytes by one place and halving them. For pairs it has the bytes of two weights, rotated so
 * that one permutation brings all bits into place. */
template <class Codec>
static __device__ __forceinline__ uint32_t trf_short_class_part_of(const trf_device_view &view, uint32_t symbol) {
    if (Codec::kClassBits == 2) {
        const uint32_t nibbles = (symbol & 3) | (symbol >> 4 & 3) << 4 | (symbol >> 2 & 3) << 8 | symbol >> 6 << 12;
        return Codec::kRotation || Codec::kTurned ? (nibbles << 4 | nibbles >> 12) & 0xFFFF : nibbles;
    }
    const uint32_t first = trf_class_byte<Codec>(view, symbol & 15), second = trf_class_byte<Codec>(view, symbol >> 4);
    if (Codec::kRotation)
        return first >> 1 | (second & 1) << 7 | second >> 1 << 8 | (first & 1) << 15;
    return first | second << 8;
}

/* For quads: the bytes of the four classes, from which trf_short_class_part_of selects. */
template <class Codec> static __device__ __forceinline__ uint32_t trf_class_palette(const trf_device_view &view) {
    uint32_t palette = 0;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        palette |= trf_class_byte<Codec>(view, k) >> (Codec::kRotation ? 1 : 0) << (8 * k);
    return palette;
}

/* Makes trf_class_part_of from a short class part in the low half of a word. Bits outside of the class's may be set, if
 * trf_build_four does not use them. */
template <class Codec>
static __device__ __forceinline__ uint32_t trf_class_part_from_short(uint32_t short_part, uint32_t palette) {
    if (Codec::kClassBits == 2)
        return trf_permute(palette, 0, short_part);
    return trf_permute(short_part, 0, Codec::kRotation ? 0x1001 : 0x4140);
}

/* Makes F16 of E4M3: bits 13:7 are E and M and bit 15 is the sign, so the value is 2^8 too small, denormals included.
 * (NaNs are exceptions.) Each weight is made as two bytes: E and M[2:1] with the sign on top, which include the class
 * part; and M[0] in bit 7 of the byte before. */
template <class Codec>
static __device__ __forceinline__ void trf_build_four_f16(uint32_t *out, uint32_t class_parts,
                                                          const trf_narrow_words &n, int k, int g) {
    const uint32_t plane4 = trf_word_of_plane4(n, k, g);
    const int down4 = 4 * (g % 2), down2 = 2 * g;
    uint32_t upper, sign, lower;
    if (Codec::kClassBits == 2) { /* planes of 4: e, M[2:1]; of 2: M[0], s */
        const uint32_t plane2 = trf_word_of_plane2(n, k);
        upper = trf_and_or(trf_rotate_left(plane4, 32 - down4), 0x0F0F0F0Fu, class_parts);
        sign = trf_rotate_left(plane2, 32 - 1 - down2);
        lower = trf_rotate_left(plane2, 32 - 2 - down2);
    } else { /* of 4: M, s */
        lower = trf_rotate_left(plane4, 32 - 2 - down4);
        upper = trf_and_or(lower, 0x03030303u, class_parts);
        sign = trf_rotate_left(plane4, 32 - 1 - down4);
    }
    upper = trf_and_or(sign, 0x80808080u, upper);
    lower &= 0x80808080u;
    out[0] = __byte_perm(upper, lower, 0x2507);
    out[1] = __byte_perm(upper, lower, 0x3614);
}

/* Makes spread codes (trf_packed8_form.h) of the codes of scaled FP8: the sign is bit 15, and E and M are bits 10:4.
 * Each code is made as two bytes: an upper one of the sign and E[3:1], and a lower one of E[0] and M in bits 7:4. With
 * quads the upper ones are those of the byte before (kTurned): one rotation then brings e and M[2:1] to both. */
template <class Codec>
static __device__ __forceinline__ void trf_build_four_spread(uint32_t *out, uint32_t class_parts,
                                                             const trf_narrow_words &n, int k, int g) {
    const uint32_t plane4 = trf_word_of_plane4(n, k, g);
    const int down4 = 4 * (g % 2), down2 = 2 * g;
    uint32_t upper, lower;
    if (Codec::kClassBits == 2) { /* planes of 4: e, M[2:1]; of 2: M[0], s; class parts: E[3:2] in bits 2:1 */
        const uint32_t plane2 = trf_word_of_plane2(n, k), turned = trf_rotate_left(plane4, 32 + 5 - down4);
        upper = trf_and_or(turned, 0x01010101u, class_parts);
        upper = trf_and_or(trf_rotate_left(plane2, 32 + 7 - down2), 0x80808080u, upper);
        lower = trf_select(0x10101010u, trf_rotate_left(plane2, 32 + 3 - down2), turned) & 0xF0F0F0F0u;
    } else { /* of 4: M, s; class parts: E[3:1] in bits 2:0, E[0] in bit 7 */
        upper = trf_select(0x80808080u, trf_rotate_left(plane4, 32 - 1 - down4), class_parts);
        lower = trf_select(0x80808080u, class_parts, trf_rotate_left(plane4, 32 + 3 - down4)) & 0xF0F0F0F0u;
    }
    out[0] = __byte_perm(upper, lower, Codec::kTurned ? 0x3614 : 0x2604);
    out[1] = __byte_perm(upper, lower, Codec::kTurned ? 0x0725 : 0x3715);
}

/* Makes the two registers of four weights. parts0, parts1: class parts of their symbols, from the table (with quads
 * only parts0); plane8: the word of the 8-bit plane. For bf16, fp16, and fp8 for products, these are elements or codes
 * with coded exponents. For other fp8 and int it is one register, the byte word, in out[0]. */
template <class Codec>
static __device__ __forceinline__ void trf_build_four(uint32_t *out, uint32_t parts0, uint32_t parts1, uint32_t plane8,
                                                      const trf_narrow_words &n, int k, int g,
                                                      const trf_int_planes &planes) {
    if (Codec::kHasPlane8 && Codec::kClassBits == 2) {
        const uint32_t bytes = trf_narrow_bits<Codec>(n, k, g, parts0, planes);
        const uint32_t second = trf_select(kSignMantissaMask, bytes, plane8);
        out[0] = trf_select(kSignMantissaMask, plane8, bytes);
        out[1] = __byte_perm(second, second, 0x0321);
    } else if (Codec::kHasPlane8) {
        const uint32_t turned = __byte_perm(plane8, plane8, 0x0321);
        uint32_t low = 0, low_turned = 0;
        if (Codec::kRaw > 8) {
            low = trf_narrow_bits<Codec>(n, k, g, 0, planes);
            low_turned = __byte_perm(low, low, 0x0321);
        }
        out[0] = trf_select(kSignMantissaMask, plane8, parts0 | low);
        out[1] = trf_select(kSignMantissaMask, turned, parts1 | low_turned);
    } else {
        const uint32_t class_parts = Codec::kClassBits == 2 ? parts0 : parts0 | parts1 << 8;
        if (Codec::kAsF16) {
            trf_build_four_f16<Codec>(out, class_parts, n, k, g);
            return;
        }
        if (Codec::kSpread) {
            trf_build_four_spread<Codec>(out, class_parts, n, k, g);
            return;
        }
        const uint32_t bytes = trf_narrow_bits<Codec>(n, k, g, class_parts, planes);
        out[0] = Codec::kFp8 ? trf_rotate_left(bytes, 31) : bytes;
    }
}

#endif
