/* SPDX-License-Identifier: Apache-2.0 */
/* Says how each codec's elements are joined, and prepares slabs for the SIMD decoders. */
#include "trf_decode_simd.h"

#include <string.h>

/* Lays out the fields of the planes narrower than 8 bits, one above the other. With E4M3 quads the narrower one comes
 * first, since it has sign and M[0]. @return the bits that they take. */
static uint32_t lay_out_fields(trf_join_rule *rule, const trf_blob_view *view) {
    uint32_t shift = 0;
    for (uint32_t plane = 0, wider = 0; plane < view->num_planes; plane++) {
        uint32_t width = view->plane_width[plane];
        if (width < 8) {
            rule->field[rule->num_fields++] = (trf_join_field){trf_chunk_offset(wider, 1), width, shift};
            shift += width;
        }
        wider += width;
    }
    if (view->header.codec == TRF_CODEC_E4M3 && rule->num_fields == 2) {
        const trf_join_field plane8 = rule->field[0], narrow = rule->field[1];
        rule->field[0] = (trf_join_field){narrow.offset, narrow.width, 0};
        rule->field[1] = (trf_join_field){plane8.offset, plane8.width, narrow.width};
    }
    return shift;
}

static void lay_out_codes(trf_join_rule *rule, const trf_blob_view *view) {
    const uint32_t raw_bits = view->header.raw_bits;
    rule->out = raw_bits == 8 ? TRF_OUT_PLANE8_CODE : TRF_OUT_CODE;
    rule->lowest_code = (uint16_t)view->extension.class_value[0];
    for (uint32_t k = 0; k < 16; k++) {
        rule->class_byte[k] = (uint8_t)(k << raw_bits);
        rule->class_high[k] = (uint8_t)((k << raw_bits) >> 8);
    }
}

void trf_join_rule_init(trf_join_rule *rule, const trf_tile_decoder *decoder) {
    const trf_blob_view *view = decoder->view;
    memset(rule, 0, sizeof *rule);
    rule->class_bits = view->header.class_bits;
    const uint32_t field_bits = lay_out_fields(rule, view);
    if (!trf_codec_is_float(view->header.codec)) {
        lay_out_codes(rule, view);
        return;
    }
    /* The exponent lies above the fields' other bits; with quads, the fields hold its two low bits. */
    const uint32_t shift = rule->class_bits == 2 ? field_bits - 2 : field_bits;
    rule->out = view->plane_width[0] == 8 ? TRF_OUT_UNDER_PLANE : TRF_OUT_BYTE;
    for (uint32_t k = 0; k < 16; k++)
        rule->class_byte[k] = (uint8_t)((uint32_t)view->extension.class_value[k] << shift);
    /* Emax + 1 divides 256 >> shift, so bytes wrap around as exponents do. */
    const int32_t layer = view->extension.exponent_offset;
    rule->by_row = decoder->predictor_mode & TRF_PREDICT_ROW;
    rule->by_col = decoder->predictor_mode & TRF_PREDICT_COL;
    rule->layer_offset = (uint8_t)((uint32_t)layer << shift);
    for (uint32_t i = 0; rule->by_row && i < decoder->shape.coded_rows; i++)
        rule->row_offset[i] = (uint8_t)((uint32_t)(layer + view->row_offsets[decoder->shape.row + i]) << shift);
    for (uint32_t i = 0; rule->by_col && i < decoder->shape.coded_cols; i++)
        rule->col_offset[i] = (uint8_t)((uint32_t)view->col_offsets[decoder->shape.col + i] << shift);
}

void trf_join_arrange_offsets(const trf_join_rule *rule, const trf_slab_view *slab, const trf_slab_view *previous,
                              trf_join_offsets *offsets) {
    if (!previous) {
        memset(offsets->row, rule->layer_offset, sizeof offsets->row);
        memset(offsets->col, 0, sizeof offsets->col);
    }
    for (uint32_t quartet = 0; rule->by_row && quartet < TRF_LANE_QUARTETS; quartet++)
        for (uint32_t b = 0; b < 16; b++)
            offsets->row[quartet][b] =
                rule->row_offset[slab->row + trf_lane_row(slab->shape, 4 * quartet, trf_byte_weight(b))];
    if (!rule->by_col ||
        (previous && previous->shape.row_blocks == slab->shape.row_blocks && previous->col == slab->col))
        return;
    const uint32_t weights = trf_lane_weights(slab->shape);
    for (uint32_t i = 0; i < weights; i += TRF_STRIP_WEIGHTS)
        for (uint32_t b = 0; b < 64; b++) {
            uint32_t weight = i + trf_byte_weight(b % 16);
            if (weight < weights)
                offsets->col[i / TRF_STRIP_WEIGHTS][b] =
                    rule->col_offset[slab->col + trf_lane_col(slab->shape, b / 16, weight)];
        }
}

void trf_simd_copy_words(const trf_slab_view *slab, trf_simd_scratch *scratch, uint32_t first[TRF_LANES]) {
    uint16_t *words = scratch->words + TRF_WORD_GUARD;
    memset(scratch->words, 0, TRF_WORD_GUARD * sizeof *words);
    memcpy(words, slab->words, slab->num_words * sizeof *words);
    memset(words + slab->num_words, 0, TRF_WORD_GUARD * sizeof *words);
    for (uint32_t lane_pair = 0, begin = TRF_WORD_GUARD; lane_pair < TRF_LANE_PAIRS; lane_pair++) {
        uint32_t count = slab->lane_pair_words[lane_pair];
        first[lane_pair] = (uint32_t)trf_lane_first_word(lane_pair, begin, count);
        first[lane_pair + TRF_LANE_PAIRS] = (uint32_t)trf_lane_first_word(lane_pair + TRF_LANE_PAIRS, begin, count);
        begin += count;
    }
}

/* Copies a chunk of `weights` weights a lane to where its words would stand in a full one. */
static void spread_chunk(const trf_blob_view *view, const uint8_t *chunk, uint32_t weights, uint8_t *to) {
    memset(to, 0, trf_chunk_offset(view->header.raw_bits, 1));
    for (uint32_t i = 0; i < view->num_planes; i++) {
        const uint32_t width = view->plane_width[i], words = trf_plane_lane_words(weights, width),
                       full_words = trf_plane_lane_words(TRF_CHUNK_WEIGHTS, width);
        for (uint32_t lane = 0; lane < TRF_LANES; lane++)
            for (uint32_t z = 0; z < words; z++)
                memcpy(to + trf_plane_word_offset(full_words, lane, z), chunk + trf_plane_word_offset(words, lane, z),
                       4);
        chunk += trf_plane_bytes(weights, width);
        to += trf_plane_bytes(TRF_CHUNK_WEIGHTS, width);
    }
}

trf_slab_io trf_slab_io_begin(const trf_blob_view *view, const trf_slab_view *slab, trf_simd_scratch *scratch,
                              uint16_t *elements, size_t stride) {
    const uint32_t weights = trf_lane_weights(slab->shape), two_strips = 2 * TRF_STRIP_WEIGHTS;
    trf_slab_io io = {.raw = slab->raw,
                      .last_chunk = scratch->last_chunk,
                      .chunk_bytes = trf_chunk_offset(view->header.raw_bits, 1),
                      .full_chunks = weights / TRF_CHUNK_WEIGHTS,
                      .row_blocks = slab->shape.row_blocks,
                      .strips = (weights + two_strips - 1) / two_strips * 2,
                      .elements = elements + slab->row * stride + slab->col,
                      .stride = stride,
                      .copy = weights % two_strips != 0};
    if (io.copy) {
        io.elements = scratch->rows;
        io.stride = TRF_MAX_SLAB_COLS;
    }
    if (weights % TRF_CHUNK_WEIGHTS)
        spread_chunk(view, slab->raw + io.full_chunks * io.chunk_bytes, weights % TRF_CHUNK_WEIGHTS,
                     scratch->last_chunk);
    return io;
}

void trf_slab_io_finish(const trf_slab_io *io, const trf_slab_view *slab, uint16_t *elements, size_t stride) {
    if (!io->copy)
        return;
    const uint32_t in_pairs = 32 * (slab->shape.steps / 2);
    for (uint32_t row = 0; row < TRF_FRAGMENT_SIZE * slab->shape.row_blocks; row++) {
        const uint16_t *from = io->elements + row * io->stride;
        uint16_t *to = elements + (slab->row + row) * stride + slab->col;
        memcpy(to, from, 2 * in_pairs);
        for (uint32_t c = 0; slab->shape.steps % 2 && c < 4; c++) /* of runs of 8, only the first half counts */
            memcpy(to + in_pairs + 4 * c, from + in_pairs + 8 * c, 8);
    }
}
