/* SPDX-License-Identifier: Apache-2.0 */
/* A blob is cut into *spans* of some tiles side by side (or of a part of the head), which threads take in order, and
 * these into *transfers*, which are what one staging buffer holds. The thread that comes to a transfer first takes a
 * buffer for it; the one that finishes its last span sends it. Spans of a transfer are handed out before those of the
 * next one, so a thread that waits for a buffer never keeps one from being completed, whatever other loads do; and what
 * is complete waits only for the caller's thread, which asks for the target before it takes a buffer itself. A slice's
 * head has its tiles' checksums, and so follows the last of them. */
#include "trf_stage_layer.h"

#include "trf_slab_directory.h"
#include "trf_threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    /* Two BF16 tiles: stays in a core's own cache while it is read, checked and described. */
    SPAN_BYTES = 256 << 10,
    WORKER_BYTES = 2 * SPAN_BYTES, /* a thread's start takes about as long as reading these */
};
TRF_STATIC_ASSERT((int)TRF_MAX_TILE_BYTES <= (int)TRF_STAGING_BYTES, "a buffer holds any tile");
TRF_STATIC_ASSERT((int)TRF_MAX_TILE_BYTES <= (int)TRF_SCRATCH_BYTES && (int)SPAN_BYTES <= (int)TRF_SCRATCH_BYTES,
                  "a scratch holds any span");

typedef struct trf_staged_span {
    uint64_t offset; /* in the blob */
    uint64_t first;  /* tile */
    uint32_t tiles;  /* 0: a part of the head */
    uint32_t bytes;
    uint64_t transfer;
} trf_staged_span;

typedef enum trf_transfer_state {
    TRF_TRANSFER_NEW,
    TRF_TRANSFER_TAKING, /* a thread is taking a buffer for it */
    TRF_TRANSFER_OPEN,
    TRF_TRANSFER_FULL, /* not sent yet: there is no target */
    TRF_TRANSFER_DONE  /* sent, or without a buffer after a failure */
} trf_transfer_state;

typedef struct trf_transfer {
    uint64_t offset; /* in the blob */
    uint32_t bytes;
    uint32_t spans; /* that are not finished */
    trf_transfer_state state;
    uint32_t buffer;
    uint8_t *memory;
} trf_transfer;

typedef struct trf_stage_load {
    trf_staging *staging;
    const trf_layer_feed *feed;
    trf_staged_tiles tiles;
    uint64_t begin;        /* offset in the blob of what comes first to the target */
    int copies;            /* whether transfers get buffers */
    trf_target_fn *target; /* or NULL: `to` is known, or nothing is copied */
    void *target_context;
    trf_device_slab *slabs;
    trf_staged_span *spans;
    trf_transfer *transfers;
    uint8_t **scratches; /* [workers]: each one's, NULL until it has something to read */
    uint64_t num_spans, num_transfers;
    int workers;
    uint64_t reported_bytes; /* of tiles, that the caller has been told of; of the caller's thread, as asked_target */
    int asked_target;
    pthread_mutex_t lock;     /* over what follows, and the transfers */
    pthread_cond_t opened;    /* a transfer has left TRF_TRANSFER_TAKING */
    uint8_t *to;              /* NULL until there is one */
    int has_no_target;        /* and will not have one */
    uint64_t done_bytes;      /* of tiles */
    trf_error failure;        /* why a transfer has no buffer */
    trf_layer_traits *traits; /* to which those of finished spans are added */
} trf_stage_load;

/* ---- cutting ---- */

/* The span that begins at a place in the blob, or at a tile if the head is behind it. end: of the tiles. */
static trf_staged_span cut_span(const trf_blob_view *view, uint64_t offset, uint64_t tile, uint64_t end) {
    trf_staged_span span = {.offset = offset, .first = tile};
    if (offset < view->extension.data_offset) {
        const uint64_t left = view->extension.data_offset - offset;
        span.bytes = left < SPAN_BYTES ? (uint32_t)left : SPAN_BYTES;
        return span;
    }
    do {
        span.bytes += view->tiles[tile].data_size;
        span.tiles++;
        tile++;
    } while (tile < end && span.bytes + view->tiles[tile].data_size <= SPAN_BYTES);
    return span;
}

/* Counts spans and transfers, and fills the load's lists if they are there. */
static void cut_blob(trf_stage_load *load) {
    const trf_blob_view *view = load->feed->view;
    const int sends_head = load->target && load->feed->is_whole;
    trf_transfer transfer = {0};
    load->num_spans = load->num_transfers = 0;
    uint64_t offset = sends_head ? 0 : view->tiles[load->tiles.first].data_offset;
    for (uint64_t tile = load->tiles.first; tile < load->tiles.end;) {
        trf_staged_span span = cut_span(view, offset, tile, load->tiles.end);
        if (transfer.bytes == 0 || transfer.bytes + span.bytes > TRF_STAGING_BYTES) {
            transfer = (trf_transfer){.offset = offset};
            load->num_transfers++;
        }
        transfer.bytes += span.bytes;
        transfer.spans++;
        span.transfer = load->num_transfers - 1;
        if (load->spans) {
            load->spans[load->num_spans] = span;
            load->transfers[span.transfer] = transfer;
        }
        load->num_spans++;
        offset += span.bytes;
        tile += span.tiles;
    }
}

static trf_status make_lists(trf_stage_load *load, trf_error *err) {
    cut_blob(load);
    load->spans = malloc(load->num_spans * sizeof *load->spans);
    load->transfers = malloc(load->num_transfers * sizeof *load->transfers);
    load->scratches = calloc((size_t)load->workers, sizeof *load->scratches);
    if (!load->spans || !load->transfers || !load->scratches)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %llu tiles",
                        (unsigned long long)load->feed->view->num_tiles);
    cut_blob(load);
    return TRF_OK;
}

/* ---- spans ---- */

/* Sees that a transfer has a buffer. err: not NULL. */
static trf_status open_transfer(trf_stage_load *load, trf_transfer *transfer, trf_error *err) {
    pthread_mutex_lock(&load->lock);
    while (transfer->state == TRF_TRANSFER_TAKING)
        pthread_cond_wait(&load->opened, &load->lock);
    const int is_ours = transfer->state == TRF_TRANSFER_NEW, has_failed = transfer->state == TRF_TRANSFER_DONE;
    if (is_ours)
        transfer->state = TRF_TRANSFER_TAKING;
    if (has_failed)
        *err = load->failure;
    pthread_mutex_unlock(&load->lock);
    if (!is_ours)
        return has_failed ? err->status : TRF_OK;
    uint32_t buffer = 0;
    uint8_t *memory = NULL;
    trf_status status = trf_staging_take(load->staging, &buffer, &memory, err);
    pthread_mutex_lock(&load->lock);
    transfer->buffer = buffer;
    transfer->memory = memory;
    transfer->state = status == TRF_OK ? TRF_TRANSFER_OPEN : TRF_TRANSFER_DONE;
    if (status != TRF_OK)
        load->failure = *err;
    pthread_cond_broadcast(&load->opened);
    pthread_mutex_unlock(&load->lock);
    return status;
}

/* What becomes of a transfer whose spans are all there. The lock is held. @return whether the caller is to send it. */
static int complete_transfer(trf_stage_load *load, trf_transfer *transfer) {
    if (!load->to && !load->has_no_target) {
        transfer->state = TRF_TRANSFER_FULL;
        return 0;
    }
    transfer->state = TRF_TRANSFER_DONE;
    if (load->has_no_target)
        trf_staging_give_back(load->staging, transfer->buffer);
    return load->to != NULL;
}

static trf_status send_transfer(trf_stage_load *load, const trf_transfer *transfer, trf_error *err) {
    return trf_staging_send(load->staging, transfer->buffer, load->to + (transfer->offset - load->begin),
                            transfer->bytes, err);
}

/* Notes that a span is in its transfer's buffer, and sends the transfer with its last one. */
static trf_status close_span(trf_stage_load *load, const trf_staged_span *span, const trf_layer_traits *traits,
                             trf_error *err) {
    trf_transfer *transfer = &load->transfers[span->transfer];
    pthread_mutex_lock(&load->lock);
    trf_traits_add(load->traits, traits);
    load->done_bytes += span->tiles ? span->bytes : 0;
    const int sends = --transfer->spans == 0 && load->copies && complete_transfer(load, transfer);
    pthread_mutex_unlock(&load->lock);
    return sends ? send_transfer(load, transfer, err) : TRF_OK;
}

/* After a failure: nothing is to wait for a target any more, which the caller's thread may never come to ask for. */
static void abandon_target(trf_stage_load *load) {
    pthread_mutex_lock(&load->lock);
    load->has_no_target = !load->to;
    for (uint64_t c = 0; load->has_no_target && c < load->num_transfers; c++)
        if (load->transfers[c].state == TRF_TRANSFER_FULL)
            complete_transfer(load, &load->transfers[c]);
    pthread_mutex_unlock(&load->lock);
}

/* Of the caller's thread: asks for the target, and sends the transfers that wait for it. */
static trf_status find_target(trf_stage_load *load, trf_error *err) {
    if (load->asked_target || !load->target)
        return TRF_OK;
    load->asked_target = 1;
    uint8_t *to = load->target(load->target_context, err);
    if (!to)
        return err->status;
    trf_status status = TRF_OK;
    pthread_mutex_lock(&load->lock);
    load->to = load->has_no_target ? NULL : to;
    for (uint64_t c = 0; load->to && c < load->num_transfers; c++) {
        trf_transfer *transfer = &load->transfers[c];
        if (transfer->state == TRF_TRANSFER_FULL && complete_transfer(load, transfer)) {
            trf_status sent = send_transfer(load, transfer, status == TRF_OK ? err : NULL);
            status = status == TRF_OK ? sent : status;
        }
    }
    pthread_mutex_unlock(&load->lock);
    return status;
}

/* done_bytes: of these tiles; those before have been reported. */
static trf_status report_load(const trf_stage_load *load, uint64_t done_bytes, trf_error *err) {
    const trf_blob_view *view = load->feed->view;
    const uint64_t before = view->tiles[load->tiles.first].data_offset - view->extension.data_offset;
    return trf_layer_feed_report(load->feed, before + done_bytes, err);
}

/* What the caller's thread does beside its spans: tells of transfers that have been finished. */
static trf_status report_new_bytes(trf_stage_load *load, trf_error *err) {
    pthread_mutex_lock(&load->lock);
    const uint64_t done_bytes = load->done_bytes;
    pthread_mutex_unlock(&load->lock);
    if (!load->feed->progress || done_bytes - load->reported_bytes < TRF_STAGING_BYTES)
        return TRF_OK;
    load->reported_bytes = done_bytes;
    return report_load(load, done_bytes, err);
}

/* A span's tiles, in the worker's scratch or where they are anyway. */
static trf_status read_tiles(trf_stage_load *load, const trf_staged_span *span, int worker, const uint8_t **tiles,
                             trf_error *err) {
    const trf_layer_feed *feed = load->feed;
    if (!load->scratches[worker])
        load->scratches[worker] = trf_staging_take_scratch(load->staging);
    if (!load->scratches[worker])
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %d bytes to read to", TRF_SCRATCH_BYTES);
    return feed->read(feed->reader, span->first, span->tiles, load->scratches[worker], tiles, err);
}

/* Copies bytes, a multiple of 16 as both places are, that this thread and its neighbours will not need again: the
 * device reads them from memory, and finds them there at once. */
static void copy_past_caches(uint8_t *to, const uint8_t *from, size_t bytes) {
#ifdef __SSE2__
    for (size_t i = 0; i < bytes; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_load_si128((const __m128i *)(from + i)));
    _mm_sfence(); /* before others are told */
#else
    memcpy(to, from, bytes);
#endif
}

static trf_status fill_span(trf_stage_load *load, uint64_t index, int worker, trf_error *err) {
    const trf_layer_feed *feed = load->feed;
    const trf_staged_span *span = &load->spans[index];
    trf_transfer *transfer = &load->transfers[span->transfer];
    trf_layer_traits traits = TRF_NO_TRAITS;
    trf_status status = worker == 0 ? find_target(load, err) : TRF_OK;
    if (status == TRF_OK && worker == 0)
        status = report_new_bytes(load, err);
    if (status == TRF_OK && load->copies)
        status = open_transfer(load, transfer, err);
    if (status != TRF_OK)
        return status;
    const uint8_t *from = feed->view->head + span->offset;
    if (span->tiles)
        status = read_tiles(load, span, worker, &from, err);
    for (uint64_t t = span->first; status == TRF_OK && t < span->first + span->tiles; t++)
        trf_describe_tile(feed->view, t, from + (feed->view->tiles[t].data_offset - span->offset), load->slabs,
                          &traits);
    if (status != TRF_OK)
        return status;
    if (load->copies)
        copy_past_caches(transfer->memory + (span->offset - transfer->offset), from, span->bytes);
    return close_span(load, span, &traits, err);
}

/* A trf_parallel_fn. */
static trf_status stage_span(void *context, uint64_t index, int worker, trf_error *err) {
    trf_stage_load *load = context;
    trf_status status = fill_span(load, index, worker, err);
    if (status != TRF_OK)
        abandon_target(load);
    return status;
}

/* ---- the layer ---- */

/* err: not NULL. */
static trf_status stage_spans(trf_stage_load *load, trf_error *err) {
    trf_status status = report_load(load, 0, err);
    if (status == TRF_OK)
        status = trf_pool_for(trf_staging_pool(load->staging), load->workers, load->num_spans, stage_span, load, err);
    if (status == TRF_OK) /* others have been faster than the caller's thread */
        status = find_target(load, err);
    for (int w = 0; w < load->workers; w++)
        trf_staging_give_scratch(load->staging, load->scratches[w]);
    for (uint64_t c = 0; c < load->num_transfers; c++) /* after a failure */
        if (load->transfers[c].state == TRF_TRANSFER_OPEN || load->transfers[c].state == TRF_TRANSFER_FULL)
            trf_staging_give_back(load->staging, load->transfers[c].buffer);
    return status == TRF_OK ? report_load(load, load->done_bytes, err) : status;
}

static trf_status send_slice_head(trf_stage_load *load, trf_layer_feed *feed, trf_error *err) {
    trf_status status = trf_layer_feed_complete_head(feed, err);
    if (status != TRF_OK)
        return status;
    return trf_staging_finish(load->staging, load->to, feed->view->head, feed->view->extension.data_offset, err);
}

static uint64_t count_weights(const trf_blob_view *view, const trf_staged_tiles *tiles) {
    uint64_t weights = 0;
    for (uint64_t t = tiles->first; t < tiles->end; t++) {
        const trf_tile_shape shape = trf_tile_shape_of(&view->header, t, view->tiles[t].coding);
        weights += (uint64_t)shape.rows * shape.cols;
    }
    return weights;
}

/* bytes: that are read, about. err: not NULL. */
static trf_status run_load(trf_stage_load *load, trf_layer_feed *feed, uint64_t bytes, trf_error *err) {
    const uint64_t most = 1 + bytes / WORKER_BYTES;
    const int threads = trf_thread_count(feed->threads);
    load->workers = (uint64_t)threads < most ? threads : (int)most;
    if (pthread_mutex_init(&load->lock, NULL) != 0 || pthread_cond_init(&load->opened, NULL) != 0)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    trf_describe_head(feed->view, load->traits);
    load->traits->irregular_weights = count_weights(feed->view, &load->tiles); /* regular slabs take theirs away */
    trf_status status = make_lists(load, err);
    if (status == TRF_OK)
        status = stage_spans(load, err);
    if (status == TRF_OK && load->target && !feed->is_whole)
        status = send_slice_head(load, feed, err);
    free(load->spans);
    free(load->transfers);
    free(load->scratches);
    pthread_cond_destroy(&load->opened);
    pthread_mutex_destroy(&load->lock);
    return status;
}

trf_status trf_stage_layer(trf_staging *staging, trf_layer_feed *feed, trf_target_fn *target, void *context,
                           trf_device_slab *slabs, trf_layer_traits *traits, trf_error *err) {
    trf_error own = {.offset = TRF_NO_OFFSET};
    trf_stage_load load = {.staging = staging,
                           .feed = feed,
                           .tiles = {0, feed->view->num_tiles},
                           .copies = target != NULL,
                           .target = target,
                           .target_context = context,
                           .slabs = slabs,
                           .traits = traits};
    return run_load(&load, feed, feed->view->header.blob_bytes, err ? err : &own);
}

trf_status trf_stage_tiles(trf_staging *staging, trf_layer_feed *feed, const trf_staged_tiles *tiles, uint8_t *to,
                           trf_device_slab *slabs, trf_layer_traits *traits, trf_error *err) {
    trf_error own = {.offset = TRF_NO_OFFSET};
    const trf_tile_meta *last = &feed->view->tiles[tiles->end - 1];
    trf_stage_load load = {.staging = staging,
                           .feed = feed,
                           .tiles = *tiles,
                           .begin = feed->view->tiles[tiles->first].data_offset,
                           .copies = 1,
                           .slabs = slabs,
                           .to = to,
                           .traits = traits};
    return run_load(&load, feed, last->data_offset + last->data_size - load.begin, err ? err : &own);
}
