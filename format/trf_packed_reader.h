/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a packed layer where it lies, one lane's column step at a time, with exceptions and stored tiles, in C and
 * CUDA. The reader is plain and general; products have loops of their own around the same functions.
 *
 * The view is trusted, but what it points at is not: nothing outside its lines, tiles, stored tiles and row offsets is
 * read, whatever is in them. */
#ifndef TRF_PACKED_READER_H
#define TRF_PACKED_READER_H

#include "trf_packed_form.h"

TRF_HD uint32_t trf_packed_count_bits(uint32_t mask) {
#ifdef __CUDA_ARCH__
    return (uint32_t)__popc(mask);
#else
    return (uint32_t)__builtin_popcount(mask);
#endif
}

/* The exception line of a tile, [32]. */
TRF_HD const uint32_t *trf_packed_line_of(const trf_packed_view *view, uint32_t band, uint32_t tile) {
    return view->lines + TRF_PACKED_LINE_WORDS * trf_packed_line_number(view, band, tile);
}

/* Whether a place in a tile is that of a padding weight. tile: of the band. */
TRF_HD int trf_packed_is_padding(const trf_packed_view *view, uint32_t band, uint32_t tile, uint32_t row_in_tile,
                                 uint32_t col_in_tile) {
    return row_in_tile >= view->rows - band * TRF_PACKED_TILE_ROWS ||
           col_in_tile >= view->cols - tile * TRF_PACKED_TILE_COLS;
}

/* Whether a record is of a padding weight. first_tile: the line's, in the band. */
TRF_HD int trf_packed_is_padding_record(const trf_packed_view *view, uint32_t band, uint32_t first_tile,
                                        uint32_t record) {
    const uint32_t lane = trf_packed_record_lane(record), reg = trf_packed_record_reg(record);
    return trf_packed_is_padding(
        view, band, first_tile + trf_packed_record_tile(record),
        trf_packed_row_in_tile(trf_packed_record_slab(record), lane, reg),
        trf_packed_col_in_tile(trf_packed_record_step(record), lane, reg, trf_packed_record_half(record)));
}

/* The number of a line's records, which is bounded whatever the line says. */
TRF_HD uint32_t trf_packed_line_records(const uint32_t *line) {
    const uint32_t count = line[TRF_PACKED_COUNT_WORD];
    return count < TRF_PACKED_MAX_RECORDS ? count : (uint32_t)TRF_PACKED_MAX_RECORDS;
}

/* Whether a tile is a stored one. tile: of the band, or of the line. */
TRF_HD int trf_packed_is_stored(const uint32_t *line, uint32_t tile) {
    return (int)(line[TRF_PACKED_STORED_WORD] >> tile % TRF_PACKED_LINE_TILES & 1);
}

/* The number of a stored tile among all stored tiles. */
TRF_HD uint64_t trf_packed_stored_number(const uint32_t *line, uint32_t tile) {
    const uint32_t before = line[TRF_PACKED_STORED_WORD] & ((1u << tile % TRF_PACKED_LINE_TILES) - 1);
    return (uint64_t)line[TRF_PACKED_FIRST_STORED_WORD] + trf_packed_count_bits(before);
}

/* Reads the four registers of a lane's column step to a, in the window's scale, exceptions included. A stored tile that
 * the layer does not have reads as zeros. */
TRF_HD void trf_read_packed_step(const trf_packed_view *view, uint32_t band, uint32_t tile, uint32_t slab,
                                 uint32_t step, uint32_t lane, uint32_t a[4]) {
    const uint32_t *line = trf_packed_line_of(view, band, tile);
    if (trf_packed_is_stored(line, tile)) {
        const uint64_t number = trf_packed_stored_number(line, tile);
        const int there = number < view->num_stored;
        const uint64_t at =
            (there ? number : 0) * TRF_PACKED_STORED_TILE_BYTES + trf_packed_stored_offset(slab, lane, step);
        for (int i = 0; i < 4; i++)
            a[i] = there ? ((const uint32_t *)(view->stored + at))[i] : 0;
        return;
    }
    const uint8_t *from = view->tiles + trf_packed_tile_number(view, band, tile) * TRF_PACKED_TILE_BYTES;
    const uint32_t *raw = (const uint32_t *)(from + trf_packed_raw_offset(slab, lane, step, 0));
    const uint32_t index = *(const uint32_t *)(from + trf_packed_index_offset(slab, lane, step));
    if (view->zeroing)
        trf_form_packed_zeroing(a, raw[0], raw[1], index);
    else
        trf_form_packed(a, raw[0], raw[1], index);
    const uint32_t place = trf_packed_record_step_place(trf_packed_record(tile, slab, step, lane, 0, 0, 0));
    const uint32_t records = trf_packed_line_records(line);
    for (uint32_t i = 0; i < records; i++)
        if (trf_packed_record_step_place(line[i]) == place)
            trf_patch_packed(a, line[i]);
}

/* Two to this power takes a weight of the row from the window's scale to its own; it does the same for the row's
 * finished sum. */
TRF_HD int32_t trf_packed_row_exponent(const trf_packed_view *view, uint32_t row) {
    return view->base - TRF_PACKED_EXPONENT + (view->row_offsets ? view->row_offsets[row] : 0);
}

/* One weight, as it was before it was packed: an element of the bf16 codec. */
TRF_HD uint32_t trf_read_packed_weight(const trf_packed_view *view, uint32_t row, uint32_t col) {
    const trf_packed_place place = trf_packed_place_of(row, col);
    uint32_t a[4];
    int exact = 1;
    trf_read_packed_step(view, place.band, place.tile, place.slab, place.step, place.lane, a);
    return trf_scale_bf16(a[place.reg] >> 16 * place.half & 0xFFFF, trf_packed_row_exponent(view, row), &exact);
}

#endif
