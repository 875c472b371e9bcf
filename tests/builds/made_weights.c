/* SPDX-License-Identifier: Apache-2.0 */
#include "made_weights.h"

#include "trf_number_formats.h"

#include <string.h>

/* SplitMix64 of a number that names the seed, the use and the place. */
static uint32_t draw(uint32_t seed, uint32_t use, uint64_t place) {
    uint64_t z = (place + ((uint64_t)(seed * 16 + use) << 40) + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return (uint32_t)((z ^ z >> 31) >> 16);
}

typedef struct float_type {
    uint32_t mantissa_bits, max_exponent, middle; /* middle: the exponent that is most frequent */
} float_type;

static float_type type_of(trf_dtype dtype) {
    switch (dtype) {
    case TRF_DTYPE_F32:
        return (float_type){23, 255, 122};
    case TRF_DTYPE_BF16:
        return (float_type){7, 255, 122};
    case TRF_DTYPE_F16:
        return (float_type){10, 31, 12};
    case TRF_DTYPE_F8_E4M3:
        return (float_type){3, 15, 10};
    default:
        return (float_type){2, 31, 18};
    }
}

static uint32_t trained(float_type type, made_kind kind, uint32_t seed, uint32_t row, uint32_t col, uint64_t place) {
    const uint32_t halvings = (uint32_t)__builtin_ctz(draw(seed, 1, place) | 1u << 12);
    int32_t exponent = (int32_t)type.middle - (int32_t)halvings;
    if (kind == MADE_ROWS || kind == MADE_COLS)
        exponent -= (int32_t)(draw(seed, 2, row) % 4);
    if (kind == MADE_COLS)
        exponent -= (int32_t)(draw(seed, 3, col) % 5);
    if (kind == MADE_TRAINED && draw(seed, 4, place) % 397 == 0)
        exponent = (int32_t)(draw(seed, 5, place) % (type.max_exponent + 1));
    const uint32_t bits = draw(seed, 6, place), mantissa = bits & ((1u << type.mantissa_bits) - 1),
                   exponent_bits = __builtin_ctz(type.max_exponent + 1);
    return bits >> 31 << (exponent_bits + type.mantissa_bits) |
           (uint32_t)(exponent < 0 ? 0 : exponent) << type.mantissa_bits | mantissa;
}

/* Sums of eight numbers of 16 bits are integers that a float holds. */
static float bell(made_kind kind, uint32_t seed, uint32_t row, uint64_t place) {
    int32_t sum = -4 * 65535;
    for (uint64_t k = 0; k < 4; k++) {
        const uint32_t two = draw(seed, 7, 4 * place + k);
        sum += (int32_t)(two & 0xFFFF) + (int32_t)(two >> 16);
    }
    if (kind == MADE_OUTLIERS && draw(seed, 8, place) % 700 == 0)
        sum *= 9;
    if (kind == MADE_OUTLIERS && row % 23 == 5)
        sum = 0;
    return (float)sum * 0x1p-22f;
}

static uint16_t fp8_number(made_kind kind, uint32_t seed, uint32_t row, uint32_t col, uint64_t place) {
    const uint32_t region = kind == MADE_FP8_TENSOR ? 0
                            : kind == MADE_FP8_ROWS ? row
                                                    : row / 128 * 512 + col / 128,
                   scale = (112 + draw(seed, 9, region) % 3) << 23 | (draw(seed, 10, region) & 0x7FFFFF);
    uint32_t code = trained(type_of(TRF_DTYPE_F8_E4M3), MADE_BELL, seed, row, col, place);
    return trf_scale_fp8(code, trf_f32_from_bits(scale));
}

static uint32_t weight_bits(trf_dtype dtype, made_kind kind, uint32_t seed, uint32_t row, uint32_t col,
                            uint64_t place) {
    switch (kind) {
    case MADE_PATTERNS:
        return (uint32_t)place * (dtype == TRF_DTYPE_F32 ? 2654435761u : 40503u);
    case MADE_ZEROS:
        return 0;
    case MADE_BELL:
    case MADE_OUTLIERS: {
        const float value = bell(kind, seed, row, place);
        return dtype == TRF_DTYPE_F32    ? trf_f32_bits(value)
               : dtype == TRF_DTYPE_BF16 ? trf_f64_to_bf16(value)
               : dtype == TRF_DTYPE_F16  ? trf_f64_to_f16(value)
                                         : (uint32_t)(int32_t)(value * 2032);
    }
    case MADE_FP8_TENSOR:
    case MADE_FP8_ROWS:
    case MADE_FP8_BLOCKS:
        return fp8_number(kind, seed, row, col, place);
    default:
        return trained(type_of(dtype), kind, seed, row, col, place);
    }
}

void made_fill(void *weights, trf_dtype dtype, made_kind kind, uint32_t rows, uint32_t cols, uint32_t seed) {
    const size_t bytes = trf_dtype_bytes(dtype);
    uint8_t *to = weights;
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t col = 0; col < cols; col++, to += bytes) {
            const uint32_t bits = weight_bits(dtype, kind, seed, row, col, (uint64_t)row * cols + col);
            memcpy(to, &bits, bytes); /* all hosts are little-endian */
        }
}
