#include "trf_layer_slice.h"

#include "trf_device_value.h"
#include "trf_head.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t trf_common_divisor(uint32_t a, uint32_t b) {
    while (b) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Weights of a dimension that tiles [first, end) hold. */
static uint32_t trf_span(uint32_t first, uint32_t end, uint32_t total) {
    const uint64_t behind = (uint64_t)end * TRF_TILE_SIZE;
    return (uint32_t)(behind < total ? behind : total) - first * TRF_TILE_SIZE;
}

/* The slice's scale table, malloc'd, or NULL for none; its group size goes into *x. A group that the slice begins in the middle of is cut: groups of a common divisor of
 * its size and of where the slice begins have boundaries wherever the old ones had. */
static trf_status trf_slice_scales(const trf_blob_view *view, const trf_header *h, uint32_t row, uint32_t col,
                                   trf_extension *x, void **scales, uint64_t *bytes, trf_error *err) {
    const uint32_t each = x->scale_dtype == TRF_SCALE_F16 ? 2 : 4;
    uint32_t down = h->rows, across = 1, row_step = 1, col_step = 0; /* CHANNEL */
    *scales = NULL;
    *bytes = 0;
    if (x->granularity == TRF_GRANULARITY_NONE)
        return TRF_OK;
    if (x->granularity == TRF_GRANULARITY_TENSOR) {
        down = 1;
    } else if (x->granularity != TRF_GRANULARITY_CHANNEL) {
        x->group_size = trf_common_divisor(x->group_size, col);
        if (x->granularity == TRF_GRANULARITY_BLOCK) {
            x->group_size = trf_common_divisor(x->group_size, row);
            row_step = x->group_size;
            down = (h->rows + row_step - 1) / row_step;
        }
        col_step = x->group_size;
        across = (h->cols + col_step - 1) / col_step;
    }
    *bytes = (uint64_t)down * across * each;
    uint8_t *const made = malloc(*bytes);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for %llu bytes of scales",
                        (unsigned long long)*bytes);
    for (uint32_t r = 0; r < down; r++)
        for (uint32_t c = 0; c < across; c++) {
            const uint64_t from =
                trf_scale_index(view, (uint64_t)row + (uint64_t)r * row_step, (uint64_t)col + (uint64_t)c * col_step);
            memcpy(made + ((uint64_t)r * across + c) * each, (const uint8_t *)view->scales + from * each, each);
        }
    *scales = made;
    return TRF_OK;
}

/* ---- tiles ---- */

/* A slice in the making. */
typedef struct trf_slicing {
    const trf_layer *layer;
    trf_tile_range range;
    trf_col_range used;
    trf_header header;
    trf_extension extension;
    trf_tile_meta *metas; /* [num_tiles_row][num_tiles_col] of the slice; data_offset is 0 until the tiles are placed */
    uint8_t **
        cleared; /* [2 * num_tiles_row]: data of tiles with zeros in them, malloc'd, of the first and the last column of tiles; NULL: as they are */
} trf_slicing;

static const trf_tile_meta *trf_source_meta(const trf_slicing *s, uint32_t i, uint32_t j, uint64_t *tile) {
    *tile = (uint64_t)(s->range.row + i) * s->layer->view.header.num_tiles_col + s->range.col + j;
    return &s->layer->view.tiles[*tile];
}

/* Which of a row's two entries of `cleared` a column of tiles has, or -1. */
static int trf_cleared_place(const trf_slicing *s, uint32_t j) {
    return j == 0 ? 0 : j + 1 == s->header.num_tiles_col ? 1 : -1;
}

/* Elements of a tile to what a stored tile of them holds. @return malloc'd, *size bytes, or NULL. */
static uint8_t *trf_store_elements(const trf_blob_view *view, const trf_tile_shape *shape, const uint16_t *elements,
                                   uint32_t *size) {
    const uint32_t each = view->header.stored_bytes;
    *size = (uint32_t)trf_tile_align((uint64_t)shape->rows * shape->cols * each);
    uint8_t *data = calloc(1, *size), *to = data;
    for (uint32_t r = 0; data && r < shape->rows; r++)
        for (uint32_t c = 0; c < shape->cols; c++, to += each)
            memcpy(to, &elements[r * TRF_TILE_SIZE + c], each);
    return data;
}

/* Clears infinities and NaNs in the columns of tile (i, j) that are not used, if there are any. elements: working memory of a tile. */
static trf_status trf_clear_tile(trf_slicing *s, uint32_t i, uint32_t j, uint16_t *elements, trf_error *err) {
    const trf_blob_view *view = &s->layer->view;
    uint64_t tile;
    const trf_tile_meta *meta = trf_source_meta(s, i, j, &tile);
    const trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, meta->kind);
    trf_status status = trf_decode_tile_best()(view, &s->layer->table, tile, trf_layer_tile(s->layer, tile), elements,
                                               TRF_TILE_SIZE, err);
    if (status != TRF_OK)
        return status;
    int any = 0;
    for (uint32_t r = 0; r < shape.rows; r++)
        for (uint32_t c = 0; c < shape.cols; c++) {
            const uint32_t col = shape.col + c;
            if ((col >= s->used.begin && col < s->used.end) ||
                isfinite(trf_element_to_f32(view->header.codec, elements[r * TRF_TILE_SIZE + c])))
                continue;
            elements[r * TRF_TILE_SIZE + c] = 0;
            any = 1;
        }
    if (!any)
        return TRF_OK;
    trf_tile_meta *made = &s->metas[(uint64_t)i * s->header.num_tiles_col + j];
    *made = (trf_tile_meta){.kind = TRF_TILE_STORED};
    uint8_t *data = trf_store_elements(view, &shape, elements, &made->data_size);
    s->cleared[2 * i + (uint32_t)trf_cleared_place(s, j)] = data;
    return data ? TRF_OK : trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a tile");
}

/* Tiles that the used columns cut, of floats, which alone have infinities. */
static trf_status trf_clear_edges(trf_slicing *s, trf_error *err) {
    const uint32_t first_col = s->range.col * TRF_TILE_SIZE, across = s->header.num_tiles_col;
    const int cuts_first = s->used.begin > first_col, cuts_last = s->used.end < first_col + s->header.cols;
    if (!trf_codec_is_float(s->header.codec) || (!cuts_first && !cuts_last))
        return TRF_OK;
    uint16_t *elements = malloc(TRF_TILE_SIZE * TRF_TILE_SIZE * sizeof *elements);
    trf_status status = elements ? TRF_OK : trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a tile");
    for (uint32_t i = 0; i < s->header.num_tiles_row && status == TRF_OK; i++) {
        if (cuts_first || across == 1)
            status = trf_clear_tile(s, i, 0, elements, err);
        if (status == TRF_OK && cuts_last && across > 1)
            status = trf_clear_tile(s, i, across - 1, elements, err);
    }
    free(elements);
    return status;
}

/* The metadata but for places and checksums, and what the head sums up of it. @return bytes of all tiles. */
static uint64_t trf_sum_tiles(trf_slicing *s) {
    uint64_t bytes = 0;
    s->header.predictor_modes = 0;
    s->extension.exception_count = 0;
    for (uint64_t t = 0; t < (uint64_t)s->header.num_tiles_row * s->header.num_tiles_col; t++) {
        bytes += s->metas[t].data_size;
        s->header.predictor_modes |= s->metas[t].predictor_mode;
        s->extension.exception_count += s->metas[t].exception_count;
    }
    return bytes;
}

/* Copies the tiles' data behind the head, and finishes their metadata. */
static void trf_place_tiles(trf_slicing *s, uint8_t *blob) {
    const uint32_t across = s->header.num_tiles_col;
    uint64_t at = s->extension.data_offset;
    for (uint32_t i = 0; i < s->header.num_tiles_row; i++)
        for (uint32_t j = 0; j < across; j++) {
            uint64_t tile, made = (uint64_t)i * across + j;
            trf_source_meta(s, i, j, &tile);
            trf_tile_meta *meta = &s->metas[made];
            const int place = trf_cleared_place(s, j);
            const uint8_t *cleared = place < 0 ? NULL : s->cleared[2 * i + (uint32_t)place];
            memcpy(blob + at, cleared ? cleared : trf_layer_tile(s->layer, tile), meta->data_size);
            meta->data_offset = at;
            meta->checksum = trf_tile_checksum(blob + at, meta->data_size, made);
            at += meta->data_size;
        }
}

/* ---- the blob ---- */

/* From metadata without places to a layer with a blob of its own. */
static trf_status trf_make_slice(trf_slicing *s, trf_layer **slice, trf_error *err) {
    const trf_blob_view *view = &s->layer->view;
    const uint32_t row = s->range.row * TRF_TILE_SIZE, col = s->range.col * TRF_TILE_SIZE;
    const uint64_t data_bytes = trf_sum_tiles(s);
    trf_head_tables tables = {
        .row_offsets = s->header.predictor_modes & TRF_PREDICT_ROW ? view->row_offsets + row : NULL,
        .col_offsets = s->header.predictor_modes & TRF_PREDICT_COL ? view->col_offsets + col : NULL,
    };
    void *scales;
    trf_status status = trf_slice_scales(view, &s->header, row, col, &s->extension, &scales, &tables.scales_bytes, err);
    if (status != TRF_OK)
        return status;
    tables.scales = scales;
    s->header.blob_bytes = trf_place_sections(&s->extension, &s->header, &tables) + data_bytes;
    trf_layer *made = calloc(1, sizeof *made);
    uint8_t *const blob = aligned_alloc(TRF_TILE_ALIGNMENT, s->header.blob_bytes);
    if (!made || !blob) {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for %llu bytes of a layer",
                          (unsigned long long)s->header.blob_bytes);
    } else {
        trf_place_tiles(s, blob);
        trf_write_head(&s->header, &s->extension, view->frequency, s->metas, &tables, blob);
        status = trf_blob_open(blob, s->header.blob_bytes, s->header.blob_bytes, &made->view, err);
    }
    free(scales);
    if (status != TRF_OK) {
        free(blob);
        free(made);
        return status;
    }
    made->blob = made->memory = blob;
    trf_decode_table_init(&made->table, &made->view);
    *slice = made;
    return TRF_OK;
}

trf_status trf_layer_slice(const trf_layer *layer, trf_tile_range range, trf_col_range used, trf_layer **slice,
                           trf_error *err) {
    trf_slicing s = {layer, range, used, layer->view.header, layer->view.extension, NULL, NULL};
    s.header.rows = trf_span(range.row, range.row_end, s.header.rows);
    s.header.cols = trf_span(range.col, range.col_end, s.header.cols);
    s.header.num_tiles_row = range.row_end - range.row;
    s.header.num_tiles_col = range.col_end - range.col;
    const uint64_t tiles = (uint64_t)s.header.num_tiles_row * s.header.num_tiles_col;
    s.metas = malloc(tiles * sizeof *s.metas);
    s.cleared = calloc(2 * (size_t)s.header.num_tiles_row, sizeof *s.cleared);
    trf_status status = TRF_OK;
    if (!s.metas || !s.cleared)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for %llu tiles' metadata",
                          (unsigned long long)tiles);
    for (uint64_t t = 0; t < tiles && status == TRF_OK; t++) {
        uint64_t tile;
        s.metas[t] =
            *trf_source_meta(&s, (uint32_t)(t / s.header.num_tiles_col), (uint32_t)(t % s.header.num_tiles_col), &tile);
    }
    if (status == TRF_OK)
        status = trf_clear_edges(&s, err);
    if (status == TRF_OK)
        status = trf_make_slice(&s, slice, err);
    for (uint32_t i = 0; s.cleared && i < 2 * s.header.num_tiles_row; i++)
        free(s.cleared[i]);
    free(s.cleared);
    free(s.metas);
    return status;
}
