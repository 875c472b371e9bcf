/* SPDX-License-Identifier: Apache-2.0 */
/* The decode table, the choice of a decoder, and turning elements into values of a dtype. */
#include "trf_decode.h"

#include "trf_cpu.h"
#include "trf_decode_tile.h"
#include "trf_number_formats.h"
#include "trf_scale.h"

#include <math.h>
#include <string.h>

void trf_decode_table_init(trf_decode_table *table, const trf_blob_view *view) {
    uint32_t slot = 0;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        for (uint32_t slot_offset = 0; slot_offset < view->frequency[s]; slot_offset++)
            table->slots[slot++] = trf_slot_entry(view->frequency[s], slot_offset, s);
}

/* ---- the choice of a decoder ---- */

typedef struct trf_decoder {
    const char *name;
    trf_decode_tile_fn *decode;
} trf_decoder;

static trf_decoder choose_decoder(void) {
#ifdef TRF_HAVE_X86_SIMD
    if (trf_cpu_simd() == TRF_SIMD_AVX512)
        return (trf_decoder){"avx512", trf_decode_tile_avx512};
    if (trf_cpu_simd() == TRF_SIMD_AVX2)
        return (trf_decoder){"avx2", trf_decode_tile_avx2};
#endif
    return (trf_decoder){"scalar", trf_decode_tile_ref};
}

trf_decode_tile_fn *trf_decode_tile_best(void) { return choose_decoder().decode; }
const char *trf_decode_tile_best_name(void) { return choose_decoder().name; }

/* ---- values ---- */

/* Computes code * scale, rounded once. A product in F32 is already rounded. To round it again gives a wrong result only
 * if it lies halfway between two results, or near the ends of F16's range. The first loop over a row's codes notes
 * whether it met such a product, which it seldom does; then the row is done again with exact products. (The first loop
 * has no branches, so that compilers vectorize it.) */
static void scale_to_bf16(float scale, const uint16_t *codes, uint32_t count, uint16_t *values) {
    uint32_t unsure = !isfinite(scale);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = trf_f32_bits((float)(int16_t)codes[i] * scale);
        unsure |= (bits & 0xFFFF) == 0x8000;
        values[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
    for (uint32_t i = 0; unsure && i < count; i++)
        values[i] = trf_f64_to_bf16((double)(int16_t)codes[i] * (double)scale);
}

static void scale_to_f16(float scale, const uint16_t *codes, uint32_t count, uint16_t *values) {
    const uint32_t smallest = 113u << 23,
                   too_large = 142u << 23; /* 2^-14 and 2^15: normal, and nowhere near infinity */
    uint32_t unsure = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = trf_f32_bits((float)(int16_t)codes[i] * scale), magnitude = bits & 0x7FFFFFFF;
        uint32_t rounded = (magnitude - (112u << 23) + 0xFFF + (bits >> 13 & 1)) >> 13;
        uint32_t nonzero = -(uint32_t)(magnitude != 0);
        unsure |= nonzero & ((uint32_t)(magnitude - smallest >= too_large - smallest) | ((bits & 0x1FFF) == 0x1000));
        values[i] = (uint16_t)((bits >> 16 & 0x8000) | (rounded & nonzero));
    }
    for (uint32_t i = 0; unsure && i < count; i++)
        values[i] = trf_f64_to_f16((double)(int16_t)codes[i] * (double)scale);
}

/* Dequantizes `count` codes of one row that share a scale. */
static void scale_codes(trf_dtype dtype, float scale, const uint16_t *codes, uint32_t count, void *values, size_t at) {
    if (dtype == TRF_DTYPE_BF16)
        scale_to_bf16(scale, codes, count, (uint16_t *)values + at);
    else if (dtype == TRF_DTYPE_F16)
        scale_to_f16(scale, codes, count, (uint16_t *)values + at);
    else
        for (uint32_t i = 0; i < count; i++)
            ((float *)values)[at + i] = (float)(int16_t)codes[i] * scale;
}

static void scale_tile(const trf_blob_view *view, trf_dtype dtype, const trf_tile_shape *shape,
                       const uint16_t *elements, size_t stride, void *values, size_t value_stride) {
    for (uint32_t row = 0; row < shape->rows; row++)
        for (uint32_t col = 0, end; col < shape->cols; col = end) {
            end = trf_scale_end(view, shape, col);
            float scale = trf_scale_value(view, trf_scale_index(view, shape->row + row, shape->col + col));
            scale_codes(dtype, scale, elements + row * stride + col, end - col, values, row * value_stride + col);
        }
}

void trf_elements_to_dtype(const trf_blob_view *view, uint64_t tile, const uint16_t *elements, size_t stride,
                           void *values, size_t value_stride) {
    trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
    trf_dtype dtype = (trf_dtype)view->header.source_dtype;
    if (trf_elements_have_scales(view)) {
        scale_tile(view, dtype, &shape, elements, stride, values, value_stride);
        return;
    }
    for (uint32_t row = 0; row < shape.rows; row++) {
        const uint16_t *from = elements + row * stride;
        uint8_t *to = (uint8_t *)values + row * value_stride * trf_dtype_bytes(dtype);
        if (dtype == TRF_DTYPE_F32)
            for (uint32_t i = 0; i < shape.cols; i++)
                ((float *)to)[i] = trf_bf16_to_f32(from[i]);
        else if (trf_dtype_bytes(dtype) == 2)
            memcpy(to, from, 2 * (size_t)shape.cols);
        else
            for (uint32_t i = 0; i < shape.cols; i++)
                to[i] = (uint8_t)from[i];
    }
}

static void row_to_f32(uint32_t codec, const uint16_t *from, uint32_t count, float *to) {
    switch (codec) {
    case TRF_CODEC_BF16:
        for (uint32_t i = 0; i < count; i++)
            to[i] = trf_bf16_to_f32(from[i]);
        break;
    case TRF_CODEC_FP16:
        for (uint32_t i = 0; i < count; i++)
            to[i] = trf_f16_to_f32(from[i]);
        break;
    case TRF_CODEC_E4M3:
        for (uint32_t i = 0; i < count; i++)
            to[i] = trf_e4m3_to_f32((uint8_t)from[i]);
        break;
    case TRF_CODEC_E5M2:
        for (uint32_t i = 0; i < count; i++)
            to[i] = trf_e5m2_to_f32((uint8_t)from[i]);
        break;
    default:
        for (uint32_t i = 0; i < count; i++)
            to[i] = (int16_t)from[i];
        break;
    }
}

void trf_elements_to_f32(const trf_blob_view *view, uint64_t tile, const uint16_t *elements, size_t stride,
                         float *values, size_t value_stride, int unscaled) {
    trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
    if (trf_elements_have_scales(view) && !unscaled) {
        scale_tile(view, TRF_DTYPE_F32, &shape, elements, stride, values, value_stride);
        return;
    }
    for (uint32_t row = 0; row < shape.rows; row++)
        row_to_f32(trf_element_codec(view->header.codec, view->header.source_dtype), elements + row * stride,
                   shape.cols, values + row * value_stride);
}
