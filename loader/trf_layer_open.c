/* Mapping one blob of a checkpoint, and checking it run of tiles by run of tiles. */
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
    RUN_BYTES = 64 << 20 /* that are checked between two calls of progress */
};

/* ---- mapping ---- */

/* A layer that has nothing yet but its memory: the blob mapped, or, if it does not begin at a multiple of 16 there, copied. */
static trf_status trf_map_blob(const trf_file *file, uint64_t offset, uint64_t bytes, trf_layer *layer,
                               trf_error *err) {
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
    layer->memory =
        aligned_alloc(TRF_TILE_ALIGNMENT, (bytes + TRF_TILE_ALIGNMENT - 1) / TRF_TILE_ALIGNMENT * TRF_TILE_ALIGNMENT);
    if (!layer->memory)
        return trf_fail_memory(err, bytes);
    memcpy(layer->memory, layer->blob, bytes);
    munmap(layer->mapping, layer->mapping_bytes);
    layer->mapping = NULL;
    layer->blob = layer->memory;
    return TRF_OK;
}

/* ---- checking ---- */

typedef struct trf_tile_run {
    const trf_layer *layer;
    uint64_t first;
} trf_tile_run;

static trf_status trf_check_one_tile(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_tile_run *run = context;
    (void)worker;
    return trf_blob_check_tile(&run->layer->view, run->first + index, trf_layer_tile(run->layer, run->first + index),
                               err);
}

static trf_status trf_check_tiles(const trf_layer *layer, const char *tensor, const trf_load_options *options,
                                  trf_error *err) {
    const trf_blob_view *view = &layer->view;
    const uint64_t tiles = view->num_tiles, total = view->header.blob_bytes;
    for (uint64_t first = 0, end; first < tiles; first = end) {
        const uint64_t begin = view->tiles[first].data_offset;
        for (end = first + 1; end < tiles && view->tiles[end].data_offset - begin < RUN_BYTES; end++)
            ;
        if (options->progress && options->progress(options->progress_context, tensor, begin, total))
            return trf_fail(err, TRF_ERR_CANCELLED, TRF_NO_OFFSET, "stopped on request");
        trf_tile_run run = {layer, first};
        trf_status status = trf_parallel_for(options->threads, end - first, trf_check_one_tile, &run, err);
        if (status != TRF_OK)
            return status;
    }
    if (options->progress && options->progress(options->progress_context, tensor, total, total))
        return trf_fail(err, TRF_ERR_CANCELLED, TRF_NO_OFFSET, "stopped on request");
    return TRF_OK;
}

/* ---- opening ---- */

void trf_load_options_init(trf_load_options *options) { *options = (trf_load_options){0}; }

/* Blob `index` of a tensor. Offsets of errors count from the file's first byte. */
static trf_status trf_open_blob(const trf_file *file, const trf_matrix *matrix, const trf_blob_list *list,
                                const char *tensor, const trf_load_options *options, trf_layer *layer, trf_error *err) {
    trf_blob_reader reader; /* which checks that it is the matrix that the tensor is said to hold */
    trf_status status = trf_shard_open_blob(file, matrix->tensor, list, matrix->index, &reader, err);
    if (status != TRF_OK)
        return status;
    const uint64_t offset = reader.offset, bytes = reader.bytes;
    trf_blob_reader_close(&reader);
    status = trf_map_blob(file, offset, bytes, layer, err);
    if (status != TRF_OK)
        return status;
    status = trf_blob_open(layer->blob, bytes, bytes, &layer->view, err);
    if (status == TRF_OK)
        status = trf_check_tiles(layer, tensor, options, err);
    if (status == TRF_OK)
        trf_decode_table_init(&layer->table, &layer->view);
    else if (err && err->offset != TRF_NO_OFFSET)
        err->offset += offset;
    return status;
}

trf_status trf_layer_open_tensor(const trf_checkpoint *checkpoint, const char *tensor, const trf_load_options *options,
                                 trf_layer **layer, trf_error *err) {
    trf_load_options defaults;
    trf_load_options_init(&defaults);
    trf_matrix matrix;
    trf_file file;
    uint64_t file_bytes;
    trf_blob_list list;
    trf_status status = trf_checkpoint_find(checkpoint, tensor, &matrix, err);
    if (status != TRF_OK)
        return trf_leave(status, err);
    trf_layer *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail_memory(err, sizeof *made);
    status = trf_file_open(matrix.shard->path, &file, &file_bytes, err);
    if (status != TRF_OK) {
        trf_layer_free(made);
        return trf_leave(status, err);
    }
    status = trf_matrix_blobs(&matrix, &file, &list, err);
    if (status == TRF_OK) {
        status = trf_open_blob(&file, &matrix, &list, tensor, options ? options : &defaults, made, err);
        trf_blob_list_free(&list);
    }
    trf_file_close(&file);
    if (status != TRF_OK) {
        trf_layer_free(made);
        trf_fail_in(err, status, "%s: tensor '%s'", matrix.shard->path, tensor);
        return trf_leave(status, err);
    }
    *layer = made;
    return TRF_OK;
}
