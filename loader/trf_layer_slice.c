/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_layer_slice.h"

#include "trf_decode.h"
#include "trf_decoded_bits.h"
#include "trf_head.h"
#include "trf_threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* @return how many rows or columns the tiles [first, end) of a dimension hold. */
static uint32_t tile_span(uint32_t first, uint32_t end, uint32_t total) {
    const uint64_t behind = (uint64_t)end * TRF_TILE_SIZE;
    return (uint32_t)(behind < total ? behind : total) - first * TRF_TILE_SIZE;
}

/* @return the number in the layer of the slice's row `row`. */
static uint64_t source_row(const trf_slice *s, uint32_t row) {
    return (uint64_t)s->selection->tile_rows[row / TRF_TILE_SIZE] * TRF_TILE_SIZE + row % TRF_TILE_SIZE;
}

/* ---- scales and offsets ---- */

/* @return the rows of a scale block in the slice. If the slice begins in the middle of a block, or skips rows of it,
 * blocks are cut. Their new size is a common divisor of the old size and of these places in the layer and in the slice,
 * so that blocks have boundaries wherever the old ones had them. */
static uint32_t find_block_rows(const trf_slice *s, uint32_t block_rows) {
    const uint32_t *rows = s->selection->tile_rows;
    for (uint32_t i = 0; i < s->selection->num_tile_rows; i++)
        if (i == 0 || rows[i] != rows[i - 1] + 1) {
            block_rows = common_divisor(block_rows, rows[i] * TRF_TILE_SIZE);
            block_rows = common_divisor(block_rows, i * TRF_TILE_SIZE);
        }
    return block_rows;
}

/* Makes the slice's scale table, s->scales; NULL if there is none. Its scale_group_size is set in the extension. Scale
 * groups are cut along columns as blocks are along rows. */
static trf_status slice_scales(trf_slice *s, uint64_t *bytes, trf_error *err) {
    const trf_header *h = &s->header;
    trf_extension *extension = &s->extension;
    const uint32_t element_bytes = extension->scale_dtype == TRF_SCALE_F16 ? 2 : 4,
                   col = s->selection->tile_col * TRF_TILE_SIZE;
    uint32_t down = h->rows, across = 1, row_step = 1, col_step = 0; /* CHANNEL */
    *bytes = 0;
    if (extension->granularity == TRF_GRANULARITY_NONE)
        return TRF_OK;
    if (extension->granularity == TRF_GRANULARITY_TENSOR) {
        down = 1;
    } else if (extension->granularity != TRF_GRANULARITY_CHANNEL) {
        extension->scale_group_size = common_divisor(extension->scale_group_size, col);
        if (extension->granularity == TRF_GRANULARITY_SCALE_BLOCK) {
            extension->scale_group_size = find_block_rows(s, extension->scale_group_size);
            row_step = extension->scale_group_size;
            down = (h->rows + row_step - 1) / row_step;
        }
        col_step = extension->scale_group_size;
        across = (h->cols + col_step - 1) / col_step;
    }
    *bytes = (uint64_t)down * across * element_bytes;
    uint8_t *const made = malloc(*bytes);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for %llu bytes of scales",
                        (unsigned long long)*bytes);
    for (uint32_t r = 0; r < down; r++)
        for (uint32_t c = 0; c < across; c++) {
            const uint64_t from =
                trf_scale_index(s->view, source_row(s, r * row_step), (uint64_t)col + (uint64_t)c * col_step);
            memcpy(made + ((uint64_t)r * across + c) * element_bytes,
                   (const uint8_t *)s->view->scales + from * element_bytes, element_bytes);
        }
    s->scales = made;
    return TRF_OK;
}

static trf_status slice_row_offsets(trf_slice *s, trf_error *err) {
    if (!s->view->row_offsets)
        return TRF_OK;
    s->row_offsets = malloc(s->header.rows);
    if (!s->row_offsets)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for %u row offsets", s->header.rows);
    for (uint32_t r = 0; r < s->header.rows; r++)
        s->row_offsets[r] = s->view->row_offsets[source_row(s, r)];
    return TRF_OK;
}

/* ---- tiles ---- */

static trf_tile_meta *made_meta(const trf_slice *s, uint32_t i, uint32_t j) {
    return &s->metas[(uint64_t)i * s->header.num_tile_cols + j];
}

static uint64_t source_tile(const trf_slice *s, uint32_t i, uint32_t j) {
    return (uint64_t)s->selection->tile_rows[i] * s->view->header.num_tile_cols + s->selection->tile_col + j;
}

/* @return the data with zeros in it that replaces that of tile (i, j), or NULL. */
static const uint8_t *cleared_tile(const trf_slice *s, uint32_t i, uint32_t j) {
    const uint32_t across = s->header.num_tile_cols;
    return j == 0 ? s->cleared[2 * i] : j + 1 == across ? s->cleared[2 * i + 1] : NULL;
}

/* Turns a tile's elements into the data of a stored tile. @return malloc'd, *size bytes, or NULL. */
static uint8_t *store_elements(const trf_blob_view *view, const trf_tile_shape *shape, const uint16_t *elements,
                               uint32_t *size) {
    const uint32_t element_bytes = view->header.stored_element_bytes;
    *size = (uint32_t)trf_tile_align((uint64_t)shape->rows * shape->cols * element_bytes);
    uint8_t *data = calloc(1, *size), *to = data;
    for (uint32_t r = 0; data && r < shape->rows; r++)
        for (uint32_t c = 0; c < shape->cols; c++, to += element_bytes)
            memcpy(to, &elements[r * TRF_TILE_SIZE + c], element_bytes);
    return data;
}

/* Clears infinities and NaNs in the columns of a tile that are not used. @return whether there were any. */
static int clear_elements(const trf_slice *s, const trf_tile_shape *shape, uint16_t *elements) {
    const uint32_t codec = trf_element_codec(s->view->header.codec, s->view->header.source_dtype);
    int any = 0;
    for (uint32_t r = 0; r < shape->rows; r++)
        for (uint32_t c = 0; c < shape->cols; c++) {
            const uint32_t col = shape->col + c;
            if ((col >= s->selection->used_col && col < s->selection->used_col_end) ||
                isfinite(trf_element_to_f32(codec, elements[r * TRF_TILE_SIZE + c])))
                continue;
            elements[r * TRF_TILE_SIZE + c] = 0;
            any = 1;
        }
    return any;
}

/* Memory that a thread needs to decode a tile. */
typedef struct trf_clearing_scratch {
    uint8_t bytes[TRF_MAX_TILE_BYTES] __attribute__((aligned(64)));
    uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE];
} trf_clearing_scratch;

typedef struct trf_clearing {
    trf_slice *slice;
    trf_decode_table table;
    trf_clearing_scratch *scratches; /* one for each worker */
    int first, last;                 /* which of a row's tiles are cut */
} trf_clearing;

/* Decodes tile (i, j), and makes a stored tile of it if some of its weights have to be cleared. */
static trf_status clear_tile(const trf_clearing *work, uint32_t i, uint32_t j, trf_clearing_scratch *scratch,
                             trf_error *err) {
    trf_slice *s = work->slice;
    const uint64_t tile = source_tile(s, i, j);
    const trf_tile_meta *meta = &s->view->tiles[tile];
    const trf_tile_shape shape = trf_tile_shape_of(&s->view->header, tile, meta->coding);
    const uint8_t *bytes;
    trf_status status = s->read(s->read_context, tile, 1, scratch->bytes, &bytes, err);
    if (status == TRF_OK)
        status = trf_decode_tile_best()(s->view, &work->table, tile, bytes, scratch->elements, TRF_TILE_SIZE, err);
    if (status != TRF_OK || !clear_elements(s, &shape, scratch->elements))
        return status;
    trf_tile_meta *made = made_meta(s, i, j);
    *made = (trf_tile_meta){.coding = TRF_TILE_STORED};
    uint8_t *data = store_elements(s->view, &shape, scratch->elements, &made->data_size);
    s->cleared[2 * i + (j != 0)] = data;
    return data ? TRF_OK : trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a tile");
}

/* A trf_parallel_fn; index: number of a row of tiles. */
static trf_status clear_row(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_clearing *work = context;
    const uint32_t last = work->slice->header.num_tile_cols - 1;
    trf_status status = TRF_OK;
    if (work->first)
        status = clear_tile(work, (uint32_t)index, 0, &work->scratches[worker], err);
    if (status == TRF_OK && work->last)
        status = clear_tile(work, (uint32_t)index, last, &work->scratches[worker], err);
    return status;
}

/* Clears the tiles that the used columns cut, if weights are floats, since only floats have infinities. */
static trf_status clear_edges(trf_slice *s, int threads, trf_error *err) {
    const uint32_t first_col = s->selection->tile_col * TRF_TILE_SIZE, across = s->header.num_tile_cols;
    const int cuts_first = s->selection->used_col > first_col,
              cuts_last = s->selection->used_col_end < first_col + s->header.cols;
    if (!trf_codec_is_float(s->header.codec) || (!cuts_first && !cuts_last))
        return TRF_OK;
    const int most = trf_thread_count(threads);
    const int workers = (uint32_t)most < s->header.num_tile_rows ? most : (int)s->header.num_tile_rows;
    trf_clearing *work = malloc(sizeof *work);
    trf_clearing_scratch *scratches = aligned_alloc(64, (size_t)workers * sizeof *scratches);
    trf_status status = TRF_OK;
    if (work && scratches) {
        *work = (trf_clearing){.slice = s, .scratches = scratches};
        work->first = cuts_first || across == 1;
        work->last = cuts_last && across > 1;
        trf_decode_table_init(&work->table, s->view);
        status = trf_parallel_for(workers, s->header.num_tile_rows, clear_row, work, err);
    } else {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a tile");
    }
    free(scratches);
    free(work);
    return status;
}

/* Sets the offsets of tiles, and the fields of the head that depend on all tiles. scales_bytes: of the slice's
 * table. */
static void place_tiles(trf_slice *s, uint64_t scales_bytes) {
    const uint64_t tiles = (uint64_t)s->header.num_tile_rows * s->header.num_tile_cols;
    s->header.predictor_modes = 0;
    s->extension.exception_count = 0;
    for (uint64_t t = 0; t < tiles; t++) {
        s->header.predictor_modes |= s->metas[t].predictor_mode;
        s->extension.exception_count += s->metas[t].exception_count;
        s->metas[t].checksum = 0;
    }
    s->sections.scales_bytes = scales_bytes;
    s->sections.row_offsets = s->header.predictor_modes & TRF_PREDICT_ROW ? s->row_offsets : NULL;
    s->sections.col_offsets = s->header.predictor_modes & TRF_PREDICT_COL
                                  ? s->view->col_offsets + (size_t)s->selection->tile_col * TRF_TILE_SIZE
                                  : NULL;
    uint64_t at = trf_lay_out_sections(&s->extension, &s->header, &s->sections);
    for (uint64_t t = 0; t < tiles; t++) {
        s->metas[t].data_offset = at;
        at += s->metas[t].data_size;
    }
    s->header.blob_bytes = at;
}

/* ---- the slice ---- */

/* Sets the fields of the slice's header that give its size. */
static void size_slice(trf_slice *s) {
    const trf_tile_selection *selection = s->selection;
    const uint32_t last = selection->tile_rows[selection->num_tile_rows - 1];
    s->header = s->view->header;
    s->extension = s->view->extension;
    s->header.rows = (selection->num_tile_rows - 1) * TRF_TILE_SIZE + tile_span(last, last + 1, s->header.rows);
    s->header.cols = tile_span(selection->tile_col, selection->tile_col_end, s->header.cols);
    s->header.num_tile_rows = selection->num_tile_rows;
    s->header.num_tile_cols = selection->tile_col_end - selection->tile_col;
}

trf_status trf_slice_open(trf_slice *s, int threads, trf_error *err) {
    size_slice(s);
    const uint64_t tiles = (uint64_t)s->header.num_tile_rows * s->header.num_tile_cols;
    s->metas = malloc(tiles * sizeof *s->metas);
    s->cleared = calloc(2 * (size_t)s->header.num_tile_rows, sizeof *s->cleared);
    trf_status status = TRF_OK;
    if (!s->metas || !s->cleared)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for %llu tiles' metadata",
                          (unsigned long long)tiles);
    for (uint32_t i = 0; i < s->header.num_tile_rows && status == TRF_OK; i++)
        memcpy(made_meta(s, i, 0), &s->view->tiles[source_tile(s, i, 0)], s->header.num_tile_cols * sizeof *s->metas);
    uint64_t scales_bytes = 0;
    if (status == TRF_OK)
        status = clear_edges(s, threads, err);
    if (status == TRF_OK)
        status = slice_scales(s, &scales_bytes, err);
    if (status == TRF_OK)
        status = slice_row_offsets(s, err);
    if (status != TRF_OK) {
        trf_slice_close(s);
        return status;
    }
    s->sections.scales = s->scales;
    place_tiles(s, scales_bytes);
    return TRF_OK;
}

void trf_slice_close(trf_slice *s) {
    for (uint32_t i = 0; s->cleared && i < 2 * s->header.num_tile_rows; i++)
        free(s->cleared[i]);
    free(s->cleared);
    free(s->metas);
    free(s->scales);
    free(s->row_offsets);
    s->cleared = NULL;
    s->metas = NULL;
    s->scales = NULL;
    s->row_offsets = NULL;
}

void trf_slice_write_head(trf_slice *s, uint8_t *head) {
    trf_write_head(&s->header, &s->extension, s->view->frequency, s->metas, &s->sections, head);
}

uint64_t trf_slice_layer_tile(const trf_slice *s, uint64_t tile) {
    return source_tile(s, (uint32_t)(tile / s->header.num_tile_cols), (uint32_t)(tile % s->header.num_tile_cols));
}

/* @return how many of `count` tiles from tile t on can be read at once: those that are adjacent in the layer, too, and
 * none of which has zeros; or 1. */
static uint32_t count_adjacent(const trf_slice *s, uint64_t t, uint64_t count) {
    const uint32_t across = s->header.num_tile_cols, i = (uint32_t)(t / across), j = (uint32_t)(t % across);
    uint32_t adjacent = 1;
    if (!cleared_tile(s, i, j))
        while (adjacent < count && j + adjacent < across && !cleared_tile(s, i, j + adjacent))
            adjacent++;
    return adjacent;
}

trf_status trf_slice_read(void *read_context, uint64_t first, uint64_t count, uint8_t *scratch, const uint8_t **tiles,
                          trf_error *err) {
    trf_slice *s = read_context;
    const uint32_t across = s->header.num_tile_cols;
    const uint64_t begin = s->metas[first].data_offset;
    *tiles = scratch;
    for (uint64_t t = first, end; t < first + count; t = end) {
        const uint32_t i = (uint32_t)(t / across), j = (uint32_t)(t % across);
        uint8_t *const to = scratch + (s->metas[t].data_offset - begin);
        const uint8_t *from = cleared_tile(s, i, j);
        end = t + count_adjacent(s, t, first + count - t);
        if (!from) {
            trf_status status = s->read(s->read_context, source_tile(s, i, j), end - t, to, &from, err);
            if (status != TRF_OK)
                return status;
        }
        if (from != to)
            memcpy(to, from, s->metas[end - 1].data_offset + s->metas[end - 1].data_size - s->metas[t].data_offset);
        for (uint64_t read = t; read < end; read++) { /* the checksum depends on the tile's number, so it is a new
                                                       * one */
            trf_tile_meta *meta = &s->metas[read];
            meta->checksum = trf_tile_checksum(scratch + (meta->data_offset - begin), meta->data_size, read);
        }
    }
    return TRF_OK;
}
