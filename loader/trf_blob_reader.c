/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_blob_reader.h"

#include "trf_decode.h"
#include "trf_threads.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRF_SPAN_TILES = 64,      /* tiles read and decoded at once: 8 MiB of 16-bit weights ... */
    TRF_SPAN_MAX_TILES = 256, /* ... or more, so that many threads have something to do */
    TRF_TILE_WEIGHTS = TRF_TILE_SIZE * TRF_TILE_SIZE,
    TRF_HEAD_START = TRF_EXTENSION_OFFSET + sizeof(trf_extension),
    TRF_CACHE_LINE = 64,
    TRF_LARGE_HEAD = 64 << 20,
    TRF_PAGE_BYTES = 4096,
    TRF_OFFSETS_AT_ONCE = 1 << 16
};

/* Tiles that are read and decoded together: whole strips, or a part of one if strips are wide. */
typedef struct trf_read_span {
    const trf_blob_view *view;
    const trf_decode_table *table;
    uint64_t first; /* the first tile */
    uint64_t tiles;
    uint64_t data_offset; /* of the first tile in the blob */
    trf_rectangle rectangle;
    uint8_t *data;      /* the tiles' bytes */
    uint8_t *values;    /* the rectangle's */
    uint16_t *elements; /* [workers][TRF_TILE_WEIGHTS] */
    size_t data_capacity, values_capacity;
    size_t value_bytes;
} trf_read_span;

/* @return aligned memory, released with free; NULL without memory. */
static void *alloc_aligned(uint64_t bytes) {
    uint64_t rounded = (bytes + TRF_CACHE_LINE) & ~(uint64_t)(TRF_CACHE_LINE - 1);
    return rounded > bytes && rounded <= SIZE_MAX ? aligned_alloc(TRF_CACHE_LINE, (size_t)rounded) : NULL;
}

/* Turns an offset in the blob into one in the file. */
static trf_status fail_in_file(const trf_blob_reader *reader, trf_status status, trf_error *err) {
    if (!err)
        return status;
    if (err->offset != TRF_NO_OFFSET)
        err->offset += reader->offset;
    return trf_prefix_error(err, status, "blob at byte %" PRIu64, reader->offset);
}

/* Looks for holes in a part of the head, which is at least a page long: a page of zeros, which no sound head has there.
 */
static trf_status find_hole(const trf_blob_reader *reader, uint64_t begin, uint64_t end, uint8_t *page,
                            trf_error *err) {
    static const uint8_t zeros[TRF_PAGE_BYTES];
    trf_status status = TRF_OK;
    for (uint64_t at = begin; at + TRF_PAGE_BYTES <= end && status == TRF_OK; at += TRF_PAGE_BYTES) {
        status = trf_file_read(reader->file, reader->offset + at, page, TRF_PAGE_BYTES, err);
        if (status == TRF_OK && memcmp(page, zeros, TRF_PAGE_BYTES) == 0)
            status = trf_fail(err, TRF_ERR_HEADER, at, "%d zeros in the head, where tiles and scales are described",
                              TRF_PAGE_BYTES);
    }
    return status;
}

/* Looks through a head that is large before it is held in memory: a sparse file can promise one that it does not have,
 * and then takes no room on the disk. start: what the first 320 bytes are. */
static trf_status check_holes(const trf_blob_reader *reader, const void *start, trf_error *err) {
    trf_header header;
    trf_extension extension;
    uint8_t page[TRF_PAGE_BYTES];
    if (reader->head_bytes <= TRF_LARGE_HEAD)
        return TRF_OK;
    memcpy(&header, start, sizeof header);
    memcpy(&extension, (const uint8_t *)start + TRF_EXTENSION_OFFSET, sizeof extension);
    const uint64_t tiles_end =
        TRF_TILES_OFFSET + (uint64_t)header.num_tile_rows * header.num_tile_cols * sizeof(trf_tile_meta);
    trf_status status = find_hole(reader, TRF_TILES_OFFSET, tiles_end, page, err);
    if (status == TRF_OK)
        status =
            find_hole(reader, extension.scales_offset, extension.scales_offset + extension.scales_bytes, page, err);
    return status;
}

trf_status trf_blob_reader_open(const trf_file *file, uint64_t offset, uint64_t bytes, trf_blob_reader *reader,
                                trf_error *err) {
    *reader = (trf_blob_reader){.file = file, .offset = offset, .bytes = bytes};
    uint64_t start[TRF_HEAD_START / sizeof(uint64_t)] = {0};
    uint64_t available = bytes < sizeof start ? bytes : sizeof start;
    trf_status status = trf_file_read(file, offset, start, available, err);
    if (status != TRF_OK)
        return status;
    status = trf_blob_head_bytes(start, available, bytes, &reader->head_bytes, err);
    if (status != TRF_OK)
        return fail_in_file(reader, status, err);
    if ((status = check_holes(reader, start, err)) != TRF_OK)
        return fail_in_file(reader, status, err);
    if ((status = trf_budget_take(file->budget, reader->head_bytes, "the head of a blob", err)) != TRF_OK)
        return fail_in_file(reader, status, err);
    if (!(reader->head = alloc_aligned(reader->head_bytes))) {
        trf_budget_give(file->budget, reader->head_bytes);
        return trf_fail_memory(err, reader->head_bytes);
    }
    status = trf_file_read(file, offset, reader->head, reader->head_bytes, err);
    if (status == TRF_OK) {
        status = trf_blob_open(reader->head, reader->head_bytes, bytes, &reader->view, err);
        if (status != TRF_OK)
            fail_in_file(reader, status, err);
    }
    if (status != TRF_OK)
        trf_blob_reader_close(reader);
    return status;
}

void trf_blob_reader_close(trf_blob_reader *reader) {
    if (reader->head && reader->file) /* else it is no file's */
        trf_budget_give(reader->file->budget, reader->head_bytes);
    free(reader->head);
    reader->head = NULL;
}

/* Lays out the span that begins with tile `first`. */
static void lay_out_span(trf_read_span *span, uint64_t first, uint64_t most_tiles) {
    const trf_header *header = &span->view->header;
    uint64_t tile_cols = header->num_tile_cols, tile_row = first / tile_cols, tile_col = first % tile_cols;
    uint64_t tiles = tile_cols - tile_col, strips = 1;
    if (tile_col == 0 && tile_cols <= most_tiles) {
        strips = most_tiles / tile_cols;
        if (strips > header->num_tile_rows - tile_row)
            strips = header->num_tile_rows - tile_row;
        tiles = strips * tile_cols;
    } else if (tiles > most_tiles) {
        tiles = most_tiles;
    }
    uint64_t rows_end = (tile_row + strips) * TRF_TILE_SIZE;
    uint64_t cols_end = (strips > 1 ? tile_cols : tile_col + tiles) * TRF_TILE_SIZE;
    span->first = first;
    span->tiles = tiles;
    span->rectangle.row = (uint32_t)(tile_row * TRF_TILE_SIZE);
    span->rectangle.col = (uint32_t)(tile_col * TRF_TILE_SIZE);
    span->rectangle.rows = (uint32_t)(rows_end < header->rows ? rows_end : header->rows) - span->rectangle.row;
    span->rectangle.cols = (uint32_t)(cols_end < header->cols ? cols_end : header->cols) - span->rectangle.col;
}

static trf_status grow_buffer(uint8_t **buffer, size_t *capacity, uint64_t bytes, trf_error *err) {
    if (bytes <= *capacity)
        return TRF_OK;
    free(*buffer);
    *capacity = 0;
    if (!(*buffer = alloc_aligned(bytes)))
        return trf_fail_memory(err, bytes);
    *capacity = (size_t)bytes;
    return TRF_OK;
}

/* Finds how large the buffers of the largest span are; spans of a strip have the same tiles as far as this goes. */
static void find_largest_span(trf_read_span *span, uint64_t most_tiles, uint64_t *data_bytes, uint64_t *values_bytes) {
    *data_bytes = *values_bytes = 0;
    for (uint64_t tile = 0; tile < (uint64_t)span->view->header.num_tile_rows * span->view->header.num_tile_cols;
         tile += span->tiles) {
        lay_out_span(span, tile, most_tiles);
        uint64_t bytes = 0;
        for (uint64_t t = tile; t < tile + span->tiles; t++)
            bytes += span->view->tiles[t].data_size;
        const uint64_t values = (uint64_t)span->rectangle.rows * span->rectangle.cols * span->value_bytes;
        *data_bytes = bytes > *data_bytes ? bytes : *data_bytes;
        *values_bytes = values > *values_bytes ? values : *values_bytes;
    }
}

/* Reads the span's tiles, which are contiguous and in order. */
static trf_status read_span(const trf_blob_reader *reader, trf_read_span *span, trf_error *err) {
    uint64_t bytes = 0;
    for (uint64_t t = span->first; t < span->first + span->tiles; t++) {
        uint32_t size = span->view->tiles[t].data_size;
        if (size > TRF_MAX_TILE_BYTES) {
            trf_fail(err, TRF_ERR_TILE, span->view->tiles[t].data_offset,
                     "tile %" PRIu64 ": %" PRIu32 " bytes, more than a tile can have", t, size);
            return fail_in_file(reader, TRF_ERR_TILE, err);
        }
        bytes += size;
    }
    span->data_offset = span->view->tiles[span->first].data_offset;
    trf_status status = grow_buffer(&span->data, &span->data_capacity, bytes, err);
    uint64_t values_bytes = (uint64_t)span->rectangle.rows * span->rectangle.cols * span->value_bytes;
    if (status == TRF_OK)
        status = grow_buffer(&span->values, &span->values_capacity, values_bytes, err);
    if (status == TRF_OK)
        status = trf_file_read(reader->file, reader->offset + span->data_offset, span->data, bytes, err);
    return status;
}

static trf_status decode_span_tile(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_read_span *span = context;
    uint64_t tile = span->first + index;
    const trf_tile_meta *meta = &span->view->tiles[tile];
    const uint8_t *bytes = span->data + (meta->data_offset - span->data_offset);
    uint16_t *elements = span->elements + (size_t)worker * TRF_TILE_WEIGHTS;
    trf_status status = trf_blob_check_tile(span->view, tile, bytes, err);
    if (status == TRF_OK)
        status = trf_decode_tile_best()(span->view, span->table, tile, bytes, elements, TRF_TILE_SIZE, err);
    if (status != TRF_OK)
        return status;
    trf_tile_shape shape = trf_tile_shape_of(&span->view->header, tile, meta->coding);
    size_t place = (size_t)(shape.row - span->rectangle.row) * span->rectangle.cols + (shape.col - span->rectangle.col);
    trf_elements_to_dtype(span->view, tile, elements, TRF_TILE_SIZE, span->values + place * span->value_bytes,
                          span->rectangle.cols);
    return TRF_OK;
}

trf_status trf_blob_reader_decode(const trf_blob_reader *reader, int threads, trf_rectangle_fn *fn, void *context,
                                  uint64_t *buffer_bytes, trf_error *err) {
    int workers = trf_thread_count(threads);
    uint64_t most_tiles = 2 * (uint64_t)workers;
    most_tiles = most_tiles < TRF_SPAN_TILES ? TRF_SPAN_TILES : most_tiles;
    most_tiles = most_tiles > TRF_SPAN_MAX_TILES ? TRF_SPAN_MAX_TILES : most_tiles;
    if ((uint64_t)workers > reader->view.num_tiles)
        workers = (int)reader->view.num_tiles;

    uint64_t elements_bytes = (uint64_t)workers * TRF_TILE_WEIGHTS * sizeof(uint16_t), data_bytes, values_bytes;
    trf_read_span span = {.view = &reader->view,
                          .value_bytes = trf_dtype_bytes((trf_dtype)reader->view.header.source_dtype)};
    find_largest_span(&span, most_tiles, &data_bytes, &values_bytes);
    const uint64_t taken = elements_bytes + data_bytes + values_bytes + sizeof(trf_decode_table) + 3 * TRF_CACHE_LINE;
    trf_status status = trf_budget_take(reader->file->budget, taken, "decoding a blob", err);
    if (status != TRF_OK)
        return fail_in_file(reader, status, err);
    trf_decode_table *table = malloc(sizeof *table);
    span.table = table;
    span.elements = alloc_aligned(elements_bytes);
    if (!table || !span.elements) {
        status = trf_fail_memory(err, elements_bytes + sizeof *table);
        goto done;
    }
    trf_decode_table_init(table, &reader->view);
    for (uint64_t tile = 0; tile < reader->view.num_tiles; tile += span.tiles) {
        lay_out_span(&span, tile, most_tiles);
        if ((status = read_span(reader, &span, err)) != TRF_OK)
            goto done;
        status = trf_parallel_for(workers, span.tiles, decode_span_tile, &span, err);
        if (status != TRF_OK) {
            fail_in_file(reader, status, err);
            goto done;
        }
        span.rectangle.values = span.values;
        if (fn && (status = fn(context, &span.rectangle, err)) != TRF_OK)
            goto done;
    }
done:
    if (buffer_bytes)
        *buffer_bytes = reader->head_bytes + elements_bytes + sizeof *table + span.data_capacity + span.values_capacity;
    free(table);
    free(span.elements);
    free(span.data);
    free(span.values);
    trf_budget_give(reader->file->budget, taken);
    return status;
}

/* Checks offsets of an expert index from number `first` on, of which `known` are there: the blobs must be contiguous
 * and aligned, and each must have room for a head. bytes: where the last one ends. */
static trf_status check_expert_index(const trf_blob_list *list, uint64_t first, uint64_t known, uint64_t bytes,
                                     uint64_t offset, trf_error *err) {
    if (first == 0 && list->offsets[0] != trf_expert_index_bytes(list->count))
        return trf_fail(err, TRF_ERR_HEADER, offset + 16, "expert index: the first blob is not right behind the index");
    for (uint64_t number = first; number < list->count && number + 1 < known + (known == list->count); number++) {
        uint64_t begin = list->offsets[number], end = number + 1 < list->count ? list->offsets[number + 1] : bytes;
        if (begin % TRF_ALIGNMENT || end <= begin || end > bytes)
            return trf_fail(err, TRF_ERR_HEADER, offset + 16 + 8 * number,
                            "expert index: blob %" PRIu64 " of %" PRIu64 " is said to span bytes %" PRIu64
                            " to %" PRIu64,
                            number, list->count, begin, end);
    }
    return TRF_OK;
}

/* Reads and checks the offsets of an expert index, whose count is set. The list grows with those that are sound, so
 * that it is never much larger than what the file really has: zeros in a sparse file are none. */
static trf_status read_expert_index(const trf_file *file, uint64_t offset, uint64_t bytes, trf_blob_list *list,
                                    trf_error *err) {
    trf_status status = TRF_OK;
    uint64_t known = 0, capacity = 0;
    while (known < list->count && status == TRF_OK) {
        const uint64_t part = list->count - known < TRF_OFFSETS_AT_ONCE ? list->count - known : TRF_OFFSETS_AT_ONCE;
        if (known + part + 1 > capacity) {
            capacity = 2 * capacity > list->count + 1 ? list->count + 1 : 2 * capacity;
            capacity = capacity < known + part + 1 ? known + part + 1 : capacity;
            uint64_t *grown = realloc(list->offsets, capacity * sizeof *grown);
            if (!grown)
                return trf_fail_memory(err, capacity * sizeof *grown);
            list->offsets = grown;
        }
        status = trf_file_read(file, offset + 16 + 8 * known, list->offsets + known, part * sizeof *list->offsets, err);
        if (status == TRF_OK)
            status = check_expert_index(list, known ? known - 1 : 0, known + part, bytes, offset, err);
        known += part;
    }
    if (status == TRF_OK)
        list->offsets[list->count] = bytes;
    return status;
}

trf_status trf_blob_list_read(const trf_file *file, uint64_t offset, uint64_t bytes, trf_blob_list *list,
                              trf_error *err) {
    uint32_t start[4] = {0};
    *list = (trf_blob_list){.count = 1};
    if (bytes < sizeof start)
        return trf_fail(err, TRF_ERR_TRUNCATED, offset, "%" PRIu64 " bytes at byte %" PRIu64 " are too few for a blob",
                        bytes, offset);
    trf_status status = trf_file_read(file, offset, start, sizeof start, err);
    if (status != TRF_OK)
        return status;
    if (start[0] != TRF_MAGIC && start[0] != TRF_EXPERT_INDEX_MAGIC)
        return trf_fail(err, TRF_ERR_MAGIC, offset, "no blob at byte %" PRIu64 ": magic 0x%08" PRIx32, offset,
                        start[0]);
    if (start[0] == TRF_EXPERT_INDEX_MAGIC) {
        list->is_expert_tensor = 1;
        list->count = start[1];
        if (start[1] == 0 || start[1] > INT32_MAX || start[2] || start[3])
            return trf_fail(err, TRF_ERR_HEADER, offset,
                            "expert index at byte %" PRIu64 ": %" PRIu32 " blobs, or reserved bytes that are not zero",
                            offset, start[1]);
        if (trf_expert_index_bytes(list->count) > bytes)
            return trf_fail(err, TRF_ERR_TRUNCATED, offset + bytes,
                            "expert index at byte %" PRIu64 " needs %" PRIu64 " bytes, and there are %" PRIu64, offset,
                            trf_expert_index_bytes(list->count), bytes);
    }
    const uint64_t list_bytes = (list->count + 1) * sizeof *list->offsets;
    if ((status = trf_budget_take(file->budget, list_bytes, "the list of a tensor's blobs", err)) != TRF_OK)
        return status;
    list->budget = file->budget; /* to which freeing the list gives it back */
    if (list->is_expert_tensor) {
        status = read_expert_index(file, offset, bytes, list, err);
        uint64_t end = 16 + 8 * list->count, padding = 0;
        if (status == TRF_OK)
            status = trf_file_read(file, offset + end, &padding, trf_expert_index_bytes(list->count) - end, err);
        if (status == TRF_OK && padding)
            status = trf_fail(err, TRF_ERR_HEADER, offset + end, "expert index: padding that is not zero");
    } else if ((list->offsets = calloc(2, sizeof *list->offsets)))
        list->offsets[1] = bytes;
    else
        status = trf_fail_memory(err, list_bytes);
    if (status != TRF_OK)
        trf_blob_list_free(list);
    return status;
}

void trf_blob_list_free(trf_blob_list *list) {
    trf_budget_give(list->budget, (list->count + 1) * sizeof *list->offsets);
    free(list->offsets);
    list->offsets = NULL;
    list->budget = NULL;
}

void trf_expert_index_write(const uint64_t *offsets, uint64_t count, void *index) {
    uint32_t start[4] = {TRF_EXPERT_INDEX_MAGIC, (uint32_t)count, 0, 0};
    memset(index, 0, trf_expert_index_bytes(count));
    memcpy(index, start, sizeof start);
    memcpy((uint8_t *)index + sizeof start, offsets, count * sizeof *offsets);
}
