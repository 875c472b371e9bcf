/* The decode table, the choice of a decoder, and turning elements into values of a dtype. */
#include "trf_decode.h"

#include "trf_convert.h"
#include "trf_decode_tile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void trf_decode_table_init(trf_decode_table *table, const trf_blob_view *view) {
    uint32_t slot = 0;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        for (uint32_t bias = 0; bias < view->frequency[s]; bias++)
            table->slots[slot++] = trf_slot_entry(view->frequency[s], bias, s);
}

/* ---- the choice of a decoder ---- */

typedef struct trf_decoder {
    const char *name;
    trf_decode_tile_fn *decode;
} trf_decoder;

static trf_decoder trf_choose_decoder(void) {
#ifdef TRF_HAVE_X86_SIMD
    const char *limit = getenv("TRF_SIMD");
    int scalar = limit && strcmp(limit, "scalar") == 0, avx2 = limit && strcmp(limit, "avx2") == 0;
    __builtin_cpu_init();
    if (!scalar && !avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vbmi2"))
        return (trf_decoder){"avx512", trf_decode_tile_avx512};
    if (!scalar && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma"))
        return (trf_decoder){"avx2", trf_decode_tile_avx2};
#endif
    return (trf_decoder){"scalar", trf_decode_tile_ref};
}

trf_decode_tile_fn *trf_decode_tile_best(void) { return trf_choose_decoder().decode; }
const char *trf_decode_tile_best_name(void) { return trf_choose_decoder().name; }

/* ---- values ---- */

/* The scale of an entry of the scale table, in F32: FORMAT.md section 3. */
static float trf_scale_value(const trf_blob_view *view, uint64_t index) {
    if (view->extension.scale_dtype == TRF_SCALE_F32)
        return ((const float *)view->scales)[index];
    return ldexpf(trf_f16_to_f32(((const uint16_t *)view->scales)[index]), view->extension.scale_exponent);
}

/* First column of the tile, from `col` on, that has another scale than column col has; at most cols. */
static uint32_t trf_scale_end(const trf_blob_view *view, const trf_tile_shape *shape, uint32_t col) {
    uint32_t granularity = view->extension.granularity, group = view->extension.group_size;
    if (granularity != TRF_GRANULARITY_GROUP && granularity != TRF_GRANULARITY_BLOCK)
        return shape->cols;
    uint32_t left = group - (shape->col + col) % group;
    return left < shape->cols - col ? col + left : shape->cols;
}

/* code * scale rounded once. Its product in F32 is rounded already, but rounding that again only errs where it
 * lies halfway between two results, so only then (and near the ends of F16's range) is the exact product needed. */
static inline uint16_t trf_scale_to_bf16(int32_t code, float scale) {
    float product = (float)code * scale;
    if (__builtin_expect((trf_f32_bits(product) & 0xFFFF) == 0x8000, 0))
        return trf_f64_to_bf16((double)code * (double)scale);
    return trf_f32_to_bf16(product);
}

static inline uint16_t trf_scale_to_f16(int32_t code, float scale) {
    uint32_t bits = trf_f32_bits((float)code * scale), magnitude = bits & 0x7FFFFFFF;
    if (__builtin_expect(magnitude - (113u << 23) >= 29u << 23 || (bits & 0x1FFF) == 0x1000, 0))
        return trf_f64_to_f16((double)code * (double)scale);
    return (uint16_t)(bits >> 16 & 0x8000) | (uint16_t)((magnitude - (112u << 23) + 0xFFF + (bits >> 13 & 1)) >> 13);
}

/* Dequantizes `count` codes of one row that share a scale. */
static void trf_scale_codes(trf_dtype dtype, float scale, const uint16_t *codes, uint32_t count, void *values,
                            size_t at) {
    float *f32 = (float *)values + at;
    uint16_t *half = (uint16_t *)values + at;
    switch (dtype) {
    case TRF_DTYPE_BF16:
        for (uint32_t i = 0; i < count; i++)
            half[i] = trf_scale_to_bf16((int16_t)codes[i], scale);
        break;
    case TRF_DTYPE_F16:
        for (uint32_t i = 0; i < count; i++)
            half[i] = trf_scale_to_f16((int16_t)codes[i], scale);
        break;
    default:
        for (uint32_t i = 0; i < count; i++)
            f32[i] = (float)(int16_t)codes[i] * scale;
        break;
    }
}

static void trf_scale_tile(const trf_blob_view *view, trf_dtype dtype, const trf_tile_shape *shape,
                           const uint16_t *elements, size_t stride, void *values, size_t value_stride) {
    for (uint32_t row = 0; row < shape->rows; row++)
        for (uint32_t col = 0, end; col < shape->cols; col = end) {
            end = trf_scale_end(view, shape, col);
            float scale = trf_scale_value(view, trf_scale_index(view, shape->row + row, shape->col + col));
            trf_scale_codes(dtype, scale, elements + row * stride + col, end - col, values, row * value_stride + col);
        }
}

void trf_elements_to_dtype(const trf_blob_view *view, uint64_t tile, const uint16_t *elements, size_t stride,
                           void *values, size_t value_stride) {
    trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].kind);
    trf_dtype dtype = (trf_dtype)view->header.source_dtype;
    if (view->num_scales) {
        trf_scale_tile(view, dtype, &shape, elements, stride, values, value_stride);
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

static void trf_row_to_f32(uint32_t codec, const uint16_t *from, uint32_t count, float *to) {
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
    trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].kind);
    if (view->num_scales && !unscaled) {
        trf_scale_tile(view, TRF_DTYPE_F32, &shape, elements, stride, values, value_stride);
        return;
    }
    for (uint32_t row = 0; row < shape.rows; row++)
        trf_row_to_f32(view->header.codec, elements + row * stride, shape.cols, values + row * value_stride);
}
