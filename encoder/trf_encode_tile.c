/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_encode_tile.h"

#include <string.h>

void trf_tile_encoder_finish(trf_tile_encoder *encoder, const trf_classes *classes) {
    trf_header *h = &encoder->header;
    trf_split_rule *rule = &encoder->rule;
    h->magic = TRF_MAGIC;
    h->version = (uint16_t)(trf_is_scaled_fp8(h->codec, h->source_dtype) ? TRF_SCALED_FP8_VERSION : TRF_FORMAT_VERSION);
    h->tile_size = TRF_TILE_SIZE;
    h->num_tile_rows = (h->rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE;
    h->num_tile_cols = (h->cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE;
    h->slab_rows = TRF_SLAB_ROWS;
    h->rans_streams_per_lane = 1;
    h->extension_offset = TRF_EXTENSION_OFFSET;
    h->extension_bytes = sizeof(trf_extension);
    h->raw_bits = (uint8_t)(h->codec == TRF_CODEC_INT ? classes->shift : trf_float_raw_bits(h->codec, h->class_bits));
    memcpy(encoder->extension.class_value, classes->class_value, sizeof classes->class_value);

    memset(rule, 0, sizeof *rule);
    rule->codec = h->codec;
    rule->class_bits = h->class_bits;
    rule->raw_bits = h->raw_bits;
    rule->num_planes = trf_plane_widths(h->raw_bits, rule->plane_width);
    rule->classes = *classes;
    rule->exponent_offset = encoder->extension.exponent_offset;
    rule->predicted = h->predictor_modes != 0;
    rule->offsets = rule->exponent_offset != 0 || rule->predicted;
    for (int32_t v = 0; v < 256; v++)
        rule->class_of[v] = (uint8_t)trf_class_of(classes, v);
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        encoder->missing[s] = encoder->model.replacement[s] != s;
    trf_symbol_encodings_init(encoder->symbols, &encoder->model, h->state_bits);
    encoder->split = trf_split_slab_best();
}

/* Arranges eight rows of one or two column steps; `steps` is a constant. Row r of the eight has 2 * steps 32-bit
 * registers of each of the lanes 4r ... 4r+3, one lane after the other. to: where the registers of the first step go,
 * one every 4 * TRF_LANES; step_size: the distance from one step to the next. */
static inline __attribute__((always_inline)) void arrange_rows(const uint16_t *from, size_t stride, uint32_t steps,
                                                               uint16_t *to, size_t step_size) {
    uint32_t words[4 * TRF_LANES], registers[4][TRF_LANES];
    for (uint32_t row = 0; row < 8; row++)
        memcpy(words + 8 * steps * row, from + row * stride, 32 * steps);
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        for (uint32_t k = 0; k < 2 * steps; k++)
            registers[k][lane] = words[2 * steps * lane + k];
    for (uint32_t k = 0; k < 2 * steps; k++)
        memcpy(to + k / 2 * step_size + k % 2 * 4 * TRF_LANES, registers[k], sizeof registers[k]);
}

void trf_arrange_lanes(const uint16_t *rows, size_t stride, trf_slab_shape shape, uint16_t *lanes) {
    const size_t fragment = 8 * TRF_LANES, step_size = shape.row_blocks * fragment;
    for (uint32_t half = 0; half < 2 * shape.row_blocks; half++) /* of a block of 16 rows */
        for (uint32_t step = 0; step < shape.steps; step += 2) {
            const uint16_t *from = rows + 8 * half * stride + TRF_FRAGMENT_SIZE * step;
            uint16_t *to = lanes + step * step_size + half / 2 * fragment + half % 2 * 2 * TRF_LANES;
            if (step + 1 < shape.steps)
                arrange_rows(from, stride, 2, to, step_size);
            else
                arrange_rows(from, stride, 1, to, step_size);
        }
}

void trf_arrange_exponent_offsets(const trf_tile_encoder *encoder, uint32_t row, uint32_t col, trf_slab_shape shape,
                                  trf_tile_scratch *scratch) {
    uint32_t rows = 16 * shape.row_blocks, cols = 16 * shape.steps;
    for (uint32_t r = 0; r < rows; r++) {
        int of_row = encoder->row_offsets ? encoder->row_offsets[row + r] : 0;
        for (uint32_t c = 0; c < cols; c++)
            scratch->offsets_by_row[r * TRF_MAX_SLAB_COLS + c] =
                (uint16_t)(of_row + (encoder->col_offsets ? encoder->col_offsets[col + c] : 0));
    }
    trf_arrange_lanes(scratch->offsets_by_row, TRF_MAX_SLAB_COLS, shape, scratch->buffers.offset);
}

/* Writes the codes of a slab of scaled FP8 to scratch->buffers.element, in lane order. row, col: the place of its first
 * weight in the layer. */
static void arrange_codes(const trf_tile_encoder *encoder, uint32_t row, uint32_t col, trf_slab_shape shape,
                          const uint16_t *elements, size_t stride, trf_tile_scratch *scratch) {
    const uint32_t rows = 16 * shape.row_blocks, cols = 16 * shape.steps;
    for (uint32_t r = 0; r < rows; r++)
        memcpy(scratch->codes_by_row + (size_t)r * cols, elements + r * stride, cols * sizeof *elements);
    trf_find_fp8_codes(encoder->scales, row, rows, col, cols, scratch->codes_by_row, cols);
    trf_arrange_lanes(scratch->codes_by_row, cols, shape, scratch->buffers.element);
}

/* Replaces symbols without a slot; weights whose class this changes become exceptions. */
static void replace_symbols(const trf_tile_encoder *encoder, uint32_t weights, trf_slab_buffers *buffers) {
    const uint32_t c = encoder->header.class_bits, per_symbol = 8 / c, count = weights / per_symbol * TRF_LANES;
    const uint8_t *replacement = encoder->model.replacement;
    for (uint32_t at = 0; at < count; at++) {
        if (at % 8 == 0) { /* eight in a row nearly always need no replacement */
            const uint8_t *symbols = buffers->symbol + at;
            uint8_t missing = 0;
            for (uint32_t k = 0; k < 8; k++)
                missing |= encoder->missing[symbols[k]];
            if (!missing) {
                at += 7;
                continue;
            }
        }
        uint32_t s = buffers->symbol[at], to = replacement[s];
        if (s == to)
            continue;
        buffers->symbol[at] = (uint8_t)to;
        for (uint32_t q = 0; q < per_symbol; q++)
            if (((s ^ to) >> (c * q)) & ((1u << c) - 1))
                trf_note_exception(buffers, trf_weight_position(per_symbol * (at / TRF_LANES) + q, at % TRF_LANES));
    }
}

/* Writes the exceptions in ascending order of position. elements: of the slab, row by row. out: 4-byte aligned. @return
 * the byte after them. */
static uint8_t *put_exceptions(const trf_slab_buffers *buffers, trf_slab_shape shape, const uint16_t *elements,
                               size_t stride, uint8_t *out) {
    uint32_t *exception = (uint32_t *)out;
    for (uint32_t word = 0; word < TRF_MAX_SLAB_WEIGHTS / 64; word++)
        for (uint64_t bits = buffers->exception_mask[word]; bits; bits &= bits - 1) {
            uint32_t position = 64 * word + (uint32_t)__builtin_ctzll(bits), i = position / TRF_LANES,
                     lane = position % TRF_LANES;
            const uint32_t row = trf_lane_row(shape, lane, i), col = trf_lane_col(shape, lane, i);
            *exception++ = trf_make_exception(position, elements[row * stride + col]);
        }
    return (uint8_t *)exception;
}

/* Writes the head of the rANS streams and, to out, the lanes' words, one lane pair after the other. @return the byte
 * after them. */
static uint8_t *put_lanes(const trf_coded_lanes *lanes, uint32_t exceptions, uint8_t *rans_streams, uint8_t *out) {
    const uint16_t count[2] = {(uint16_t)exceptions, 0};
    memcpy(rans_streams, lanes->start_state, sizeof lanes->start_state);
    memcpy(rans_streams + TRF_RANS_EXCEPTION_COUNT_OFFSET, count, sizeof count);
    for (uint32_t lane_pair = 0; lane_pair < TRF_LANE_PAIRS; lane_pair++) {
        uint32_t up = lanes->count[lane_pair], down = lanes->count[lane_pair + TRF_LANE_PAIRS];
        rans_streams[TRF_STATES_BYTES + lane_pair] = (uint8_t)(up + down);
        memcpy(out, lanes->words[lane_pair] + TRF_MAX_LANE_WORDS - up, 2 * up);
        out += 2 * up;
        memcpy(out, lanes->words[lane_pair + TRF_LANE_PAIRS], 2 * down);
        out += 2 * down;
    }
    return out;
}

/* Writes zeros from byte `used` up to byte `end`. @return end. */
static uint32_t pad(uint8_t *out, uint32_t used, uint64_t end) {
    memset(out + used, 0, end - used);
    return (uint32_t)end;
}

/* Encodes a slab: its raw bits to raw, its rANS streams to rans_streams. @return the rANS streams' bytes. */
static uint32_t encode_slab(const trf_tile_encoder *encoder, const trf_tile_shape *shape, uint32_t slab,
                            const uint16_t *elements, size_t stride, trf_tile_scratch *scratch, uint8_t *raw,
                            uint8_t *rans_streams) {
    const trf_slab_shape slab_shape = trf_slab_shape_at(shape, slab);
    const uint32_t row = trf_slab_row(shape, slab), col = trf_slab_col(shape, slab);
    trf_slab_buffers *buffers = &scratch->buffers;
    uint32_t weights = trf_lane_weights(slab_shape);
    elements += row * stride + col;
    if (encoder->scales)
        arrange_codes(encoder, shape->row + row, shape->col + col, slab_shape, elements, stride, scratch);
    else
        trf_arrange_lanes(elements, stride, slab_shape, buffers->element);
    if (encoder->rule.predicted)
        trf_arrange_exponent_offsets(encoder, shape->row + row, shape->col + col, slab_shape, scratch);
    encoder->split(&encoder->rule, slab_shape, buffers, raw);
    replace_symbols(encoder, weights, buffers);
    trf_encode_lanes(encoder->symbols, buffers->symbol, weights * encoder->header.class_bits / 8,
                     encoder->header.state_bits, &scratch->lanes);
    uint8_t *words = put_exceptions(buffers, slab_shape, elements, stride, rans_streams + TRF_RANS_FIXED_BYTES);
    uint32_t used = (uint32_t)(put_lanes(&scratch->lanes, buffers->exceptions, rans_streams, words) - rans_streams);
    return pad(rans_streams, used, trf_align(used));
}

/* Encodes a tile's slabs. The length of the raw bits is known beforehand, so that both parts are written where they
 * belong. @return where the last rANS streams end. */
static uint32_t encode_slabs(const trf_tile_encoder *encoder, const trf_tile_shape *shape, const uint16_t *elements,
                             size_t stride, trf_tile_scratch *scratch, uint8_t *out, uint32_t *exceptions) {
    const trf_tile_sections sections = trf_find_tile_sections(shape, encoder->rule.raw_bits);
    uint16_t *ends = (uint16_t *)(out + sections.slab_table);
    uint32_t raw = 0, at = pad(out, sections.slab_table + 2 * shape->num_slabs, sections.rans_streams);
    *exceptions = 0;
    for (uint32_t slab = 0; slab < shape->num_slabs; slab++) {
        at += encode_slab(encoder, shape, slab, elements, stride, scratch, out + raw, out + at);
        raw += trf_raw_bytes(encoder->rule.raw_bits, trf_lane_weights(trf_slab_shape_at(shape, slab)));
        ends[slab] = (uint16_t)((at - sections.rans_streams) / TRF_ALIGNMENT);
        *exceptions += scratch->buffers.exceptions;
    }
    return at;
}

/* Writes a row-major rectangle of elements, uncoded. @return the bytes written. */
static uint32_t put_stored(const uint16_t *elements, size_t stride, uint32_t rows, uint32_t cols,
                           uint32_t stored_element_bytes, uint8_t *out) {
    for (uint32_t r = 0; r < rows; r++, elements += stride) {
        if (stored_element_bytes == 2)
            memcpy(out + (size_t)r * cols * 2, elements, (size_t)cols * 2);
        else
            for (uint32_t c = 0; c < cols; c++)
                out[(size_t)r * cols + c] = (uint8_t)elements[c];
    }
    return rows * cols * stored_element_bytes;
}

/* Writes the slivers of a tile of which coded_rows x coded_cols are coded. @return the padded end of the tile. */
static uint32_t put_slivers(const trf_tile_shape *shape, const uint16_t *elements, size_t stride,
                            uint32_t stored_element_bytes, uint8_t *out, uint32_t used) {
    used += put_stored(elements + shape->coded_cols, stride, shape->coded_rows, shape->cols - shape->coded_cols,
                       stored_element_bytes, out + used);
    used += put_stored(elements + shape->coded_rows * stride, stride, shape->rows - shape->coded_rows, shape->cols,
                       stored_element_bytes, out + used);
    return pad(out, used, trf_tile_align(used));
}

void trf_encode_tile(const trf_tile_encoder *encoder, uint64_t tile, const uint16_t *elements, size_t stride,
                     trf_tile_scratch *scratch, uint8_t *out, trf_tile_meta *meta) {
    const uint32_t stored_element_bytes = encoder->header.stored_element_bytes;
    trf_tile_shape shape = trf_tile_shape_of(&encoder->header, tile, TRF_TILE_CODED);
    uint32_t stored_size = (uint32_t)trf_tile_align((uint64_t)shape.rows * shape.cols * stored_element_bytes);
    memset(meta, 0, sizeof *meta);
    meta->coding = TRF_TILE_STORED;
    if (shape.coded_rows && shape.coded_cols) {
        uint32_t used = encode_slabs(encoder, &shape, elements, stride, scratch, out, &meta->exception_count);
        meta->data_size = put_slivers(&shape, elements, stride, stored_element_bytes, out, used);
        meta->predictor_mode = encoder->header.predictor_modes;
        meta->coding = TRF_TILE_CODED;
    }
    if (meta->coding == TRF_TILE_STORED || meta->data_size >= stored_size) {
        memset(meta, 0, sizeof *meta);
        meta->coding = TRF_TILE_STORED;
        shape.coded_rows = shape.coded_cols = 0;
        meta->data_size = put_slivers(&shape, elements, stride, stored_element_bytes, out, 0);
    }
    meta->checksum = trf_tile_checksum(out, meta->data_size, tile);
}
