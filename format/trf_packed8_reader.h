/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a packed FP8 layer where it lies, one lane's column step at a time, in C and CUDA. It is plain and general;
 * products have loops of their own around the same functions.
 *
 * The view is trusted, but what it points at is not: nothing outside its lines and tiles is read. */
#ifndef TRF_PACKED8_READER_H
#define TRF_PACKED8_READER_H

#include "trf_packed8_form.h"
#include "trf_packed_reader.h"

TRF_HD const uint8_t *trf_packed8_tile(const trf_packed8_view *view, uint32_t band, uint32_t tile) {
    return view->packed.tiles + trf_packed_tile_number(&view->packed, band, tile) * TRF_PACKED8_TILE_BYTES;
}

/* The number of a line's records, which is bounded whatever the line says. flags: the layer's. */
TRF_HD uint32_t trf_packed8_line_records(const uint32_t *line, uint32_t flags) {
    const uint32_t max_records = trf_packed8_max_records(flags);
    uint32_t count = 0;
    if (line[TRF_PACKED8_MASK_WORD] != 0)
        while (trf_packed8_is_record(line[count], count, max_records))
            count++;
    return count;
}

/* Reads the four registers of a lane's column step to a, records included. It goes by the line, and of the layer's
 * flags only by TRF_PACKED8_IN_TURNS. */
TRF_HD void trf_read_packed8_step(const trf_packed8_view *view, uint32_t band, uint32_t tile, uint32_t slab,
                                  uint32_t step, uint32_t lane, uint32_t a[4]) {
    const uint32_t *line = trf_packed_line_of(&view->packed, band, tile);
    const uint32_t *words =
        (const uint32_t *)(trf_packed8_tile(view, band, tile) + trf_packed8_codes_offset(slab, lane, step));
    const uint32_t first = line[trf_packed8_pair_word(tile)],
                   second = view->flags & TRF_PACKED8_IN_TURNS ? line[trf_packed8_second_pair_word(tile)] : first,
                   high[] = {trf_packed8_high(first), trf_packed8_high(second)},
                   low[] = {trf_packed8_low(first), trf_packed8_low(second)};
    trf_form_packed8_in_turns(a, words[0], words[1], high, low);
    if (!trf_packed8_has_records(line[TRF_PACKED8_MASK_WORD], tile))
        return;
    const uint32_t place = trf_packed_record_step_place(trf_packed_record(tile, slab, step, lane, 0, 0, 0));
    const uint32_t records = trf_packed8_line_records(line, view->flags);
    for (uint32_t i = 0; i < records; i++)
        if (trf_packed_record_step_place(line[i]) == place)
            trf_patch_packed(a, line[i]);
}

#endif
