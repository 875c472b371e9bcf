/* SPDX-License-Identifier: Apache-2.0 */
/* The edges of a layer, which are slabs that are not regular, slivers and stored tiles: which rectangles they cover,
 * and how a warp decodes their elements segment by segment. C and CUDA; as in trf_slab_reader.h, a loop over 32 lanes
 * computes what a warp does.
 *
 * A band is 32 rows of the layer. Where a band crosses a tile it has up to four edges, numbered below (edge_id). A
 * segment is what a warp decodes to shared memory at a time: 32 columns of 32 rows, or 64 of 16. */
#ifndef TRF_EDGES_H
#define TRF_EDGES_H

#include "trf_slab_reader.h"

enum {
    TRF_EDGE_SLAB = 0,                     /* + j: the band's slab j in the tile, unless it is regular */
    TRF_EDGE_RIGHT = TRF_MAX_SLABS_ACROSS, /* the sliver beside the coded region */
    TRF_EDGE_BELOW,                        /* rows of the sliver below it, or of a stored tile */
    TRF_EDGE_COUNT,
    /* + j: the band's slab j in the tile, if it is regular. It is no edge, but it is decoded like one where the kernel
     * for regular slabs does not take the layer. */
    TRF_REGULAR_AS_EDGE = TRF_EDGE_COUNT,
    TRF_REGULAR_AS_EDGE_END = TRF_REGULAR_AS_EDGE + TRF_MAX_SLABS_ACROSS,

    TRF_EDGE_SEGMENT_WEIGHTS = 32, /* of a lane */
    TRF_EDGE_SEGMENT_PADDING =
        2, /* elements after each decoded row, so that rows lie an odd number of words apart, each in another bank */
    TRF_EDGE_SEGMENT_ELEMENTS = 32 * (32 + TRF_EDGE_SEGMENT_PADDING), /* room for a decoded segment */
};
TRF_STATIC_ASSERT(TRF_EDGE_SEGMENT_ELEMENTS >= 16 * (64 + TRF_EDGE_SEGMENT_PADDING),
                  "room for segments of either width");

/* A slab is *regular* if it has 32 rows and whole chunks: 64, 128, 192 or 256 columns. Everything else in a layer
 * (other slabs, slivers, stored tiles) is one of its *edges*. */
TRF_HD int trf_slab_is_regular(uint32_t row_blocks, uint32_t steps) { return row_blocks == 2 && steps % 4 == 0; }

/* Whether an edge is a slab and not stored elements; and which of the tile's slabs in the band it is. */
TRF_HD int trf_edge_is_slab(uint32_t edge_id) { return edge_id < TRF_EDGE_RIGHT || edge_id >= TRF_REGULAR_AS_EDGE; }
TRF_HD uint32_t trf_edge_slab(uint32_t edge_id) { return edge_id % TRF_REGULAR_AS_EDGE; }

/* Rows row0 to row1 - 1 of the band and columns col0 to col1 - 1 of the tile. The region is empty if either range
 * is. */
typedef struct trf_edge_region {
    uint32_t row0, row1, col0, col1;
} trf_edge_region;

/* band_row: the band's first row, counted from the tile's first one; below tile->rows. */
TRF_HD trf_edge_region trf_edge_region_of(const trf_tile_shape *tile, uint32_t band_row, uint32_t edge_id) {
    const uint32_t left = tile->rows - band_row, rows = left < TRF_SLAB_ROWS ? left : (uint32_t)TRF_SLAB_ROWS;
    const uint32_t coded_left = tile->coded_rows > band_row ? tile->coded_rows - band_row : 0;
    const uint32_t coded = coded_left < TRF_SLAB_ROWS ? coded_left : (uint32_t)TRF_SLAB_ROWS;
    trf_edge_region region = {0, 0, 0, 0};
    if (trf_edge_is_slab(edge_id)) {
        const uint32_t col = trf_edge_slab(edge_id) * tile->slab_cols;
        if (coded == 0 || col >= tile->coded_cols)
            return region;
        const trf_slab_shape shape = trf_slab_shape_from(tile, band_row, col);
        if (trf_slab_is_regular(shape.row_blocks, shape.steps) != (edge_id >= TRF_REGULAR_AS_EDGE))
            return region;
        region.row1 = coded;
        region.col0 = col;
        region.col1 = col + TRF_FRAGMENT_SIZE * shape.steps;
    } else if (edge_id == TRF_EDGE_RIGHT) {
        region.row1 = coded;
        region.col0 = tile->coded_cols;
        region.col1 = tile->cols;
    } else {
        region.row0 = coded;
        region.row1 = rows;
        region.col1 = tile->cols;
    }
    return region;
}

TRF_HD int trf_edge_region_is_empty(const trf_edge_region *region) {
    return region->row0 == region->row1 || region->col0 == region->col1;
}

/* An edge that is being decoded, and one lane's place in it. All fields but `reader` are the same in all lanes. */
typedef struct trf_edge {
    trf_tile_shape tile;
    trf_edge_region region;
    uint64_t index;  /* of the tile */
    uint64_t stored; /* of slivers and stored tiles: byte offset of the first stored element in the blob */
    uint32_t edge_id;
    uint32_t band_row; /* of the band's first row, from the tile's */
    uint32_t predictor_mode;
    int intact; /* of slabs: raw bits and rANS streams lie inside the blob, and the latter hold what they say */
    trf_slab_reader slab;
    trf_lane_reader reader;
} trf_edge;

/* Slab j of a column of tiles in a band. */
TRF_HD const trf_device_slab *trf_slab_at_band(const trf_device_view *view, uint32_t band, uint32_t tile_col,
                                               uint32_t j) {
    const uint32_t across = view->slab_cols == TRF_MAX_SLAB_COLS ? 1 : TRF_MAX_SLABS_ACROSS;
    return view->slabs + (uint64_t)band * view->num_panels + tile_col * across + j;
}

/* The tile that a band crosses in a column of tiles. */
TRF_HD trf_tile_shape trf_tile_at_band(const trf_device_view *view, uint32_t band, uint32_t tile_col) {
    const uint32_t tile_row = band / TRF_BANDS_PER_TILE;
    const uint32_t coding = trf_slab_at_band(view, band, tile_col, 0)->rans_size_16
                                ? (uint32_t)TRF_TILE_CODED
                                : view->tiles[(uint64_t)tile_row * view->num_tile_cols + tile_col].coding;
    return trf_tile_shape_at(view->rows, view->cols, view->slab_cols, tile_row, tile_col, coding);
}

/* Whether a band has any of the edges first to end - 1 in a column of tiles. */
TRF_HD int trf_band_has_edges_in(const trf_device_view *view, uint32_t band, uint32_t tile_col, uint32_t first,
                                 uint32_t end) {
    const trf_tile_shape tile = trf_tile_at_band(view, band, tile_col);
    int found = 0;
    for (uint32_t edge_id = first; edge_id < end; edge_id++) {
        trf_edge_region region = trf_edge_region_of(&tile, band % TRF_BANDS_PER_TILE * TRF_SLAB_ROWS, edge_id);
        found |= !trf_edge_region_is_empty(&region);
    }
    return found;
}

TRF_HD int trf_band_has_edges(const trf_device_view *view, uint32_t band, uint32_t tile_col) {
    return trf_band_has_edges_in(view, band, tile_col, 0, TRF_EDGE_COUNT);
}

/* Where a tile's stored elements begin in the blob: after its last slab's rANS streams, or at its first byte if it has
 * no slabs. The metadata may no longer be what was checked: the offset is aligned, and at most the blob's end. */
TRF_HD uint64_t trf_stored_offset(const trf_device_view *view, const trf_tile_shape *tile, uint64_t index) {
    if (tile->num_slabs == 0) {
        const uint64_t offset = view->tiles[index].data_offset & ~(uint64_t)(TRF_TILE_ALIGNMENT - 1);
        return offset < view->buffer_bytes ? offset : view->buffer_bytes;
    }
    const uint32_t last_band = (tile->row + tile->coded_rows - 1) / TRF_SLAB_ROWS;
    const trf_device_slab slab = *trf_slab_at_band(view, last_band, tile->col / TRF_TILE_SIZE, tile->slabs_across - 1);
    return trf_device_slab_rans_streams(slab) + (uint32_t)slab.rans_size_16 * TRF_ALIGNMENT;
}

/* Opens an edge; if it is a slab, begins the rANS stream of `lane`. @return 1, or 0 if there is no such edge. */
TRF_HD int trf_edge_open(trf_edge *edge, const trf_device_view *view, uint32_t band, uint32_t tile_col,
                         uint32_t edge_id, uint32_t lane) {
    edge->tile = trf_tile_at_band(view, band, tile_col);
    edge->edge_id = edge_id;
    edge->band_row = band % TRF_BANDS_PER_TILE * TRF_SLAB_ROWS;
    edge->index = (uint64_t)(band / TRF_BANDS_PER_TILE) * view->num_tile_cols + tile_col;
    edge->region = trf_edge_region_of(&edge->tile, edge->band_row, edge_id);
    if (trf_edge_region_is_empty(&edge->region))
        return 0;
    if (!trf_edge_is_slab(edge_id)) {
        edge->stored = trf_stored_offset(view, &edge->tile, edge->index);
        return 1;
    }
    const trf_device_slab slab = *trf_slab_at_band(view, band, tile_col, trf_edge_slab(edge_id));
    const trf_slab_shape shape = trf_slab_shape_from(&edge->tile, edge->band_row, edge->region.col0);
    const uint64_t raw = trf_device_slab_raw(slab), rans_streams = trf_device_slab_rans_streams(slab);
    const uint32_t bytes = slab.rans_size_16 * (uint32_t)TRF_ALIGNMENT;
    edge->predictor_mode = trf_bounded_predictor_mode(view, view->tiles[edge->index].predictor_mode);
    edge->intact = raw + trf_raw_bytes(view->raw_bits, trf_lane_weights(shape)) <= rans_streams &&
                   rans_streams + bytes <= view->buffer_bytes &&
                   trf_slab_reader_open(&edge->slab, view->buffer + raw, view->buffer + rans_streams, bytes, shape);
    if (edge->intact)
        edge->reader = trf_lane_reader_open(&edge->slab, lane, view->state_bits);
    return 1;
}

/* ---- segments ---- */

/* A segment of an edge. The decoded element at row r of the band and column c of the tile lies at
 * [r * pitch + c - col]. */
typedef struct trf_edge_segment {
    uint32_t row0, row1; /* of the band */
    uint32_t col, cols;  /* of the tile, a multiple of 16; 0 columns: no segment */
    uint32_t width;      /* 64 for slabs of 16 rows, else 32: the columns of a full segment */
    uint32_t pitch;
} trf_edge_segment;

TRF_HD uint32_t trf_edge_segment_width(const trf_edge *edge) {
    return trf_edge_is_slab(edge->edge_id) && edge->region.row1 == TRF_FRAGMENT_SIZE ? 64 : 32;
}

TRF_HD uint32_t trf_edge_segments(const trf_edge *edge) {
    const uint32_t width = trf_edge_segment_width(edge);
    return (edge->region.col1 - edge->region.col0 + width - 1) / width;
}

/* segment: below trf_edge_segments. */
TRF_HD trf_edge_segment trf_edge_segment_at(const trf_edge *edge, uint32_t segment) {
    trf_edge_segment at;
    at.row0 = edge->region.row0;
    at.row1 = edge->region.row1;
    at.width = trf_edge_segment_width(edge);
    at.pitch = at.width + TRF_EDGE_SEGMENT_PADDING;
    at.col = edge->region.col0 + segment * at.width;
    at.cols = edge->region.col1 - at.col < at.width ? edge->region.col1 - at.col : at.width;
    return at;
}

/* The element of a sliver or a stored tile at (row, col) of the tile; 0 if its place is outside the blob. */
TRF_HD uint32_t trf_stored_element(const trf_device_view *view, const trf_edge *edge, uint32_t row, uint32_t col) {
    const trf_tile_shape *tile = &edge->tile;
    const uint32_t beside = tile->cols - tile->coded_cols; /* elements of a row beside the coded region */
    uint32_t index = row < tile->coded_rows ? row * beside + col - tile->coded_cols
                                            : tile->coded_rows * beside + (row - tile->coded_rows) * tile->cols + col;
    uint64_t at = edge->stored + (uint64_t)index * view->stored_element_bytes;
    if (at + view->stored_element_bytes > view->buffer_bytes)
        return 0;
    if (view->stored_element_bytes == 2)
        return *(const uint16_t *)(view->buffer + at);
    return trf_codec_is_float(view->codec) ? view->buffer[at] : (uint16_t)(int8_t)view->buffer[at];
}

/* One lane's part of decoding a segment. The segments of a slab must be decoded in their order, each once. to:
 * [TRF_EDGE_SEGMENT_ELEMENTS], shared by the lanes. class_value: as trf_lane_decode. */
TRF_HD void trf_edge_decode_segment(const trf_device_view *view, const int16_t *class_value, trf_edge *edge,
                                    uint32_t segment, uint32_t lane, uint16_t *to) {
    const trf_edge_segment at = trf_edge_segment_at(edge, segment);
    if (!trf_edge_is_slab(edge->edge_id)) {
        for (uint32_t row = at.row0; row < at.row1 && lane < at.cols; row++)
            to[row * at.pitch + lane] = (uint16_t)trf_stored_element(view, edge, edge->band_row + row, at.col + lane);
    } else if (edge->intact) {
        const uint32_t first = TRF_EDGE_SEGMENT_WEIGHTS * segment, left = edge->slab.weights - first;
        trf_slab_place place;
        place.row = edge->tile.row + edge->band_row;
        place.col = edge->tile.col + edge->region.col0;
        place.predictor_mode = edge->predictor_mode;
        trf_lane_decode(view, class_value, &edge->slab, &edge->reader, lane, place, first,
                        left < TRF_EDGE_SEGMENT_WEIGHTS ? left : (uint32_t)TRF_EDGE_SEGMENT_WEIGHTS, to, at.pitch,
                        at.col - edge->region.col0);
    }
}

/* One lane's part of writing a slab's exceptions over a decoded segment, once all lanes have decoded it. */
TRF_HD void trf_edge_put_exceptions(const trf_edge *edge, uint32_t segment, uint32_t lane, uint16_t *to) {
    if (!trf_edge_is_slab(edge->edge_id) || !edge->intact || edge->slab.num_exceptions == 0)
        return;
    const trf_edge_segment at = trf_edge_segment_at(edge, segment);
    const uint32_t first = TRF_EDGE_SEGMENT_WEIGHTS * segment, left = edge->slab.weights - first;
    const uint32_t count = left < TRF_EDGE_SEGMENT_WEIGHTS ? left : (uint32_t)TRF_EDGE_SEGMENT_WEIGHTS;
    const uint32_t end = trf_slab_exceptions_below(&edge->slab, first + count);
    for (uint32_t e = trf_slab_exceptions_below(&edge->slab, first) + lane; e < end; e += TRF_LANES)
        trf_slab_write_exception(&edge->slab, e, first, count, to, at.pitch, at.col - edge->region.col0);
}

/* A lane's verdict on an edge whose segments are all decoded. partner_taken: reader.taken of lane ^ 16. */
TRF_HD int trf_edge_verdict(const trf_device_view *view, const trf_edge *edge, uint32_t lane, uint32_t partner_taken) {
    return !trf_edge_is_slab(edge->edge_id) ||
           (edge->intact && trf_lane_reader_verdict(&edge->reader, &edge->slab, lane, partner_taken, view->state_bits));
}

#endif
