/* SPDX-License-Identifier: Apache-2.0 */
/* From a slab's fragments to a dense matrix: elements, their conversion, and which register goes where. C and CUDA; a
 * loop over 32 lanes computes what a warp does.
 *
 * A lane's eight registers of a step hold 16 weights, two neighbouring columns in each register. In two steps (a *step
 * pair*, 32 columns) the lane has the same 8 neighbouring columns of four rows: row lane/4, and the rows 8, 16 and 24
 * below it. Elements are kept as two 16-bit halves of a word. */
#ifndef TRF_FRAGMENT_WRITE_H
#define TRF_FRAGMENT_WRITE_H

#include "trf_decoded_bits.h"
#include "trf_split.h"

#include <math.h>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

enum {
    TRF_WRITE_ROWS = 4,      /* of a lane */
    TRF_STEP_PAIR_COLS = 32, /* of a warp; a lane has 8 neighbouring ones */
    TRF_LANE_COLS = 8,
    TRF_GATHER_ROW_BYTES = 256,
    TRF_GATHER_BYTES = TRF_SLAB_ROWS * TRF_GATHER_ROW_BYTES
};

/* ---- where ---- */

/* The register (0 to 7) that holds two of the lane's columns in a step, of its row r (0 to 3). second: 0 for columns 0
 * and 1, 1 for columns 2 and 3. */
TRF_HD uint32_t trf_row_register(uint32_t r, uint32_t second) { return 4 * (r / 2) + r % 2 + 2 * second; }

/* The lane's row r, counted from the slab's first row; and its first column in a step pair (0 to 7). */
TRF_HD uint32_t trf_lane_row_at(uint32_t lane, uint32_t r) { return lane / 4 + 8 * r; }
TRF_HD uint32_t trf_lane_col_at(uint32_t lane, uint32_t step_pair) {
    return TRF_STEP_PAIR_COLS * step_pair + TRF_LANE_COLS * (lane % 4);
}

/* ---- rows of 16-bit weights, gathered in shared memory as [TRF_SLAB_ROWS][TRF_GATHER_ROW_BYTES], to be stored
 * TRF_GATHER_ROW_BYTES at a time ---- */

/* The place of byte `at` of a row. In odd rows each 64 bytes change places with the next 64, which avoids bank
 * conflicts between lanes both when rows are gathered and when they are read. */
TRF_HD uint32_t trf_gather_at(uint32_t row, uint32_t at) { return TRF_GATHER_ROW_BYTES * row + (at ^ (row & 1) << 6); }

/* A warp reads two rows at once, and each lane 16 bytes: of this row in the i-th pair of rows (i: 0 to 15), from this
 * byte on. */
TRF_HD uint32_t trf_gather_row(uint32_t lane, uint32_t i) { return 2 * i + lane / 16; }
TRF_HD uint32_t trf_gather_byte(uint32_t lane) { return 16 * (lane % 16); }

/* ---- bits ---- */

/* Picks four of the bytes of a (numbers 0 to 3) and b (4 to 7), as the four hexadecimal digits of pick say, lowest
 * first. */
TRF_HD uint32_t trf_pick_bytes(uint32_t a, uint32_t b, uint32_t pick) {
#ifdef __CUDA_ARCH__
    return __byte_perm(a, b, pick);
#else
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t picked = 0;
    for (int i = 0; i < 4; i++)
        picked |= (uint32_t)(bytes >> 8 * (pick >> 4 * i & 7) & 0xFF) << 8 * i;
    return picked;
#endif
}

/* ---- elements ---- */

/* Makes the two registers of four weights from their bytes, which are those of weights 0, 2, 1, 3. */
TRF_HD void trf_spread_bytes(uint32_t bytes, uint32_t reg[2]) {
    reg[0] = bytes & 0x00FF00FF;
    reg[1] = bytes >> 8 & 0x00FF00FF;
}

/* Adds the lowest code of a layer (at least -0x7F00) to each half, which is 0 to 0xFF. A bit on top keeps the halves
 * from borrowing from each other. */
TRF_HD uint32_t trf_add_code(uint32_t two, int32_t lowest) {
    return ((two | 0x80008000) + (uint32_t)lowest * 0x00010001) ^ 0x80008000;
}

/* A mask of the exponent fields of two elements. */
TRF_HD uint32_t trf_exponent_mask(uint32_t codec) {
    const trf_float_fields fields = trf_fields_of(codec);
    return (fields.max_exponent << fields.mantissa_bits) * 0x00010001;
}

/* Two offsets, shifted to where the exponent fields are. */
TRF_HD uint32_t trf_exponent_offsets(uint32_t codec, int32_t low, int32_t high) {
    const trf_float_fields fields = trf_fields_of(codec);
    return (((uint32_t)low & fields.max_exponent) | ((uint32_t)high & fields.max_exponent) << 16)
           << fields.mantissa_bits;
}

/* The offsets of two of the lane's columns in a step. second: as in trf_row_register; bytes: the offsets of its four
 * columns. */
TRF_HD uint32_t trf_col_offsets(uint32_t codec, uint32_t bytes, uint32_t second) {
    return trf_exponent_offsets(codec, (int32_t)(bytes >> 16 * second & 0xFF),
                                (int32_t)(bytes >> (16 * second + 8) & 0xFF));
}

/* Adds offsets to exponents, or to other offsets, modulo Emax + 1. All other bits of `to` stay. Above the highest
 * exponent bit there is another bit in the same half, so nothing carries into the neighbour. */
TRF_HD uint32_t trf_add_exponents(uint32_t codec, uint32_t to, uint32_t offsets) {
    const uint32_t mask = trf_exponent_mask(codec);
    return (((to & mask) + offsets) & mask) | (to & ~mask);
}

/* Turns a step's registers from what trf_build_four leaves into elements, still without exponent offsets. lowest: the
 * int codec's lowest code. */
TRF_HD void trf_step_elements(uint32_t codec, int32_t lowest, uint32_t reg[8]) {
    if (codec == TRF_CODEC_BF16 || codec == TRF_CODEC_FP16)
        return;
    for (int g = 0; g < 4; g++) {
        trf_spread_bytes(reg[2 * g], reg + 2 * g);
        if (codec == TRF_CODEC_INT)
            for (int i = 0; i < 2; i++)
                reg[2 * g + i] = trf_add_code(reg[2 * g + i], lowest);
    }
}

/* Adds exponent offsets to a step's elements. rows: the offsets of the lane's four rows, D included, the same in both
 * halves. col_bytes: the offsets of the step's four columns, 0 if they have none. */
TRF_HD void trf_step_offsets(uint32_t codec, const uint32_t rows[TRF_WRITE_ROWS], int by_col, uint32_t col_bytes,
                             uint32_t reg[8]) {
    for (uint32_t second = 0; second < 2; second++) {
        const uint32_t cols = by_col ? trf_col_offsets(codec, col_bytes, second) : 0;
        for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
            uint32_t *to = reg + trf_row_register(r, second);
            *to = trf_add_exponents(codec, *to, by_col ? trf_add_exponents(codec, rows[r], cols) : rows[r]);
        }
    }
}

/* ---- what is written ---- */

typedef enum trf_write_format {
    TRF_WRITE_NONE,     /* the kernel for regular slabs cannot write this */
    TRF_WRITE_ELEMENTS, /* elements, 16 bits */
    TRF_WRITE_BYTES,    /* the lower 8 bits of elements */
    TRF_WRITE_F32,
    TRF_WRITE_BF16, /* BF16 of another codec than bf16 */
    TRF_WRITE_F16
} trf_write_format;

TRF_HD trf_write_format trf_write_format_of(const trf_device_view *view, trf_decode_as as) {
    const uint32_t dtype = trf_decoded_dtype(view, as);
    if (dtype == TRF_DTYPE_NONE)
        return trf_decoded_weight_bytes(view, as) == 1 ? TRF_WRITE_BYTES : TRF_WRITE_ELEMENTS;
    const uint32_t codec = trf_element_codec(view->codec, view->source_dtype);
    if (codec == TRF_CODEC_FP16)
        return dtype == TRF_DTYPE_F16 ? TRF_WRITE_ELEMENTS : TRF_WRITE_NONE;
    if (codec == TRF_CODEC_BF16 && dtype != TRF_DTYPE_F32)
        return dtype == TRF_DTYPE_BF16 ? TRF_WRITE_ELEMENTS : TRF_WRITE_NONE;
    return dtype == TRF_DTYPE_F32 ? TRF_WRITE_F32 : dtype == TRF_DTYPE_BF16 ? TRF_WRITE_BF16 : TRF_WRITE_F16;
}

/* Bytes of a weight. */
TRF_HD uint32_t trf_write_format_bytes(trf_write_format format) {
    return format == TRF_WRITE_F32 ? 4 : format == TRF_WRITE_BYTES ? 1 : 2;
}

/* ---- conversion of two elements ---- */

/* Multiplies two values by a power of two; exact, denormals included. */
TRF_HD uint32_t trf_times_f16x2(uint32_t two, uint16_t power) {
#ifdef __CUDA_ARCH__
    const uint32_t powers = power * 0x00010001u;
    const __half2 product = __hmul2(*(const __half2 *)&two, *(const __half2 *)&powers);
    return *(const uint32_t *)&product;
#else
    const float by = trf_f16_to_f32(power);
    return trf_f32_to_f16(trf_f16_to_f32((uint16_t)two) * by) |
           (uint32_t)trf_f32_to_f16(trf_f16_to_f32((uint16_t)(two >> 16)) * by) << 16;
#endif
}

TRF_HD uint32_t trf_times_bf16x2(uint32_t two, uint16_t power) {
#ifdef __CUDA_ARCH__
    const uint32_t powers = power * 0x00010001u;
    const __nv_bfloat162 product = __hmul2(*(const __nv_bfloat162 *)&two, *(const __nv_bfloat162 *)&powers);
    return *(const uint32_t *)&product;
#else
    const float by = trf_bf16_to_f32(power);
    return trf_f32_to_bf16(trf_bf16_to_f32((uint16_t)two) * by) |
           (uint32_t)trf_f32_to_bf16(trf_bf16_to_f32((uint16_t)(two >> 16)) * by) << 16;
#endif
}

/* Bit 7 of each half says whether the FP8 element there has a magnitude of at least 0x80 - above. */
TRF_HD uint32_t trf_fp8_at_least(uint32_t two, uint32_t above) {
    return ((two & 0x007F007F) + above * 0x00010001) & 0x00800080;
}

/* Converts FP8 to F16. The exponent is moved to its place, and a multiplication takes it from one bias to the other,
 * which is right for denormals, too. E4M3's NaN then is 480 and has to become 0x7E00. E5M2 is the upper byte of an F16;
 * NaNs become quiet. */
TRF_HD uint32_t trf_fp8_to_f16x2(uint32_t codec, uint32_t two) {
    if (codec == TRF_CODEC_E5M2)
        return two << 8 | trf_fp8_at_least(two, 3) << 2;
    const uint32_t shifted = (two & 0x00800080) << 8 | (two & 0x007F007F) << 7;
    return trf_times_f16x2(shifted, 0x5C00 /* 2^8 */) ^ (trf_fp8_at_least(two, 1) >> 7) * (0x5F80 ^ 0x7E00);
}

/* Converts FP8 to BF16, in the same way. E4M3's NaN would become 480, E5M2's infinity 65536 (and its NaNs values near
 * it); these are corrected. */
TRF_HD uint32_t trf_fp8_to_bf16x2(uint32_t codec, uint32_t two) {
    const uint32_t sign = (two & 0x00800080) << 8, magnitude = two & 0x007F007F;
    if (codec == TRF_CODEC_E4M3)
        return trf_times_bf16x2(sign | magnitude << 4, 0x7B80 /* 2^120 */) ^
               (trf_fp8_at_least(two, 1) >> 7) * (0x43F0 ^ 0x7FC0);
    return (trf_times_bf16x2(sign | magnitude << 5, 0x7780 /* 2^112 */) ^
            (trf_fp8_at_least(two, 4) >> 7) * (0x4780 ^ 0x7F80)) |
           trf_fp8_at_least(two, 3) >> 1;
}

/* Converts a code to a float: the code becomes the low bits of 2^23 + 2^15 + code, from which 2^23 + 2^15 is
 * subtracted. */
TRF_HD float trf_code_to_f32(uint32_t two, uint32_t half) {
    const uint32_t bits = trf_pick_bytes(two ^ 0x80008000, 0x4B000000, half ? 0x7632 : 0x7610);
    return trf_f32_from_bits(bits) - 8421376.0f;
}

/* Returns code * scale, rounded to odd: the exact product if it is a float, else that one of the two floats around it
 * whose last bit is set. Rounding this to 16 bits gives the same as rounding the exact product, which may not hold for
 * a product rounded to nearest even. */
TRF_HD float trf_scale_to_odd(float code, float scale) {
#ifdef __CUDA_ARCH__
    const float below = __fmul_rd(code, scale), above = __fmul_ru(code, scale);
#else
    const double product = (double)code * (double)scale;
    float below = (float)product, above = below;
    if ((double)below < product)
        above = nextafterf(below, INFINITY);
    else if ((double)above > product)
        below = nextafterf(above, -INFINITY);
#endif
    return trf_f32_bits(below) & 1 ? below : above;
}

TRF_HD uint32_t trf_round_bf16x2(float low, float high) {
#ifdef __CUDA_ARCH__
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&two;
#else
    return trf_f32_to_bf16(low) | (uint32_t)trf_f32_to_bf16(high) << 16;
#endif
}

TRF_HD uint32_t trf_round_f16x2(float low, float high) {
#ifdef __CUDA_ARCH__
    const __half2 two = __floats2half2_rn(low, high);
    return *(const uint32_t *)&two;
#else
    return trf_f32_to_f16(low) | (uint32_t)trf_f32_to_f16(high) << 16;
#endif
}

/* What trf_scale_fp8 makes of two codes with one scale. The codes become BF16 without rounding first. */
TRF_HD uint32_t trf_scale_fp8x2(uint32_t two, float scale) {
    const uint32_t values = trf_times_bf16x2((two & 0x00800080) << 8 | (two & 0x007F007F) << 4, 0x7B80 /* 2^120 */);
    return trf_round_bf16x2(trf_f32_from_bits(values << 16) * scale, trf_f32_from_bits(values & 0xFFFF0000) * scale);
}

/* Turns a step's codes of scaled FP8 into elements. scale: of the lane's four rows. */
TRF_HD void trf_step_scales(const float scale[TRF_WRITE_ROWS], uint32_t reg[8]) {
    for (uint32_t second = 0; second < 2; second++)
        for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
            uint32_t *to = reg + trf_row_register(r, second);
            *to = trf_scale_fp8x2(*to, scale[r]);
        }
}

/* What is written for two elements, in a format of 2 bytes a weight. scale: of both, for the int codec. */
TRF_HD uint32_t trf_bits_of_two(uint32_t codec, trf_write_format format, uint32_t two, float scale) {
    if (codec == TRF_CODEC_BF16 || codec == TRF_CODEC_FP16 || format == TRF_WRITE_ELEMENTS)
        return two;
    if (codec != TRF_CODEC_INT)
        return format == TRF_WRITE_F16 ? trf_fp8_to_f16x2(codec, two) : trf_fp8_to_bf16x2(codec, two);
    const float low = trf_scale_to_odd(trf_code_to_f32(two, 0), scale),
                high = trf_scale_to_odd(trf_code_to_f32(two, 1), scale);
    return format == TRF_WRITE_F16 ? trf_round_f16x2(low, high) : trf_round_bf16x2(low, high);
}

/* Returns one of two elements as TRF_WRITE_F32. */
TRF_HD uint32_t trf_bits_of_f32(uint32_t codec, uint32_t two, uint32_t half, float scale) {
    if (codec == TRF_CODEC_BF16)
        return half ? two & 0xFFFF0000 : two << 16;
    return trf_f32_bits(trf_code_to_f32(two, half) * scale);
}

/* Returns four elements as TRF_WRITE_BYTES. */
TRF_HD uint32_t trf_bits_of_four(uint32_t first, uint32_t second) { return trf_pick_bytes(first, second, 0x6420); }

#endif
