/* SPDX-License-Identifier: Apache-2.0 */
/* Elements and their two halves, class and raw bits: FORMAT.md sections 1 and 5, for C and CUDA.
 *
 * An element travels as a uint16_t: the bit pattern of a float, or a signed code in two's complement. */
#ifndef TRF_SPLIT_H
#define TRF_SPLIT_H

#include "transfuse.h"
#include "trf_blob.h"

/* Whether a layer is *scaled FP8*: its weights are BF16 numbers, most of which are E4M3 codes times F32 scales, rounded
 * (FORMAT.md section 5). Its elements are BF16 bit patterns; its codes are what is split, coded and joined. */
TRF_HD int trf_is_scaled_fp8(uint32_t codec, uint32_t source_dtype) {
    return codec == TRF_CODEC_E4M3 && source_dtype == TRF_DTYPE_BF16;
}

/* Whether this build reads blobs of a version. */
TRF_HD int trf_is_known_version(uint32_t version) {
    return version == TRF_FORMAT_VERSION || version == TRF_SCALED_FP8_VERSION;
}

/* The codec whose elements those of a layer are. */
TRF_HD uint32_t trf_element_codec(uint32_t codec, uint32_t source_dtype) {
    return trf_is_scaled_fp8(codec, source_dtype) ? (uint32_t)TRF_CODEC_BF16 : codec;
}

/* The exponent offsets of a layer's rows, if they are offsets of its elements: those of scaled FP8 are of its codes. */
TRF_HD const int8_t *trf_element_row_offsets(uint32_t codec, uint32_t source_dtype, const int8_t *row_offsets) {
    return trf_is_scaled_fp8(codec, source_dtype) ? NULL : row_offsets;
}

/* The field widths of a float codec's element; all zero for the int codec. */
typedef struct trf_float_fields {
    uint32_t mantissa_bits;
    uint32_t max_exponent;          /* Emax, also the mask of the exponent field */
    uint32_t max_ordinary_exponent; /* under exponent offsets, E and C of weights with a class lie in 1 ... this */
    uint32_t sign_bit;              /* position of the sign */
} trf_float_fields;

TRF_HD trf_float_fields trf_fields_of(uint32_t codec) {
    trf_float_fields fields = {0, 0, 0, 0};
    if (codec == TRF_CODEC_BF16) {
        fields.mantissa_bits = 7, fields.max_exponent = 255, fields.sign_bit = 15;
    } else if (codec == TRF_CODEC_FP16) {
        fields.mantissa_bits = 10, fields.max_exponent = 31, fields.sign_bit = 15;
    } else if (codec == TRF_CODEC_E4M3) {
        fields.mantissa_bits = 3, fields.max_exponent = 15, fields.sign_bit = 7;
    } else if (codec == TRF_CODEC_E5M2) {
        fields.mantissa_bits = 2, fields.max_exponent = 31, fields.sign_bit = 7;
    }
    /* Emax means infinity or NaN, but not with E4M3, whose NaNs are exceptions anyway. */
    fields.max_ordinary_exponent = codec == TRF_CODEC_E4M3 ? fields.max_exponent : fields.max_exponent - 1;
    return fields;
}

/* Exponent field E of an element of a float codec. */
TRF_HD uint32_t trf_element_exponent(trf_float_fields fields, uint32_t element) {
    return (element >> fields.mantissa_bits) & fields.max_exponent;
}

/* Raw bits R of a float element; low2 is e, the coded exponent's two low bits, with quads. */
TRF_HD uint32_t trf_float_raw(uint32_t codec, uint32_t class_bits, uint32_t element, uint32_t low2) {
    trf_float_fields fields = trf_fields_of(codec);
    uint32_t sign = (element >> fields.sign_bit) & 1, mantissa = element & ((1u << fields.mantissa_bits) - 1);
    if (class_bits == 4)
        low2 = 0;
    switch (codec) {
    case TRF_CODEC_BF16:
        return low2 << 8 | sign << 7 | mantissa;
    case TRF_CODEC_FP16:
        return low2 << 11 | (mantissa >> 7) << 8 | sign << 7 | (mantissa & 127);
    case TRF_CODEC_E4M3:
        return class_bits == 2 ? (mantissa & 1) << 5 | sign << 4 | low2 << 2 | mantissa >> 1 : mantissa << 1 | sign;
    default:
        return low2 << 3 | mantissa << 1 | sign;
    }
}

/* The two low exponent bits e of raw bits R; quads only. */
TRF_HD uint32_t trf_raw_low2(uint32_t codec, uint32_t raw) {
    switch (codec) {
    case TRF_CODEC_BF16:
        return raw >> 8 & 3;
    case TRF_CODEC_FP16:
        return raw >> 11 & 3;
    case TRF_CODEC_E4M3:
        return raw >> 2 & 3;
    default:
        return raw >> 3 & 3;
    }
}

/* The float element of raw bits R and true exponent field E. */
TRF_HD uint32_t trf_float_element(uint32_t codec, uint32_t class_bits, uint32_t raw, uint32_t exponent) {
    switch (codec) {
    case TRF_CODEC_BF16:
        return (raw >> 7 & 1) << 15 | exponent << 7 | (raw & 127);
    case TRF_CODEC_FP16:
        return (raw >> 7 & 1) << 15 | exponent << 10 | (raw >> 8 & 7) << 7 | (raw & 127);
    case TRF_CODEC_E4M3:
        return class_bits == 2 ? (raw >> 4 & 1) << 7 | exponent << 3 | (raw & 3) << 1 | (raw >> 5 & 1)
                               : (raw & 1) << 7 | exponent << 3 | (raw >> 1 & 7);
    default:
        return (raw & 1) << 7 | exponent << 2 | (raw >> 1 & 3);
    }
}

/* Raw bits per weight of a float codec with these class bits; 0 for the int codec, whose header says how many it
 * has. */
TRF_HD uint32_t trf_float_raw_bits(uint32_t codec, uint32_t class_bits) {
    uint32_t low2 = class_bits == 2 ? 2 : 0;
    switch (codec) {
    case TRF_CODEC_BF16:
        return 8 + low2;
    case TRF_CODEC_FP16:
        return 11 + low2;
    case TRF_CODEC_E4M3:
        return 4 + low2;
    case TRF_CODEC_E5M2:
        return 3 + low2;
    default:
        return 0;
    }
}

/* The sign's bit within R; the float codecs' signs lie in the raw bits of trf_sign_holder's weight. */
TRF_HD uint32_t trf_raw_sign_bit(uint32_t codec, uint32_t class_bits) {
    if (codec == TRF_CODEC_BF16 || codec == TRF_CODEC_FP16)
        return 7;
    return codec == TRF_CODEC_E4M3 && class_bits == 2 ? 4 : 0;
}

/* Whether a float element is always an exception: the NaNs of E4M3, whose exponent field finite values have, too. */
TRF_HD int trf_is_exception_always(uint32_t codec, uint32_t element) {
    return codec == TRF_CODEC_E4M3 && (element & 0x7F) == 0x7F;
}

TRF_HD int trf_codec_is_float(uint32_t codec) { return codec != TRF_CODEC_INT; }

#endif
