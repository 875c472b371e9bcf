/* SPDX-License-Identifier: Apache-2.0 */
/* A blob is cut into *spans* of some consecutive tiles (or of a part of the head), which threads take in order. Spans
 * are grouped into *transfers*; a transfer is what one staging buffer holds. The first thread that reaches a transfer
 * takes a buffer for it, and the thread that finishes its last span sends it. The spans of a transfer are handed out
 * before those of the next one. So a thread that waits for a buffer never keeps another buffer from being completed,
 * whatever other loads do; and a complete transfer waits only for the caller's thread, which asks for the target before
 * it takes a buffer itself. The head of a slice contains its tiles' checksums, so it is sent after the last of them.
 *
 * Where a layer goes in *parts* through buffers on the device, a complete transfer may also have to wait until its part
 * has a buffer there. It gets one once earlier parts have been taken, and so once earlier transfers have been sent.
 * Earlier transfers take their staging buffers first, so the waiting ones never hold all of them. */
#include "trf_upload_layer.h"

#include "trf_slab_directory.h"
#include "trf_threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    /* Two BF16 tiles, which stay in a core's own cache while they are read, checked and described. */
    SPAN_BYTES = 256 << 10,
    WORKER_BYTES = 2 * SPAN_BYTES, /* a thread's start takes about as long as reading these */
};
TRF_STATIC_ASSERT((int)TRF_MAX_TILE_BYTES <= (int)TRF_STAGING_BUFFER_BYTES, "a buffer holds any tile");
TRF_STATIC_ASSERT((int)TRF_MAX_TILE_BYTES <= (int)TRF_STAGING_SCRATCH_BYTES &&
                      (int)SPAN_BYTES <= (int)TRF_STAGING_SCRATCH_BYTES,
                  "a scratch holds any span");

typedef struct trf_upload_span {
    uint64_t offset; /* in the blob */
    uint64_t first;  /* its first tile */
    uint32_t tiles;  /* 0: a part of the head */
    uint32_t bytes;
    uint64_t transfer;
} trf_upload_span;

typedef enum trf_transfer_state {
    TRF_TRANSFER_NEW,
    TRF_TRANSFER_TAKING, /* a thread is taking a buffer for it */
    TRF_TRANSFER_OPEN,
    TRF_TRANSFER_FULL, /* not sent yet: there is no target, or no buffer on the device for its part */
    TRF_TRANSFER_DONE  /* sent; or without a buffer, after a failure */
} trf_transfer_state;

typedef struct trf_transfer {
    uint64_t offset; /* in the blob */
    uint32_t bytes;
    uint32_t spans; /* how many are not finished */
    uint32_t part;
    trf_transfer_state state;
    uint32_t buffer;
    uint8_t *memory;
} trf_transfer;

/* A part, which is taken as a whole. A layer that does not go in parts is one part. */
typedef struct trf_upload_part {
    trf_layer_traits traits; /* the sum for the spans that are finished */
    uint32_t unsent;         /* how many transfers are not sent */
} trf_upload_part;

typedef struct trf_upload {
    trf_staging *staging;
    const trf_layer_feed *feed;
    int copies;                         /* whether transfers get buffers */
    trf_target_fn *target;              /* or NULL: the layer goes in parts, or nothing is copied */
    const trf_part_buffers *in_buffers; /* where parts go; NULL: there is one part, which goes to `to` */
    void *target_context;
    trf_device_slab *slabs;
    trf_upload_span *spans;
    trf_transfer *transfers;
    trf_upload_part *parts;
    uint8_t **scratches; /* [workers]; NULL until the worker has something to read */
    uint64_t num_spans, num_transfers;
    uint32_t num_parts;
    int workers;
    uint64_t reported_bytes; /* bytes of tiles that progress has been told; only the caller's thread uses it, as
                              * asked_target */
    int asked_target;
    pthread_mutex_t lock;  /* protects what follows, the transfers and the parts */
    pthread_cond_t opened; /* a transfer has left TRF_TRANSFER_TAKING, or the upload is abandoned */
    uint8_t *to;           /* NULL until the target is known */
    int is_abandoned;      /* after a failure nothing more is sent */
    uint32_t taken;        /* how many parts have been taken */
    int is_taking;         /* a thread is taking the part after these */
    uint64_t done_bytes;   /* of tiles */
    trf_error failure;     /* why a transfer has no buffer */
} trf_upload;

/* ---- cutting ---- */

/* Cuts the span that begins at an offset in the blob, or at a tile if the head lies before that offset. end: the end of
 * the tiles. */
static trf_upload_span cut_span(const trf_blob_view *view, uint64_t offset, uint64_t tile, uint64_t end) {
    trf_upload_span span = {.offset = offset, .first = tile};
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

static uint64_t tiles_of_part(const trf_upload *upload) {
    return upload->in_buffers ? upload->in_buffers->tiles_each : upload->feed->view->num_tiles;
}

/* @return the tile after a part's last one. */
static uint64_t end_of_part(const trf_upload *upload, uint32_t part) {
    const uint64_t end = (part + 1) * tiles_of_part(upload), all = upload->feed->view->num_tiles;
    return end < all ? end : all;
}

/* Counts spans and transfers, and fills the upload's lists if they exist. */
static void cut_blob(trf_upload *upload) {
    const trf_blob_view *view = upload->feed->view;
    const int sends_head = upload->target && upload->feed->is_whole;
    trf_transfer transfer = {0};
    upload->num_spans = upload->num_transfers = 0;
    uint64_t offset = sends_head ? 0 : view->tiles[0].data_offset;
    for (uint64_t tile = 0; tile < view->num_tiles;) {
        const uint32_t part = (uint32_t)(tile / tiles_of_part(upload));
        trf_upload_span span = cut_span(view, offset, tile, end_of_part(upload, part));
        if (transfer.bytes == 0 || transfer.part != part || transfer.bytes + span.bytes > TRF_STAGING_BUFFER_BYTES) {
            transfer = (trf_transfer){.offset = offset, .part = part};
            upload->num_transfers++;
            if (upload->parts)
                upload->parts[part].unsent++;
        }
        transfer.bytes += span.bytes;
        transfer.spans++;
        span.transfer = upload->num_transfers - 1;
        if (upload->spans) {
            upload->spans[upload->num_spans] = span;
            upload->transfers[span.transfer] = transfer;
        }
        upload->num_spans++;
        offset += span.bytes;
        tile += span.tiles;
    }
}

static uint64_t count_weights(const trf_blob_view *view, uint64_t first, uint64_t end) {
    uint64_t weights = 0;
    for (uint64_t t = first; t < end; t++) {
        const trf_tile_shape shape = trf_tile_shape_of(&view->header, t, view->tiles[t].coding);
        weights += (uint64_t)shape.rows * shape.cols;
    }
    return weights;
}

/* All weights count as irregular first; regular slabs subtract theirs. */
static void begin_traits(trf_upload *upload) {
    const trf_blob_view *view = upload->feed->view;
    for (uint32_t p = 0; p < upload->num_parts; p++) {
        trf_layer_traits *traits = &upload->parts[p].traits;
        *traits = TRF_NO_TRAITS;
        trf_describe_head(view, traits);
        traits->irregular_weights = count_weights(view, p * tiles_of_part(upload), end_of_part(upload, p));
    }
}

static trf_status make_lists(trf_upload *upload, trf_error *err) {
    const trf_part_buffers *in = upload->in_buffers;
    cut_blob(upload);
    upload->num_parts = in ? (uint32_t)((upload->feed->view->num_tiles + in->tiles_each - 1) / in->tiles_each) : 1;
    upload->parts = calloc(upload->num_parts, sizeof *upload->parts);
    upload->spans = malloc(upload->num_spans * sizeof *upload->spans);
    upload->transfers = malloc(upload->num_transfers * sizeof *upload->transfers);
    upload->scratches = calloc((size_t)upload->workers, sizeof *upload->scratches);
    if (!upload->spans || !upload->transfers || !upload->parts || !upload->scratches)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %llu tiles",
                        (unsigned long long)upload->feed->view->num_tiles);
    cut_blob(upload);
    begin_traits(upload);
    return TRF_OK;
}

/* ---- spans ---- */

/* Whether a thread must wait before it takes a transfer's buffer: another thread is taking it, or it is not yet this
 * transfer's turn. The lock is held. */
static int waits_to_open(const trf_upload *upload, const trf_transfer *transfer) {
    if (transfer->state == TRF_TRANSFER_TAKING)
        return 1;
    if (transfer->state != TRF_TRANSFER_NEW || !upload->in_buffers || upload->is_abandoned ||
        transfer == upload->transfers)
        return 0;
    return transfer[-1].state == TRF_TRANSFER_NEW || transfer[-1].state == TRF_TRANSFER_TAKING;
}

/* Makes sure that a transfer has a buffer. err: not NULL. */
static trf_status open_transfer(trf_upload *upload, trf_transfer *transfer, trf_error *err) {
    pthread_mutex_lock(&upload->lock);
    while (waits_to_open(upload, transfer))
        pthread_cond_wait(&upload->opened, &upload->lock);
    const int is_ours = transfer->state == TRF_TRANSFER_NEW, has_failed = transfer->state == TRF_TRANSFER_DONE;
    if (is_ours)
        transfer->state = TRF_TRANSFER_TAKING;
    if (has_failed)
        *err = upload->failure;
    pthread_mutex_unlock(&upload->lock);
    if (!is_ours)
        return has_failed ? err->status : TRF_OK;
    uint32_t buffer = 0;
    uint8_t *memory = NULL;
    trf_status status = trf_staging_take(upload->staging, &buffer, &memory, err);
    pthread_mutex_lock(&upload->lock);
    transfer->buffer = buffer;
    transfer->memory = memory;
    transfer->state = status == TRF_OK ? TRF_TRANSFER_OPEN : TRF_TRANSFER_DONE;
    if (status != TRF_OK)
        upload->failure = *err;
    pthread_cond_broadcast(&upload->opened);
    pthread_mutex_unlock(&upload->lock);
    return status;
}

/* Whether there is a place on the device for a part. The lock is held. */
static int has_place(const trf_upload *upload, uint32_t part) {
    const trf_part_buffers *in = upload->in_buffers;
    if (!in)
        return upload->to != NULL;
    /* the part that was in this buffer before is no longer needed once the part after that one has been taken */
    return part < in->buffers || part - in->buffers + 2 <= upload->taken;
}

/* Decides what to do with a transfer whose spans are all finished. The lock is held. @return whether the caller sends
 * it. */
static int complete_transfer(trf_upload *upload, trf_transfer *transfer) {
    if (!upload->is_abandoned && !has_place(upload, transfer->part)) {
        transfer->state = TRF_TRANSFER_FULL;
        return 0;
    }
    transfer->state = TRF_TRANSFER_DONE;
    if (upload->is_abandoned)
        trf_staging_give_back(upload->staging, transfer->buffer);
    return !upload->is_abandoned;
}

static trf_status send_transfer(trf_upload *upload, const trf_transfer *transfer, trf_error *err) {
    const trf_part_buffers *in = upload->in_buffers;
    uint8_t *to = upload->to;
    uint64_t begin = 0;
    if (in) {
        to = in->memory + transfer->part % in->buffers * in->buffer_bytes;
        begin = upload->feed->view->tiles[transfer->part * in->tiles_each].data_offset;
    }
    return trf_staging_send(upload->staging, transfer->buffer, to + (transfer->offset - begin), transfer->bytes, err);
}

/* Sends the transfers that have waited for a place on the device and have one now. The lock is held. */
static trf_status send_waiting(trf_upload *upload, trf_error *err) {
    trf_status status = TRF_OK;
    for (uint64_t c = 0; c < upload->num_transfers; c++) {
        trf_transfer *transfer = &upload->transfers[c];
        if (transfer->state != TRF_TRANSFER_FULL || !complete_transfer(upload, transfer))
            continue;
        trf_status sent = send_transfer(upload, transfer, status == TRF_OK ? err : NULL);
        if (sent == TRF_OK)
            upload->parts[transfer->part].unsent--;
        status = status == TRF_OK ? sent : status;
    }
    return status;
}

/* Takes the parts of which all transfers have been sent, in order, which makes room for others. The lock is held,
 * except while a part is being taken. */
static trf_status take_parts(trf_upload *upload, trf_error *err) {
    const trf_part_buffers *in = upload->in_buffers;
    trf_status status = TRF_OK;
    while (status == TRF_OK && in && !upload->is_taking && !upload->is_abandoned && upload->taken < upload->num_parts &&
           upload->parts[upload->taken].unsent == 0) {
        upload->is_taking = 1;
        pthread_mutex_unlock(&upload->lock);
        status = in->take(in->context, upload->taken, &upload->parts[upload->taken].traits, err);
        pthread_mutex_lock(&upload->lock);
        upload->is_taking = 0;
        if (status == TRF_OK) {
            upload->taken++;
            status = send_waiting(upload, err);
        } else
            upload->is_abandoned = 1; /* before another thread takes the part once more */
    }
    return status;
}

/* Notes that a span is in its transfer's buffer. If it was the transfer's last span, sends the transfer. */
static trf_status close_span(trf_upload *upload, const trf_upload_span *span, const trf_layer_traits *traits,
                             trf_error *err) {
    trf_transfer *transfer = &upload->transfers[span->transfer];
    trf_upload_part *part = &upload->parts[transfer->part];
    trf_status status = TRF_OK;
    pthread_mutex_lock(&upload->lock);
    trf_traits_add(&part->traits, traits);
    upload->done_bytes += span->tiles ? span->bytes : 0;
    const int sends = --transfer->spans == 0 && upload->copies && complete_transfer(upload, transfer);
    pthread_mutex_unlock(&upload->lock);
    if (!sends)
        return TRF_OK;
    status = send_transfer(upload, transfer, err);
    if (status != TRF_OK)
        return status;
    pthread_mutex_lock(&upload->lock);
    part->unsent--;
    status = take_parts(upload, err);
    pthread_mutex_unlock(&upload->lock);
    return status;
}

/* Abandons the upload after a failure, so that nothing waits any longer for a place that may never come. */
static void abandon(trf_upload *upload) {
    pthread_mutex_lock(&upload->lock);
    upload->is_abandoned = 1;
    for (uint64_t c = 0; c < upload->num_transfers; c++)
        if (upload->transfers[c].state == TRF_TRANSFER_FULL)
            complete_transfer(upload, &upload->transfers[c]);
    pthread_cond_broadcast(&upload->opened);
    pthread_mutex_unlock(&upload->lock);
}

/* The caller's thread asks for the target, and sends the transfers that wait for it. */
static trf_status find_target(trf_upload *upload, trf_error *err) {
    if (upload->asked_target || !upload->target)
        return TRF_OK;
    upload->asked_target = 1;
    uint8_t *to = upload->target(upload->target_context, err);
    if (!to)
        return err->status;
    pthread_mutex_lock(&upload->lock);
    upload->to = to;
    trf_status status = send_waiting(upload, err);
    pthread_mutex_unlock(&upload->lock);
    return status;
}

/* Tells progress what has been finished. The caller's thread does this between its spans. */
static trf_status report_new_bytes(trf_upload *upload, trf_error *err) {
    pthread_mutex_lock(&upload->lock);
    const uint64_t done_bytes = upload->done_bytes;
    pthread_mutex_unlock(&upload->lock);
    if (!upload->feed->progress || done_bytes - upload->reported_bytes < TRF_STAGING_BUFFER_BYTES)
        return TRF_OK;
    upload->reported_bytes = done_bytes;
    return trf_layer_feed_progress(upload->feed, done_bytes, err);
}

/* Reads a span's tiles, to the worker's scratch, or finds them where they are in memory anyway. */
static trf_status read_tiles(trf_upload *upload, const trf_upload_span *span, int worker, const uint8_t **tiles,
                             trf_error *err) {
    const trf_layer_feed *feed = upload->feed;
    if (!upload->scratches[worker])
        upload->scratches[worker] = trf_staging_take_scratch(upload->staging);
    if (!upload->scratches[worker])
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %d bytes to read to",
                        TRF_STAGING_SCRATCH_BYTES);
    return feed->read(feed->read_context, span->first, span->tiles, upload->scratches[worker], tiles, err);
}

/* Copies bytes past the caches, since this thread and its neighbours will not need them again: the device reads them
 * from memory, and finds them there at once. The number and both addresses are multiples of 16. */
static void copy_past_caches(uint8_t *to, const uint8_t *from, size_t bytes) {
#ifdef __SSE2__
    for (size_t i = 0; i < bytes; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_load_si128((const __m128i *)(from + i)));
    _mm_sfence(); /* the bytes are in memory before others are told */
#else
    memcpy(to, from, bytes);
#endif
}

static trf_status fill_span(trf_upload *upload, uint64_t index, int worker, trf_error *err) {
    const trf_layer_feed *feed = upload->feed;
    const trf_upload_span *span = &upload->spans[index];
    trf_transfer *transfer = &upload->transfers[span->transfer];
    trf_layer_traits traits = TRF_NO_TRAITS;
    trf_status status = worker == 0 ? find_target(upload, err) : TRF_OK;
    if (status == TRF_OK && worker == 0)
        status = report_new_bytes(upload, err);
    if (status == TRF_OK && upload->copies)
        status = open_transfer(upload, transfer, err);
    if (status != TRF_OK)
        return status;
    const uint8_t *from = feed->view->head + span->offset;
    if (span->tiles)
        status = read_tiles(upload, span, worker, &from, err);
    for (uint64_t t = span->first; status == TRF_OK && t < span->first + span->tiles; t++)
        trf_describe_tile(feed->view, t, from + (feed->view->tiles[t].data_offset - span->offset), upload->slabs,
                          &traits);
    if (status != TRF_OK)
        return status;
    if (upload->copies)
        copy_past_caches(transfer->memory + (span->offset - transfer->offset), from, span->bytes);
    return close_span(upload, span, &traits, err);
}

/* A trf_parallel_fn. */
static trf_status upload_next(void *context, uint64_t index, int worker, trf_error *err) {
    trf_upload *upload = context;
    trf_status status = fill_span(upload, index, worker, err);
    if (status != TRF_OK)
        abandon(upload);
    return status;
}

/* ---- the layer ---- */

/* err: not NULL. */
static trf_status upload_spans(trf_upload *upload, trf_error *err) {
    trf_status status = trf_layer_feed_progress(upload->feed, 0, err);
    if (status == TRF_OK)
        status = trf_pool_for(trf_staging_pool(upload->staging), upload->workers, upload->num_spans, upload_next,
                              upload, err);
    if (status == TRF_OK) /* the others may have left no span to the caller's thread */
        status = find_target(upload, err);
    for (int w = 0; w < upload->workers; w++)
        trf_staging_give_scratch(upload->staging, upload->scratches[w]);
    for (uint64_t c = 0; c < upload->num_transfers; c++) /* after a failure */
        if (upload->transfers[c].state == TRF_TRANSFER_OPEN || upload->transfers[c].state == TRF_TRANSFER_FULL)
            trf_staging_give_back(upload->staging, upload->transfers[c].buffer);
    return status == TRF_OK ? trf_layer_feed_progress(upload->feed, upload->done_bytes, err) : status;
}

static trf_status send_slice_head(trf_upload *upload, trf_layer_feed *feed, trf_error *err) {
    trf_status status = trf_layer_feed_complete_head(feed, err);
    if (status != TRF_OK)
        return status;
    return trf_staging_finish(upload->staging, upload->to, feed->view->head, feed->view->extension.data_offset, err);
}

/* err: not NULL. */
static trf_status run_upload(trf_upload *upload, trf_error *err) {
    const uint64_t most = 1 + upload->feed->view->header.blob_bytes / WORKER_BYTES;
    const int threads = trf_thread_count(upload->feed->threads);
    upload->workers = (uint64_t)threads < most ? threads : (int)most;
    if (pthread_mutex_init(&upload->lock, NULL) != 0 || pthread_cond_init(&upload->opened, NULL) != 0)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    trf_status status = make_lists(upload, err);
    if (status == TRF_OK)
        status = upload_spans(upload, err);
    free(upload->spans);
    free(upload->transfers);
    free(upload->scratches);
    pthread_cond_destroy(&upload->opened);
    pthread_mutex_destroy(&upload->lock);
    return status;
}

trf_status trf_upload_layer(trf_staging *staging, trf_layer_feed *feed, trf_target_fn *target, void *context,
                            trf_device_slab *slabs, trf_layer_traits *traits, trf_error *err) {
    trf_error own = {.offset = TRF_NO_OFFSET};
    trf_error *told = err ? err : &own;
    trf_upload upload = {.staging = staging,
                         .feed = feed,
                         .copies = target != NULL,
                         .target = target,
                         .target_context = context,
                         .slabs = slabs};
    trf_status status = run_upload(&upload, told);
    if (status == TRF_OK)
        *traits = upload.parts[0].traits;
    free(upload.parts);
    if (status == TRF_OK && target && !feed->is_whole)
        status = send_slice_head(&upload, feed, told);
    return status;
}

trf_status trf_upload_in_parts(trf_staging *staging, const trf_layer_feed *feed, const trf_part_buffers *buffers,
                               trf_device_slab *slabs, trf_error *err) {
    trf_error own = {.offset = TRF_NO_OFFSET};
    trf_upload upload = {.staging = staging, .feed = feed, .copies = 1, .in_buffers = buffers, .slabs = slabs};
    trf_status status = run_upload(&upload, err ? err : &own);
    free(upload.parts);
    return status;
}
