/* SPDX-License-Identifier: Apache-2.0 */
/* Works line by line, twice: once to count, for the head, and once to write. Both times a line is made in the same way:
 * its tiles' weights as registers in the window's scale, and the records of weights that the window does not
 * include. */
#include "trf_pack.h"

#include "trf_packed_reader.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE_WEIGHTS = TRF_PACKED_LINE_TILES * TRF_PACKED_TILE_WEIGHTS
};

/* A tile's weights in the order of a stored tile; padding is zeros. */
typedef uint16_t tile_registers[TRF_PACKED_TILE_WEIGHTS];

typedef struct line_work {
    uint32_t band, first_tile, tiles;
    uint32_t stored; /* bit t: whether tile t is to be stored */
    uint32_t num_records;
    uint32_t tile_records[TRF_PACKED_LINE_TILES];
    uint32_t records[LINE_WEIGHTS];             /* records of tiles that are not stored, ascending */
    tile_registers tile[TRF_PACKED_LINE_TILES]; /* all weights, including those with records */
} line_work;

/* ---- the window ---- */

trf_packed_window trf_pack_window(const trf_pack_input *from) {
    const trf_packed_window_rows chosen = trf_packed_window_rows_of(from->rows);
    uint64_t exponents[256] = {0}, zeros = 0;
    for (uint32_t i = 0; i < chosen.count; i++) {
        const uint32_t row = i * chosen.step;
        const uint16_t *weights = from->weights + row * from->stride;
        const int32_t offset = from->row_offsets ? from->row_offsets[row] : 0;
        for (uint32_t col = 0; col < from->cols; col++) {
            const int32_t exponent = weights[col] >> 7 & 0xFF, left = exponent - offset;
            zeros += (weights[col] & 0x7FFF) == 0;
            if (exponent > 0 && exponent < 255 && left > 0 && left < 255)
                exponents[left]++;
        }
    }
    return trf_choose_packed_window(exponents, trf_packed_is_zeroing(zeros, (uint64_t)chosen.count * from->cols));
}

/* ---- one line ---- */

/* Adds weight (row, col) to its tile's registers, and to the records if it needs one. place: its record without the
 * weight's bits. */
static trf_status add_weight(const trf_pack_input *from, trf_packed_window window, line_work *line, uint32_t row,
                             uint32_t col, uint32_t place, trf_error *err) {
    const int32_t offset = from->row_offsets ? from->row_offsets[row] : 0, base = (int32_t)window.base;
    const uint32_t weight = from->weights[row * from->stride + col], tile = trf_packed_record_tile(place);
    int exact = 1;
    const uint32_t bits = trf_scale_bf16(weight, TRF_PACKED_EXPONENT - base - offset, &exact);
    if (!exact)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, 2 * ((uint64_t)row * from->cols + col),
                        "weight 0x%04x in row %u, column %u is no BF16 in the scale of the exponents from %u on",
                        weight, row, col, window.base);
    line->tile[tile][trf_packed_record_stored_half(place)] = (uint16_t)bits;
    if (!trf_packed_fits(weight, base, window.zeroing, offset)) {
        line->tile_records[tile]++;
        line->records[line->num_records++] = place | bits;
    }
    return TRF_OK;
}

/* Adds a tile's weights in the order of records. */
static trf_status add_tile(const trf_pack_input *from, trf_packed_window window, line_work *line, uint32_t tile,
                           trf_error *err) {
    const uint32_t first_row = line->band * TRF_PACKED_TILE_ROWS;
    const uint32_t first_col = (line->first_tile + tile) * TRF_PACKED_TILE_COLS;
    memset(line->tile[tile], 0, sizeof line->tile[tile]);
    line->tile_records[tile] = 0;
    for (uint32_t at = 0; at < TRF_PACKED_TILE_WEIGHTS; at++) {
        const uint32_t place = tile << 27 | at << 16;
        const uint32_t slab = trf_packed_record_slab(place), step = trf_packed_record_step(place);
        const uint32_t lane = trf_packed_record_lane(place), reg = trf_packed_record_reg(place);
        const uint32_t row = first_row + trf_packed_row_in_tile(slab, lane, reg);
        const uint32_t col = first_col + trf_packed_col_in_tile(step, lane, reg, trf_packed_record_half(place));
        if (row >= from->rows || col >= from->cols)
            continue;
        const trf_status status = add_weight(from, window, line, row, col, place, err);
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

/* Chooses stored tiles: the tile with the most records, the first one of several, again and again until the other
 * tiles' records fit the line. */
static void choose_stored(line_work *line) {
    uint32_t left = line->num_records, kept = 0;
    line->stored = 0;
    while (left > TRF_PACKED_MAX_RECORDS) {
        uint32_t most = 0;
        for (uint32_t tile = 1; tile < line->tiles; tile++)
            if (line->tile_records[tile] > line->tile_records[most])
                most = tile;
        line->stored |= 1u << most;
        left -= line->tile_records[most];
        line->tile_records[most] = 0;
    }
    for (uint32_t i = 0; i < line->num_records; i++)
        if (!(line->stored >> trf_packed_record_tile(line->records[i]) & 1))
            line->records[kept++] = line->records[i];
    line->num_records = kept;
}

/* head: only the layer's shape counts. */
static trf_status make_line(const trf_pack_input *from, trf_packed_window window, const trf_packed_head *head,
                            uint64_t number, line_work *line, trf_error *err) {
    const uint64_t lines_per_band = head->num_lines / (head->padded_rows / TRF_PACKED_TILE_ROWS);
    line->band = (uint32_t)(number / lines_per_band);
    line->first_tile = (uint32_t)(number % lines_per_band) * TRF_PACKED_LINE_TILES;
    const uint32_t left = head->padded_cols / TRF_PACKED_TILE_COLS - line->first_tile;
    line->tiles = left < TRF_PACKED_LINE_TILES ? left : (uint32_t)TRF_PACKED_LINE_TILES;
    assert(line->tiles > 0);
    line->num_records = 0;
    for (uint32_t tile = 0; tile < line->tiles; tile++) {
        const trf_status status = add_tile(from, window, line, tile, err);
        if (status != TRF_OK)
            return status;
    }
    choose_stored(line);
    return TRF_OK;
}

/* ---- the head ---- */

trf_status trf_pack_head(const trf_pack_input *from, trf_packed_window window, trf_packed_head *head, trf_error *err) {
    memset(head, 0, sizeof *head);
    trf_status status = trf_size_packed(from->rows, from->cols, from->row_offsets != NULL, 0, head, err);
    if (status != TRF_OK)
        return status;
    line_work *line = malloc(sizeof *line);
    if (!line)
        return trf_fail(err, TRF_ERR_MEMORY, 0, "no memory to pack a layer");
    uint64_t stored = 0;
    for (uint64_t number = 0; status == TRF_OK && number < head->num_lines; number++) {
        status = make_line(from, window, head, number, line, err);
        if (status == TRF_OK) {
            head->num_records += line->num_records;
            stored += trf_packed_count_bits(line->stored);
        }
    }
    free(line);
    if (status == TRF_OK)
        status = trf_size_packed(from->rows, from->cols, from->row_offsets != NULL, stored, head, err);
    if (status != TRF_OK)
        return status;
    if (!trf_packed_pays(head))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, 0,
                        "packed, %llu of %llu tiles would have to be stored: more than %d bits a weight",
                        (unsigned long long)stored, (unsigned long long)head->num_tiles, TRF_PACKED_MAX_BITS);
    trf_packed_head_set_window(head, window);
    trf_packed_head_seal(head);
    return TRF_OK;
}

/* ---- writing ---- */

/* Writes registers as raw and index words. */
static void write_tile(const tile_registers registers, uint8_t *tile) {
    for (uint32_t place = 0; place < TRF_PACKED_SLABS * TRF_LANES * TRF_PACKED_STEPS; place++) {
        const uint32_t slab = place / (TRF_LANES * TRF_PACKED_STEPS), lane = place / TRF_PACKED_STEPS % TRF_LANES;
        const uint32_t step = place % TRF_PACKED_STEPS;
        uint32_t a[4], raw[2], index;
        memcpy(a, (const uint8_t *)registers + trf_packed_stored_offset(slab, lane, step), sizeof a);
        trf_unform_packed(a, raw, &index);
        memcpy(tile + trf_packed_raw_offset(slab, lane, step, 0), raw, sizeof raw);
        memcpy(tile + trf_packed_index_offset(slab, lane, step), &index, sizeof index);
    }
}

/* Writes the line itself. Unused words patch the line's first weight with its own value. */
static void write_records(const line_work *line, uint32_t first_stored, uint32_t *to) {
    for (uint32_t i = 0; i < TRF_PACKED_MAX_RECORDS; i++)
        to[i] = i < line->num_records ? line->records[i] : line->tile[0][0];
    to[TRF_PACKED_COUNT_WORD] = line->num_records;
    to[TRF_PACKED_STORED_WORD] = line->stored;
    to[TRF_PACKED_FIRST_STORED_WORD] = first_stored;
}

/* Writes the line's tiles. stored: where the first stored one goes. */
static void write_tiles(line_work *line, uint8_t *tiles, uint8_t *stored) {
    for (uint32_t i = 0; i < line->num_records; i++) {
        const uint32_t record = line->records[i];
        line->tile[trf_packed_record_tile(record)][trf_packed_record_stored_half(record)] = 0;
    }
    for (uint32_t tile = 0; tile < line->tiles; tile++) {
        uint8_t *to = tiles + (size_t)tile * TRF_PACKED_TILE_BYTES;
        if (line->stored >> tile & 1) {
            memcpy(stored, line->tile[tile], sizeof line->tile[tile]);
            stored += TRF_PACKED_STORED_TILE_BYTES;
            memset(to, 0, TRF_PACKED_TILE_BYTES);
        } else {
            write_tile(line->tile[tile], to);
        }
    }
}

static trf_status write_lines(const trf_pack_input *from, const trf_packed_head *head, line_work *line, uint8_t *packed,
                              trf_error *err) {
    const trf_packed_window window = {head->base, (head->flags & TRF_PACKED_ZEROING) != 0};
    const trf_packed_view view = trf_packed_view_of(head, packed);
    uint64_t stored = 0, records = 0;
    for (uint64_t number = 0; number < head->num_lines; number++) {
        const trf_status status = make_line(from, window, head, number, line, err);
        if (status != TRF_OK)
            return trf_fail(err, TRF_ERR_MISMATCH, 0, "a packed layer's head is not that of its weights");
        const uint32_t more = trf_packed_count_bits(line->stored);
        if (more > head->num_stored - stored)
            return trf_fail(err, TRF_ERR_MISMATCH, 0, "a packed layer's head is not that of its weights");
        const uint64_t first = trf_packed_tile_number(&view, line->band, line->first_tile);
        write_records(line, (uint32_t)stored,
                      (uint32_t *)(packed + head->lines_offset + number * TRF_PACKED_LINE_BYTES));
        write_tiles(line, packed + head->tiles_offset + first * TRF_PACKED_TILE_BYTES,
                    packed + head->stored_offset + stored * TRF_PACKED_STORED_TILE_BYTES);
        stored += more;
        records += line->num_records;
    }
    if (records != head->num_records)
        return trf_fail(err, TRF_ERR_MISMATCH, 0, "a packed layer's head is not that of its weights");
    memset(packed + head->stored_offset + stored * TRF_PACKED_STORED_TILE_BYTES, 0,
           (head->num_stored - stored) * TRF_PACKED_STORED_TILE_BYTES);
    return TRF_OK;
}

trf_status trf_pack(const trf_pack_input *from, const trf_packed_head *head, void *packed, trf_error *err) {
    uint8_t *to = packed;
    assert(head->rows == from->rows && head->cols == from->cols);
    assert((head->row_offsets_offset != 0) == (from->row_offsets != NULL));
    line_work *line = malloc(sizeof *line);
    if (!line)
        return trf_fail(err, TRF_ERR_MEMORY, 0, "no memory to pack a layer");
    memset(to, 0, head->tiles_offset); /* fills the gaps between sections, too */
    memcpy(to, head, sizeof *head);
    if (from->row_offsets)
        memcpy(to + head->row_offsets_offset, from->row_offsets, from->rows);
    const trf_status status = write_lines(from, head, line, to, err);
    free(line);
    return status;
}
