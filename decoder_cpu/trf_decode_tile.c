/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of decoding a tile that touch few of its weights. They are the same for every decoder. */
#include "trf_decode_tile.h"

#include "trf_scale.h"

#include <string.h>

/* location: where the slab lies in the tile's bytes. */
static trf_slab_view view_slab(const trf_tile_shape *shape, uint32_t slab, const trf_slab_location *location,
                               const uint8_t *tile_bytes) {
    const uint8_t *rans_streams = tile_bytes + location->rans_streams;
    trf_slab_view view = {
        .shape = location->shape,
        .row = trf_slab_row(shape, slab),
        .col = trf_slab_col(shape, slab),
        .raw = tile_bytes + location->raw,
        .start_states = (const uint16_t *)rans_streams,
        .lane_pair_words = rans_streams + TRF_STATES_BYTES,
        .exceptions = (const uint32_t *)(rans_streams + TRF_RANS_FIXED_BYTES),
        .num_exceptions = trf_rans_exception_count(rans_streams),
    };
    view.words = (const uint16_t *)(view.exceptions + view.num_exceptions);
    for (uint32_t lane_pair = 0; lane_pair < TRF_LANE_PAIRS; lane_pair++)
        view.num_words += view.lane_pair_words[lane_pair];
    return view;
}

/* FORMAT.md section 8. */
static void write_exceptions(const trf_slab_view *slab, uint16_t *elements, size_t stride) {
    for (uint32_t e = 0; e < slab->num_exceptions; e++) {
        uint32_t position = trf_exception_position(slab->exceptions[e]);
        uint32_t i = position / TRF_LANES, lane = position % TRF_LANES;
        size_t row = slab->row + trf_lane_row(slab->shape, lane, i),
               col = slab->col + trf_lane_col(slab->shape, lane, i);
        elements[row * stride + col] = (uint16_t)trf_exception_element(slab->exceptions[e]);
    }
}

/* Copies one row of stored elements. @return the byte after them. */
static const uint8_t *copy_stored(const trf_blob_view *view, const uint8_t *bytes, uint32_t count, uint16_t *elements) {
    if (view->header.stored_element_bytes == 2) {
        memcpy(elements, bytes, 2 * (size_t)count);
        return bytes + 2 * (size_t)count;
    }
    if (trf_codec_is_float(view->header.codec))
        for (uint32_t i = 0; i < count; i++)
            elements[i] = bytes[i];
    else
        for (uint32_t i = 0; i < count; i++)
            elements[i] = (uint16_t)(int8_t)bytes[i];
    return bytes + count;
}

/* bytes: what follows the last slab's rANS streams. All of a stored tile is copied as a sliver. */
static void copy_slivers(const trf_blob_view *view, const trf_tile_shape *shape, const uint8_t *bytes,
                         uint16_t *elements, size_t stride) {
    if (shape->coded_cols < shape->cols)
        for (uint32_t row = 0; row < shape->coded_rows; row++)
            bytes =
                copy_stored(view, bytes, shape->cols - shape->coded_cols, elements + row * stride + shape->coded_cols);
    for (uint32_t row = shape->coded_rows; row < shape->rows; row++)
        bytes = copy_stored(view, bytes, shape->cols, elements + row * stride);
}

/* Turns the codes of scaled FP8 in the coded region into elements. */
static void scale_coded_region(trf_scale_codes_fn *scale_codes, const trf_tile_decoder *decoder, uint16_t *elements,
                               size_t stride) {
    const trf_tile_shape *shape = &decoder->shape;
    for (uint32_t row = 0; row < shape->coded_rows; row++)
        for (uint32_t col = 0, end; col < shape->coded_cols; col = end) {
            end = trf_scale_end(decoder->view, shape, col);
            end = end < shape->coded_cols ? end : shape->coded_cols;
            const uint64_t at = trf_scale_index(decoder->view, shape->row + row, shape->col + col);
            scale_codes(elements + row * stride + col, end - col, trf_scale_value(decoder->view, at));
        }
}

trf_status trf_decode_tile_by_slabs(trf_decode_slabs_fn *decode_slabs, trf_scale_codes_fn *scale_codes,
                                    const trf_blob_view *view, const trf_decode_table *table, uint64_t tile,
                                    const uint8_t *tile_bytes, uint16_t *elements, size_t stride, trf_error *err) {
    const trf_tile_meta *meta = &view->tiles[tile];
    trf_tile_decoder decoder = {view, table, trf_tile_shape_of(&view->header, tile, meta->coding),
                                meta->predictor_mode};
    trf_slab_view slabs[TRF_MAX_SLABS_PER_TILE];
    uint32_t num_slabs = decoder.shape.num_slabs, slivers = 0;
    for (uint32_t s = 0; s < num_slabs; s++) {
        const trf_slab_location location = trf_locate_slab(&decoder.shape, tile_bytes, s, view->header.raw_bits);
        slabs[s] = view_slab(&decoder.shape, s, &location, tile_bytes);
        slivers = location.end;
    }
    if (num_slabs) {
        uint32_t bad = decode_slabs(&decoder, slabs, num_slabs, elements, stride);
        if (bad < num_slabs)
            return trf_fail(err, TRF_ERR_RANS, meta->data_offset,
                            "tile %llu slab %u: a lane's rANS stream does not end where it must",
                            (unsigned long long)tile, bad);
    }
    if (trf_has_scaled_fp8(view))
        scale_coded_region(scale_codes, &decoder, elements, stride);
    for (uint32_t s = 0; s < num_slabs; s++)
        write_exceptions(&slabs[s], elements, stride);
    copy_slivers(view, &decoder.shape, tile_bytes + slivers, elements, stride);
    return TRF_OK;
}
