/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed8_head.h"

#include "trf_number_formats.h"

#include <string.h>

static uint64_t round_up(uint64_t number, uint64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

trf_status trf_size_packed8(uint64_t rows, uint64_t cols, trf_packed8_head *head, trf_error *err) {
    if (rows == 0 || rows > TRF_PACKED_MAX_SIDE || cols == 0 || cols > TRF_PACKED_MAX_SIDE)
        return trf_fail(err, TRF_ERR_ARGUMENT, 0, "a layer of %llu x %llu weights cannot be packed",
                        (unsigned long long)rows, (unsigned long long)cols);
    const uint64_t padded_rows = round_up(rows, TRF_PACKED_TILE_ROWS),
                   padded_cols = round_up(cols, TRF_PACKED_TILE_COLS);
    const uint64_t bands = padded_rows / TRF_PACKED_TILE_ROWS, tiles_per_band = padded_cols / TRF_PACKED_TILE_COLS;
    head->codec = TRF_CODEC_E4M3;
    head->rows = (uint32_t)rows;
    head->cols = (uint32_t)cols;
    head->padded_rows = (uint32_t)padded_rows;
    head->padded_cols = (uint32_t)padded_cols;
    head->num_lines = bands * (round_up(tiles_per_band, TRF_PACKED_LINE_TILES) / TRF_PACKED_LINE_TILES);
    head->num_tiles = bands * tiles_per_band; /* at most 2^51 */
    head->lines_offset = sizeof *head;
    head->tiles_offset = round_up(head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES, TRF_PACKED_ALIGNMENT);
    head->common.buffer_bytes = head->tiles_offset + head->num_tiles * TRF_PACKED8_TILE_BYTES;
    return TRF_OK;
}

/* Whether `count` rows or columns from `first` on are in one block, or blocks end where constants do. */
static int fits_blocks(uint64_t first, uint64_t count, uint32_t block, uint32_t multiple) {
    return first % block + count <= block || (block % multiple == 0 && first % multiple == 0);
}

int trf_packed8_scales_fit(const trf_packed8_part *part, uint32_t tile_rows) {
    const uint32_t block = part->scale_group_size;
    switch (part->granularity) {
    case TRF_GRANULARITY_NONE:
    case TRF_GRANULARITY_TENSOR:
        return 1;
    case TRF_GRANULARITY_SCALE_BLOCK:
        return fits_blocks(part->row, part->rows, block, tile_rows) &&
               fits_blocks(part->col, part->cols, block, TRF_PACKED8_PAIR_COLS);
    default:
        return 0;
    }
}

int trf_packed8_has_pair(float scale) {
    const uint32_t bits = trf_f32_bits(scale), exponent = bits >> 23; /* a sign makes it too large */
    return bits == 0 || (exponent >= TRF_PACKED8_MIN_SCALE_EXPONENT && exponent <= TRF_PACKED8_MAX_SCALE_EXPONENT);
}

void trf_packed8_head_seal(trf_packed8_head *head) {
    trf_layout_head_finish(&head->common, TRF_LAYOUT_PACKED8, TRF_PACKED8_VERSION, head->common.buffer_bytes);
}

void trf_packed8_head_set_coded(trf_packed8_head *head, const trf_header *coded, const trf_layer_info *info) {
    head->coded_stored_tiles = info->stored_tiles;
    head->coded_exceptions = info->exceptions;
    head->coded_header = *coded;
    trf_packed8_head_seal(head);
}

trf_status trf_packed8_head_get_info(const trf_packed8_head *head, trf_layer_info *info, trf_error *err) {
    const trf_header *coded = &head->coded_header;
    const int is_bf16 = coded->codec == TRF_CODEC_BF16 && coded->source_dtype == TRF_DTYPE_BF16,
              is_e4m3 = coded->codec == TRF_CODEC_E4M3 && coded->source_dtype == TRF_DTYPE_F8_E4M3;
    if (coded->magic != TRF_MAGIC || coded->version != TRF_FORMAT_VERSION || (!is_bf16 && !is_e4m3))
        return trf_fail(err, TRF_ERR_HEADER, offsetof(trf_packed8_head, coded_header),
                        "a packed FP8 layer of weights that are neither BF16 nor E4M3, or of another version");
    *info = trf_layout_coded_info(coded, head->rows, head->cols);
    info->stored_tiles = head->coded_stored_tiles;
    info->exceptions = head->coded_exceptions;
    return TRF_OK;
}

/* ---- checks ---- */

#define FIELD_OFFSET(field) offsetof(trf_packed8_head, field)

/* Checks what a head says of itself against what follows from its shape. */
static trf_status check_sizes(const trf_packed8_head *head, trf_error *err) {
    trf_packed8_head expected = {0};
    if (trf_size_packed8(head->rows, head->cols, &expected, NULL) != TRF_OK)
        return trf_fail(err, TRF_ERR_HEADER,
                        head->rows == 0 || head->rows > TRF_PACKED_MAX_SIDE ? FIELD_OFFSET(rows) : FIELD_OFFSET(cols),
                        "%u x %u weights are no packed layer", head->rows, head->cols);
    const trf_layout_head_field fields[] = {
        {head->padded_rows, expected.padded_rows, FIELD_OFFSET(padded_rows), "padded_rows"},
        {head->padded_cols, expected.padded_cols, FIELD_OFFSET(padded_cols), "padded_cols"},
        {head->num_lines, expected.num_lines, FIELD_OFFSET(num_lines), "num_lines"},
        {head->num_tiles, expected.num_tiles, FIELD_OFFSET(num_tiles), "num_tiles"},
        {head->lines_offset, expected.lines_offset, FIELD_OFFSET(lines_offset), "lines_offset"},
        {head->tiles_offset, expected.tiles_offset, FIELD_OFFSET(tiles_offset), "tiles_offset"},
        {head->common.buffer_bytes, expected.common.buffer_bytes, FIELD_OFFSET(common.buffer_bytes), "buffer_bytes"},
    };
    return trf_layout_head_check_fields(fields, sizeof fields / sizeof *fields, err);
}

trf_status trf_check_packed8_head(const trf_packed8_head *head, uint64_t bytes, trf_error *err) {
    trf_status status = trf_layout_head_check(&head->common, TRF_LAYOUT_PACKED8, TRF_PACKED8_VERSION, bytes, err);
    if (status != TRF_OK)
        return status;
    if (head->codec != TRF_CODEC_E4M3)
        return trf_fail(err, TRF_ERR_HEADER, FIELD_OFFSET(codec), "codec %u is not packed so", head->codec);
    if (head->flags & ~(uint32_t)(TRF_PACKED8_ALL_FLAGS | TRF_PACKED8_IN_TURNS))
        return trf_fail(err, TRF_ERR_HEADER, FIELD_OFFSET(flags), "unknown flags 0x%x", head->flags);
    status = check_sizes(head, err);
    if (status != TRF_OK)
        return status;
    if (head->num_records > head->num_lines * trf_packed8_max_records(head->flags))
        return trf_fail(err, TRF_ERR_HEADER, FIELD_OFFSET(num_records), "more records than lines can have");
    if ((head->num_records != 0) != ((head->flags & TRF_PACKED8_HAS_RECORDS) != 0))
        return trf_fail(err, TRF_ERR_HEADER, FIELD_OFFSET(flags), "flags 0x%x of a layer with %llu records",
                        head->flags, (unsigned long long)head->num_records);
    status = trf_layout_head_check_reserved(head, FIELD_OFFSET(reserved0), FIELD_OFFSET(flags), err);
    return status == TRF_OK ? trf_layout_head_check_reserved(head, FIELD_OFFSET(reserved1), FIELD_OFFSET(data), err)
                            : status;
}

trf_packed8_view trf_packed8_view_of(const trf_packed8_head *head, const void *memory) {
    const uint8_t *bytes = memory;
    trf_packed8_view view;
    memset(&view, 0, sizeof view);
    view.packed.lines = (const uint32_t *)(bytes + head->lines_offset);
    view.packed.tiles = bytes + head->tiles_offset;
    view.packed.rows = head->rows;
    view.packed.cols = head->cols;
    view.packed.bands = head->padded_rows / TRF_PACKED_TILE_ROWS;
    view.packed.tiles_per_band = head->padded_cols / TRF_PACKED_TILE_COLS;
    view.packed.lines_per_band = (view.packed.tiles_per_band + TRF_PACKED_LINE_TILES - 1) / TRF_PACKED_LINE_TILES;
    view.packed.base = TRF_PACKED_EXPONENT;
    view.flags = head->flags;
    return view;
}
