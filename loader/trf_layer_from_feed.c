/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a blob to the layer's memory and checks it, span by span of tiles. The head is written last. */
#include "trf_layer_from_feed.h"

#include "trf_threads.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    SPAN_BYTES = 64 << 20 /* bytes that are checked between two calls of progress */
};

/* ---- where the blob is to be ---- */

static trf_status map_blob(trf_layer_feed *feed, trf_layer *layer, trf_error *err) {
    const uint64_t offset = feed->blob.offset, bytes = feed->blob.bytes;
    /* The file may have been cut since the checkpoint was opened; beyond its end a mapping raises SIGBUS. */
    if (offset > feed->file_bytes || bytes > feed->file_bytes - offset)
        return trf_fail(err, TRF_ERR_TRUNCATED, feed->file_bytes - offset,
                        "the file ends at byte %" PRIu64 ", its blob of %" PRIu64 " bytes begins at byte %" PRIu64,
                        feed->file_bytes, bytes, offset);
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
    layer->mapping_bytes = (size_t)(bytes + (offset - first));
    layer->mapping = mmap(NULL, layer->mapping_bytes, PROT_READ, MAP_PRIVATE, feed->file.fd, (off_t)first);
    if (layer->mapping == MAP_FAILED) {
        layer->mapping = NULL;
        return trf_fail(err, TRF_ERR_IO, 0, "cannot map %" PRIu64 " bytes: %s", bytes, strerror(errno));
    }
    layer->blob = (const uint8_t *)layer->mapping + (offset - first);
    return TRF_OK;
}

/* Finds the place of the layer's blob. *to: NULL if the blob is there already, and only has to be checked. */
static trf_status find_place(trf_layer_feed *feed, trf_layer *layer, uint8_t **to, trf_error *err) {
    if (*to) {
        layer->blob = *to;
        *to = feed->is_whole && feed->host == *to ? NULL : *to;
        return TRF_OK;
    }
    if (feed->is_whole && feed->file.fd >= 0 && feed->blob.offset % TRF_ALIGNMENT == 0)
        return map_blob(feed, layer, err);
    const uint64_t bytes = feed->view->header.blob_bytes;
    layer->blob = layer->memory = *to = aligned_alloc(TRF_TILE_ALIGNMENT, trf_tile_align(bytes));
    return *to ? TRF_OK : trf_fail_memory(err, bytes);
}

/* ---- tiles ---- */

/* Work on tiles from `first` on. Their blob is in the layer's place already, or they are read to that place. */
typedef struct trf_tile_work {
    const trf_layer_feed *feed;
    const trf_layer *layer;
    uint8_t *to; /* NULL: the blob is there already */
    uint64_t first;
} trf_tile_work;

/* A trf_parallel_fn; index: counted from the first tile. */
static trf_status place_tile(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_tile_work *work = context;
    const trf_layer_feed *feed = work->feed;
    const uint64_t tile = work->first + index;
    (void)worker;
    if (!work->to)
        return trf_blob_check_tile(&work->layer->view, tile, trf_layer_tile(work->layer, tile), err);
    uint8_t *const to = work->to + feed->view->tiles[tile].data_offset;
    const uint8_t *from;
    trf_status status = feed->read(feed->read_context, tile, 1, to, &from, err);
    if (status == TRF_OK && from != to)
        memcpy(to, from, feed->view->tiles[tile].data_size);
    return status;
}

/* Reads and checks the tiles span by span. A span lies in one row of tiles. */
static trf_status place_tiles(trf_tile_work work, trf_error *err) {
    const trf_blob_view *view = work.feed->view;
    const trf_tile_meta *metas = view->tiles;
    uint64_t done = 0;
    trf_status status = trf_layer_feed_progress(work.feed, done, err);
    for (uint64_t end; work.first < view->num_tiles && status == TRF_OK; work.first = end) {
        uint64_t bytes = metas[work.first].data_size;
        for (end = work.first + 1; end % view->header.num_tile_cols && bytes < SPAN_BYTES; end++)
            bytes += metas[end].data_size;
        status = trf_parallel_for(work.feed->threads, end - work.first, place_tile, &work, err);
        done += bytes;
        if (status == TRF_OK)
            status = trf_layer_feed_progress(work.feed, done, err);
    }
    return status;
}

/* ---- the layer ---- */

static trf_status open_head(trf_layer *layer, uint64_t blob_bytes, trf_error *err) {
    return trf_blob_open(layer->blob, blob_bytes, blob_bytes, &layer->view, err);
}

/* Fills the layer. A blob that is in its place already has its head there, too; its tiles are checked by that head. */
static trf_status fill_layer(trf_layer_feed *feed, trf_layer *layer, uint8_t *to, trf_error *err) {
    const uint64_t blob_bytes = feed->view->header.blob_bytes;
    trf_status status = TRF_OK;
    if (!to && memcmp(layer->blob, feed->view->head, feed->view->extension.data_offset) != 0)
        return trf_fail(err, TRF_ERR_IO, 0, "the file has changed while it was opened");
    if (!to)
        status = open_head(layer, blob_bytes, err);
    if (status == TRF_OK)
        status = place_tiles((trf_tile_work){feed, layer, to, 0}, err);
    if (status != TRF_OK || !to)
        return status;
    status = trf_layer_feed_complete_head(feed, err);
    if (status != TRF_OK)
        return status;
    memcpy(to, feed->view->head, feed->view->extension.data_offset);
    return open_head(layer, blob_bytes, err);
}

trf_status trf_layer_from_feed(trf_layer_feed *feed, void *to, trf_layer **layer, trf_error *err) {
    uint8_t *place = to;
    trf_layer *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail_memory(err, sizeof *made);
    trf_status status = find_place(feed, made, &place, err);
    if (status == TRF_OK)
        status = fill_layer(feed, made, place, err);
    if (status != TRF_OK) {
        trf_layer_free(made);
        return status;
    }
    trf_decode_table_init(&made->table, &made->view);
    *layer = made;
    return TRF_OK;
}
