/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_slab_directory.h"

#include "trf_decoded_bits.h"
#include "trf_edges.h"
#include "trf_packed8_form.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The tile that is being described. */
typedef struct trf_described_tile {
    const trf_blob_view *view;
    const trf_tile_meta *meta;
    trf_tile_shape shape;
    const uint8_t *bytes;
} trf_described_tile;

uint32_t trf_count_panels(const trf_header *header) {
    return (header->cols + header->slab_cols - 1) / header->slab_cols;
}

uint64_t trf_count_device_slabs(const trf_header *header) {
    return ((uint64_t)header->rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS * trf_count_panels(header);
}

/* ---- scale pairs ---- */

uint64_t trf_count_scale_pairs(const trf_blob_view *view) {
    const int has_pairs = trf_is_scaled_fp8(view->header.codec, view->header.source_dtype);
    return has_pairs ? view->extension.scales_bytes / sizeof(float) : 0;
}

/* A scale in this range, its scale pair and what kernels make of both are far from where BF16 has fewer bits, or ends.
 */
static int has_scale_pair(float scale) { return scale >= 0x1p-80f && scale < 0x1p7f; }

void trf_write_scale_pairs(const trf_blob_view *view, uint32_t *pairs) {
    const float factor = ldexpf(1.0f, -trf_fragment_exponent(TRF_CODEC_E4M3));
    for (uint64_t i = 0, count = trf_count_scale_pairs(view); i < count; i++)
        trf_packed8_find_pair(((const float *)view->scales)[i] * factor, &pairs[i]);
}

/* ---- exceptions as matrix fragments hold them ---- */

/* Whether a float element times 2^exponent is exact in the 16-bit type of fragments, which is the element's own type,
 * or F16 for FP8. codec: whose element it is. All values and products are exact in binary64. */
static int fits_fragment(uint32_t codec, uint32_t element, int exponent) {
    const double value = (double)trf_element_to_f32(codec, element);
    if (!isfinite(value))
        return 1;
    double scaled = ldexp(value, exponent);
    return scaled == (double)(codec == TRF_CODEC_BF16 ? trf_bf16_to_f32(trf_f64_to_bf16(scaled))
                                                      : trf_f16_to_f32(trf_f64_to_f16(scaled)));
}

/* @return the exponent offset of the weight at (row, col) of a tile: D plus what the tile's predictor mode adds. */
static int offset_at(const trf_described_tile *tile, uint32_t row, uint32_t col) {
    const trf_blob_view *view = tile->view;
    int offset = view->extension.exponent_offset;
    if (tile->meta->predictor_mode & TRF_PREDICT_ROW)
        offset += view->row_offsets[tile->shape.row + row];
    if (tile->meta->predictor_mode & TRF_PREDICT_COL)
        offset += view->col_offsets[tile->shape.col + col];
    return offset;
}

/* The smallest and the largest of some offsets; 0 and 0 if there are none. */
typedef struct trf_offset_range {
    int lowest, highest;
} trf_offset_range;

static trf_offset_range range_of(const int8_t *offsets, uint32_t count) {
    trf_offset_range range = {0, 0};
    for (uint32_t i = 0; i < count; i++) {
        if (i == 0 || offsets[i] < range.lowest)
            range.lowest = offsets[i];
        if (i == 0 || offsets[i] > range.highest)
            range.highest = offsets[i];
    }
    return range;
}

/* Notes the largest offset. Every row of the coded region crosses every column, so the extremes of both add up. */
static void note_offsets(const trf_described_tile *tile, trf_layer_traits *traits) {
    const trf_blob_view *view = tile->view;
    const int by_row = tile->meta->predictor_mode & TRF_PREDICT_ROW,
              by_col = tile->meta->predictor_mode & TRF_PREDICT_COL;
    const trf_offset_range rows = range_of(by_row ? view->row_offsets + tile->shape.row : NULL,
                                           by_row ? tile->shape.coded_rows : 0),
                           cols = range_of(by_col ? view->col_offsets + tile->shape.col : NULL,
                                           by_col ? tile->shape.coded_cols : 0);
    const int extremes[] = {view->extension.exponent_offset + rows.lowest + cols.lowest,
                            view->extension.exponent_offset + rows.highest + cols.highest};
    for (int i = 0; i < 2; i++)
        if ((uint32_t)abs(extremes[i]) > traits->max_abs_offset)
            traits->max_abs_offset = (uint32_t)abs(extremes[i]);
}

static void note_code(trf_layer_traits *traits, int32_t code) {
    uint32_t magnitude = (uint32_t)abs(code);
    if (magnitude > traits->max_abs_code)
        traits->max_abs_code = magnitude;
}

static void note_exceptions(const trf_described_tile *tile, uint32_t slab, trf_slab_shape shape,
                            const uint8_t *exceptions, uint32_t count, trf_layer_traits *traits) {
    const trf_header *header = &tile->view->header;
    const uint32_t codec = header->codec, element_codec = trf_element_codec(codec, header->source_dtype);
    const int has_offsets = tile->view->extension.exponent_offset || tile->meta->predictor_mode;
    /* Exceptions of FP8 without offsets and scales always fit. */
    const int may_fail = has_offsets || trf_is_scaled_fp8(codec, header->source_dtype);
    if (trf_codec_is_float(codec) && (!may_fail || !traits->exceptions_fit_fragments))
        return;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t exception;
        memcpy(&exception, exceptions + 4 * k, sizeof exception);
        const uint32_t element = trf_exception_element(exception), at = trf_exception_position(exception);
        if (!trf_codec_is_float(codec)) {
            note_code(traits, (int16_t)element);
            continue;
        }
        const uint32_t row = trf_slab_row(&tile->shape, slab) + trf_lane_row(shape, at % TRF_LANES, at / TRF_LANES);
        const uint32_t col = trf_slab_col(&tile->shape, slab) + trf_lane_col(shape, at % TRF_LANES, at / TRF_LANES);
        if (!fits_fragment(element_codec, element, -offset_at(tile, row, col) - trf_fragment_exponent(codec)))
            traits->exceptions_fit_fragments = 0;
    }
}

/* ---- the directory ---- */

/* Fills the entries of a tile's slabs. slabs: the entry of its first slab; the entry of the slab below is `stride`
 * further on. @return where the tile's slivers begin, from its first byte. */
static uint32_t describe_slabs(const trf_described_tile *tile, trf_device_slab *slabs, uint64_t stride,
                               trf_layer_traits *traits) {
    uint32_t slivers = 0;
    for (uint32_t s = 0; s < tile->shape.num_slabs; s++) {
        const trf_slab_location location = trf_locate_slab(&tile->shape, tile->bytes, s, tile->view->header.raw_bits);
        const uint8_t *stream = tile->bytes + location.rans_streams;
        const uint32_t rans_bytes = location.end - location.rans_streams;
        slabs[s / tile->shape.slabs_across * stride + s % tile->shape.slabs_across] = (trf_device_slab){
            .raw_offset_128 = (uint32_t)((tile->meta->data_offset + location.raw) / TRF_TILE_ALIGNMENT),
            .rans_offset_16 = (uint16_t)((location.rans_streams - location.raw) / TRF_ALIGNMENT),
            .rans_size_16 = (uint16_t)(rans_bytes / TRF_ALIGNMENT),
        };
        traits->coded_slabs++;
        if (rans_bytes > traits->max_rans_bytes)
            traits->max_rans_bytes = rans_bytes;
        if (trf_slab_is_regular(location.shape.row_blocks, location.shape.steps))
            traits->irregular_weights -= (uint64_t)TRF_LANES * trf_lane_weights(location.shape);
        note_exceptions(tile, s, location.shape, stream + TRF_RANS_FIXED_BYTES, trf_rans_exception_count(stream),
                        traits);
        slivers = location.end;
    }
    return slivers;
}

/* Notes the codes that lie uncoded in a tile of the int codec. */
static void note_stored_codes(const trf_described_tile *tile, uint32_t begin, trf_layer_traits *traits) {
    const uint32_t bytes = tile->view->header.stored_element_bytes, weights = tile->shape.rows * tile->shape.cols,
                   stored = weights - tile->shape.coded_rows * tile->shape.coded_cols;
    for (uint32_t i = 0; i < stored; i++) {
        int16_t code;
        if (bytes == 1)
            code = (int8_t)tile->bytes[begin + i];
        else
            memcpy(&code, tile->bytes + begin + 2 * i, sizeof code);
        note_code(traits, code);
    }
}

/* Whether coded tiles have different predictor modes. Each bit of `modes` stands for a mode that some tile has. */
static int are_mixed(uint32_t modes) { return (modes & (modes - 1)) != 0; }

static int have_scale_pairs(const trf_blob_view *view) {
    if (!trf_is_scaled_fp8(view->header.codec, view->header.source_dtype))
        return 0;
    for (uint64_t i = 0; i < trf_count_scale_pairs(view); i++)
        if (!has_scale_pair(((const float *)view->scales)[i]))
            return 0;
    return 1;
}

void trf_describe_head(const trf_blob_view *view, trf_layer_traits *traits) {
    const trf_header *header = &view->header;
    uint32_t modes = 0;
    *traits = (trf_layer_traits){
        .irregular_weights = (uint64_t)header->rows * header->cols, /* regular slabs subtract theirs */
        .predictor_modes = header->predictor_modes,
        .exceptions_fit_fragments = 1,
        .scales_have_pairs = have_scale_pairs(view),
    };
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        if (view->frequency[s] > traits->max_frequency)
            traits->max_frequency = view->frequency[s];
    if (!trf_codec_is_float(header->codec)) {
        note_code(traits, view->extension.class_value[0]);
        note_code(traits, view->extension.class_value[(1 << header->class_bits) - 1] + (1 << header->raw_bits) - 1);
    }
    for (uint64_t t = 0; t < view->num_tiles; t++)
        modes |= view->tiles[t].coding == TRF_TILE_CODED ? 1u << view->tiles[t].predictor_mode : 0;
    traits->mixed_predictor_modes = are_mixed(modes);
}

void trf_describe_tile(const trf_blob_view *view, uint64_t tile, const uint8_t *tile_bytes, trf_device_slab *slabs,
                       trf_layer_traits *traits) {
    const trf_header *header = &view->header;
    const trf_tile_meta *meta = &view->tiles[tile];
    const trf_described_tile at = {view, meta, trf_tile_shape_of(header, tile, meta->coding), tile_bytes};
    const uint32_t num_panels = trf_count_panels(header);
    const uint64_t first = (uint64_t)at.shape.row / TRF_SLAB_ROWS * num_panels + at.shape.col / header->slab_cols;
    if (meta->coding == TRF_TILE_CODED)
        note_offsets(&at, traits);
    uint32_t slivers = describe_slabs(&at, slabs + first, num_panels, traits);
    if (!trf_codec_is_float(header->codec))
        note_stored_codes(&at, slivers, traits);
}

static uint32_t larger_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

void trf_traits_add(trf_layer_traits *traits, const trf_layer_traits *tiles) {
    traits->irregular_weights += tiles->irregular_weights; /* the sum of tiles is below zero, and wraps around */
    traits->coded_slabs += tiles->coded_slabs;
    traits->max_rans_bytes = larger_of(traits->max_rans_bytes, tiles->max_rans_bytes);
    traits->max_abs_offset = larger_of(traits->max_abs_offset, tiles->max_abs_offset);
    traits->max_abs_code = larger_of(traits->max_abs_code, tiles->max_abs_code);
    traits->exceptions_fit_fragments &= tiles->exceptions_fit_fragments;
}

void trf_describe_layer(const trf_layer *layer, trf_device_slab *slabs, trf_layer_traits *traits) {
    const trf_blob_view *view = &layer->view;
    memset(slabs, 0, trf_count_device_slabs(&view->header) * sizeof *slabs);
    trf_describe_head(view, traits);
    for (uint64_t t = 0; t < view->num_tiles; t++)
        trf_describe_tile(view, t, trf_layer_tile(layer, t), slabs, traits);
}

/* ---- the view ---- */

/* Turns a host view's pointer into the head into one into the head's copy on the device. NULL stays NULL. */
static const void *relocate(const trf_blob_view *view, const void *host, const uint8_t *blob_dev) {
    return host ? blob_dev + ((const uint8_t *)host - view->head) : NULL;
}

trf_device_view trf_device_view_of(const trf_blob_view *view, const uint8_t *blob_dev) {
    const trf_header *header = &view->header;
    const trf_extension *extension = &view->extension;
    trf_device_view made = {
        .buffer = blob_dev,
        .buffer_bytes = header->blob_bytes,
        .tiles = relocate(view, view->tiles, blob_dev),
        .scales = relocate(view, view->scales, blob_dev),
        .row_offsets = relocate(view, view->row_offsets, blob_dev),
        .col_offsets = relocate(view, view->col_offsets, blob_dev),
        .rows = header->rows,
        .cols = header->cols,
        .num_tile_rows = header->num_tile_rows,
        .num_tile_cols = header->num_tile_cols,
        .slab_cols = header->slab_cols,
        .num_panels = trf_count_panels(header),
        .num_bands = (header->rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS,
        .codec = header->codec,
        .source_dtype = header->source_dtype,
        .class_bits = header->class_bits,
        .raw_bits = header->raw_bits,
        .probability_bits = header->probability_bits,
        .state_bits = header->state_bits,
        .stored_element_bytes = header->stored_element_bytes,
        .granularity = extension->granularity,
        .scale_dtype = extension->scale_dtype,
        .scale_group_size = extension->scale_group_size,
        .scale_cols = view->scale_cols,
        .scale_exponent = extension->scale_exponent,
        .exponent_offset = extension->exponent_offset,
        .num_planes = view->num_planes,
    };
    memcpy(made.plane_width, view->plane_width, sizeof made.plane_width);
    memcpy(made.class_value, extension->class_value, sizeof made.class_value);
    return made;
}
