/* SPDX-License-Identifier: Apache-2.0 */
/* The reference decoder: FORMAT.md sections 5 to 7 word by word, one lane after the other, on the functions that the
 * CUDA code shares. The other decoders are tested against it. */
#include "trf_decode_tile.h"
#include "trf_scale_codes_body.h"

#include <string.h>

/* A lane's place in the slab's words. */
typedef struct trf_lane_reader {
    uint32_t x;     /* state */
    int32_t at;     /* index of the next word */
    int32_t stride; /* 1 or -1 */
    uint32_t taken;
} trf_lane_reader;

static void renormalize(const trf_slab_view *slab, trf_lane_reader *reader, uint32_t state_bits) {
    if (!trf_state_needs_word(reader->x, state_bits))
        return;
    int inside = reader->at >= 0 && reader->at < (int32_t)slab->num_words; /* else the verdict is TRF_ERR_RANS */
    reader->x = trf_state_renormalize(reader->x, inside ? slab->words[reader->at] : 0);
    reader->at += reader->stride;
    reader->taken++;
}

/* Decodes the classes of all weights of a lane. */
static trf_lane_reader decode_classes(const trf_tile_decoder *decoder, const trf_slab_view *slab, uint32_t lane,
                                      uint32_t lane_pair_begin, uint8_t *classes) {
    const trf_header *header = &decoder->view->header;
    const uint32_t c = header->class_bits, p = header->probability_bits, state_bits = header->state_bits;
    const uint32_t weights = trf_lane_weights(slab->shape),
                   lane_pair_words = slab->lane_pair_words[lane % TRF_LANE_PAIRS];
    trf_lane_reader reader = {slab->start_states[lane], trf_lane_first_word(lane, lane_pair_begin, lane_pair_words),
                              trf_lane_word_stride(lane), 0};
    renormalize(slab, &reader, state_bits);
    for (uint32_t i = 0; i < weights; i += 8 / c) {
        uint32_t entry = decoder->table->slots[trf_state_slot(reader.x, p)];
        for (uint32_t q = 0; q < 8 / c; q++)
            classes[i + q] = (uint8_t)(trf_entry_symbol(entry) >> (c * q) & ((1u << c) - 1));
        reader.x = trf_state_advance(reader.x, entry, p);
        renormalize(slab, &reader, state_bits);
    }
    return reader;
}

/* The raw bits that lie in weight i's place. */
static uint32_t read_planes(const trf_blob_view *view, const trf_slab_view *slab, uint32_t lane, uint32_t i) {
    const uint32_t chunk = i / TRF_CHUNK_WEIGHTS, weights = trf_chunk_weights(trf_lane_weights(slab->shape), chunk);
    const uint8_t *plane = slab->raw + trf_chunk_offset(view->header.raw_bits, chunk);
    uint32_t raw = 0, shift = 0;
    i %= TRF_CHUNK_WEIGHTS;
    for (uint32_t p = 0; p < view->num_planes; p++) {
        uint32_t width = view->plane_width[p], lane_words = trf_plane_lane_words(weights, width), word;
        memcpy(&word, plane + trf_plane_word_offset(lane_words, lane, trf_plane_word(i, width)), 4);
        raw |= (word >> trf_plane_bit(i, width) & ((1u << width) - 1)) << shift;
        shift += width;
        plane += trf_plane_bytes(weights, width);
    }
    return raw;
}

/* Raw bits R of weight i of a lane. */
static uint32_t read_raw(const trf_blob_view *view, const trf_slab_view *slab, uint32_t lane, uint32_t i) {
    const uint32_t codec = view->header.codec, sign = 1u << trf_raw_sign_bit(codec, view->header.class_bits);
    const uint32_t raw = read_planes(view, slab, lane, i);
    if (!trf_codec_is_float(codec))
        return raw;
    return (raw & ~sign) | (read_planes(view, slab, lane, trf_sign_holder(i)) & sign);
}

/* The element that a class and raw bits give at (row, col) of the tile: FORMAT.md section 5. */
static uint16_t join(const trf_tile_decoder *decoder, uint32_t class_, uint32_t raw, uint32_t row, uint32_t col) {
    const trf_blob_view *view = decoder->view;
    const uint32_t codec = view->header.codec, class_bits = view->header.class_bits;
    int32_t value = view->extension.class_value[class_];
    if (!trf_codec_is_float(codec))
        return (uint16_t)(value + (int32_t)raw);
    int32_t exponent = value + (class_bits == 2 ? (int32_t)trf_raw_low2(codec, raw) : 0);
    exponent += view->extension.exponent_offset;
    if (decoder->predictor_mode & TRF_PREDICT_ROW)
        exponent += view->row_offsets[decoder->shape.row + row];
    if (decoder->predictor_mode & TRF_PREDICT_COL)
        exponent += view->col_offsets[decoder->shape.col + col];
    return (uint16_t)trf_float_element(codec, class_bits, raw, (uint32_t)exponent & view->fields.max_exponent);
}

/* @return whether the slab's rANS streams end where they must. */
static int decode_slab(const trf_tile_decoder *decoder, const trf_slab_view *slab, uint16_t *elements, size_t stride) {
    uint32_t taken[TRF_LANE_PAIRS] = {0}, lane_pair_begin = 0;
    int good = 1;
    for (uint32_t lane = 0; lane < TRF_LANES; lane++) {
        if (lane == TRF_LANE_PAIRS)
            lane_pair_begin = 0;
        uint8_t classes[TRF_MAX_LANE_WEIGHTS];
        trf_lane_reader end = decode_classes(decoder, slab, lane, lane_pair_begin, classes);
        for (uint32_t i = 0; i < trf_lane_weights(slab->shape); i++) {
            uint32_t row = slab->row + trf_lane_row(slab->shape, lane, i);
            uint32_t col = slab->col + trf_lane_col(slab->shape, lane, i);
            elements[row * stride + col] = join(decoder, classes[i], read_raw(decoder->view, slab, lane, i), row, col);
        }
        good &= end.x == 1u << decoder->view->header.state_bits;
        taken[lane % TRF_LANE_PAIRS] += end.taken;
        lane_pair_begin += slab->lane_pair_words[lane % TRF_LANE_PAIRS];
    }
    for (uint32_t lane_pair = 0; lane_pair < TRF_LANE_PAIRS; lane_pair++)
        good &= taken[lane_pair] == slab->lane_pair_words[lane_pair];
    return good;
}

static uint32_t decode_slabs(const trf_tile_decoder *decoder, const trf_slab_view *slabs, uint32_t num_slabs,
                             uint16_t *elements, size_t stride) {
    uint32_t s = 0;
    while (s < num_slabs && decode_slab(decoder, &slabs[s], elements, stride))
        s++;
    return s;
}

trf_status trf_decode_tile_ref(const trf_blob_view *view, const trf_decode_table *table, uint64_t tile,
                               const uint8_t *tile_bytes, uint16_t *elements, size_t stride, trf_error *err) {
    return trf_decode_tile_by_slabs(decode_slabs, scale_codes, view, table, tile, tile_bytes, elements, stride, err);
}
