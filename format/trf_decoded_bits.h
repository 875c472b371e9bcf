/* SPDX-License-Identifier: Apache-2.0 */
/* Turns elements into values, one weight at a time: into the bits that a decoder on the device writes, and into the F32
 * values of an edge. C and CUDA. */
#ifndef TRF_DECODED_BITS_H
#define TRF_DECODED_BITS_H

#include "trf_device_view.h"
#include "trf_number_formats.h"

/* The value of a float codec's element, or of a code without its scale; exact. */
TRF_HD float trf_element_to_f32(uint32_t codec, uint32_t element) {
    switch (codec) {
    case TRF_CODEC_BF16:
        return trf_bf16_to_f32((uint16_t)element);
    case TRF_CODEC_FP16:
        return trf_f16_to_f32((uint16_t)element);
    case TRF_CODEC_E4M3:
        return trf_e4m3_to_f32((uint8_t)element);
    case TRF_CODEC_E5M2:
        return trf_e5m2_to_f32((uint8_t)element);
    default:
        return (float)(int16_t)(uint16_t)element;
    }
}

/* The scale of weight (row, col) of the layer; 1 where there are no scales. */
TRF_HD float trf_device_scale(const trf_device_view *view, uint32_t row, uint32_t col) {
    if (view->scale_dtype == TRF_SCALE_NONE)
        return 1.0f;
    uint64_t at =
        trf_scale_table_index(view->granularity, view->scale_group_size, view->scale_cols, view->scale_row + row, col);
    if (view->scale_dtype == TRF_SCALE_F32)
        return ((const float *)view->scales)[at];
    return trf_f16_scale(((const uint16_t *)view->scales)[at], view->scale_exponent);
}

/* The element of weight (row, col) of a layer, where it is no exception. joined: as trf_join_element gives it, which is
 * a code in a layer of scaled FP8. */
TRF_HD uint32_t trf_coded_element(const trf_device_view *view, uint32_t joined, uint32_t row, uint32_t col) {
    return trf_is_scaled_fp8(view->codec, view->source_dtype) ? trf_scale_fp8(joined, trf_device_scale(view, row, col))
                                                              : joined;
}

/* The bytes of one weight as trf_decoded_bits gives it. */
TRF_HD uint32_t trf_decoded_weight_bytes(const trf_device_view *view, trf_decode_as as) {
    if (as != TRF_DECODE_SOURCE)
        return 2;
    switch (view->source_dtype) {
    case TRF_DTYPE_F32:
        return 4;
    case TRF_DTYPE_F16:
    case TRF_DTYPE_BF16:
        return 2;
    default:
        return 1;
    }
}

/* The dtype that a decoding writes; TRF_DTYPE_NONE if it writes elements or codes as they are. */
TRF_HD uint32_t trf_decoded_dtype(const trf_device_view *view, trf_decode_as as) {
    switch (as) {
    case TRF_DECODE_BF16:
        return TRF_DTYPE_BF16;
    case TRF_DECODE_F16:
        return TRF_DTYPE_F16;
    case TRF_DECODE_SOURCE: /* a bit pattern, unless it is a code times its scale, or a wider type */
        return view->scale_dtype != TRF_SCALE_NONE || view->source_dtype == TRF_DTYPE_F32 ? view->source_dtype
                                                                                          : (uint32_t)TRF_DTYPE_NONE;
    default:
        return TRF_DTYPE_NONE;
    }
}

/* The bits of weight (row, col) of the layer as a decoding writes them, in the lower trf_decoded_weight_bytes bytes. A
 * code times its scale is exact in binary64 and is rounded once. */
TRF_HD uint32_t trf_decoded_bits(const trf_device_view *view, trf_decode_as as, uint32_t element, uint32_t row,
                                 uint32_t col) {
    const uint32_t dtype = trf_decoded_dtype(view, as);
    if (dtype == TRF_DTYPE_NONE)
        return element;
    const uint32_t codec = trf_element_codec(view->codec, view->source_dtype);
    if (view->scale_dtype != TRF_SCALE_NONE && !trf_codec_is_float(codec)) {
        double value = (double)(int16_t)(uint16_t)element * (double)trf_device_scale(view, row, col);
        return dtype == TRF_DTYPE_F32    ? trf_f32_bits(trf_f64_to_f32(value))
               : dtype == TRF_DTYPE_BF16 ? trf_f64_to_bf16(value)
                                         : trf_f64_to_f16(value);
    }
    if ((dtype == TRF_DTYPE_BF16 && codec == TRF_CODEC_BF16) || (dtype == TRF_DTYPE_F16 && codec == TRF_CODEC_FP16))
        return element;
    float value = trf_element_to_f32(codec, element);
    return dtype == TRF_DTYPE_F32    ? trf_f32_bits(value)
           : dtype == TRF_DTYPE_BF16 ? trf_f32_to_bf16(value)
                                     : trf_f32_to_f16(value);
}

/* What takes the place of each weight of a corrupt tile: a NaN, or code 0. */
TRF_HD uint32_t trf_decoded_corrupt_bits(const trf_device_view *view, trf_decode_as as) {
    switch (trf_decoded_dtype(view, as)) {
    case TRF_DTYPE_F32:
        return 0x7FC00000u;
    case TRF_DTYPE_BF16:
        return 0x7FC0;
    case TRF_DTYPE_F16:
        return 0x7E00;
    default: /* elements */
        switch (trf_element_codec(view->codec, view->source_dtype)) {
        case TRF_CODEC_BF16:
            return 0x7FC0;
        case TRF_CODEC_FP16:
            return 0x7E00;
        case TRF_CODEC_E4M3:
            return 0x7F;
        case TRF_CODEC_E5M2:
            return 0x7E;
        default:
            return 0;
        }
    }
}

/* Stores the lower trf_decoded_weight_bytes bytes of `bits` as weight `at`. */
TRF_HD void trf_store_decoded_bits(void *weights, uint32_t bytes, uint64_t at, uint32_t bits) {
    if (bytes == 4)
        ((uint32_t *)weights)[at] = bits;
    else if (bytes == 2)
        ((uint16_t *)weights)[at] = (uint16_t)bits;
    else
        ((uint8_t *)weights)[at] = (uint8_t)bits;
}

#endif
