/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of the trf_split_slab_fn functions, in plain C that compilers vectorize. This file is compiled once for
 * each instruction set, by the files that define TRF_SPLIT_SLAB (the function's name) and include it. */
#include "trf_slab_split.h"

#include <string.h>

/* How many weights are split at a time: one register of each of the 32 lanes of a GPU's warp, with two weights each. */
enum {
    REGISTER_WEIGHTS = 2 * TRF_LANES
};

/* Finds the coded exponents and raw bits of one codec. It is inlined with constant codec, class_bits and flags. */
static inline __attribute__((always_inline)) void split_floats(const trf_split_rule *rule, trf_slab_buffers *buffers,
                                                               uint32_t n, uint32_t codec, uint32_t class_bits,
                                                               int offsets, int predicted) {
    const trf_float_fields fields = trf_fields_of(codec);
    const uint16_t emax = (uint16_t)fields.max_exponent, max_ordinary = (uint16_t)fields.max_ordinary_exponent,
                   d = (uint16_t)rule->exponent_offset;
    const uint16_t *restrict element = buffers->element, *restrict offset = buffers->offset;
    uint16_t *restrict class_key = buffers->class_key, *restrict raw = buffers->raw;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t v = element[i], e = (uint16_t)((v >> fields.mantissa_bits) & emax);
        uint16_t c = (uint16_t)(e - (offsets ? d : 0) - (predicted ? offset[i] : 0));
        int ordinary = ((uint16_t)(e - 1) < max_ordinary) & ((uint16_t)(c - 1) < max_ordinary);
        int has_class = (!offsets || ordinary) && !trf_is_exception_always(codec, v);
        class_key[i] = has_class ? c : 0xFFFF;
        raw[i] = (uint16_t)trf_float_raw(codec, class_bits, v, c & 3);
    }
}

static inline __attribute__((always_inline)) void split_codec(const trf_split_rule *rule, trf_slab_buffers *buffers,
                                                              uint32_t n, uint32_t codec, uint32_t class_bits) {
    if (rule->predicted)
        split_floats(rule, buffers, n, codec, class_bits, 1, 1);
    else if (rule->offsets)
        split_floats(rule, buffers, n, codec, class_bits, 1, 0);
    else
        split_floats(rule, buffers, n, codec, class_bits, 0, 0);
}

static void split_codes(const trf_split_rule *rule, trf_slab_buffers *buffers, uint32_t n) {
    const uint16_t lowest_code = (uint16_t)rule->classes.class_value[0], mask = (uint16_t)((1u << rule->raw_bits) - 1);
    const uint16_t *restrict element = buffers->element;
    uint16_t *restrict class_key = buffers->class_key, *restrict raw = buffers->raw;
    for (uint32_t i = 0; i < n; i++) {
        class_key[i] = element[i];
        raw[i] = (uint16_t)((element[i] - lowest_code) & mask);
    }
}

static void split_elements(const trf_split_rule *rule, trf_slab_buffers *buffers, uint32_t n) {
    switch (rule->codec * 8 + rule->class_bits) {
    case TRF_CODEC_BF16 * 8 + 2:
        split_codec(rule, buffers, n, TRF_CODEC_BF16, 2);
        break;
    case TRF_CODEC_BF16 * 8 + 4:
        split_codec(rule, buffers, n, TRF_CODEC_BF16, 4);
        break;
    case TRF_CODEC_FP16 * 8 + 2:
        split_codec(rule, buffers, n, TRF_CODEC_FP16, 2);
        break;
    case TRF_CODEC_FP16 * 8 + 4:
        split_codec(rule, buffers, n, TRF_CODEC_FP16, 4);
        break;
    case TRF_CODEC_E4M3 * 8 + 2:
        split_codec(rule, buffers, n, TRF_CODEC_E4M3, 2);
        break;
    case TRF_CODEC_E4M3 * 8 + 4:
        split_codec(rule, buffers, n, TRF_CODEC_E4M3, 4);
        break;
    case TRF_CODEC_E5M2 * 8 + 2:
        split_codec(rule, buffers, n, TRF_CODEC_E5M2, 2);
        break;
    case TRF_CODEC_E5M2 * 8 + 4:
        split_codec(rule, buffers, n, TRF_CODEC_E5M2, 4);
        break;
    default:
        split_codes(rule, buffers, n);
        break;
    }
}

/* Notes the weights that have no class, in one register of all lanes. They are rare. */
static void note_register(const trf_split_rule *rule, trf_slab_buffers *buffers, uint32_t reg, const uint8_t *outside) {
    for (uint32_t k = 0; k < REGISTER_WEIGHTS; k++)
        if (outside[k]) {
            buffers->class_[reg * REGISTER_WEIGHTS + k] = (uint8_t)rule->classes.likeliest;
            trf_note_exception(buffers, trf_weight_position(2 * reg + k % 2, k / 2));
        }
}

static void classify(const trf_split_rule *rule, trf_slab_buffers *buffers, uint32_t registers) {
    const uint16_t base = (uint16_t)rule->classes.class_value[0];
    const uint16_t limit = (uint16_t)(1u << (rule->class_bits + rule->classes.shift)),
                   shift = (uint16_t)rule->classes.shift;
    for (uint32_t reg = 0; reg < registers; reg++) {
        const uint16_t *restrict class_key = buffers->class_key + reg * REGISTER_WEIGHTS;
        uint8_t *restrict class_ = buffers->class_ + reg * REGISTER_WEIGHTS;
        uint8_t outside[REGISTER_WEIGHTS], any = 0;
        if (rule->classes.contiguous) {
            for (uint32_t k = 0; k < REGISTER_WEIGHTS; k++) {
                uint16_t at = (uint16_t)(class_key[k] - base);
                class_[k] = (uint8_t)(at >> shift);
                outside[k] = at >= limit;
            }
        } else {
            for (uint32_t k = 0; k < REGISTER_WEIGHTS; k++) {
                class_[k] = class_key[k] > 255 ? 0xFF : rule->class_of[class_key[k]];
                outside[k] = class_[k] == 0xFF;
            }
        }
        for (uint32_t k = 0; k < REGISTER_WEIGHTS; k++)
            any |= outside[k];
        if (any)
            note_register(rule, buffers, reg, outside);
    }
}

/* Joins the classes of two registers (quads) or of one (pairs) into symbols. */
static void join_symbols(const trf_split_rule *rule, trf_slab_buffers *buffers, uint32_t registers) {
    const uint8_t *restrict class_ = buffers->class_;
    uint8_t *restrict symbol = buffers->symbol;
    if (rule->class_bits == 4) {
        for (uint32_t i = 0; i < registers * TRF_LANES; i++)
            symbol[i] = (uint8_t)(class_[2 * i] | class_[2 * i + 1] << 4);
        return;
    }
    for (uint32_t s = 0; s < registers / 2; s++) {
        const uint8_t *a = class_ + 2 * s * REGISTER_WEIGHTS, *b = a + REGISTER_WEIGHTS;
        for (uint32_t l = 0; l < TRF_LANES; l++)
            symbol[s * TRF_LANES + l] = (uint8_t)(a[2 * l] | a[2 * l + 1] << 2 | b[2 * l] << 4 | b[2 * l + 1] << 6);
    }
}

/* Writes up to four plane words of every lane, [word][lane], to their places. */
static void put_words(uint32_t words[4][TRF_LANES], uint32_t count, uint8_t *out) {
    uint32_t buffer[4 * TRF_LANES];
    if (count == 4) {
        for (uint32_t l = 0; l < TRF_LANES; l++)
            for (uint32_t z = 0; z < 4; z++)
                buffer[4 * l + z] = words[z][l];
    } else {
        for (uint32_t l = 0; l < TRF_LANES; l++)
            for (uint32_t z = 0; z < count; z++)
                buffer[count * l + z] = words[z][l];
    }
    memcpy(out, buffer, 4 * TRF_LANES * count);
}

/* Writes one plane of a chunk, whose width is a constant. raw: the raw bits from the chunk's first register on;
 * low_bit: the plane's lowest bit within R; signs: which bits of a word are signs, which move on by a byte. */
static inline __attribute__((always_inline)) void put_plane(const uint16_t *raw, uint32_t registers, uint32_t width,
                                                            uint32_t low_bit, uint32_t signs, uint8_t *out) {
    const uint32_t mask = ((1u << width) - 1) * 0x10001u, in_word = 16 / width;
    uint32_t words[4][TRF_LANES], lane_words = (registers + in_word - 1) / in_word;
    for (uint32_t z = 0; z < lane_words; z++) {
        uint32_t *restrict word = words[z % 4];
        memset(word, 0, sizeof words[0]);
        for (uint32_t k = 0; k < in_word && z * in_word + k < registers; k++) {
            uint32_t row[TRF_LANES];
            memcpy(row, raw + (z * in_word + k) * REGISTER_WEIGHTS, sizeof row);
            for (uint32_t l = 0; l < TRF_LANES; l++)
                word[l] |= ((row[l] >> low_bit) & mask) << (width * (k / 2) + 8 * (k % 2));
        }
        for (uint32_t l = 0; l < TRF_LANES && signs; l++) {
            uint32_t moved = word[l] & signs;
            word[l] = (word[l] & ~signs) | moved << 8 | moved >> 24;
        }
        if (z % 4 == 3 || z + 1 == lane_words)
            put_words(words, z % 4 + 1, out + 512 * (z / 4));
    }
}

/* Writes all planes of a chunk. @return the byte after them. */
static uint8_t *put_chunk(const trf_split_rule *rule, const uint16_t *raw, uint32_t weights, uint8_t *out) {
    const uint32_t registers = weights / 2, sign_bit = trf_raw_sign_bit(rule->codec, rule->class_bits);
    uint32_t low_bit = 0;
    for (uint32_t p = 0; p < rule->num_planes; p++) {
        const uint32_t width = rule->plane_width[p];
        /* In planes of 8 bits signs are the highest bits, in others the lowest. */
        const int signs = trf_codec_is_float(rule->codec) && sign_bit >= low_bit && sign_bit < low_bit + width;
        switch (width) {
        case 8:
            if (signs)
                put_plane(raw, registers, 8, low_bit, 0x80808080u, out);
            else
                put_plane(raw, registers, 8, low_bit, 0, out);
            break;
        case 4:
            put_plane(raw, registers, 4, low_bit, signs ? 0x11111111u : 0, out);
            break;
        case 2:
            put_plane(raw, registers, 2, low_bit, signs ? 0x55555555u : 0, out);
            break;
        default:
            put_plane(raw, registers, 1, low_bit, 0, out);
            break;
        }
        low_bit += width;
        out += trf_plane_bytes(weights, width);
    }
    return out;
}

void TRF_SPLIT_SLAB(const trf_split_rule *rule, trf_slab_shape shape, trf_slab_buffers *buffers, uint8_t *chunks) {
    const uint32_t weights = trf_lane_weights(shape), registers = weights / 2;
    buffers->exceptions = 0;
    memset(buffers->exception_mask, 0, sizeof buffers->exception_mask);
    split_elements(rule, buffers, registers * REGISTER_WEIGHTS);
    classify(rule, buffers, registers);
    join_symbols(rule, buffers, registers);
    for (uint32_t i = 0; i < weights; i += TRF_CHUNK_WEIGHTS)
        chunks =
            put_chunk(rule, buffers->raw + i * TRF_LANES, trf_chunk_weights(weights, i / TRF_CHUNK_WEIGHTS), chunks);
}
