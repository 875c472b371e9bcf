/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_head.h"

#include <string.h>

/* ---- the window ---- */

trf_packed_window trf_choose_packed_window(const uint64_t exponents[256], uint32_t zeroing) {
    trf_packed_window best = {0, zeroing != 0};
    uint64_t most = 0;
    int found = 0;
    for (uint32_t base = 1 - best.zeroing; base <= TRF_PACKED_MAX_BASE; base++) {
        uint64_t covered = 0;
        for (uint32_t index = best.zeroing; index < TRF_PACKED_WINDOW; index++)
            covered += exponents[base + index];
        if (!found || covered > most) {
            found = 1;
            most = covered;
            best.base = base;
        }
    }
    return best;
}

trf_packed_window_rows trf_packed_window_rows_of(uint32_t rows) {
    const uint32_t count = rows < TRF_PACKED_WINDOW_ROWS ? rows : TRF_PACKED_WINDOW_ROWS;
    return (trf_packed_window_rows){count, rows / count};
}

/* ---- sizes ---- */

static uint64_t align(uint64_t bytes) {
    return (bytes + (TRF_PACKED_ALIGNMENT - 1)) & ~(uint64_t)(TRF_PACKED_ALIGNMENT - 1);
}

trf_status trf_size_packed(uint64_t rows, uint64_t cols, int has_row_offsets, uint64_t num_stored,
                           trf_packed_head *head, trf_error *err) {
    if (rows == 0 || rows > TRF_PACKED_MAX_SIDE || cols == 0 || cols > TRF_PACKED_MAX_SIDE)
        return trf_fail(err, TRF_ERR_ARGUMENT, 0, "a layer of %llu x %llu weights cannot be packed",
                        (unsigned long long)rows, (unsigned long long)cols);
    const uint64_t bands = (rows + TRF_PACKED_TILE_ROWS - 1) / TRF_PACKED_TILE_ROWS;
    const uint64_t tiles_per_band = (cols + TRF_PACKED_TILE_COLS - 1) / TRF_PACKED_TILE_COLS;
    const uint64_t lines_per_band = (tiles_per_band + TRF_PACKED_LINE_TILES - 1) / TRF_PACKED_LINE_TILES;
    if (num_stored > UINT32_MAX || num_stored > bands * tiles_per_band)
        return trf_fail(err, TRF_ERR_ARGUMENT, 0, "a packed layer cannot have %llu stored tiles",
                        (unsigned long long)num_stored);
    head->rows = (uint32_t)rows;
    head->cols = (uint32_t)cols;
    head->padded_rows = (uint32_t)(bands * TRF_PACKED_TILE_ROWS);
    head->padded_cols = (uint32_t)(tiles_per_band * TRF_PACKED_TILE_COLS);
    head->num_stored = (uint32_t)num_stored;
    head->num_lines = bands * lines_per_band; /* below 2^47 */
    head->num_tiles = bands * tiles_per_band; /* at most 2^51: 2^63 bytes are more than all of them */
    head->row_offsets_offset = has_row_offsets ? sizeof *head : 0;
    head->lines_offset = sizeof *head + (has_row_offsets ? align(head->padded_rows) : 0);
    head->tiles_offset = align(head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES);
    head->stored_offset = head->tiles_offset + head->num_tiles * TRF_PACKED_TILE_BYTES;
    head->common.buffer_bytes = head->stored_offset + num_stored * TRF_PACKED_STORED_TILE_BYTES;
    return TRF_OK;
}
TRF_STATIC_ASSERT(TRF_PACKED_TILE_BYTES % TRF_PACKED_ALIGNMENT == 0 &&
                      TRF_PACKED_STORED_TILE_BYTES % TRF_PACKED_ALIGNMENT == 0,
                  "packed and stored tiles need no padding");

uint64_t trf_packed_most_stored(const trf_packed_head *head) {
    const uint64_t most = head->num_tiles * (TRF_PACKED_TILE_WEIGHTS / 8 * TRF_PACKED_MAX_BITS),
                   rest = head->num_lines * TRF_PACKED_LINE_BYTES + head->num_tiles * TRF_PACKED_TILE_BYTES;
    return (most - rest) / TRF_PACKED_STORED_TILE_BYTES; /* there are no more lines than tiles */
}

int trf_packed_pays(const trf_packed_head *head) { return head->num_stored <= trf_packed_most_stored(head); }

/* ---- the rest of a head ---- */

void trf_packed_head_set_window(trf_packed_head *head, trf_packed_window window) {
    head->codec = TRF_CODEC_BF16;
    head->base = (uint8_t)window.base;
    head->flags = window.zeroing ? TRF_PACKED_ZEROING : 0;
}

void trf_packed_head_seal(trf_packed_head *head) {
    trf_layout_head_finish(&head->common, TRF_LAYOUT_PACKED, TRF_PACKED_VERSION, head->common.buffer_bytes);
}

void trf_packed_head_set_coded(trf_packed_head *head, const trf_header *coded, const trf_layer_info *info) {
    head->coded_stored_tiles = info->stored_tiles;
    head->coded_exceptions = info->exceptions;
    head->coded_header = *coded;
    trf_packed_head_seal(head);
}

trf_status trf_packed_head_get_info(const trf_packed_head *head, trf_layer_info *info, trf_error *err) {
    const trf_header *coded = &head->coded_header;
    if (coded->magic != TRF_MAGIC || coded->version != TRF_FORMAT_VERSION || coded->codec != TRF_CODEC_BF16 ||
        (coded->source_dtype != TRF_DTYPE_BF16 && coded->source_dtype != TRF_DTYPE_F32))
        return trf_fail(err, TRF_ERR_HEADER, offsetof(trf_packed_head, coded_header),
                        "a packed layer that was loaded from no bf16 blob of this version");
    *info = trf_layout_coded_info(coded, head->rows, head->cols);
    info->stored_tiles = head->coded_stored_tiles;
    info->exceptions = head->coded_exceptions;
    return TRF_OK;
}

/* ---- checks ---- */

#define FIELD_OFFSET(field) offsetof(trf_packed_head, field)

/* Checks what a head says of itself against what follows from its shape. */
static trf_status check_sizes(const trf_packed_head *head, trf_error *err) {
    trf_packed_head expected = {0};
    const trf_status status =
        trf_size_packed(head->rows, head->cols, head->row_offsets_offset != 0, head->num_stored, &expected, NULL);
    if (status != TRF_OK) {
        const int bad_rows = head->rows == 0 || head->rows > TRF_PACKED_MAX_SIDE;
        const int bad_cols = head->cols == 0 || head->cols > TRF_PACKED_MAX_SIDE;
        return trf_fail(err, TRF_ERR_HEADER,
                        bad_rows   ? FIELD_OFFSET(rows)
                        : bad_cols ? FIELD_OFFSET(cols)
                                   : FIELD_OFFSET(num_stored),
                        "%u x %u weights with %u stored tiles are no packed layer", head->rows, head->cols,
                        head->num_stored);
    }
    const trf_layout_head_field fields[] = {
        {head->padded_rows, expected.padded_rows, FIELD_OFFSET(padded_rows), "padded_rows"},
        {head->padded_cols, expected.padded_cols, FIELD_OFFSET(padded_cols), "padded_cols"},
        {head->num_lines, expected.num_lines, FIELD_OFFSET(num_lines), "num_lines"},
        {head->num_tiles, expected.num_tiles, FIELD_OFFSET(num_tiles), "num_tiles"},
        {head->row_offsets_offset, expected.row_offsets_offset, FIELD_OFFSET(row_offsets_offset), "row_offsets_offset"},
        {head->lines_offset, expected.lines_offset, FIELD_OFFSET(lines_offset), "lines_offset"},
        {head->tiles_offset, expected.tiles_offset, FIELD_OFFSET(tiles_offset), "tiles_offset"},
        {head->stored_offset, expected.stored_offset, FIELD_OFFSET(stored_offset), "stored_offset"},
        {head->common.buffer_bytes, expected.common.buffer_bytes, FIELD_OFFSET(common.buffer_bytes), "buffer_bytes"},
    };
    const trf_status fit = trf_layout_head_check_fields(fields, sizeof fields / sizeof *fields, err);
    if (fit != TRF_OK)
        return fit;
    if (head->num_records > head->num_lines * TRF_PACKED_MAX_RECORDS)
        return trf_fail(err, TRF_ERR_HEADER, FIELD_OFFSET(num_records), "more records than exception lines can have");
    return TRF_OK;
}

trf_status trf_check_packed_head(const trf_packed_head *head, uint64_t bytes, trf_error *err) {
    trf_status status = trf_layout_head_check(&head->common, TRF_LAYOUT_PACKED, TRF_PACKED_VERSION, bytes, err);
    if (status != TRF_OK)
        return status;
    if (head->codec != TRF_CODEC_BF16)
        return trf_fail(err, TRF_ERR_HEADER, FIELD_OFFSET(codec), "codec %u is not packed", head->codec);
    if (head->flags & ~(uint32_t)TRF_PACKED_ALL_FLAGS)
        return trf_fail(err, TRF_ERR_HEADER, FIELD_OFFSET(flags), "unknown flags 0x%x", head->flags);
    if (head->base > TRF_PACKED_MAX_BASE || (head->base == 0 && !(head->flags & TRF_PACKED_ZEROING)))
        return trf_fail(err, TRF_ERR_HEADER, FIELD_OFFSET(base), "base %u is out of range", head->base);
    status = check_sizes(head, err);
    if (status == TRF_OK)
        status = trf_layout_head_check_reserved(head, FIELD_OFFSET(reserved0), FIELD_OFFSET(flags), err);
    if (status == TRF_OK)
        status = trf_layout_head_check_reserved(head, FIELD_OFFSET(reserved1), FIELD_OFFSET(num_lines), err);
    return status == TRF_OK ? trf_layout_head_check_reserved(head, FIELD_OFFSET(reserved2), FIELD_OFFSET(data), err)
                            : status;
}

trf_packed_view trf_packed_view_of(const trf_packed_head *head, const void *memory) {
    const uint8_t *bytes = memory;
    trf_packed_view view;
    memset(&view, 0, sizeof view);
    view.row_offsets = head->row_offsets_offset ? (const int8_t *)(bytes + head->row_offsets_offset) : NULL;
    view.lines = (const uint32_t *)(bytes + head->lines_offset);
    view.tiles = bytes + head->tiles_offset;
    view.stored = bytes + head->stored_offset;
    view.rows = head->rows;
    view.cols = head->cols;
    view.bands = head->padded_rows / TRF_PACKED_TILE_ROWS;
    view.tiles_per_band = head->padded_cols / TRF_PACKED_TILE_COLS;
    view.lines_per_band = (view.tiles_per_band + TRF_PACKED_LINE_TILES - 1) / TRF_PACKED_LINE_TILES;
    view.num_stored = head->num_stored;
    view.base = head->base;
    view.zeroing = (head->flags & TRF_PACKED_ZEROING) != 0;
    return view;
}
