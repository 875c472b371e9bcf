#include "trf_layer_slice.h"

#include "trf_device_value.h"
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

/* Weights of a dimension that tiles [first, end) hold. */
static uint32_t tile_span(uint32_t first, uint32_t end, uint32_t total) {
    const uint64_t behind = (uint64_t)end * TRF_TILE_SIZE;
    return (uint32_t)(behind < total ? behind : total) - first * TRF_TILE_SIZE;
}

/* The slice's scale table, malloc'd, or NULL for none; its group size goes into *x. A group that the slice begins in
 * the middle of is cut: groups of a common divisor of its size and of where the slice begins have boundaries wherever
 * the old ones had. */
static trf_status slice_scales(const trf_blob_view *view, const trf_header *h, uint32_t row, uint32_t col,
                               trf_extension *x, void **scales, uint64_t *bytes, trf_error *err) {
    const uint32_t element_bytes = x->scale_dtype == TRF_SCALE_F16 ? 2 : 4;
    uint32_t down = h->rows, across = 1, row_step = 1, col_step = 0; /* CHANNEL */
    *scales = NULL;
    *bytes = 0;
    if (x->granularity == TRF_GRANULARITY_NONE)
        return TRF_OK;
    if (x->granularity == TRF_GRANULARITY_TENSOR) {
        down = 1;
    } else if (x->granularity != TRF_GRANULARITY_CHANNEL) {
        x->scale_group_size = common_divisor(x->scale_group_size, col);
        if (x->granularity == TRF_GRANULARITY_BLOCK) {
            x->scale_group_size = common_divisor(x->scale_group_size, row);
            row_step = x->scale_group_size;
            down = (h->rows + row_step - 1) / row_step;
        }
        col_step = x->scale_group_size;
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
                trf_scale_index(view, (uint64_t)row + (uint64_t)r * row_step, (uint64_t)col + (uint64_t)c * col_step);
            memcpy(made + ((uint64_t)r * across + c) * element_bytes,
                   (const uint8_t *)view->scales + from * element_bytes, element_bytes);
        }
    *scales = made;
    return TRF_OK;
}

/* ---- tiles ---- */

static trf_tile_meta *made_meta(const trf_slice *s, uint32_t i, uint32_t j) {
    return &s->metas[(uint64_t)i * s->header.num_tile_cols + j];
}

static uint64_t source_tile(const trf_slice *s, uint32_t i, uint32_t j) {
    return (uint64_t)(s->range.row + i) * s->view->header.num_tile_cols + s->range.col + j;
}

/* Data with zeros in it that stand for tile (i, j)'s, or NULL. */
static const uint8_t *cleared_tile(const trf_slice *s, uint32_t i, uint32_t j) {
    const uint32_t across = s->header.num_tile_cols;
    return j == 0 ? s->cleared[2 * i] : j + 1 == across ? s->cleared[2 * i + 1] : NULL;
}

/* Elements of a tile to what a stored tile of them holds. @return malloc'd, *size bytes, or NULL. */
static uint8_t *store_elements(const trf_blob_view *view, const trf_tile_shape *shape, const uint16_t *elements,
                               uint32_t *size) {
    const uint32_t element_bytes = view->header.stored_bytes;
    *size = (uint32_t)trf_tile_align((uint64_t)shape->rows * shape->cols * element_bytes);
    uint8_t *data = calloc(1, *size), *to = data;
    for (uint32_t r = 0; data && r < shape->rows; r++)
        for (uint32_t c = 0; c < shape->cols; c++, to += element_bytes)
            memcpy(to, &elements[r * TRF_TILE_SIZE + c], element_bytes);
    return data;
}

/* Clears infinities and NaNs in the columns of a tile that are not used. @return whether there were any. */
static int clear_elements(const trf_slice *s, const trf_tile_shape *shape, uint16_t *elements) {
    int any = 0;
    for (uint32_t r = 0; r < shape->rows; r++)
        for (uint32_t c = 0; c < shape->cols; c++) {
            const uint32_t col = shape->col + c;
            if ((col >= s->used.begin && col < s->used.end) ||
                isfinite(trf_element_to_f32(s->view->header.codec, elements[r * TRF_TILE_SIZE + c])))
                continue;
            elements[r * TRF_TILE_SIZE + c] = 0;
            any = 1;
        }
    return any;
}

/* What a thread needs to look into a tile. */
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

/* Of tile (i, j), if there are any to be cleared. */
static trf_status clear_tile(const trf_clearing *work, uint32_t i, uint32_t j, trf_clearing_scratch *scratch,
                             trf_error *err) {
    trf_slice *s = work->slice;
    const uint64_t tile = source_tile(s, i, j);
    const trf_tile_meta *meta = &s->view->tiles[tile];
    const trf_tile_shape shape = trf_tile_shape_of(&s->view->header, tile, meta->coding);
    const uint8_t *bytes;
    trf_status status = s->read(s->reader, tile, 1, scratch->bytes, &bytes, err);
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

/* A trf_parallel_fn; index: of a row of tiles. */
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

/* Tiles that the used columns cut, of floats, which alone have infinities. */
static trf_status clear_edges(trf_slice *s, int threads, trf_error *err) {
    const uint32_t first_col = s->range.col * TRF_TILE_SIZE, across = s->header.num_tile_cols;
    const int cuts_first = s->used.begin > first_col, cuts_last = s->used.end < first_col + s->header.cols;
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

/* Gives the tiles their places, and the head what it sums up of them. scales_bytes: of the slice's table. */
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
    s->sections.row_offsets = s->header.predictor_modes & TRF_PREDICT_ROW
                                  ? s->view->row_offsets + (size_t)s->range.row * TRF_TILE_SIZE
                                  : NULL;
    s->sections.col_offsets = s->header.predictor_modes & TRF_PREDICT_COL
                                  ? s->view->col_offsets + (size_t)s->range.col * TRF_TILE_SIZE
                                  : NULL;
    uint64_t at = trf_lay_out_sections(&s->extension, &s->header, &s->sections);
    for (uint64_t t = 0; t < tiles; t++) {
        s->metas[t].data_offset = at;
        at += s->metas[t].data_size;
    }
    s->header.blob_bytes = at;
}

/* ---- the plan ---- */

trf_status trf_slice_open(trf_slice *s, int threads, trf_error *err) {
    s->header = s->view->header;
    s->extension = s->view->extension;
    s->header.rows = tile_span(s->range.row, s->range.row_end, s->header.rows);
    s->header.cols = tile_span(s->range.col, s->range.col_end, s->header.cols);
    s->header.num_tile_rows = s->range.row_end - s->range.row;
    s->header.num_tile_cols = s->range.col_end - s->range.col;
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
        status = slice_scales(s->view, &s->header, s->range.row * TRF_TILE_SIZE, s->range.col * TRF_TILE_SIZE,
                              &s->extension, &s->scales, &scales_bytes, err);
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
    s->cleared = NULL;
    s->metas = NULL;
    s->scales = NULL;
}

void trf_slice_write_head(trf_slice *s, uint8_t *head) {
    trf_write_head(&s->header, &s->extension, s->view->frequency, s->metas, &s->sections, head);
}

trf_status trf_slice_read(void *reader, uint64_t first, uint64_t count, uint8_t *scratch, const uint8_t **tiles,
                          trf_error *err) {
    const trf_slice *s = reader;
    const uint32_t across = s->header.num_tile_cols;
    *tiles = scratch;
    for (uint64_t t = first, adjacent; t < first + count; t += adjacent) {
        const uint32_t i = (uint32_t)(t / across), j = (uint32_t)(t % across);
        uint8_t *const to = scratch + (s->metas[t].data_offset - s->metas[first].data_offset);
        const uint8_t *from = cleared_tile(s, i, j);
        trf_status status = TRF_OK;
        adjacent = 1;
        if (!from) {
            /* Tiles that lie side by side in both blobs are read at once. */
            while (t + adjacent < first + count && j + adjacent < across && !cleared_tile(s, i, j + (uint32_t)adjacent))
                adjacent++;
            status = s->read(s->reader, source_tile(s, i, j), adjacent, to, &from, err);
        }
        if (status != TRF_OK)
            return status;
        const trf_tile_meta *last = &s->metas[t + adjacent - 1];
        if (from != to)
            memcpy(to, from, last->data_offset + last->data_size - s->metas[t].data_offset);
    }
    return TRF_OK;
}

/* ---- a layer in memory ---- */

typedef struct trf_slice_copy {
    trf_slice *slice;
    uint8_t *blob;
} trf_slice_copy;

/* A trf_parallel_fn. */
static trf_status copy_tile(void *context, uint64_t tile, int worker, trf_error *err) {
    const trf_slice_copy *copy = context;
    trf_tile_meta *meta = &copy->slice->metas[tile];
    uint8_t *const to = copy->blob + meta->data_offset;
    const uint8_t *same;
    (void)worker;
    trf_status status = trf_slice_read(copy->slice, tile, 1, to, &same, err);
    if (status == TRF_OK)
        meta->checksum = trf_tile_checksum(to, meta->data_size, tile);
    return status;
}

static trf_status make_slice(trf_slice *s, int threads, trf_layer **slice, trf_error *err) {
    const uint64_t bytes = s->header.blob_bytes;
    const uint64_t tiles = (uint64_t)s->header.num_tile_rows * s->header.num_tile_cols;
    trf_layer *made = calloc(1, sizeof *made);
    trf_slice_copy copy = {s, aligned_alloc(TRF_TILE_ALIGNMENT, bytes)};
    trf_status status;
    if (!made || !copy.blob)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for %llu bytes of a layer",
                          (unsigned long long)bytes);
    else
        status = trf_parallel_for(threads, tiles, copy_tile, &copy, err);
    if (status == TRF_OK) {
        trf_slice_write_head(s, copy.blob);
        status = trf_blob_open(copy.blob, bytes, bytes, &made->view, err);
    }
    if (status != TRF_OK) {
        free(copy.blob);
        free(made);
        return status;
    }
    made->blob = made->memory = copy.blob;
    trf_decode_table_init(&made->table, &made->view);
    *slice = made;
    return TRF_OK;
}

trf_status trf_layer_slice(const trf_layer *layer, trf_tile_range range, trf_col_range used, int threads,
                           trf_layer **slice, trf_error *err) {
    trf_slice s = {
        .view = &layer->view, .range = range, .used = used, .read = trf_read_tiles_of_layer, .reader = (void *)layer};
    trf_status status = trf_slice_open(&s, threads, err);
    if (status != TRF_OK)
        return status;
    status = make_slice(&s, threads, slice, err);
    trf_slice_close(&s);
    return status;
}
