/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_validate.h"

#include "trf_packed_reader.h"

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        trf_status try_ = (call);                                                                                      \
        if (try_ != TRF_OK)                                                                                            \
            return try_;                                                                                               \
    } while (0)

/* A layer while it is checked, and what its lines add up to. */
typedef struct checked_layer {
    const uint8_t *packed;
    const trf_packed_head *head;
    trf_packed_view view;
    uint64_t records, stored;
} checked_layer;

/* Returns where something is in the buffer. */
static uint64_t offset_of(const checked_layer *layer, const void *at) {
    return (uint64_t)((const uint8_t *)at - layer->packed);
}

static trf_status check_zeros(const checked_layer *layer, uint64_t from, uint64_t to, trf_error *err) {
    for (uint64_t at = from; at < to; at++)
        if (layer->packed[at])
            return trf_fail(err, TRF_ERR_TILE, at, "a byte of padding is not zero");
    return TRF_OK;
}

/* ---- exception lines ---- */

static trf_status check_record(const checked_layer *layer, uint32_t band, uint32_t first_tile, const uint32_t *line,
                               uint32_t i, trf_error *err) {
    const trf_packed_view *view = &layer->view;
    const uint32_t record = line[i], tile = trf_packed_record_tile(record);
    const uint64_t at = offset_of(layer, line + i);
    if (i > 0 && line[i - 1] >> 16 >= record >> 16)
        return trf_fail(err, TRF_ERR_TILE, at, "record %u is not behind the one before", i);
    if (tile >= view->tiles_per_band - first_tile)
        return trf_fail(err, TRF_ERR_TILE, at, "record %u is of a tile behind the layer's last column", i);
    if (trf_packed_is_stored(line, tile))
        return trf_fail(err, TRF_ERR_TILE, at, "record %u is of a stored tile", i);
    if (trf_packed_is_padding_record(view, band, first_tile, record))
        return trf_fail(err, TRF_ERR_TILE, at, "record %u is of a padded weight", i);
    return TRF_OK;
}

static trf_status check_line(checked_layer *layer, uint32_t band, uint32_t number, trf_error *err) {
    const trf_packed_view *view = &layer->view;
    const uint32_t first_tile = number * TRF_PACKED_LINE_TILES, left = view->tiles_per_band - first_tile;
    const uint32_t *line = trf_packed_line_of(view, band, first_tile);
    const uint32_t count = line[TRF_PACKED_COUNT_WORD], stored = line[TRF_PACKED_STORED_WORD];
    if (count > TRF_PACKED_MAX_RECORDS)
        return trf_fail(err, TRF_ERR_TILE, offset_of(layer, line + TRF_PACKED_COUNT_WORD), "%u records in a line",
                        count);
    if (left < TRF_PACKED_LINE_TILES && stored >> left)
        return trf_fail(err, TRF_ERR_TILE, offset_of(layer, line + TRF_PACKED_STORED_WORD),
                        "a stored tile behind the layer's last column");
    if (line[TRF_PACKED_FIRST_STORED_WORD] != layer->stored)
        return trf_fail(err, TRF_ERR_TILE, offset_of(layer, line + TRF_PACKED_FIRST_STORED_WORD),
                        "the line's first stored tile is number %u, not %llu", line[TRF_PACKED_FIRST_STORED_WORD],
                        (unsigned long long)layer->stored);
    layer->stored += trf_packed_count_bits(stored);
    layer->records += count;
    if (layer->stored > view->num_stored)
        return trf_fail(err, TRF_ERR_TILE, offset_of(layer, line + TRF_PACKED_STORED_WORD),
                        "more stored tiles than the %u of the layer", view->num_stored);
    for (uint32_t i = 0; i < count; i++)
        TRY(check_record(layer, band, first_tile, line, i, err));
    uint32_t a[4];
    trf_read_packed_step(view, band, first_tile, 0, 0, 0, a);
    for (uint32_t i = count; i < TRF_PACKED_MAX_RECORDS; i++)
        if (line[i] != (a[0] & 0xFFFF))
            return trf_fail(err, TRF_ERR_TILE, offset_of(layer, line + i),
                            "unused word %u is not the line's first weight", i);
    return TRF_OK;
}

/* ---- tiles ---- */

/* Checks a step of a zeroing layer: a weight with index 0 must have no mantissa. */
static trf_status check_packed_step(const checked_layer *layer, const uint8_t *tile, uint32_t slab, uint32_t step,
                                    uint32_t lane, trf_error *err) {
    const uint8_t *raw = tile + trf_packed_raw_offset(slab, lane, step, 0);
    const uint32_t index = *(const uint32_t *)(tile + trf_packed_index_offset(slab, lane, step));
    for (uint32_t reg = 0; reg < 4; reg++)
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t byte = 4 * (reg / 2) + trf_packed_mantissa_byte(reg, half);
            if ((trf_packed_rotate_right(index, trf_packed_index_bit(reg, half)) & 15) == 0 && raw[byte] & 0x7F)
                return trf_fail(err, TRF_ERR_TILE, offset_of(layer, raw + byte), "a zero with a mantissa");
        }
    return TRF_OK;
}

/* The padding weights of a stored tile must be zeros; those of packed tiles are finite whatever is there. */
static trf_status check_stored_step(const checked_layer *layer, uint32_t band, uint32_t tile, const uint8_t *stored,
                                    uint32_t slab, uint32_t step, uint32_t lane, trf_error *err) {
    const uint16_t *halves = (const uint16_t *)(stored + trf_packed_stored_offset(slab, lane, step));
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t row = trf_packed_row_in_tile(slab, lane, i / 2);
        const uint32_t col = trf_packed_col_in_tile(step, lane, i / 2, i % 2);
        if (halves[i] && trf_packed_is_padding(&layer->view, band, tile, row, col))
            return trf_fail(err, TRF_ERR_TILE, offset_of(layer, halves + i), "a padded weight is not zero");
    }
    return TRF_OK;
}

static trf_status check_tile(const checked_layer *layer, uint32_t band, uint32_t tile, trf_error *err) {
    const trf_packed_view *view = &layer->view;
    const uint32_t *line = trf_packed_line_of(view, band, tile);
    const uint8_t *packed = view->tiles + trf_packed_tile_number(view, band, tile) * TRF_PACKED_TILE_BYTES;
    const int is_stored = trf_packed_is_stored(line, tile);
    const uint8_t *stored =
        is_stored ? view->stored + trf_packed_stored_number(line, tile) * TRF_PACKED_STORED_TILE_BYTES : NULL;
    if (is_stored)
        TRY(check_zeros(layer, offset_of(layer, packed), offset_of(layer, packed + TRF_PACKED_TILE_BYTES), err));
    for (uint32_t place = 0; place < TRF_PACKED_SLABS * TRF_PACKED_STEPS * TRF_LANES; place++) {
        const uint32_t slab = place / (TRF_PACKED_STEPS * TRF_LANES), step = place / TRF_LANES % TRF_PACKED_STEPS;
        if (is_stored)
            TRY(check_stored_step(layer, band, tile, stored, slab, step, place % TRF_LANES, err));
        else if (view->zeroing)
            TRY(check_packed_step(layer, packed, slab, step, place % TRF_LANES, err));
    }
    return TRF_OK;
}

/* ---- the whole ---- */

static trf_status check_padding(const checked_layer *layer, trf_error *err) {
    const trf_packed_head *head = layer->head;
    if (head->row_offsets_offset)
        TRY(check_zeros(layer, head->row_offsets_offset + head->rows, head->lines_offset, err));
    return check_zeros(layer, head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES, head->tiles_offset, err);
}

/* Where there is room for more stored tiles than there are, zeros must lie. */
static trf_status check_room(const checked_layer *layer, trf_error *err) {
    const uint64_t first = layer->stored * TRF_PACKED_STORED_TILE_BYTES,
                   last = (uint64_t)layer->view.num_stored * TRF_PACKED_STORED_TILE_BYTES;
    for (uint64_t i = first; i < last; i++)
        if (layer->view.stored[i])
            return trf_fail(err, TRF_ERR_TILE, layer->head->stored_offset + i,
                            "a stored tile that no line names is not zero");
    return TRF_OK;
}

trf_status trf_validate_packed(const void *packed, uint64_t bytes, trf_packed_view *view, trf_error *err) {
    checked_layer layer = {.packed = packed, .head = packed};
    if ((uintptr_t)packed % 16)
        return trf_fail(err, TRF_ERR_ARGUMENT, 0, "a packed layer must be 16-byte aligned");
    TRY(trf_check_packed_head(packed, bytes, err));
    layer.view = trf_packed_view_of(packed, packed);
    TRY(check_padding(&layer, err));
    for (uint32_t band = 0; band < layer.view.bands; band++)
        for (uint32_t line = 0; line < layer.view.lines_per_band; line++)
            TRY(check_line(&layer, band, line, err));
    if (layer.records != layer.head->num_records)
        return trf_fail(err, TRF_ERR_TILE, offsetof(trf_packed_head, num_records), "%llu records, the head says %llu",
                        (unsigned long long)layer.records, (unsigned long long)layer.head->num_records);
    TRY(check_room(&layer, err));
    for (uint32_t band = 0; band < layer.view.bands; band++)
        for (uint32_t tile = 0; tile < layer.view.tiles_per_band; tile++)
            TRY(check_tile(&layer, band, tile, err));
    *view = layer.view;
    return TRF_OK;
}
