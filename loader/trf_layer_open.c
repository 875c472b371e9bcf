/* Mapping one blob of a checkpoint, and checking it chunk of tiles by chunk of tiles. */
#include "trf_layer_open.h"

#include "trf_checkpoint.h"
#include "trf_threads.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    CHUNK_BYTES = 64 << 20 /* that are checked between two calls of progress */
};

/* ---- mapping ---- */

/* A layer that has nothing yet but its memory: the blob mapped, or, if it does not begin at a multiple of 16 there,
 * copied. */
static trf_status map_blob(const trf_file *file, uint64_t file_bytes, uint64_t offset, uint64_t bytes, trf_layer *layer,
                           trf_error *err) {
    /* It may have been cut since the checkpoint was opened; beyond its end a mapping raises SIGBUS. */
    if (offset > file_bytes || bytes > file_bytes - offset)
        return trf_fail(err, TRF_ERR_TRUNCATED, file_bytes,
                        "the file ends at byte %" PRIu64 ", its blob of %" PRIu64 " bytes begins at byte %" PRIu64,
                        file_bytes, bytes, offset);
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
    layer->mapping_bytes = (size_t)(bytes + (offset - first));
    layer->mapping = mmap(NULL, layer->mapping_bytes, PROT_READ, MAP_PRIVATE, file->fd, (off_t)first);
    if (layer->mapping == MAP_FAILED) {
        layer->mapping = NULL;
        return trf_fail(err, TRF_ERR_IO, offset, "cannot map %" PRIu64 " bytes: %s", bytes, strerror(errno));
    }
    layer->blob = (const uint8_t *)layer->mapping + (offset - first);
    if (offset % TRF_ALIGNMENT == 0)
        return TRF_OK;
    layer->memory = aligned_alloc(TRF_TILE_ALIGNMENT, trf_tile_align(bytes));
    if (!layer->memory)
        return trf_fail_memory(err, bytes);
    memcpy(layer->memory, layer->blob, bytes);
    munmap(layer->mapping, layer->mapping_bytes);
    layer->mapping = NULL;
    layer->blob = layer->memory;
    return TRF_OK;
}

/* ---- shards ---- */

/* One dimension of a shard. *end: behind its last row or column. */
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

trf_status trf_find_shard(const trf_header *header, const trf_load_options *options, trf_tile_range *range,
                          trf_col_range *used, trf_shard_range *shard, trf_error *err) {
    uint32_t row_end = 0, col_end = 0;
    trf_status status = check_span("rows", options->first_row, options->num_rows, header->rows, &row_end, err);
    if (status == TRF_OK)
        status = check_span("columns", options->first_col, options->num_cols, header->cols, &col_end, err);
    if (status != TRF_OK)
        return status;
    *range = (trf_tile_range){options->first_row / TRF_TILE_SIZE, (row_end + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE,
                              options->first_col / TRF_TILE_SIZE, (col_end + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE};
    *used = (trf_col_range){options->first_col, col_end};
    *shard = (trf_shard_range){options->first_row % TRF_TILE_SIZE, row_end - options->first_row,
                               options->first_col % TRF_TILE_SIZE, col_end - options->first_col};
    return TRF_OK;
}

int trf_is_whole_layer(const trf_header *header, const trf_tile_range *range, const trf_col_range *used) {
    return range->row == 0 && range->row_end == header->num_tile_rows && range->col == 0 &&
           range->col_end == header->num_tile_cols && used->begin == 0 && used->end == header->cols;
}

/* ---- checking ---- */

/* Tiles of one row of tiles. */
typedef struct trf_tile_chunk {
    const trf_layer *layer;
    uint64_t first;
} trf_tile_chunk;

static trf_status check_one_tile(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_tile_chunk *chunk = context;
    (void)worker;
    return trf_blob_check_tile(&chunk->layer->view, chunk->first + index,
                               trf_layer_tile(chunk->layer, chunk->first + index), err);
}

/* Reports to the caller; bytes of the range's tiles. */
typedef struct trf_load_progress {
    const trf_load_options *options;
    const char *tensor;
    uint64_t done, total;
} trf_load_progress;

static trf_status report_progress(const trf_load_progress *progress, trf_error *err) {
    const trf_load_options *options = progress->options;
    if (options->progress &&
        options->progress(options->progress_context, progress->tensor, progress->done, progress->total))
        return trf_fail(err, TRF_ERR_CANCELLED, TRF_NO_OFFSET, "stopped on request");
    return TRF_OK;
}

static uint64_t count_tile_bytes(const trf_blob_view *view, uint64_t first, uint64_t end) {
    uint64_t bytes = 0;
    for (uint64_t t = first; t < end; t++)
        bytes += view->tiles[t].data_size;
    return bytes;
}

static trf_status check_tiles(const trf_layer *layer, trf_tile_range range, trf_load_progress *progress,
                              trf_error *err) {
    const trf_blob_view *view = &layer->view;
    const uint64_t across = view->header.num_tile_cols;
    for (uint64_t i = range.row; i < range.row_end; i++)
        progress->total += count_tile_bytes(view, i * across + range.col, i * across + range.col_end);
    trf_status status = report_progress(progress, err);
    for (uint64_t i = range.row; i < range.row_end; i++)
        for (uint64_t first = i * across + range.col, stop = i * across + range.col_end, end;
             first < stop && status == TRF_OK; first = end) {
            const uint64_t begin = view->tiles[first].data_offset;
            for (end = first + 1; end < stop && view->tiles[end].data_offset - begin < CHUNK_BYTES; end++)
                ;
            trf_tile_chunk chunk = {layer, first};
            status = trf_parallel_for(progress->options->threads, end - first, check_one_tile, &chunk, err);
            progress->done += count_tile_bytes(view, first, end);
            if (status == TRF_OK)
                status = report_progress(progress, err);
        }
    return status;
}

/* ---- opening ---- */

void trf_load_options_init(trf_load_options *options) {
    *options = (trf_load_options){.struct_bytes = sizeof *options};
}

/* Checks what is needed of a mapped blob, and puts a slice in its place if that is not all of it. Offsets of errors
 * count from the blob's first byte. */
static trf_status take_shard(trf_layer **layer, const char *tensor, const trf_load_options *options,
                             trf_shard_range *shard, trf_error *err) {
    trf_tile_range range;
    trf_col_range used;
    trf_layer *slice;
    trf_load_progress progress = {options, tensor, 0, 0};
    trf_status status = trf_find_shard(&(*layer)->view.header, options, &range, &used, shard, err);
    if (status == TRF_OK)
        status = check_tiles(*layer, range, &progress, err);
    if (status != TRF_OK)
        return status;
    trf_decode_table_init(&(*layer)->table, &(*layer)->view);
    if (trf_is_whole_layer(&(*layer)->view.header, &range, &used))
        return TRF_OK;
    status = trf_layer_slice(*layer, range, used, options->threads, &slice, err);
    if (status == TRF_OK) {
        trf_layer_free(*layer);
        *layer = slice;
    }
    return status;
}

trf_status trf_fail_in_blob(uint64_t blob_offset, trf_status status, trf_error *err) {
    if (!err || err->offset == TRF_NO_OFFSET)
        return status;
    err->offset += blob_offset;
    return trf_prefix_error(err, status, "byte %" PRIu64, err->offset);
}

/* Offsets of errors count from the file's first byte. */
static trf_status open_blob(const trf_file *file, uint64_t file_bytes, const trf_checkpoint_matrix *matrix,
                            const trf_blob_list *list, const char *tensor, const trf_load_options *options,
                            trf_layer **layer, trf_shard_range *shard, trf_error *err) {
    trf_blob_reader reader; /* which checks that it is the matrix that the tensor is said to hold */
    trf_status status = trf_file_tensor_open_blob(file, matrix->tensor, list, matrix->index, &reader, err);
    if (status != TRF_OK)
        return status;
    const uint64_t offset = reader.offset, bytes = reader.bytes;
    trf_blob_reader_close(&reader);
    status = map_blob(file, file_bytes, offset, bytes, *layer, err);
    if (status != TRF_OK)
        return status;
    status = trf_blob_open((*layer)->blob, bytes, bytes, &(*layer)->view, err);
    if (status == TRF_OK)
        status = take_shard(layer, tensor, options, shard, err);
    return status == TRF_OK ? TRF_OK : trf_fail_in_blob(offset, status, err);
}

trf_status trf_layer_open_tensor(const trf_checkpoint *checkpoint, const char *tensor, const trf_load_options *options,
                                 trf_layer **layer, trf_shard_range *shard, trf_error *err) {
    trf_load_options defaults;
    trf_load_options_init(&defaults);
    trf_checkpoint_matrix matrix;
    trf_file file;
    uint64_t file_bytes;
    trf_blob_list list;
    trf_status status = trf_checkpoint_find(checkpoint, tensor, &matrix, err);
    if (status != TRF_OK)
        return trf_sanitize_error(status, err);
    trf_layer *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail_memory(err, sizeof *made);
    status = trf_file_open(matrix.checkpoint_file->path, &file, &file_bytes, err);
    if (status != TRF_OK) {
        trf_layer_free(made);
        return trf_sanitize_error(status, err);
    }
    status = trf_matrix_blobs(&matrix, &file, &list, err);
    if (status == TRF_OK) {
        status = open_blob(&file, file_bytes, &matrix, &list, tensor, options ? options : &defaults, &made, shard, err);
        trf_blob_list_free(&list);
    }
    trf_file_close(&file);
    if (status != TRF_OK) {
        trf_layer_free(made);
        trf_prefix_error(err, status, "%s: tensor '%s'", matrix.checkpoint_file->path, tensor);
        return trf_sanitize_error(status, err);
    }
    *layer = made;
    return TRF_OK;
}
