/* SPDX-License-Identifier: Apache-2.0 */
/* One lane's way through one slab in memory: rANS stream, raw bits, elements, verdict. The reader is plain and general:
 * it takes any shape and any codec, in C and CUDA.
 *
 * A warp runs these functions with a lane each; a loop over 32 lanes on the CPU computes the same. The layer and the
 * slab table are trusted as far as validation went, but the slab's bytes are not: nothing here reads outside its raw
 * bits and its rANS streams, whatever is in them. */
#ifndef TRF_SLAB_READER_H
#define TRF_SLAB_READER_H

#include "trf_decoded_bits.h"

/* One slab in memory. All that is in its rANS streams lies inside them if trf_slab_reader_open returned 1. */
typedef struct trf_slab_reader {
    const uint8_t *raw;          /* trf_raw_bytes of them, 16-byte aligned */
    const uint8_t *rans_streams; /* 16-byte aligned */
    trf_slab_shape shape;
    uint32_t weights; /* of a lane */
    uint32_t num_exceptions;
    uint32_t words;     /* byte offset in the rANS streams */
    uint32_t num_words; /* of all lane pairs */
} trf_slab_reader;

/* raw, rans_streams: device or host memory; rans_streams has rans_bytes bytes. @return 1, or 0 if these bytes cannot
 * hold what they say that they hold; nothing else may be called then. */
TRF_HD int trf_slab_reader_open(trf_slab_reader *slab, const uint8_t *raw, const uint8_t *rans_streams,
                                uint32_t rans_bytes, trf_slab_shape shape) {
    slab->raw = raw;
    slab->rans_streams = rans_streams;
    slab->shape = shape;
    slab->weights = trf_lane_weights(shape);
    slab->num_exceptions = 0;
    slab->words = TRF_RANS_FIXED_BYTES;
    slab->num_words = 0;
    if (rans_bytes < TRF_RANS_FIXED_BYTES)
        return 0;
    slab->num_exceptions = trf_rans_exception_count(rans_streams);
    slab->words += 4 * slab->num_exceptions;
    for (uint32_t lane_pair = 0; lane_pair < TRF_LANE_PAIRS; lane_pair++)
        slab->num_words += rans_streams[TRF_STATES_BYTES + lane_pair];
    return rans_bytes >= slab->words + 2 * slab->num_words;
}

/* ---- the rANS stream ---- */

typedef struct trf_lane_reader {
    uint32_t x;     /* state */
    int32_t at;     /* index of the next word in the slab's words */
    int32_t stride; /* 1 or -1 */
    uint32_t taken; /* words so far */
} trf_lane_reader;

/* A word that the slab does not have reads as 0; the verdict is bad then. */
TRF_HD void trf_lane_reader_renormalize(trf_lane_reader *reader, const trf_slab_reader *slab, uint32_t state_bits) {
    if (!trf_state_needs_word(reader->x, state_bits))
        return;
    const uint16_t *words = (const uint16_t *)(slab->rans_streams + slab->words);
    reader->x = trf_state_renormalize(reader->x, (uint32_t)reader->at < slab->num_words ? words[reader->at] : 0);
    reader->at += reader->stride;
    reader->taken++;
}

TRF_HD trf_lane_reader trf_lane_reader_open(const trf_slab_reader *slab, uint32_t lane, uint32_t state_bits) {
    const uint8_t *lane_pair_words = slab->rans_streams + TRF_STATES_BYTES;
    uint32_t begin = 0;
    for (uint32_t lane_pair = 0; lane_pair < lane % TRF_LANE_PAIRS; lane_pair++)
        begin += lane_pair_words[lane_pair];
    trf_lane_reader reader;
    reader.x = ((const uint16_t *)slab->rans_streams)[lane];
    reader.at = trf_lane_first_word(lane, begin, lane_pair_words[lane % TRF_LANE_PAIRS]);
    reader.stride = trf_lane_word_stride(lane);
    reader.taken = 0;
    trf_lane_reader_renormalize(&reader, slab, state_bits);
    return reader;
}

/* The lane's next symbol. decode_table: the layer's. */
TRF_HD uint32_t trf_lane_next_symbol(trf_lane_reader *reader, const trf_slab_reader *slab, const uint32_t *decode_table,
                                     uint32_t probability_bits, uint32_t state_bits) {
    uint32_t entry = decode_table[trf_state_slot(reader->x, probability_bits)]; /* s, x = D(x) */
    reader->x = trf_state_advance(reader->x, entry, probability_bits);
    trf_lane_reader_renormalize(reader, slab, state_bits);
    return trf_entry_symbol(entry);
}

/* The classes of the lane's next four weights, class_bits each, the first one lowest: one symbol of quads or two of
 * pairs. */
TRF_HD uint32_t trf_lane_next_classes(trf_lane_reader *reader, const trf_slab_reader *slab,
                                      const uint32_t *decode_table, uint32_t class_bits, uint32_t probability_bits,
                                      uint32_t state_bits) {
    uint32_t classes = trf_lane_next_symbol(reader, slab, decode_table, probability_bits, state_bits);
    if (class_bits == 4)
        classes |= trf_lane_next_symbol(reader, slab, decode_table, probability_bits, state_bits) << 8;
    return classes;
}

/* Whether the rANS stream of a lane that has decoded all its weights ends where it must. The slab is good if those of
 * all lanes do. partner_taken: the words that lane ^ 16 took. */
TRF_HD int trf_lane_reader_verdict(const trf_lane_reader *reader, const trf_slab_reader *slab, uint32_t lane,
                                   uint32_t partner_taken, uint32_t state_bits) {
    return reader->x == 1u << state_bits &&
           reader->taken + partner_taken == slab->rans_streams[TRF_STATES_BYTES + lane % TRF_LANE_PAIRS];
}

/* ---- raw bits ---- */

/* Raw bits R of the lane's weights i to i + 3; i is a multiple of 4 below slab->weights. Four such weights share one
 * word a plane. */
TRF_HD void trf_lane_raw_bits(const trf_slab_reader *slab, uint32_t codec, uint32_t class_bits, uint32_t raw_bits,
                              uint32_t lane, uint32_t i, uint32_t raw[4]) {
    const uint32_t chunk = i / TRF_CHUNK_WEIGHTS, weights = trf_chunk_weights(slab->weights, chunk);
    const uint8_t *plane = slab->raw + trf_chunk_offset(raw_bits, chunk);
    const uint32_t sign_of_raw = trf_codec_is_float(codec) ? 1u << trf_raw_sign_bit(codec, class_bits) : 0;
    uint32_t shift = 0;
    i %= TRF_CHUNK_WEIGHTS;
    raw[0] = raw[1] = raw[2] = raw[3] = 0;
    for (uint32_t width = 8; width > 0; width /= 2) {
        if (!(raw_bits & width))
            continue;
        const uint32_t lane_words = trf_plane_lane_words(weights, width);
        const uint32_t at = trf_plane_word_offset(lane_words, lane, trf_plane_word(i, width));
        const uint32_t word = *(const uint32_t *)(plane + at), sign = sign_of_raw >> shift;
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t own = word >> trf_plane_bit(i + k, width);
            uint32_t other = word >> trf_plane_bit(trf_sign_holder(i + k), width);
            raw[k] |= ((own & ~sign) | (other & sign)) % (1u << width) << shift;
        }
        shift += width;
        plane += trf_plane_bytes(weights, width);
    }
}

/* ---- elements ---- */

/* Where a slab lies in its layer. */
typedef struct trf_slab_place {
    uint32_t row, col;       /* of its first weight */
    uint32_t predictor_mode; /* of its tile */
} trf_slab_place;

/* The element that a class's value and raw bits give: FORMAT.md section 5. offset: the sum of D and of the row's and
 * the column's offsets, as far as they are in effect. */
TRF_HD uint32_t trf_join_element(uint32_t codec, uint32_t class_bits, int32_t class_value, uint32_t raw,
                                 int32_t offset) {
    if (!trf_codec_is_float(codec))
        return (uint32_t)(class_value + (int32_t)raw) & 0xFFFF;
    int32_t exponent = class_value + offset + (class_bits == 2 ? (int32_t)trf_raw_low2(codec, raw) : 0);
    return trf_float_element(codec, class_bits, raw, (uint32_t)exponent & trf_fields_of(codec).max_exponent);
}

/* What was subtracted from the exponent of weight (row, col) of the layer before it was coded. */
TRF_HD int32_t trf_exponent_offset_at(const trf_device_view *view, uint32_t predictor_mode, uint32_t row,
                                      uint32_t col) {
    int32_t offset = view->exponent_offset;
    if (predictor_mode & TRF_PREDICT_ROW)
        offset += view->row_offsets[row];
    if (predictor_mode & TRF_PREDICT_COL)
        offset += view->col_offsets[col];
    return offset;
}

/* Decodes the lane's weights first to first + count - 1, for which `reader` must stand ready, and puts the element of
 * (row, col) of the slab at to[row * pitch + col - first_col]; an exception gets the element that was coded in its
 * place. first, count: multiples of 8, first + count <= slab->weights. class_value: the view's [16], or a copy that is
 * nearer. */
TRF_HD void trf_lane_decode(const trf_device_view *view, const int16_t *class_value, const trf_slab_reader *slab,
                            trf_lane_reader *reader, uint32_t lane, trf_slab_place place, uint32_t first,
                            uint32_t count, uint16_t *to, uint32_t pitch, uint32_t first_col) {
    const uint32_t codec = view->codec, class_bits = view->class_bits;
    for (uint32_t i = first; i < first + count; i += 4) {
        uint32_t raw[4], classes = trf_lane_next_classes(reader, slab, view->decode_table, class_bits,
                                                         view->probability_bits, view->state_bits);
        trf_lane_raw_bits(slab, codec, class_bits, view->raw_bits, lane, i, raw);
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t row = trf_lane_row(slab->shape, lane, i + k);
            uint32_t col = trf_lane_col(slab->shape, lane, i + k);
            int32_t value = class_value[classes >> (class_bits * k) & ((1u << class_bits) - 1)];
            int32_t offset = trf_exponent_offset_at(view, place.predictor_mode, place.row + row, place.col + col);
            const uint32_t joined = trf_join_element(codec, class_bits, value, raw[k], offset);
            to[row * pitch + col - first_col] =
                (uint16_t)trf_coded_element(view, joined, place.row + row, place.col + col);
        }
    }
}

/* ---- exceptions ---- */

TRF_HD uint32_t trf_slab_exception(const trf_slab_reader *slab, uint32_t e) {
    return ((const uint32_t *)(slab->rans_streams + TRF_RANS_FIXED_BYTES))[e];
}

/* Index of the slab's first exception whose weight's index is `first` or more, or the number of exceptions if there is
 * none. So the exceptions of weights first to end - 1 lie between the results for first and for end. */
TRF_HD uint32_t trf_slab_exceptions_below(const trf_slab_reader *slab, uint32_t first) {
    uint32_t low = 0, high = slab->num_exceptions;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (trf_exception_position(trf_slab_exception(slab, middle)) < trf_weight_position(first, 0))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Writes exception e over what trf_lane_decode(first, count, ...) has written in all lanes, if the exception is among
 * those weights. */
TRF_HD void trf_slab_write_exception(const trf_slab_reader *slab, uint32_t e, uint32_t first, uint32_t count,
                                     uint16_t *to, uint32_t pitch, uint32_t first_col) {
    const uint32_t exception = trf_slab_exception(slab, e), position = trf_exception_position(exception);
    const uint32_t i = position / TRF_LANES, lane = position % TRF_LANES;
    if (i - first >= count)
        return;
    to[trf_lane_row(slab->shape, lane, i) * pitch + trf_lane_col(slab->shape, lane, i) - first_col] =
        (uint16_t)trf_exception_element(exception);
}

#endif
