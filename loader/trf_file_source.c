#include "trf_file_source.h"

#include "trf_checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>

static trf_status name_source(const trf_file_source *source, trf_status status, trf_error *err) {
    trf_prefix_error(err, status, "%s: tensor '%s'", source->file.path, source->source.tensor);
    return trf_sanitize_error(status, err);
}

/* A trf_read_tiles_fn for the blob's own tiles. */
static trf_status read_tiles_of_file(void *reader, uint64_t first, uint64_t count, uint8_t *scratch,
                                     const uint8_t **tiles, trf_error *err) {
    const trf_file_source *source = reader;
    const trf_blob_view *view = &source->reader.view;
    const trf_tile_meta *metas = view->tiles;
    const uint64_t begin = metas[first].data_offset, last = first + count - 1;
    trf_status status = trf_file_read(&source->file, source->reader.offset + begin, scratch,
                                      metas[last].data_offset + metas[last].data_size - begin, err);
    if (status != TRF_OK && err && err->offset != TRF_NO_OFFSET)
        err->offset -= source->reader.offset;
    for (uint64_t t = first; t <= last && status == TRF_OK; t++)
        status = trf_blob_check_tile(view, t, scratch + (metas[t].data_offset - begin), err);
    *tiles = scratch;
    return status;
}

/* That every tile fits where tiles are read to; the metadata's own checks bound them by the blob only. */
static trf_status check_sizes(const trf_blob_view *view, trf_error *err) {
    for (uint64_t t = 0; t < view->num_tiles; t++)
        if (view->tiles[t].data_size > TRF_MAX_TILE_BYTES)
            return trf_fail(err, TRF_ERR_TILE, view->tiles[t].data_offset,
                            "tile %" PRIu64 ": %" PRIu32 " bytes, more than a tile can have", t,
                            view->tiles[t].data_size);
    return TRF_OK;
}

/* Makes the source that of a shard, unless it is all of the tensor. */
static trf_status take_shard(trf_file_source *source, const trf_load_options *options, trf_error *err) {
    const trf_header *header = &source->reader.view.header;
    trf_slice *slice = &source->slice;
    trf_status status = trf_find_shard(header, options, &slice->range, &slice->used, &source->source.shard, err);
    if (status != TRF_OK || trf_is_whole_layer(header, &slice->range, &slice->used))
        return status;
    slice->view = &source->reader.view;
    slice->read = read_tiles_of_file;
    slice->reader = source;
    status = trf_slice_open(slice, options->threads, err);
    if (status != TRF_OK)
        return status;
    const uint64_t bytes = slice->extension.data_offset;
    source->slice_head = aligned_alloc(TRF_TILE_ALIGNMENT, bytes);
    if (!source->slice_head) {
        trf_slice_close(slice);
        return trf_fail_memory(err, bytes);
    }
    trf_slice_write_head(slice, source->slice_head);
    status = trf_blob_open(source->slice_head, bytes, slice->header.blob_bytes, &source->slice_view, err);
    if (status != TRF_OK) {
        trf_slice_close(slice);
        free(source->slice_head);
        return status;
    }
    source->source.view = &source->slice_view;
    source->source.read = trf_slice_read;
    source->source.reader = slice;
    return TRF_OK;
}

/* All but the file, which is open. */
static trf_status open_blob(trf_file_source *source, const trf_checkpoint_matrix *matrix,
                            const trf_load_options *options, trf_error *err) {
    trf_blob_list list;
    trf_status status = trf_matrix_blobs(matrix, &source->file, &list, err);
    if (status != TRF_OK)
        return status;
    status = trf_file_tensor_open_blob(&source->file, matrix->tensor, &list, matrix->index, &source->reader, err);
    trf_blob_list_free(&list);
    if (status != TRF_OK)
        return status;
    source->source.view = &source->reader.view;
    source->source.read = read_tiles_of_file;
    source->source.reader = source;
    status = check_sizes(&source->reader.view, err);
    if (status == TRF_OK)
        status = take_shard(source, options, err);
    if (status != TRF_OK) {
        trf_fail_in_blob(source->reader.offset, status, err);
        trf_blob_reader_close(&source->reader);
    }
    return status;
}

trf_status trf_file_source_open(const trf_checkpoint *checkpoint, const char *tensor, const trf_load_options *options,
                                trf_file_source *source, trf_error *err) {
    trf_load_options defaults;
    trf_checkpoint_matrix matrix;
    uint64_t file_bytes;
    trf_load_options_init(&defaults);
    options = options ? options : &defaults;
    trf_status status = trf_checkpoint_find(checkpoint, tensor, &matrix, err);
    if (status != TRF_OK)
        return trf_sanitize_error(status, err);
    *source = (trf_file_source){.source = {.threads = options->threads,
                                           .progress = options->progress,
                                           .progress_context = options->progress_context,
                                           .tensor = tensor}};
    status = trf_file_open(matrix.checkpoint_file->path, &source->file, &file_bytes, err);
    if (status != TRF_OK)
        return trf_sanitize_error(status, err);
    status = open_blob(source, &matrix, options, err);
    if (status != TRF_OK) {
        name_source(source, status, err);
        trf_file_close(&source->file);
    }
    return status;
}

void trf_file_source_close(trf_file_source *source) {
    if (source->slice_head)
        trf_slice_close(&source->slice);
    free(source->slice_head);
    trf_blob_reader_close(&source->reader);
    trf_file_close(&source->file);
}

trf_status trf_file_source_fail(const trf_file_source *source, trf_status status, trf_error *err) {
    trf_fail_in_blob(source->reader.offset, status, err);
    return name_source(source, status, err);
}
