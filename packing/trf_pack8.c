/* SPDX-License-Identifier: Apache-2.0 */
/* Works line by line, twice: once to count, for the head, and once to write. */
#include "trf_pack8.h"

#include "trf_packed8_reader.h"

#include <assert.h>
#include <string.h>

/* A line while it is made. Tiles are written if there is a place for them. */
typedef struct line_work {
    uint32_t band, first_tile, tiles;
    uint32_t words[TRF_PACKED_LINE_WORDS];
    uint32_t num_records;
    uint16_t formed[2][256]; /* what codes become with the first and second constants of the tile at hand */
    uint8_t *to;             /* the line's first packed tile, or NULL */
} line_work;

/* ---- input ---- */

static uint32_t flags_of(const trf_pack8_input *from) {
    return from->second_scales ? (uint32_t)TRF_PACKED8_IN_TURNS : 0;
}

/* Which of the constants of a tile a row has: 0, or 1 for the second ones. */
static uint32_t turn_of(const trf_pack8_input *from, uint32_t row) { return from->second_scales ? row / 8 % 2 : 0; }

static float scale_of(const trf_pack8_input *from, uint32_t row, uint32_t col) {
    const size_t across = (from->cols - 1) / from->block_cols + 1;
    const float *table = turn_of(from, row) ? from->second_scales : from->scales;
    return table[row / from->block_rows * across + col / from->block_cols];
}

static trf_status check_scales(const float *scales, size_t count, trf_error *err) {
    for (size_t i = 0; i < count; i++) {
        uint32_t pair;
        if (!trf_packed8_find_pair(scales[i], &pair))
            return trf_fail(err, TRF_ERR_UNSUPPORTED, i * sizeof *scales,
                            "scale %zu is %g, and neither 0 nor from 2^-100 to 2^7", i, (double)scales[i]);
    }
    return TRF_OK;
}

static trf_status check_blocks(const trf_pack8_input *from, trf_error *err) {
    const int rows_fit = from->block_rows >= from->rows || from->block_rows % TRF_PACKED_TILE_ROWS == 0;
    const int cols_fit = from->block_cols >= from->cols || from->block_cols % TRF_PACKED8_PAIR_COLS == 0;
    if (!rows_fit || !cols_fit)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "scales of %u x %u weights: a packed FP8 layer has the same constants for %d x %d",
                        from->block_rows, from->block_cols, TRF_PACKED_TILE_ROWS, TRF_PACKED8_PAIR_COLS);
    const size_t count =
        ((size_t)(from->rows - 1) / from->block_rows + 1) * ((size_t)(from->cols - 1) / from->block_cols + 1);
    const trf_status status = check_scales(from->scales, count, err);
    return status == TRF_OK && from->second_scales ? check_scales(from->second_scales, count, err) : status;
}

/* ---- one line ---- */

/* Gives the code that is packed of a weight, and adds a record if the code does not make the weight. place: the record
 * without the weight's bits. */
static uint32_t take_weight(const trf_pack8_input *from, line_work *line, uint32_t row, uint32_t col, uint32_t place) {
    const size_t at = row * from->stride + col;
    const uint32_t code = from->codes[at];
    const int is_nan = (code & 0x7F) == TRF_PACKED8_NAN_CODE;
    const uint32_t weight =
        from->weights ? from->weights[at] : trf_packed8_define_weight(code, scale_of(from, row, col));
    if (!is_nan && (!from->weights || line->formed[turn_of(from, row)][code] == weight))
        return code;
    if (line->num_records < trf_packed8_max_records(flags_of(from))) {
        line->words[line->num_records] = place | weight;
        line->words[TRF_PACKED8_MASK_WORD] |= 1u << trf_packed_record_tile(place);
    }
    line->num_records++;
    return 0;
}

/* Packs a lane's step. place: the record of its first weight without bits. */
static void pack_step(const trf_pack8_input *from, line_work *line, uint32_t place) {
    const uint32_t tile = trf_packed_record_tile(place), slab = trf_packed_record_slab(place),
                   step = trf_packed_record_step(place), lane = trf_packed_record_lane(place);
    uint32_t a[4] = {0}, words[2];
    for (uint32_t i = 0; i < 8; i++) {
        const uint64_t row = (uint64_t)line->band * TRF_PACKED_TILE_ROWS + trf_packed_row_in_tile(slab, lane, i / 2),
                       col = (uint64_t)(line->first_tile + tile) * TRF_PACKED_TILE_COLS +
                             trf_packed_col_in_tile(step, lane, i / 2, i % 2);
        if (row < from->rows && col < from->cols)
            a[i / 2] |=
                trf_packed8_spread_code(take_weight(from, line, (uint32_t)row, (uint32_t)col, place + (i << 16)))
                << 16 * (i % 2);
    }
    trf_unspread_packed8(a, words);
    if (line->to)
        memcpy(line->to + (size_t)tile * TRF_PACKED8_TILE_BYTES + trf_packed8_codes_offset(slab, lane, step), words,
               sizeof words);
}

/* Finds the constants of the tiles from `tile` on, and what codes become with them. */
static void set_pair(const trf_pack8_input *from, line_work *line, uint32_t tile) {
    const uint32_t first_row = line->band * TRF_PACKED_TILE_ROWS,
                   first_col = (line->first_tile + tile) * TRF_PACKED_TILE_COLS;
    for (uint32_t turn = 0; turn < (from->second_scales ? 2 : 1); turn++) {
        uint32_t pair;
        trf_packed8_find_pair(scale_of(from, first_row + 8 * turn, first_col), &pair);
        line->words[turn ? trf_packed8_second_pair_word(tile) : trf_packed8_pair_word(tile)] = pair;
        for (uint32_t code = 0; from->weights && code < 256; code++)
            line->formed[turn][code] = (uint16_t)trf_packed8_weight(code, pair);
    }
}

/* Makes the words of line `number`, and its packed tiles. to: as line_work has it. */
static void make_line(const trf_pack8_input *from, const trf_packed8_head *head, uint64_t number, uint8_t *to,
                      line_work *line) {
    const uint64_t lines_per_band = head->num_lines / (head->padded_rows / TRF_PACKED_TILE_ROWS);
    memset(line, 0, sizeof *line);
    line->to = to;
    line->band = (uint32_t)(number / lines_per_band);
    line->first_tile = (uint32_t)(number % lines_per_band) * TRF_PACKED_LINE_TILES;
    const uint32_t left = head->padded_cols / TRF_PACKED_TILE_COLS - line->first_tile;
    line->tiles = left < TRF_PACKED_LINE_TILES ? left : (uint32_t)TRF_PACKED_LINE_TILES;
    for (uint32_t tile = 0; tile < line->tiles; tile++) {
        if (tile % TRF_PACKED8_PAIR_TILES == 0)
            set_pair(from, line, tile);
        for (uint32_t place = 0; place < TRF_PACKED_TILE_WEIGHTS; place += 8)
            pack_step(from, line, tile << 27 | place << 16);
    }
}

static int line_has_low(const trf_pack8_input *from, const line_work *line) {
    uint32_t low = 0;
    for (uint32_t i = 0; i < TRF_PACKED8_PAIRS; i++)
        low |= line->words[TRF_PACKED8_PAIRS_WORD + i] |
               (from->second_scales ? line->words[TRF_PACKED8_SECOND_PAIRS_WORD + i] : 0);
    return low >> 16 != 0;
}

/* ---- the layer ---- */

trf_status trf_pack8_head(const trf_pack8_input *from, trf_packed8_head *head, trf_error *err) {
    memset(head, 0, sizeof *head);
    trf_status status = trf_size_packed8(from->rows, from->cols, head, err);
    if (status == TRF_OK)
        status = check_blocks(from, err);
    head->flags |= flags_of(from);
    const uint32_t max_records = trf_packed8_max_records(head->flags);
    for (uint64_t number = 0; status == TRF_OK && number < head->num_lines; number++) {
        line_work line;
        make_line(from, head, number, NULL, &line);
        if (line.num_records > max_records)
            status = trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                              "%u of the weights in rows from %u and columns from %u on are no code times its scale; "
                              "at most %u may be",
                              line.num_records, line.band * TRF_PACKED_TILE_ROWS,
                              line.first_tile * TRF_PACKED_TILE_COLS, max_records);
        head->num_records += line.num_records;
        head->flags |=
            (line.num_records ? TRF_PACKED8_HAS_RECORDS : 0) | (line_has_low(from, &line) ? TRF_PACKED8_HAS_LOW : 0);
    }
    if (status == TRF_OK)
        trf_packed8_head_seal(head);
    return status;
}

trf_status trf_pack8(const trf_pack8_input *from, const trf_packed8_head *head, void *packed, trf_error *err) {
    uint8_t *to = packed;
    const trf_packed_view view = trf_packed8_view_of(head, packed).packed;
    uint64_t records = 0;
    assert(head->rows == from->rows && head->cols == from->cols);
    memset(to, 0, head->tiles_offset); /* fills the gap between sections, too */
    memcpy(to, head, sizeof *head);
    for (uint64_t number = 0; number < head->num_lines; number++) {
        line_work line;
        const uint64_t first = trf_packed_tile_number(&view, (uint32_t)(number / view.lines_per_band),
                                                      (uint32_t)(number % view.lines_per_band) * TRF_PACKED_LINE_TILES);
        make_line(from, head, number, to + head->tiles_offset + first * TRF_PACKED8_TILE_BYTES, &line);
        memcpy(to + head->lines_offset + number * TRF_PACKED_LINE_BYTES, line.words, sizeof line.words);
        records += line.num_records;
    }
    if (records != head->num_records)
        return trf_fail(err, TRF_ERR_MISMATCH, 0, "a packed layer's head is not that of its weights");
    return TRF_OK;
}
