/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_tile_selection.h"

#include <stdlib.h>

/* ---- a range of rows, and of columns ---- */

/* Checks one dimension of a shard. *end: the row or column after its last one. */
static trf_status check_span(const char *what, uint32_t first, uint32_t count, uint32_t total, uint32_t *end,
                             trf_error *err) {
    if (first >= total || (count && count > total - first))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%u %s from %u on of %u", count, what, first, total);
    *end = count ? first + count : total;
    if (first % TRF_FRAGMENT_SIZE || (*end != total && *end % TRF_FRAGMENT_SIZE))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s %u to %u of %u: a shard's are multiples of %d", what,
                        first, *end - 1, total, TRF_FRAGMENT_SIZE);
    return TRF_OK;
}

static uint32_t tiles_until(uint32_t end) { return end / TRF_TILE_SIZE + (end % TRF_TILE_SIZE != 0); }

static trf_status allocate_rows(trf_tile_selection *selection, trf_error *err) {
    selection->tile_rows = calloc(selection->num_tile_rows, sizeof *selection->tile_rows);
    if (!selection->tile_rows)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u rows of tiles",
                        selection->num_tile_rows);
    return TRF_OK;
}

/* Selects one range of rows. num_rows: 0 means all rows from `first` on. */
static trf_status select_row_span(const trf_header *header, uint32_t first, uint32_t num_rows,
                                  trf_tile_selection *selection, trf_shard_range *shard, trf_error *err) {
    uint32_t end = 0;
    trf_status status = check_span("rows", first, num_rows, header->rows, &end, err);
    if (status != TRF_OK)
        return status;
    selection->num_tile_rows = tiles_until(end) - first / TRF_TILE_SIZE;
    status = allocate_rows(selection, err);
    for (uint32_t i = 0; status == TRF_OK && i < selection->num_tile_rows; i++)
        selection->tile_rows[i] = first / TRF_TILE_SIZE + i;
    shard->row = first % TRF_TILE_SIZE;
    shard->rows = end - first;
    return status;
}

/* ---- ranges of rows ---- */

static trf_status check_row_range(const trf_header *header, const trf_row_range *range, uint32_t number,
                                  trf_error *err) {
    if (range->count == 0 || range->first >= header->rows || range->count > header->rows - range->first)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "row range %u: %u rows from %u on of %u", number,
                        range->count, range->first, header->rows);
    return TRF_OK;
}

/* Checks that a range can be one of several. It must be whole rows of tiles. If the layer's last row of tiles has fewer
 * rows than others, only the last range may have it. */
static trf_status check_one_of_several(const trf_header *header, const trf_row_range *range, uint32_t number,
                                       int is_last, trf_error *err) {
    const uint32_t end = range->first + range->count;
    if (range->first % TRF_TILE_SIZE || (end % TRF_TILE_SIZE && !(is_last && end == header->rows)))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "row range %u, rows %u to %u of %u: several ranges begin and end at multiples of %d (the "
                        "last one may end with the matrix); load each range as a layer of its own",
                        number, range->first, end - 1, header->rows, TRF_TILE_SIZE);
    return TRF_OK;
}

static trf_status check_row_ranges(const trf_header *header, const trf_load_options *options, uint64_t *rows,
                                   trf_error *err) {
    const uint32_t count = options->num_row_ranges;
    *rows = 0;
    if (!options->row_ranges || options->first_row || options->num_rows)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "%u row ranges come as a list, and without first_row and num_rows", count);
    for (uint32_t i = 0; i < count; i++) {
        trf_status status = check_row_range(header, &options->row_ranges[i], i, err);
        if (status == TRF_OK && count > 1)
            status = check_one_of_several(header, &options->row_ranges[i], i, i + 1 == count, err);
        if (status != TRF_OK)
            return status;
        *rows += options->row_ranges[i].count;
    }
    /* More rows than there are mean that some are there twice. The code that follows needs this bound. */
    if (*rows > header->rows)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "row ranges of %llu rows altogether, of %u",
                        (unsigned long long)*rows, header->rows);
    return TRF_OK;
}

/* Lists the ranges' rows of tiles. is_taken: [num_tile_rows], zeros. */
static trf_status list_row_ranges(const trf_load_options *options, uint8_t *is_taken, uint32_t *rows, trf_error *err) {
    uint32_t listed = 0;
    for (uint32_t i = 0; i < options->num_row_ranges; i++) {
        const trf_row_range *range = &options->row_ranges[i];
        for (uint32_t row = range->first / TRF_TILE_SIZE; row < tiles_until(range->first + range->count); row++) {
            if (is_taken[row])
                return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "row range %u: row %u is in a range before, too",
                                i, row * TRF_TILE_SIZE);
            is_taken[row] = 1;
            rows[listed++] = row;
        }
    }
    return TRF_OK;
}

static trf_status select_row_ranges(const trf_header *header, const trf_load_options *options,
                                    trf_tile_selection *selection, trf_shard_range *shard, trf_error *err) {
    uint64_t rows;
    trf_status status = check_row_ranges(header, options, &rows, err);
    if (status != TRF_OK)
        return status;
    if (options->num_row_ranges == 1)
        return select_row_span(header, options->row_ranges->first, options->row_ranges->count, selection, shard, err);
    shard->row = 0;
    shard->rows = (uint32_t)rows;
    selection->num_tile_rows = tiles_until(shard->rows);
    status = allocate_rows(selection, err);
    if (status != TRF_OK)
        return status;
    uint8_t *is_taken = calloc(header->num_tile_rows, sizeof *is_taken);
    if (is_taken)
        status = list_row_ranges(options, is_taken, selection->tile_rows, err);
    else
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %u bytes", header->num_tile_rows);
    free(is_taken);
    return status;
}

/* ---- both ---- */

static int is_whole(const trf_header *header, const trf_tile_selection *selection) {
    if (selection->num_tile_rows != header->num_tile_rows || selection->used_col ||
        selection->used_col_end != header->cols)
        return 0;
    for (uint32_t i = 0; i < selection->num_tile_rows; i++)
        if (selection->tile_rows[i] != i)
            return 0;
    return 1;
}

trf_status trf_select_tiles(const trf_header *header, const trf_load_options *options, trf_tile_selection *selection,
                            trf_shard_range *shard, trf_error *err) {
    trf_tile_selection made = {.used_col = options->first_col};
    trf_shard_range range = {0};
    trf_status status =
        check_span("columns", options->first_col, options->num_cols, header->cols, &made.used_col_end, err);
    if (status == TRF_OK)
        status = options->num_row_ranges
                     ? select_row_ranges(header, options, &made, &range, err)
                     : select_row_span(header, options->first_row, options->num_rows, &made, &range, err);
    if (status != TRF_OK) {
        trf_tile_selection_free(&made);
        return status;
    }
    made.tile_col = made.used_col / TRF_TILE_SIZE;
    made.tile_col_end = tiles_until(made.used_col_end);
    made.is_whole = is_whole(header, &made);
    range.col = made.used_col % TRF_TILE_SIZE;
    range.cols = made.used_col_end - made.used_col;
    *selection = made;
    *shard = range;
    return TRF_OK;
}

void trf_tile_selection_free(trf_tile_selection *selection) {
    free(selection->tile_rows);
    selection->tile_rows = NULL;
}
