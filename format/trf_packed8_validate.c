/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed8_validate.h"

#include "trf_packed8_reader.h"

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        trf_status try_ = (call);                                                                                      \
        if (try_ != TRF_OK)                                                                                            \
            return try_;                                                                                               \
    } while (0)

enum { /* of constants, which are BF16 times 2^120 */
    MIN_HIGH = (TRF_PACKED8_MIN_SCALE_EXPONENT + TRF_PACKED8_BIAS) << 7,
    MAX_HIGH = (TRF_PACKED8_MAX_SCALE_EXPONENT + 1 + TRF_PACKED8_BIAS) << 7
};

/* A layer while it is checked, and what its lines add up to. */
typedef struct checked_layer {
    const uint8_t *packed;
    const trf_packed8_head *head;
    trf_packed8_view view;
    uint64_t records;
    int has_low;
} checked_layer;

/* Returns where something is in the buffer. */
static uint64_t offset_of(const checked_layer *layer, const void *at) {
    return (uint64_t)((const uint8_t *)at - layer->packed);
}

/* ---- lines ---- */

static trf_status check_record(const checked_layer *layer, uint32_t band, uint32_t first_tile, const uint32_t *line,
                               uint32_t i, trf_error *err) {
    const trf_packed_view *view = &layer->view.packed;
    const uint32_t record = line[i], tile = trf_packed_record_tile(record);
    const uint64_t at = offset_of(layer, line + i);
    if (i > 0 && line[i - 1] >> 16 >= record >> 16)
        return trf_fail(err, TRF_ERR_TILE, at, "record %u is not behind the one before", i);
    if (!trf_packed8_has_records(line[TRF_PACKED8_MASK_WORD], tile))
        return trf_fail(err, TRF_ERR_TILE, at, "record %u is of a tile that has none", i);
    if (trf_packed_is_padding_record(view, band, first_tile, record))
        return trf_fail(err, TRF_ERR_TILE, at, "record %u is of a padded weight", i);
    return TRF_OK;
}

/* Checks a line's records, its mask, and that unused words are zeros. tiles: how many of the line the layer has. */
static trf_status check_records(checked_layer *layer, uint32_t band, uint32_t first_tile, uint32_t tiles,
                                const uint32_t *line, trf_error *err) {
    const uint32_t mask = line[TRF_PACKED8_MASK_WORD], count = trf_packed8_line_records(line, layer->head->flags);
    uint32_t seen = 0;
    if (tiles < TRF_PACKED_LINE_TILES && mask >> tiles)
        return trf_fail(err, TRF_ERR_TILE, offset_of(layer, line + TRF_PACKED8_MASK_WORD),
                        "a tile behind the layer's last column has records");
    for (uint32_t i = 0; i < count; i++) {
        TRY(check_record(layer, band, first_tile, line, i, err));
        seen |= 1u << trf_packed_record_tile(line[i]);
    }
    if (seen != mask)
        return trf_fail(err, TRF_ERR_TILE, offset_of(layer, line + TRF_PACKED8_MASK_WORD),
                        "the tiles of the line's records are 0x%08x, not 0x%08x", seen, mask);
    for (uint32_t i = count; i < trf_packed8_max_records(layer->head->flags); i++)
        if (line[i])
            return trf_fail(err, TRF_ERR_TILE, offset_of(layer, line + i), "unused word %u is not zero", i);
    layer->records += count;
    return TRF_OK;
}

/* Checks pairs of constants, the first of which is a word of the line. Where the layer has no tiles they are zeros. */
static trf_status check_pairs(checked_layer *layer, uint32_t tiles, const uint32_t *pairs, trf_error *err) {
    for (uint32_t i = 0; i < TRF_PACKED8_PAIRS; i++) {
        const uint32_t pair = pairs[i], hi = pair & 0xFFFF, lo = pair >> 16;
        const int is_there = i * TRF_PACKED8_PAIR_TILES < tiles;
        if (pair && (!is_there || hi < MIN_HIGH || hi > MAX_HIGH || lo >= hi))
            return trf_fail(err, TRF_ERR_TILE, offset_of(layer, pairs + i),
                            "0x%08x is no pair of constants for packed tiles %u to %u of the line", pair,
                            i * TRF_PACKED8_PAIR_TILES, (i + 1) * TRF_PACKED8_PAIR_TILES - 1);
        layer->has_low |= lo != 0;
    }
    return TRF_OK;
}

static trf_status check_line(checked_layer *layer, uint32_t band, uint32_t number, trf_error *err) {
    const uint32_t first_tile = number * TRF_PACKED_LINE_TILES, left = layer->view.packed.tiles_per_band - first_tile;
    const uint32_t tiles = left < TRF_PACKED_LINE_TILES ? left : (uint32_t)TRF_PACKED_LINE_TILES;
    const uint32_t *line = trf_packed_line_of(&layer->view.packed, band, first_tile);
    TRY(check_records(layer, band, first_tile, tiles, line, err));
    if (layer->head->flags & TRF_PACKED8_IN_TURNS)
        TRY(check_pairs(layer, tiles, line + TRF_PACKED8_SECOND_PAIRS_WORD, err));
    return check_pairs(layer, tiles, line + TRF_PACKED8_PAIRS_WORD, err);
}

/* ---- tiles ---- */

/* Checks a lane's codes of a step: none is a NaN, and those of padding and of records are 0. */
static trf_status check_step(const checked_layer *layer, uint32_t band, uint32_t tile, uint32_t slab, uint32_t step,
                             uint32_t lane, trf_error *err) {
    const uint8_t *at = trf_packed8_tile(&layer->view, band, tile) + trf_packed8_codes_offset(slab, lane, step);
    const uint32_t *words = (const uint32_t *)at;
    uint32_t a[4];
    trf_spread_packed8(a, words[0], words[1]);
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t code = trf_packed8_code_of(a[i / 2] >> 16 * (i % 2) & 0xFFFF);
        if ((code & 0x7F) == TRF_PACKED8_NAN_CODE)
            return trf_fail(err, TRF_ERR_TILE, offset_of(layer, at), "a code is a NaN");
        if (code && trf_packed_is_padding(&layer->view.packed, band, tile, trf_packed_row_in_tile(slab, lane, i / 2),
                                          trf_packed_col_in_tile(step, lane, i / 2, i % 2)))
            return trf_fail(err, TRF_ERR_TILE, offset_of(layer, at), "the code of a padded weight is not zero");
    }
    const uint32_t *line = trf_packed_line_of(&layer->view.packed, band, tile);
    const uint32_t place = trf_packed_record_step_place(trf_packed_record(tile, slab, step, lane, 0, 0, 0));
    const uint32_t records = trf_packed8_line_records(line, layer->head->flags);
    for (uint32_t i = 0; i < records; i++)
        if (trf_packed_record_step_place(line[i]) == place &&
            a[trf_packed_record_reg(line[i])] >> 16 * trf_packed_record_half(line[i]) & 0xFFFF)
            return trf_fail(err, TRF_ERR_TILE, offset_of(layer, at), "the code of record %u is not zero", i);
    return TRF_OK;
}

static trf_status check_tile(const checked_layer *layer, uint32_t band, uint32_t tile, trf_error *err) {
    for (uint32_t place = 0; place < TRF_PACKED_SLABS * TRF_PACKED_STEPS * TRF_LANES; place++)
        TRY(check_step(layer, band, tile, place / (TRF_PACKED_STEPS * TRF_LANES), place / TRF_LANES % TRF_PACKED_STEPS,
                       place % TRF_LANES, err));
    return TRF_OK;
}

/* ---- the whole ---- */

/* Checks what the head says of the lines, and the bytes behind them. */
static trf_status check_sums(const checked_layer *layer, trf_error *err) {
    const trf_packed8_head *head = layer->head;
    if (layer->records != head->num_records)
        return trf_fail(err, TRF_ERR_TILE, offsetof(trf_packed8_head, num_records), "%llu records, the head says %llu",
                        (unsigned long long)layer->records, (unsigned long long)head->num_records);
    if (layer->has_low != ((head->flags & TRF_PACKED8_HAS_LOW) != 0))
        return trf_fail(err, TRF_ERR_TILE, offsetof(trf_packed8_head, flags), "flags 0x%x, but second constants are %s",
                        head->flags, layer->has_low ? "not all zero" : "all zero");
    for (uint64_t at = head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES; at < head->tiles_offset; at++)
        if (layer->packed[at])
            return trf_fail(err, TRF_ERR_TILE, at, "a byte of padding is not zero");
    return TRF_OK;
}

trf_status trf_validate_packed8(const void *packed, uint64_t bytes, trf_packed8_view *view, trf_error *err) {
    checked_layer layer = {.packed = packed, .head = packed};
    if ((uintptr_t)packed % 16)
        return trf_fail(err, TRF_ERR_ARGUMENT, 0, "a packed layer must be 16-byte aligned");
    TRY(trf_check_packed8_head(packed, bytes, err));
    layer.view = trf_packed8_view_of(packed, packed);
    for (uint32_t band = 0; band < layer.view.packed.bands; band++)
        for (uint32_t line = 0; line < layer.view.packed.lines_per_band; line++)
            TRY(check_line(&layer, band, line, err));
    TRY(check_sums(&layer, err));
    for (uint32_t band = 0; band < layer.view.packed.bands; band++)
        for (uint32_t tile = 0; tile < layer.view.packed.tiles_per_band; tile++)
            TRY(check_tile(&layer, band, tile, err));
    *view = layer.view;
    return TRF_OK;
}
