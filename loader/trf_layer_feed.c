/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_layer_feed.h"

#include "trf_struct.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- options ---- */

void trf_load_options_init(trf_load_options *options) {
    *options = (trf_load_options){.struct_bytes = sizeof *options};
}

trf_status trf_take_load_options(const trf_load_options *options, trf_load_options *taken, trf_error *err) {
    static const trf_struct_type type = {"trf_load_options", sizeof *taken,
                                         TRF_STRUCT_BYTES(trf_load_options, progress_context)};
    trf_load_options_init(taken);
    trf_status status = options ? trf_take_struct(&type, taken, options, err) : TRF_OK;
    if (status == TRF_OK && (taken->layout < TRF_LAYOUT_CODED || taken->layout > TRF_LAYOUT_PACKED8))
        status = trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "this version has no layout %d", (int)taken->layout);
    return status;
}

/* ---- what messages say ---- */

/* If the blob is in a file, makes err's offset one in the file. Puts the offset into the message. */
static trf_status fail_in_blob(const trf_layer_feed *feed, trf_status status, trf_error *err) {
    if (!err || err->offset == TRF_NO_OFFSET)
        return status;
    err->offset += feed->blob.offset;
    return trf_prefix_error(err, status, "byte %" PRIu64, err->offset);
}

static trf_status name_tensor(const trf_layer_feed *feed, trf_status status, trf_error *err) {
    if (feed->file.fd < 0)
        return status;
    trf_prefix_error(err, status, "%s: tensor '%s'", feed->file.path, feed->tensor);
    return trf_sanitize_error(status, err);
}

trf_status trf_layer_feed_fail(const trf_layer_feed *feed, trf_status status, trf_error *err) {
    fail_in_blob(feed, status, err);
    return name_tensor(feed, status, err);
}

trf_status trf_layer_feed_fail_tile(const trf_layer_feed *feed, uint64_t tile, trf_error *err) {
    const uint64_t of_blob = feed->is_whole ? tile : trf_slice_layer_tile(&feed->slice, tile);
    return trf_fail(err, TRF_ERR_RANS, feed->blob.view.tiles[of_blob].data_offset,
                    "tile %" PRIu64 ": a lane's rANS stream does not end where it must", of_blob);
}

trf_status trf_layer_feed_progress(const trf_layer_feed *feed, uint64_t done_bytes, trf_error *err) {
    const uint64_t total = feed->view->header.blob_bytes - feed->view->extension.data_offset;
    if (feed->progress && feed->progress(feed->progress_context, feed->tensor, done_bytes, total))
        return trf_fail(err, TRF_ERR_CANCELLED, TRF_NO_OFFSET, "stopped on request");
    return TRF_OK;
}

/* ---- tiles of the blob ---- */

static trf_status check_tiles(const trf_blob_view *view, uint64_t first, uint64_t count, const uint8_t *tiles,
                              trf_error *err) {
    const trf_tile_meta *metas = view->tiles;
    trf_status status = TRF_OK;
    for (uint64_t t = first; t < first + count && status == TRF_OK; t++)
        status = trf_blob_check_tile(view, t, tiles + (metas[t].data_offset - metas[first].data_offset), err);
    return status;
}

static uint64_t count_tile_bytes(const trf_blob_view *view, uint64_t first, uint64_t count) {
    const trf_tile_meta *last = &view->tiles[first + count - 1];
    return last->data_offset + last->data_size - view->tiles[first].data_offset;
}

/* This and the next two are of type trf_read_tiles_fn. */
static trf_status read_tiles_of_file(void *read_context, uint64_t first, uint64_t count, uint8_t *scratch,
                                     const uint8_t **tiles, trf_error *err) {
    const trf_layer_feed *feed = read_context;
    const trf_blob_view *view = &feed->blob.view;
    trf_status status = trf_file_read(&feed->file, feed->blob.offset + view->tiles[first].data_offset, scratch,
                                      count_tile_bytes(view, first, count), err);
    if (status != TRF_OK && err && err->offset != TRF_NO_OFFSET)
        err->offset -= feed->blob.offset;
    *tiles = scratch;
    return status == TRF_OK ? check_tiles(view, first, count, scratch, err) : status;
}

static trf_status read_tiles_of_host(void *read_context, uint64_t first, uint64_t count, uint8_t *scratch,
                                     const uint8_t **tiles, trf_error *err) {
    const trf_layer_feed *feed = read_context;
    const trf_blob_view *view = &feed->blob.view;
    (void)scratch;
    *tiles = feed->host + view->tiles[first].data_offset;
    return check_tiles(view, first, count, *tiles, err);
}

static trf_status read_tiles_of_device(void *read_context, uint64_t first, uint64_t count, uint8_t *scratch,
                                       const uint8_t **tiles, trf_error *err) {
    const trf_layer_feed *feed = read_context;
    const trf_blob_view *view = &feed->blob.view;
    trf_status status = feed->copy_back(feed->copy_context, scratch, feed->dev + view->tiles[first].data_offset,
                                        count_tile_bytes(view, first, count), err);
    *tiles = scratch;
    return status == TRF_OK ? check_tiles(view, first, count, scratch, err) : status;
}

/* ---- what is loaded ---- */

/* Checks that every tile fits into the buffers for tiles. The checks of the metadata only bound them by the blob. */
static trf_status check_sizes(const trf_blob_view *view, trf_error *err) {
    for (uint64_t t = 0; t < view->num_tiles; t++)
        if (view->tiles[t].data_size > TRF_MAX_TILE_BYTES)
            return trf_fail(err, TRF_ERR_TILE, view->tiles[t].data_offset,
                            "tile %" PRIu64 ": %" PRIu32 " bytes, more than a tile can have", t,
                            view->tiles[t].data_size);
    return TRF_OK;
}

/* Makes the feed load the selection's slice. */
static trf_status take_slice(trf_layer_feed *feed, trf_error *err) {
    trf_slice *slice = &feed->slice;
    *slice = (trf_slice){
        .view = feed->view, .selection = &feed->selection, .read = feed->read, .read_context = feed->read_context};
    /* Twice: the slice has tiles' metadata, and then a head. */
    trf_status status =
        trf_budget_take(&feed->budget, 2 * feed->view->extension.data_offset, "the head of a shard", err);
    if (status == TRF_OK)
        status = trf_slice_open(slice, feed->threads, err);
    if (status != TRF_OK)
        return status;
    const uint64_t bytes = slice->extension.data_offset;
    feed->slice_head = aligned_alloc(TRF_TILE_ALIGNMENT, bytes);
    status = feed->slice_head ? trf_layer_feed_complete_head(feed, err) : trf_fail_memory(err, bytes);
    if (status != TRF_OK)
        return status;
    feed->view = &feed->slice_view;
    feed->read = trf_slice_read;
    feed->read_context = slice;
    return TRF_OK;
}

trf_status trf_layer_feed_complete_head(trf_layer_feed *feed, trf_error *err) {
    if (feed->is_whole)
        return TRF_OK;
    trf_slice_write_head(&feed->slice, feed->slice_head);
    return trf_blob_open(feed->slice_head, feed->slice.extension.data_offset, feed->slice.header.blob_bytes,
                         &feed->slice_view, err);
}

/* Finds out what is loaded, once the blob's head has been read. Offsets of errors are the blob's. */
static trf_status take_blob(trf_layer_feed *feed, trf_read_tiles_fn *read, const trf_load_options *options,
                            trf_error *err) {
    feed->view = &feed->blob.view;
    feed->read = read;
    feed->read_context = feed;
    trf_status status = check_sizes(feed->view, err);
    if (status == TRF_OK)
        status = trf_select_tiles(&feed->view->header, options, &feed->selection, &feed->shard, err);
    feed->is_whole = feed->selection.is_whole;
    return status != TRF_OK || feed->is_whole ? status : take_slice(feed, err);
}

/* ---- opening ---- */

static trf_layer_feed begin_feed(const trf_load_options *options, const char *tensor) {
    return (trf_layer_feed){.threads = options->threads,
                            .progress = options->progress,
                            .progress_context = options->progress_context,
                            .tensor = tensor,
                            .file = {.fd = -1}};
}

static trf_status take_limits(trf_layer_feed *feed, const trf_limits *limits, trf_error *err) {
    trf_limits taken;
    trf_status status = trf_take_limits(limits, &taken, err);
    if (status != TRF_OK)
        return status;
    feed->budget.max_bytes = taken.max_memory_bytes;
    feed->max_device_bytes = taken.max_device_bytes;
    return TRF_OK;
}

trf_status trf_layer_feed_check_device(const trf_layer_feed *feed, uint64_t bytes, trf_error *err) {
    if (!feed->max_device_bytes || bytes <= feed->max_device_bytes)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_LIMIT, TRF_NO_OFFSET,
                    "max_device_bytes is %" PRIu64 ", and the layer of %" PRIu32 "x%" PRIu32 " weights takes %" PRIu64
                    " bytes of device memory",
                    feed->max_device_bytes, feed->shard.rows, feed->shard.cols, bytes);
}

/* Every function that opens a feed ends with this one. After a failure it releases everything. */
static trf_status finish_opening(trf_layer_feed *feed, trf_status status) {
    if (status != TRF_OK)
        trf_layer_feed_close(feed);
    return status;
}

void trf_layer_feed_close(trf_layer_feed *feed) {
    trf_slice_close(&feed->slice);
    free(feed->slice_head);
    trf_tile_selection_free(&feed->selection);
    trf_blob_reader_close(&feed->blob);
    trf_file_close(&feed->file);
}

/* Opens all but the file, which is open already. */
static trf_status open_file_blob(trf_layer_feed *feed, const trf_checkpoint_matrix *matrix,
                                 const trf_load_options *options, trf_error *err) {
    trf_blob_list list;
    trf_status status = trf_list_blobs(matrix, &feed->file, &list, err);
    if (status != TRF_OK)
        return name_tensor(feed, status, err);
    status = trf_file_tensor_open_blob(&feed->file, matrix->tensor, &list, matrix->expert, &feed->blob, err);
    trf_blob_list_free(&list);
    if (status != TRF_OK)
        return name_tensor(feed, status, err);
    status = take_blob(feed, read_tiles_of_file, options, err);
    return status == TRF_OK ? TRF_OK : trf_layer_feed_fail(feed, status, err);
}

trf_status trf_layer_feed_open_tensor(const trf_checkpoint *checkpoint, const char *tensor,
                                      const trf_load_options *options, trf_layer_feed *feed, trf_error *err) {
    trf_checkpoint_matrix matrix;
    trf_status status = trf_checkpoint_find(checkpoint, tensor, &matrix, err);
    if (status != TRF_OK)
        return trf_sanitize_error(status, err);
    *feed = begin_feed(options, tensor);
    status = take_limits(feed, options->limits ? options->limits : &checkpoint->limits, err);
    if (status == TRF_OK)
        status = trf_file_open(matrix.checkpoint_file->path, &feed->file, &feed->file_bytes, err);
    if (status != TRF_OK)
        return trf_sanitize_error(status, err);
    feed->file.budget = &feed->budget;
    return finish_opening(feed, open_file_blob(feed, &matrix, options, err));
}

trf_status trf_layer_feed_open_memory(const void *blob, uint64_t blob_bytes, const trf_load_options *options,
                                      trf_layer_feed *feed, trf_error *err) {
    *feed = begin_feed(options, "");
    feed->host = blob;
    trf_status status = take_limits(feed, options->limits, err);
    if (status == TRF_OK)
        status = trf_blob_open(blob, blob_bytes, blob_bytes, &feed->blob.view, err);
    if (status == TRF_OK)
        status = take_blob(feed, read_tiles_of_host, options, err);
    return finish_opening(feed, status == TRF_OK ? TRF_OK : trf_layer_feed_fail(feed, status, err));
}

/* Reads the head back, first the part that says how large it is. */
static trf_status read_head_of_device(trf_layer_feed *feed, uint64_t blob_bytes, trf_error *err) {
    trf_blob_reader *blob = &feed->blob;
    uint64_t start[(TRF_EXTENSION_OFFSET + sizeof(trf_extension)) / sizeof(uint64_t)] = {0};
    const uint64_t available = blob_bytes < sizeof start ? blob_bytes : sizeof start;
    trf_status status = feed->copy_back(feed->copy_context, start, feed->dev, available, err);
    if (status == TRF_OK)
        status = trf_blob_head_bytes(start, available, blob_bytes, &blob->head_bytes, err);
    if (status == TRF_OK)
        status = trf_budget_take(&feed->budget, blob->head_bytes, "the head of a blob", err);
    if (status != TRF_OK)
        return status;
    blob->head = aligned_alloc(TRF_TILE_ALIGNMENT, trf_tile_align(blob->head_bytes));
    if (!blob->head)
        return trf_fail_memory(err, blob->head_bytes);
    status = feed->copy_back(feed->copy_context, blob->head, feed->dev, blob->head_bytes, err);
    return status == TRF_OK ? trf_blob_open(blob->head, blob->head_bytes, blob_bytes, &blob->view, err) : status;
}

trf_status trf_layer_feed_open_device(const void *blob_dev, uint64_t blob_bytes, trf_copy_back_fn *copy_back,
                                      void *copy_context, const trf_load_options *options, trf_layer_feed *feed,
                                      trf_error *err) {
    *feed = begin_feed(options, "");
    feed->dev = blob_dev;
    feed->copy_back = copy_back;
    feed->copy_context = copy_context;
    trf_status status = take_limits(feed, options->limits, err);
    if (status == TRF_OK)
        status = read_head_of_device(feed, blob_bytes, err);
    if (status == TRF_OK)
        status = take_blob(feed, read_tiles_of_device, options, err);
    return finish_opening(feed, status == TRF_OK ? TRF_OK : trf_layer_feed_fail(feed, status, err));
}
