/* A blob is cut into *units* of some tiles side by side (or of a part of the head), which threads take in order, and
 * these into *chunks*, which are what one staging buffer holds. The thread that comes to a chunk first takes a buffer
 * for it; the one that finishes its last unit sends it. Units of a chunk are handed out before those of the next one,
 * so a thread that waits for a buffer never keeps one from being completed, whatever other loads do; and what is
 * complete waits only for the caller's thread, which asks for the target before it takes a buffer itself. A slice's
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
    UNIT_BYTES = 256 << 10,
    WORKER_BYTES = 2 * UNIT_BYTES, /* a thread's start takes about as long as reading these */
};
TRF_STATIC_ASSERT((int)TRF_MAX_TILE_BYTES <= (int)TRF_STAGING_BYTES, "a buffer holds any tile");
TRF_STATIC_ASSERT((int)TRF_MAX_TILE_BYTES <= (int)TRF_SCRATCH_BYTES && (int)UNIT_BYTES <= (int)TRF_SCRATCH_BYTES,
                  "a scratch holds any unit");

typedef struct trf_unit {
    uint64_t offset; /* in the blob */
    uint64_t first;  /* tile */
    uint32_t tiles;  /* 0: a part of the head */
    uint32_t bytes;
    uint64_t chunk;
} trf_unit;

typedef enum trf_chunk_state {
    TRF_CHUNK_NEW,
    TRF_CHUNK_TAKING, /* a thread is taking a buffer for it */
    TRF_CHUNK_OPEN,
    TRF_CHUNK_FULL, /* not sent yet: there is no target */
    TRF_CHUNK_DONE  /* sent, or without a buffer after a failure */
} trf_chunk_state;

typedef struct trf_chunk {
    uint64_t offset; /* in the blob */
    uint32_t bytes;
    uint32_t units; /* that are not finished */
    trf_chunk_state state;
    uint32_t buffer;
    uint8_t *memory;
} trf_chunk;

typedef struct trf_stage_load {
    trf_staging *staging;
    const trf_layer_source *source;
    trf_target_fn *target; /* NULL: no chunk gets a buffer */
    void *target_context;
    trf_device_slab *slabs;
    trf_unit *units;
    trf_chunk *chunks;
    uint8_t **scratches; /* [workers]: each one's, NULL until it has something to read */
    uint64_t num_units, num_chunks;
    int workers;
    uint64_t reported_bytes; /* of tiles, that the caller has been told of; of the caller's thread, as asked_target */
    int asked_target;
    pthread_mutex_t lock;     /* over what follows, and the chunks */
    pthread_cond_t opened;    /* a chunk has left TRF_CHUNK_TAKING */
    uint8_t *to;              /* NULL until there is one */
    int has_no_target;        /* and will not have one */
    uint64_t done_bytes;      /* of tiles */
    trf_error failure;        /* why a chunk has no buffer */
    trf_layer_traits *traits; /* to which those of finished units are added */
} trf_stage_load;

/* ---- cutting ---- */

/* The unit that begins at a place in the blob, or at a tile if the head is behind it. */
static trf_unit cut_unit(const trf_blob_view *view, uint64_t offset, uint64_t tile) {
    trf_unit unit = {.offset = offset, .first = tile};
    if (offset < view->extension.data_offset) {
        const uint64_t left = view->extension.data_offset - offset;
        unit.bytes = left < UNIT_BYTES ? (uint32_t)left : UNIT_BYTES;
        return unit;
    }
    do {
        unit.bytes += view->tiles[tile].data_size;
        unit.tiles++;
        tile++;
    } while (tile < view->num_tiles && unit.bytes + view->tiles[tile].data_size <= UNIT_BYTES);
    return unit;
}

/* Counts units and chunks, and fills the load's lists if they are there. */
static void cut_blob(trf_stage_load *load) {
    const trf_blob_view *view = load->source->view;
    const int sends_head = load->target && load->source->is_whole;
    trf_chunk chunk = {0};
    load->num_units = load->num_chunks = 0;
    for (uint64_t offset = sends_head ? 0 : view->extension.data_offset, tile = 0; tile < view->num_tiles;) {
        trf_unit unit = cut_unit(view, offset, tile);
        if (chunk.bytes == 0 || chunk.bytes + unit.bytes > TRF_STAGING_BYTES) {
            chunk = (trf_chunk){.offset = offset};
            load->num_chunks++;
        }
        chunk.bytes += unit.bytes;
        chunk.units++;
        unit.chunk = load->num_chunks - 1;
        if (load->units) {
            load->units[load->num_units] = unit;
            load->chunks[unit.chunk] = chunk;
        }
        load->num_units++;
        offset += unit.bytes;
        tile += unit.tiles;
    }
}

static trf_status make_lists(trf_stage_load *load, trf_error *err) {
    cut_blob(load);
    load->units = malloc(load->num_units * sizeof *load->units);
    load->chunks = malloc(load->num_chunks * sizeof *load->chunks);
    load->scratches = calloc((size_t)load->workers, sizeof *load->scratches);
    if (!load->units || !load->chunks || !load->scratches)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %llu tiles",
                        (unsigned long long)load->source->view->num_tiles);
    cut_blob(load);
    return TRF_OK;
}

/* ---- units ---- */

/* Sees that a chunk has a buffer. err: not NULL. */
static trf_status open_chunk(trf_stage_load *load, trf_chunk *chunk, trf_error *err) {
    pthread_mutex_lock(&load->lock);
    while (chunk->state == TRF_CHUNK_TAKING)
        pthread_cond_wait(&load->opened, &load->lock);
    const int is_ours = chunk->state == TRF_CHUNK_NEW, has_failed = chunk->state == TRF_CHUNK_DONE;
    if (is_ours)
        chunk->state = TRF_CHUNK_TAKING;
    if (has_failed)
        *err = load->failure;
    pthread_mutex_unlock(&load->lock);
    if (!is_ours)
        return has_failed ? err->status : TRF_OK;
    uint32_t buffer = 0;
    uint8_t *memory = NULL;
    trf_status status = trf_staging_take(load->staging, &buffer, &memory, err);
    pthread_mutex_lock(&load->lock);
    chunk->buffer = buffer;
    chunk->memory = memory;
    chunk->state = status == TRF_OK ? TRF_CHUNK_OPEN : TRF_CHUNK_DONE;
    if (status != TRF_OK)
        load->failure = *err;
    pthread_cond_broadcast(&load->opened);
    pthread_mutex_unlock(&load->lock);
    return status;
}

/* What becomes of a chunk whose units are all there. The lock is held. @return whether the caller is to send it. */
static int complete_chunk(trf_stage_load *load, trf_chunk *chunk) {
    if (!load->to && !load->has_no_target) {
        chunk->state = TRF_CHUNK_FULL;
        return 0;
    }
    chunk->state = TRF_CHUNK_DONE;
    if (load->has_no_target)
        trf_staging_give_back(load->staging, chunk->buffer);
    return load->to != NULL;
}

static trf_status send_chunk(trf_stage_load *load, const trf_chunk *chunk, trf_error *err) {
    return trf_staging_send(load->staging, chunk->buffer, load->to + chunk->offset, chunk->bytes, err);
}

/* Notes that a unit is in its chunk's buffer, and sends the chunk with its last one. */
static trf_status close_unit(trf_stage_load *load, const trf_unit *unit, const trf_layer_traits *traits,
                             trf_error *err) {
    trf_chunk *chunk = &load->chunks[unit->chunk];
    pthread_mutex_lock(&load->lock);
    trf_traits_add(load->traits, traits);
    load->done_bytes += unit->tiles ? unit->bytes : 0;
    const int sends = --chunk->units == 0 && load->target && complete_chunk(load, chunk);
    pthread_mutex_unlock(&load->lock);
    return sends ? send_chunk(load, chunk, err) : TRF_OK;
}

/* After a failure: nothing is to wait for a target any more, which the caller's thread may never come to ask for. */
static void abandon_target(trf_stage_load *load) {
    pthread_mutex_lock(&load->lock);
    load->has_no_target = !load->to;
    for (uint64_t c = 0; load->has_no_target && c < load->num_chunks; c++)
        if (load->chunks[c].state == TRF_CHUNK_FULL)
            complete_chunk(load, &load->chunks[c]);
    pthread_mutex_unlock(&load->lock);
}

/* Of the caller's thread: asks for the target, and sends the chunks that wait for it. */
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
    for (uint64_t c = 0; load->to && c < load->num_chunks; c++) {
        trf_chunk *chunk = &load->chunks[c];
        if (chunk->state == TRF_CHUNK_FULL && complete_chunk(load, chunk)) {
            trf_status sent = send_chunk(load, chunk, status == TRF_OK ? err : NULL);
            status = status == TRF_OK ? sent : status;
        }
    }
    pthread_mutex_unlock(&load->lock);
    return status;
}

static uint64_t count_total_bytes(const trf_blob_view *view) {
    return view->header.blob_bytes - view->extension.data_offset;
}

static trf_status report_load(const trf_stage_load *load, uint64_t done_bytes, trf_error *err) {
    const trf_layer_source *source = load->source;
    if (source->progress &&
        source->progress(source->progress_context, source->tensor, done_bytes, count_total_bytes(source->view)))
        return trf_fail(err, TRF_ERR_CANCELLED, TRF_NO_OFFSET, "stopped on request");
    return TRF_OK;
}

/* What the caller's thread does beside its units: tells of chunks that have been finished. */
static trf_status report_new_bytes(trf_stage_load *load, trf_error *err) {
    pthread_mutex_lock(&load->lock);
    const uint64_t done_bytes = load->done_bytes;
    pthread_mutex_unlock(&load->lock);
    if (!load->source->progress || done_bytes - load->reported_bytes < TRF_STAGING_BYTES)
        return TRF_OK;
    load->reported_bytes = done_bytes;
    return report_load(load, done_bytes, err);
}

/* A unit's tiles, in the worker's scratch or where they are anyway. */
static trf_status read_tiles(trf_stage_load *load, const trf_unit *unit, int worker, const uint8_t **tiles,
                             trf_error *err) {
    const trf_layer_source *source = load->source;
    if (!load->scratches[worker])
        load->scratches[worker] = trf_staging_take_scratch(load->staging);
    if (!load->scratches[worker])
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %d bytes to read to", TRF_SCRATCH_BYTES);
    return source->read(source->reader, unit->first, unit->tiles, load->scratches[worker], tiles, err);
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

static trf_status fill_unit(trf_stage_load *load, uint64_t index, int worker, trf_error *err) {
    const trf_layer_source *source = load->source;
    const trf_unit *unit = &load->units[index];
    trf_chunk *chunk = &load->chunks[unit->chunk];
    trf_layer_traits traits = TRF_NO_TRAITS;
    trf_status status = worker == 0 ? find_target(load, err) : TRF_OK;
    if (status == TRF_OK && worker == 0)
        status = report_new_bytes(load, err);
    if (status == TRF_OK && load->target)
        status = open_chunk(load, chunk, err);
    if (status != TRF_OK)
        return status;
    const uint8_t *from = source->view->head + unit->offset;
    if (unit->tiles)
        status = read_tiles(load, unit, worker, &from, err);
    for (uint64_t t = unit->first; status == TRF_OK && t < unit->first + unit->tiles; t++)
        trf_describe_tile(source->view, t, from + (source->view->tiles[t].data_offset - unit->offset), load->slabs,
                          &traits);
    if (status != TRF_OK)
        return status;
    if (load->target)
        copy_past_caches(chunk->memory + (unit->offset - chunk->offset), from, unit->bytes);
    return close_unit(load, unit, &traits, err);
}

/* A trf_parallel_fn. */
static trf_status stage_unit(void *context, uint64_t index, int worker, trf_error *err) {
    trf_stage_load *load = context;
    trf_status status = fill_unit(load, index, worker, err);
    if (status != TRF_OK)
        abandon_target(load);
    return status;
}

/* ---- the layer ---- */

/* err: not NULL. */
static trf_status stage_units(trf_stage_load *load, trf_error *err) {
    trf_status status = report_load(load, 0, err);
    if (status == TRF_OK)
        status = trf_pool_for(trf_staging_pool(load->staging), load->workers, load->num_units, stage_unit, load, err);
    if (status == TRF_OK) /* others have been faster than the caller's thread */
        status = find_target(load, err);
    for (int w = 0; w < load->workers; w++)
        trf_staging_give_scratch(load->staging, load->scratches[w]);
    for (uint64_t c = 0; c < load->num_chunks; c++) /* after a failure */
        if (load->chunks[c].state == TRF_CHUNK_OPEN || load->chunks[c].state == TRF_CHUNK_FULL)
            trf_staging_give_back(load->staging, load->chunks[c].buffer);
    return status == TRF_OK ? report_load(load, load->done_bytes, err) : status;
}

static trf_status send_slice_head(trf_stage_load *load, trf_layer_source *source, trf_error *err) {
    trf_status status = trf_layer_source_complete_head(source, err);
    if (status != TRF_OK)
        return status;
    return trf_staging_finish(load->staging, load->to, source->view->head, source->view->extension.data_offset, err);
}

trf_status trf_stage_layer(trf_staging *staging, trf_layer_source *source, trf_target_fn *target, void *context,
                           trf_device_slab *slabs, trf_layer_traits *traits, trf_error *err) {
    trf_error own = {.offset = TRF_NO_OFFSET};
    trf_stage_load load = {.staging = staging,
                           .source = source,
                           .target = target,
                           .target_context = context,
                           .slabs = slabs,
                           .traits = traits};
    const uint64_t most = 1 + source->view->header.blob_bytes / WORKER_BYTES;
    const int threads = trf_thread_count(source->threads);
    load.workers = (uint64_t)threads < most ? threads : (int)most;
    err = err ? err : &own;
    if (pthread_mutex_init(&load.lock, NULL) != 0 || pthread_cond_init(&load.opened, NULL) != 0)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    trf_describe_head(source->view, traits);
    trf_status status = make_lists(&load, err);
    if (status == TRF_OK)
        status = stage_units(&load, err);
    if (status == TRF_OK && target && !source->is_whole)
        status = send_slice_head(&load, source, err);
    free(load.units);
    free(load.chunks);
    free(load.scratches);
    pthread_cond_destroy(&load.opened);
    pthread_mutex_destroy(&load.lock);
    return status;
}
