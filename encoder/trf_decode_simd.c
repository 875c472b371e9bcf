/* The assembly plan of each codec, and a slab's preparation for the SIMD decoders. */
#include "trf_decode_simd.h"

#include <string.h>

static void trf_add_field(trf_assembly *assembly, uint32_t plane, uint32_t width, uint32_t shift, uint32_t mask) {
    assembly->field[assembly->num_fields++] = (trf_assembly_field){plane, width, shift, mask};
}

static void trf_set_last(trf_assembly *assembly, uint32_t plane, uint32_t width, uint32_t shift) {
    assembly->has_last = 1;
    assembly->last = (trf_assembly_field){plane, width, shift, 0x80};
}

/* FORMAT.md section 5's table; plane numbers count from the widest. @return how far the exponent is shifted in the
 * byte. */
static uint32_t trf_plan_float(trf_assembly *assembly, uint32_t codec) {
    const int quads = assembly->class_bits == 2;
    switch (codec) {
    case TRF_CODEC_BF16: /* 8, or 8 2 */
        assembly->out = TRF_OUT_UNDER_PLANE;
        if (quads)
            trf_add_field(assembly, 1, 2, 0, 0x03);
        return 0;
    case TRF_CODEC_FP16: /* 8 2 1, or 8 4 1: below the exponent, the mantissa's upper three bits */
        assembly->out = TRF_OUT_UNDER_PLANE;
        trf_add_field(assembly, 1, quads ? 4 : 2, 0, quads ? 0x0F : 0x03);
        trf_add_field(assembly, 2, 1, quads ? 4 : 2, quads ? 0x10 : 0x04);
        return 3;
    case TRF_CODEC_E4M3: /* 4, or 4 2: the nibble is sign and mantissa */
        assembly->out = TRF_OUT_BYTE;
        trf_add_field(assembly, 0, 4, 0, 0x07);
        if (quads)
            trf_add_field(assembly, 1, 2, 3, 0x18);
        trf_set_last(assembly, 0, 4, 4);
        return 3;
    default: /* e5m2: 2 1, or 4 1 */
        assembly->out = TRF_OUT_BYTE;
        trf_add_field(assembly, 0, quads ? 4 : 2, 0, quads ? 0x0F : 0x03);
        trf_set_last(assembly, 1, 1, 7);
        return 2;
    }
}

static void trf_plan_codes(trf_assembly *assembly, const trf_blob_view *view) {
    const uint32_t raw_bits = view->header.raw_bits;
    assembly->out = raw_bits == 8 ? TRF_OUT_WIDE_CODE : TRF_OUT_CODE;
    assembly->origin = (uint16_t)view->extension.class_value[0];
    for (uint32_t k = 0; k < 16; k++) {
        assembly->low[k] = (uint8_t)(k << raw_bits);
        assembly->high[k] = (uint8_t)((k << raw_bits) >> 8);
    }
    if (raw_bits == 8)
        return;
    for (uint32_t plane = 0, shift = 0; plane < view->num_planes; plane++) {
        uint32_t width = view->plane_width[plane];
        trf_add_field(assembly, plane, width, shift, ((1u << width) - 1) << shift);
        shift += width;
    }
}

void trf_assembly_init(trf_assembly *assembly, const trf_tile_work *work) {
    const trf_blob_view *view = work->view;
    memset(assembly, 0, sizeof *assembly);
    assembly->class_bits = view->header.class_bits;
    if (!trf_codec_is_float(view->header.codec)) {
        trf_plan_codes(assembly, view);
        return;
    }
    const uint32_t shift = trf_plan_float(assembly, view->header.codec);
    for (uint32_t k = 0; k < 16; k++)
        assembly->low[k] = (uint8_t)((uint32_t)view->extension.class_value[k] << shift);
    /* Emax + 1 divides 256 >> shift, so bytes wrap around as exponents do. */
    const int32_t layer = view->extension.exponent_offset;
    assembly->has_offsets = layer != 0 || work->predictor_mode != 0;
    if (!assembly->has_offsets)
        return;
    const int by_row = work->predictor_mode & TRF_PREDICT_ROW, by_col = work->predictor_mode & TRF_PREDICT_COL;
    for (uint32_t i = 0; i < work->shape.coded_rows; i++)
        assembly->row_offset[i] =
            (uint8_t)((uint32_t)(layer + (by_row ? view->row_offsets[work->shape.row + i] : 0)) << shift);
    for (uint32_t i = 0; i < work->shape.coded_cols; i++)
        assembly->col_offset[i] = (uint8_t)((uint32_t)(by_col ? view->col_offsets[work->shape.col + i] : 0) << shift);
}

void trf_assembly_place_offsets(const trf_assembly *assembly, const trf_slab_parts *slab,
                                const trf_slab_parts *previous, trf_assembly_offsets *offsets) {
    if (!assembly->has_offsets) {
        if (!previous)
            memset(offsets, 0, sizeof *offsets);
        return;
    }
    for (uint32_t unit = 0; unit < TRF_UNITS; unit++)
        for (uint32_t b = 0; b < 16; b++)
            offsets->row[unit][b] =
                assembly->row_offset[slab->row + trf_lane_row(slab->shape, 4 * unit, trf_byte_weight(b))];
    if (previous && previous->shape.blocks == slab->shape.blocks)
        return;
    const uint32_t weights = trf_lane_weights(slab->shape);
    memset(offsets->col, 0, sizeof offsets->col);
    for (uint32_t i = 0; i < weights; i += 16)
        for (uint32_t b = 0; b < 64; b++) {
            uint32_t weight = i + trf_byte_weight(b % 16);
            if (weight < weights)
                offsets->col[i / 16][b] = assembly->col_offset[trf_lane_col(slab->shape, b / 16, weight)];
        }
}

void trf_simd_place_words(const trf_slab_parts *slab, trf_simd_scratch *scratch, uint32_t first[TRF_LANES]) {
    uint16_t *words = scratch->words + TRF_WORD_GUARD;
    memset(scratch->words, 0, TRF_WORD_GUARD * sizeof *words);
    memcpy(words, slab->words, slab->num_words * sizeof *words);
    memset(words + slab->num_words, 0, TRF_WORD_GUARD * sizeof *words);
    for (uint32_t pair = 0, begin = TRF_WORD_GUARD; pair < TRF_LANE_PAIRS; pair++) {
        uint32_t count = slab->pair_words[pair];
        first[pair] = (uint32_t)trf_lane_first_word(pair, begin, count);
        first[pair + TRF_LANE_PAIRS] = (uint32_t)trf_lane_first_word(pair + TRF_LANE_PAIRS, begin, count);
        begin += count;
    }
}

/* Copies a plane to one whose lanes have a whole number of 16-byte groups. groups: how many; enough for all words. */
static void trf_regroup_plane(const uint8_t *plane, uint32_t lane_words, uint32_t groups, uint8_t *to) {
    const uint32_t whole = lane_words / 4, rest = 4 * (lane_words % 4);
    memset(to + whole * TRF_GROUP_BYTES, 0, (groups - whole) * TRF_GROUP_BYTES);
    memcpy(to, plane, whole * TRF_GROUP_BYTES);
    for (uint32_t lane = 0; rest && lane < TRF_LANES; lane++)
        memcpy(to + whole * TRF_GROUP_BYTES + 16 * lane, plane + whole * TRF_GROUP_BYTES + rest * lane, rest);
}

trf_simd_slab trf_simd_slab_begin(const trf_blob_view *view, const trf_slab_parts *slab, trf_simd_scratch *scratch,
                                  uint16_t *elements, size_t stride) {
    const uint32_t weights = trf_lane_weights(slab->shape);
    trf_simd_slab place = {.blocks = slab->shape.blocks,
                           .chunks = (weights + 2 * TRF_CHUNK - 1) / (2 * TRF_CHUNK) * 2,
                           .elements = elements + slab->row * stride,
                           .stride = stride,
                           .copy = weights % (2 * TRF_CHUNK) != 0};
    if (place.copy) {
        place.elements = scratch->rows;
        place.stride = TRF_SLAB_COLS;
    }
    const int whole_groups = weights % 128 == 0; /* of even the 1-bit planes */
    uint8_t *to = scratch->planes;
    for (uint32_t i = 0; i < view->num_planes; i++) {
        uint32_t width = view->plane_width[i], groups = (place.chunks * width / 2 + 3) / 4;
        place.planes[i] = slab->planes[i];
        if (whole_groups)
            continue;
        trf_regroup_plane(slab->planes[i], trf_plane_lane_words(weights, width), groups, to);
        place.planes[i] = to;
        to += groups * TRF_GROUP_BYTES;
    }
    return place;
}

void trf_simd_slab_finish(const trf_simd_slab *place, const trf_slab_parts *slab, uint16_t *elements, size_t stride) {
    if (!place->copy)
        return;
    for (uint32_t row = 0; row < TRF_BLOCK_ROWS * slab->shape.blocks; row++)
        memcpy(elements + (slab->row + row) * stride, place->elements + row * place->stride,
               2 * TRF_BLOCK_ROWS * slab->shape.steps);
}
