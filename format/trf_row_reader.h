/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one row of a layer, panel by panel, as an embedding's look-up needs it. C and CUDA.
 *
 * A row of a slab lies in four neighbouring lanes. They walk their rANS streams from the beginning to the end (each
 * lane has four rows, or two) and keep the weights of the row. A lane writes the columns that it has decoded, and no
 * others; the four lanes share the weights that lie uncoded (slivers, stored tiles). As in trf_slab_reader.h nothing
 * outside the slab is read, whatever is in it. */
#ifndef TRF_ROW_READER_H
#define TRF_ROW_READER_H

#include "trf_decoded_bits.h"
#include "trf_edges.h"

enum {
    TRF_ROW_LANES = 4 /* of a slab that share a row */
};

/* Where a row crosses a panel. All offsets are from the blob's first byte. */
typedef struct trf_row_crossing {
    trf_tile_shape tile;
    uint64_t index;             /* of the tile */
    uint32_t predictor_mode;    /* of the tile */
    uint32_t row;               /* from the tile's first one */
    uint32_t col, cols;         /* from the tile's first one; the crossing's columns, of which ... */
    uint32_t coded_cols;        /* ... so many are a slab's, 0 to all of them */
    uint64_t stored;            /* of the tile's stored elements, if there are uncoded columns */
    uint64_t raw, rans_streams; /* of the slab, if coded_cols is not 0 */
    uint32_t rans_bytes;
} trf_row_crossing;

/* Fills in all fields but the offsets of the data, which become 0. row: the row of the layer. panel: the panel, counted
 * from the layer's first one. tile: the tile in which they meet. */
TRF_HD trf_row_crossing trf_row_crossing_of(const trf_device_view *view, trf_tile_shape tile, uint32_t row,
                                            uint32_t panel) {
    trf_row_crossing crossing;
    crossing.tile = tile;
    crossing.index = (uint64_t)(row / TRF_TILE_SIZE) * view->num_tile_cols + tile.col / TRF_TILE_SIZE;
    crossing.predictor_mode = trf_bounded_predictor_mode(view, view->tiles[crossing.index].predictor_mode);
    crossing.row = row - tile.row;
    crossing.col = panel * view->slab_cols - tile.col;
    const uint32_t left = tile.cols - crossing.col;
    crossing.cols = left < view->slab_cols ? left : view->slab_cols;
    crossing.coded_cols = 0;
    crossing.stored = crossing.raw = crossing.rans_streams = 0;
    crossing.rans_bytes = 0;
    if (crossing.row < tile.coded_rows && crossing.col < tile.coded_cols) {
        const uint32_t coded = tile.coded_cols - crossing.col;
        crossing.coded_cols = coded < crossing.cols ? coded : crossing.cols;
    }
    return crossing;
}

/* The crossing, with the offsets that the slab directory gives. row: below view->rows. panel: below
 * view->num_panels. */
TRF_HD trf_row_crossing trf_row_crossing_at(const trf_device_view *view, uint32_t row, uint32_t panel) {
    const uint32_t across = TRF_TILE_SIZE / view->slab_cols, band = row / TRF_SLAB_ROWS;
    const trf_tile_shape tile = trf_tile_at_band(view, band, panel / across);
    trf_row_crossing crossing = trf_row_crossing_of(view, tile, row, panel);
    if (crossing.coded_cols) {
        const trf_device_slab slab = *trf_slab_at_band(view, band, panel / across, panel % across);
        crossing.raw = trf_device_slab_raw(slab);
        crossing.rans_streams = trf_device_slab_rans_streams(slab);
        crossing.rans_bytes = slab.rans_size_16 * (uint32_t)TRF_ALIGNMENT;
    }
    if (crossing.coded_cols < crossing.cols)
        crossing.stored = trf_stored_offset(view, &crossing.tile, crossing.index);
    return crossing;
}

/* Where a row is written, and in which form. */
typedef struct trf_row_target {
    void *to; /* the row's first weight that is written */
    uint32_t col,
        cols; /* which columns of the layer are written; col, cols: multiples of 16, or up to the layer's last */
    trf_decode_as as;
    uint32_t weight_bytes; /* as trf_decoded_weight_bytes says */
    int aligned;           /* `to` is at a multiple of 4 weights */
} trf_row_target;

/* Stores four neighbouring weights, which begin at column `col` of the layer (a multiple of 4), if they are among those
 * that are written. */
TRF_HD void trf_row_store4(const trf_row_target *target, uint32_t col, const uint32_t bits[4]) {
    const uint32_t at = col - target->col;
    if (at >= target->cols)
        return;
    if (target->aligned && target->weight_bytes == 2) {
        ((uint64_t *)target->to)[at / 4] =
            (bits[0] & 0xFFFF) | bits[1] << 16 | (uint64_t)((bits[2] & 0xFFFF) | bits[3] << 16) << 32;
        return;
    }
    for (uint32_t k = 0; k < 4; k++)
        trf_store_decoded_bits(target->to, target->weight_bytes, at + k, bits[k]);
}

/* ---- coded columns ---- */

/* The element at a position: `coded`, unless it is an exception. *next: the first exception that may be at this
 * position or after it. Positions ascend from call to call. */
TRF_HD uint32_t trf_row_element(const trf_slab_reader *slab, uint32_t *next, uint32_t position, uint32_t coded) {
    while (*next < slab->num_exceptions && trf_exception_position(trf_slab_exception(slab, *next)) < position)
        ++*next;
    if (*next < slab->num_exceptions && trf_exception_position(trf_slab_exception(slab, *next)) == position)
        return trf_exception_element(trf_slab_exception(slab, *next));
    return coded;
}

/* The first of a lane's four neighbouring columns of a step, counted from the slab's first column. quartet_lane: which
 * of the row's lanes, 0 to 3. */
TRF_HD uint32_t trf_row_col(trf_slab_shape shape, uint32_t quartet_lane, uint32_t step) {
    const uint32_t lane_cols = (step | 1) < shape.steps ? 8 : 4;
    return 32 * (step / 2) + lane_cols * quartet_lane + 4 * (step % 2);
}

/* A lane on its way through its slab. */
typedef struct trf_row_lane {
    uint32_t lane;
    uint32_t first;          /* the first of the row's two among its weights i to i + 3: 0 or 2 */
    uint32_t next_exception; /* as trf_row_element has it */
    trf_lane_reader reader;
} trf_row_lane;

/* The bits of the row's weights among i to i + 3 (a multiple of 4), which lie in columns `col` and col + 1 of the
 * layer. classes: of all four. */
TRF_HD void trf_row_bits(const trf_device_view *view, const int16_t *class_value, const trf_row_crossing *crossing,
                         const trf_slab_reader *slab, trf_row_lane *at, uint32_t i, uint32_t classes, uint32_t col,
                         trf_decode_as as, uint32_t bits[2]) {
    const uint32_t row = crossing->tile.row + crossing->row;
    uint32_t raw[4];
    trf_lane_raw_bits(slab, view->codec, view->class_bits, view->raw_bits, at->lane, i, raw);
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t class_at = classes >> (view->class_bits * (at->first + k)) & ((1u << view->class_bits) - 1);
        const int32_t offset = trf_exponent_offset_at(view, crossing->predictor_mode, row, col + k);
        const uint32_t coded = trf_join_element(view->codec, view->class_bits, class_value[class_at],
                                                at->first ? raw[2 + k] : raw[k], offset);
        const uint32_t element =
            trf_row_element(slab, &at->next_exception, trf_weight_position(i + at->first + k, at->lane),
                            trf_coded_element(view, coded, row, col + k));
        bits[k] = trf_decoded_bits(view, as, element, row, col + k);
    }
}

/* Prefetches, on a device, the words that a lane begins with. In nearly every decode step one of the 32 lanes is at the
 * end of its cache sector, and all lanes wait for it. */
TRF_HD void trf_row_prefetch_words(const trf_slab_reader *slab, const trf_lane_reader *reader) {
#ifdef __CUDA_ARCH__
    const uint8_t *words = slab->rans_streams + slab->words;
    int32_t at = reader->at;
    for (int k = 0; k < 3 && (uint32_t)at < slab->num_words; k++, at += 32 * reader->stride)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(words + 2 * at));
#else
    (void)slab, (void)reader;
#endif
}

/* One lane's part of the coded columns. quartet_lane: which of the row's lanes, 0 to 3. decode_table: the layer's, or a
 * copy that is nearer; class_value: likewise. @return whether what is in the lane's rANS stream is what was encoded, as
 * far as one lane can tell. */
TRF_HD int trf_row_decode_lane(const trf_device_view *view, const uint32_t *decode_table, const int16_t *class_value,
                               const trf_row_crossing *crossing, uint32_t quartet_lane, const trf_row_target *target) {
    const uint32_t row = crossing->row % TRF_SLAB_ROWS, layer_col = crossing->tile.col + crossing->col;
    const trf_slab_shape shape = trf_slab_shape_from(&crossing->tile, crossing->row - row, crossing->col);
    trf_slab_reader slab;
    trf_row_lane at;
    if (crossing->raw + trf_raw_bytes(view->raw_bits, trf_lane_weights(shape)) > crossing->rans_streams ||
        crossing->rans_streams + crossing->rans_bytes > view->buffer_bytes ||
        !trf_slab_reader_open(&slab, view->buffer + crossing->raw, view->buffer + crossing->rans_streams,
                              crossing->rans_bytes, shape))
        return 0;
    at.lane = TRF_ROW_LANES * (row % 8) + quartet_lane;
    at.first = 2 * (row % 16 / 8);
    at.next_exception = 0;
    at.reader = trf_lane_reader_open(&slab, at.lane, view->state_bits);
    trf_row_prefetch_words(&slab, &at.reader);
    uint32_t i = 0;
    for (uint32_t step = 0; step < shape.steps; step++)
        for (uint32_t row_block = 0; row_block < shape.row_blocks; row_block++, i += 8) {
            uint32_t classes[2], bits[4];
            for (uint32_t g = 0; g < 2; g++)
                classes[g] = trf_lane_next_classes(&at.reader, &slab, decode_table, view->class_bits,
                                                   view->probability_bits, view->state_bits);
            if (row_block != row / 16)
                continue;
            const uint32_t col = layer_col + trf_row_col(shape, quartet_lane, step);
            trf_row_bits(view, class_value, crossing, &slab, &at, i, classes[0], col, target->as, bits);
            trf_row_bits(view, class_value, crossing, &slab, &at, i + 4, classes[1], col + 2, target->as, bits + 2);
            trf_row_store4(target, col, bits);
        }
    return at.reader.x == 1u << view->state_bits &&
           at.reader.taken <= slab.rans_streams[TRF_STATES_BYTES + at.lane % TRF_LANE_PAIRS];
}

/* Writes NaNs, or zeros, in the columns that trf_row_decode_lane writes. */
TRF_HD void trf_row_spoil_lane(const trf_device_view *view, const trf_row_crossing *crossing, uint32_t quartet_lane,
                               const trf_row_target *target) {
    const trf_slab_shape shape =
        trf_slab_shape_from(&crossing->tile, crossing->row - crossing->row % TRF_SLAB_ROWS, crossing->col);
    const uint32_t corrupt = trf_decoded_corrupt_bits(view, target->as);
    const uint32_t bits[4] = {corrupt, corrupt, corrupt, corrupt};
    for (uint32_t step = 0; step < shape.steps; step++)
        trf_row_store4(target, crossing->tile.col + crossing->col + trf_row_col(shape, quartet_lane, step), bits);
}

/* ---- uncoded columns ---- */

/* One lane's part of the uncoded columns. */
TRF_HD void trf_row_copy_stored(const trf_device_view *view, const trf_row_crossing *crossing, uint32_t quartet_lane,
                                const trf_row_target *target) {
    trf_edge edge;
    edge.tile = crossing->tile;
    edge.stored = crossing->stored;
    for (uint32_t c = crossing->col + crossing->coded_cols + quartet_lane; c < crossing->col + crossing->cols;
         c += TRF_ROW_LANES) {
        const uint32_t row = crossing->tile.row + crossing->row, col = crossing->tile.col + c, at = col - target->col;
        if (at >= target->cols)
            continue;
        const uint32_t element = trf_stored_element(view, &edge, crossing->row, c);
        trf_store_decoded_bits(target->to, target->weight_bytes, at,
                               trf_decoded_bits(view, target->as, element, row, col));
    }
}

/* ---- all columns ---- */

/* Whether any of the crossing's columns are written. */
TRF_HD int trf_row_is_wanted(const trf_row_crossing *crossing, const trf_row_target *target) {
    const uint32_t begin = crossing->tile.col + crossing->col;
    return begin < target->col + target->cols && begin + crossing->cols > target->col;
}

/* One lane's part of a crossing. @return as trf_row_decode_lane; if one of the four lanes gets 0, each of them calls
 * trf_row_spoil_lane. */
TRF_HD int trf_row_decode(const trf_device_view *view, const uint32_t *decode_table, const int16_t *class_value,
                          const trf_row_crossing *crossing, uint32_t quartet_lane, const trf_row_target *target) {
    if (!trf_row_is_wanted(crossing, target))
        return 1;
    trf_row_copy_stored(view, crossing, quartet_lane, target);
    return !crossing->coded_cols ||
           trf_row_decode_lane(view, decode_table, class_value, crossing, quartet_lane, target);
}

/* ---- what is asked for ---- */

/* Row ids in memory: signed integers of 4 or 8 bytes. */
TRF_HD int64_t trf_row_id(const void *ids, uint32_t id_bytes, uint64_t index) {
    return id_bytes == 8 ? ((const int64_t *)ids)[index] : ((const int32_t *)ids)[index];
}

/* One lane's part of a row that the layer does not have: writes NaNs, or zeros, in the columns of a panel. */
TRF_HD void trf_row_fill(const trf_device_view *view, uint32_t panel, uint32_t quartet_lane,
                         const trf_row_target *target) {
    const uint32_t begin = panel * view->slab_cols, left = view->cols - begin;
    const uint32_t end = begin + (left < view->slab_cols ? left : view->slab_cols);
    for (uint32_t col = begin + quartet_lane; col < end; col += TRF_ROW_LANES)
        if (col - target->col < target->cols)
            trf_store_decoded_bits(target->to, target->weight_bytes, col - target->col,
                                   trf_decoded_corrupt_bits(view, target->as));
}

#endif
