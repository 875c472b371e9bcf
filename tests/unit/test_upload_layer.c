/* SPDX-License-Identifier: Apache-2.0 */
/* Loading through staging buffers, with an engine whose copies arrive late, made by a thread of its own: what arrives,
 * what is found out about it, corrupt tiles, cancellation, engines that fail, several loads at once, shards. "Device
 * memory" is malloc'd here. */
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_checkpoint.h"
#include "trf_layer_from_feed.h"
#include "trf_slab_directory.h"
#include "trf_upload_layer.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- an engine ---- */

enum {
    QUEUE = 64
};

typedef struct late_copy {
    uint32_t buffer;
    void *to;
    const void *from;
    uint64_t bytes;
} late_copy;

typedef struct late_engine {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    late_copy queue[QUEUE];
    uint64_t begun, done;                 /* copies */
    uint64_t mark[TRF_STAGING_BUFFERS];   /* of each buffer: copies that are done when its last one has arrived */
    uint64_t fail_copy, fail_wait, waits; /* number of the call that fails, from 1; 0: none */
    int ends, no_locked_memory;
    void *locked;
} late_engine;

/* If a buffer is written to before its copy has arrived, the copy is spoiled. */
static void *run_copies(void *context) {
    late_engine *e = context;
    pthread_mutex_lock(&e->lock);
    for (;;) {
        while (e->done == e->begun && !e->ends)
            pthread_cond_wait(&e->changed, &e->lock);
        if (e->done == e->begun)
            break;
        const late_copy copy = e->queue[e->done % QUEUE];
        pthread_mutex_unlock(&e->lock);
        const struct timespec late = {0, 200000};
        nanosleep(&late, NULL);
        memcpy(copy.to, copy.from, copy.bytes);
        pthread_mutex_lock(&e->lock);
        e->done++;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

static void *engine_allocate(void *context, uint64_t bytes) {
    late_engine *e = context;
    return e->no_locked_memory ? NULL : (e->locked = aligned_alloc(4096, bytes));
}

static void engine_release(void *context, void *memory) {
    late_engine *e = context;
    ck_assert_ptr_eq(memory, e->locked);
    free(memory);
    e->locked = NULL;
}

static trf_status engine_copy(void *context, uint32_t buffer, void *to, const void *from, uint64_t bytes,
                              trf_error *err) {
    late_engine *e = context;
    pthread_mutex_lock(&e->lock);
    const int fails = e->begun + 1 == e->fail_copy;
    if (fails) {
        e->fail_copy = 0;
    } else {
        e->queue[e->begun++ % QUEUE] = (late_copy){buffer, to, from, bytes};
        e->mark[buffer] = e->begun;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    return fails ? trf_fail(err, TRF_ERR_CUDA, TRF_NO_OFFSET, "no copy") : TRF_OK;
}

static trf_status engine_wait(void *context, uint32_t buffer, trf_error *err) {
    late_engine *e = context;
    pthread_mutex_lock(&e->lock);
    while (e->done < e->mark[buffer])
        pthread_cond_wait(&e->changed, &e->lock);
    const int fails = ++e->waits == e->fail_wait;
    pthread_mutex_unlock(&e->lock);
    return fails ? trf_fail(err, TRF_ERR_CUDA, TRF_NO_OFFSET, "no wait") : TRF_OK;
}

static trf_status engine_drain(void *context, trf_error *err) {
    late_engine *e = context;
    (void)err;
    pthread_mutex_lock(&e->lock);
    while (e->done < e->begun)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return TRF_OK;
}

static const trf_copy_engine kEngine = {engine_allocate, engine_release, engine_copy, engine_wait, engine_drain};

/* ---- what is loaded ---- */

static const fixture_tensor kTensors[] = {
    {"large.weight", "BF16", {3604, 7012}, 2, 0}, /* more buffers than there are */
    {"half.weight", "F16", {304, 1300}, 2, 0},    {"tiny.weight", "BF16", {80, 64}, 2, 0},
    {"e4.weight", "F8_E4M3", {700, 1030}, 2, 0},  {"codes.weight", "I8", {1025, 2048}, 2, 0},
    {"wide.weight", "BF16", {48, 9000}, 2, 0},
};
enum {
    NUM_TENSORS = sizeof kTensors / sizeof kTensors[0]
};

static trf_error err;
static const char *compressed_path;
static trf_checkpoint *checkpoint;
static late_engine engine;
static trf_staging *staging;

static void begin(void) {
    fixture_begin();
    compressed_path = fixture_path("compressed.safetensors");
    checkpoint = fixture_open_compressed(kTensors, NUM_TENSORS);
}

static void end(void) {
    trf_checkpoint_close(checkpoint);
    fixture_end();
}

static void begin_engine(void) {
    engine = (late_engine){0};
    pthread_mutex_init(&engine.lock, NULL);
    pthread_cond_init(&engine.changed, NULL);
    ck_assert_int_eq(pthread_create(&engine.thread, NULL, run_copies, &engine), 0);
    fixture_check_status(trf_staging_create(&kEngine, &engine, &staging, &err), TRF_OK, &err);
}

/* Every buffer is free or has arrived: if one had been lost, not as many could be taken from the ring. */
static void end_engine(void) {
    uint32_t buffers[TRF_STAGING_BUFFERS];
    uint8_t *memory;
    engine.fail_copy = engine.fail_wait = 0;
    fixture_check_status(trf_staging_open(staging, &err), TRF_OK, &err);
    for (int i = 0; i < TRF_STAGING_BUFFERS; i++)
        fixture_check_status(trf_staging_take(staging, &buffers[i], &memory, &err), TRF_OK, &err);
    for (int i = 0; i < TRF_STAGING_BUFFERS; i++)
        for (int j = 0; j < i; j++)
            ck_assert_uint_ne(buffers[i], buffers[j]);
    for (int i = 0; i < TRF_STAGING_BUFFERS; i++)
        trf_staging_give_back(staging, buffers[i]);
    trf_staging_destroy(staging);
    ck_assert_ptr_null(engine.locked);
    pthread_mutex_lock(&engine.lock);
    engine.ends = 1;
    pthread_cond_broadcast(&engine.changed);
    pthread_mutex_unlock(&engine.lock);
    pthread_join(engine.thread, NULL);
}

/* A layer as it arrived. */
typedef struct arrival {
    uint8_t *memory;
    uint64_t bytes;
    trf_device_slab *slabs;
    uint64_t num_slabs;
    trf_layer_traits traits;
    trf_shard_range shard;
} arrival;

static void arrival_free(arrival *a) {
    free(a->memory);
    free(a->slabs);
}

static int has_no_target; /* whether there is no device memory */

/* A trf_target_fn: as slow as a device's allocation. */
static uint8_t *allocate_target(void *context, trf_error *error) {
    arrival *a = context;
    const struct timespec slow = {0, 1000000};
    nanosleep(&slow, NULL);
    if (has_no_target) {
        trf_fail(error, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no device memory");
        return NULL;
    }
    a->memory = malloc(a->bytes + 1);
    ck_assert_ptr_nonnull(a->memory);
    memset(a->memory, 0xA5, a->bytes + 1);
    return a->memory;
}

static trf_status upload(trf_layer_feed *feed, arrival *a, trf_error *error) {
    a->bytes = feed->view->header.blob_bytes;
    a->num_slabs = trf_count_device_slabs(&feed->view->header);
    a->shard = feed->shard;
    a->memory = NULL;
    a->slabs = calloc(a->num_slabs, sizeof *a->slabs);
    ck_assert_ptr_nonnull(a->slabs);
    uint8_t tail[300];
    uint8_t *const tail_copy = malloc(sizeof tail);
    memset(tail, 0x5A, sizeof tail);
    trf_status status = trf_staging_open(staging, error);
    if (status == TRF_OK)
        status = trf_upload_layer(staging, feed, allocate_target, a, a->slabs, &a->traits, error);
    if (status == TRF_OK)
        status = trf_staging_finish(staging, tail_copy, tail, sizeof tail, error);
    if (status == TRF_OK)
        ck_assert_mem_eq(tail_copy, tail, sizeof tail);
    else
        trf_staging_drain(staging);
    free(tail_copy);
    ck_assert(!a->memory || a->memory[a->bytes] == 0xA5);
    return status;
}

static trf_status load_from(const trf_checkpoint *from, const char *tensor, const trf_load_options *options, arrival *a,
                            trf_error *error) {
    trf_layer_feed feed;
    *a = (arrival){0};
    trf_status status = trf_layer_feed_open_tensor(from, tensor, options, &feed, error);
    if (status != TRF_OK)
        return status;
    status = upload(&feed, a, error);
    if (status != TRF_OK)
        trf_layer_feed_fail(&feed, status, error);
    trf_layer_feed_close(&feed);
    return status;
}

/* The layer as the CPU loads it, and its shard. */
static trf_layer *open_layer(const char *tensor, const trf_load_options *options, trf_shard_range *shard) {
    trf_layer_feed feed;
    trf_layer *layer;
    trf_error error;
    fixture_check_status(trf_layer_feed_open_tensor(checkpoint, tensor, options, &feed, &error), TRF_OK, &error);
    fixture_check_status(trf_layer_from_feed(&feed, NULL, &layer, &error), TRF_OK, &error);
    *shard = feed.shard;
    trf_layer_feed_close(&feed);
    return layer;
}

/* Expects what the loader for the CPU has, which maps and checks in another way, and that any reader takes it. */
static void check_arrival(const arrival *a, const char *tensor, const trf_load_options *options) {
    trf_shard_range shard;
    trf_layer_traits traits;
    trf_blob_view arrived;
    trf_layer *layer = open_layer(tensor, options, &shard);
    const trf_blob_view *view = &layer->view;
    ck_assert_uint_eq(a->bytes, view->header.blob_bytes);
    ck_assert_mem_eq(&a->shard, &shard, sizeof shard);
    ck_assert_mem_eq(a->memory, layer->blob, a->bytes);
    fixture_check_status(trf_blob_validate(a->memory, a->bytes, &arrived, &err), TRF_OK, &err);
    trf_device_slab *slabs = calloc(a->num_slabs, sizeof *slabs);
    trf_describe_layer(layer, slabs, &traits);
    ck_assert_mem_eq(a->slabs, slabs, a->num_slabs * sizeof *slabs);
    ck_assert_mem_eq(&a->traits, &traits, sizeof traits);
    free(slabs);
    trf_layer_free(layer);
}

/* ---- tests ---- */

START_TEST(whole_layers) {
    for (int locked = 0; locked < 2; locked++)
        for (int t = 0; t < NUM_TENSORS; t++) {
            trf_load_options options;
            trf_load_options_init(&options);
            options.threads = _i;
            engine.no_locked_memory = !locked;
            arrival a;
            fixture_check_status(load_from(checkpoint, kTensors[t].name, &options, &a, &err), TRF_OK, &err);
            check_arrival(&a, kTensors[t].name, &options);
            arrival_free(&a);
            if (t == 0 && !locked)
                ck_assert_int_eq(trf_staging_is_pinned(staging), 0);
            if (t == NUM_TENSORS - 1 && !locked) { /* a ring that finds page-locked memory */
                end_engine();
                begin_engine();
            }
        }
    ck_assert_int_eq(trf_staging_is_pinned(staging), 1);
}
END_TEST

START_TEST(shards) {
    static const uint32_t shards[][4] = {{0, 256, 0, 0},     {512, 1024, 0, 0},  {0, 0, 2048, 2048},
                                         {304, 1200, 16, 0}, {16, 16, 4480, 16}, {2096, 0, 4496, 0}};
    for (size_t s = 0; s < sizeof shards / sizeof shards[0]; s++) {
        trf_load_options options;
        trf_load_options_init(&options);
        options.threads = 3;
        options.first_row = shards[s][0], options.num_rows = shards[s][1];
        options.first_col = shards[s][2], options.num_cols = shards[s][3];
        arrival a;
        fixture_check_status(load_from(checkpoint, "large.weight", &options, &a, &err), TRF_OK, &err);
        check_arrival(&a, "large.weight", &options);
        arrival_free(&a);
    }
}
END_TEST

/* ---- in parts ---- */

/* Takes parts from their buffers as late as possible: when the next part is taken. */
typedef struct part_taker {
    arrival *to;
    const trf_blob_view *view;
    trf_part_buffers buffers;
    uint32_t taken, fail_at; /* the call that fails, from 1; 0: none */
    int is_inside;
} part_taker;

static void copy_part(const part_taker *taker, uint32_t part) {
    const trf_part_buffers *in = &taker->buffers;
    const uint64_t first = part * in->tiles_each, end = first + in->tiles_each;
    const trf_tile_meta *tiles = taker->view->tiles,
                        *last = &tiles[(end < taker->view->num_tiles ? end : taker->view->num_tiles) - 1];
    const uint64_t bytes = last->data_offset + last->data_size - tiles[first].data_offset;
    ck_assert_uint_le(bytes, in->buffer_bytes);
    memcpy(taker->to->memory + tiles[first].data_offset, in->memory + part % in->buffers * in->buffer_bytes, bytes);
}

/* A function that trf_part_buffers takes. */
static trf_status take_part(void *context, uint32_t part, const trf_layer_traits *traits, trf_error *error) {
    part_taker *taker = context;
    EXPECT(!taker->is_inside && part == taker->taken);
    taker->is_inside = 1;
    engine_drain(&engine, NULL); /* all copies of the part have begun */
    if (part)
        copy_part(taker, part - 1);
    if (part)
        trf_traits_add(&taker->to->traits, traits);
    else
        taker->to->traits = *traits;
    taker->is_inside = 0;
    taker->taken++;
    return taker->taken == taker->fail_at ? trf_fail(error, TRF_ERR_CUDA, TRF_NO_OFFSET, "no take") : TRF_OK;
}

/* Some rows of tiles at a time. fail_at: the call of `take` that is to fail, from 1; 0: none. */
static trf_status upload_parts(trf_layer_feed *feed, uint32_t rows_each, uint32_t fail_at, arrival *a,
                               trf_error *error) {
    const trf_blob_view *view = feed->view;
    *a = (arrival){.bytes = view->header.blob_bytes, .shard = feed->shard};
    a->num_slabs = trf_count_device_slabs(&view->header);
    a->slabs = calloc(a->num_slabs, sizeof *a->slabs);
    a->memory = calloc(1, a->bytes);
    part_taker taker = {.to = a,
                        .view = view,
                        .fail_at = fail_at,
                        .buffers = {.tiles_each = (uint64_t)rows_each * view->header.num_tile_cols,
                                    .buffers = 2 + rows_each % 2,
                                    .take = take_part,
                                    .context = &taker}};
    const uint32_t parts = (view->header.num_tile_rows + rows_each - 1) / rows_each;
    taker.buffers.buffer_bytes = taker.buffers.tiles_each * TRF_MAX_TILE_BYTES;
    taker.buffers.memory = malloc(taker.buffers.buffers * taker.buffers.buffer_bytes);
    ck_assert(taker.buffers.memory && a->memory && a->slabs);
    trf_status status = trf_staging_open(staging, error);
    if (status == TRF_OK)
        status = trf_upload_in_parts(staging, feed, &taker.buffers, a->slabs, error);
    if (status == TRF_OK)
        copy_part(&taker, parts - 1);
    EXPECT(status == TRF_OK ? taker.taken == parts : taker.taken <= parts);
    if (status == TRF_OK)
        status = trf_layer_feed_complete_head(feed, error);
    if (status == TRF_OK)
        status = trf_staging_finish(staging, a->memory, feed->view->head, feed->view->extension.data_offset, error);
    if (status != TRF_OK)
        trf_staging_drain(staging);
    free(taker.buffers.memory);
    return status;
}

static trf_status load_in_parts(const trf_load_options *options, uint32_t rows_each, uint32_t fail_at, arrival *a,
                                trf_error *error) {
    trf_layer_feed feed;
    fixture_check_status(trf_layer_feed_open_tensor(checkpoint, "large.weight", options, &feed, error), TRF_OK, error);
    const trf_status status = upload_parts(&feed, rows_each, fail_at, a, error);
    trf_layer_feed_close(&feed);
    return status;
}

static int note_progress(void *context, const char *tensor, uint64_t done, uint64_t total) {
    uint64_t *seen = context;
    (void)tensor;
    EXPECT(done >= *seen && done <= total);
    *seen = done;
    return 0;
}

START_TEST(layers_in_parts) {
    static const uint32_t shards[][4] = {{0, 0, 0, 0}, {512, 1024, 0, 0}, {304, 1200, 16, 0}};
    for (size_t s = 0; s < sizeof shards / sizeof shards[0]; s++) {
        trf_load_options options;
        trf_layer_feed feed;
        uint64_t seen = 0;
        trf_load_options_init(&options);
        options.threads = 3;
        options.first_row = shards[s][0], options.num_rows = shards[s][1];
        options.first_col = shards[s][2], options.num_cols = shards[s][3];
        options.progress = note_progress;
        options.progress_context = &seen;
        fixture_check_status(trf_layer_feed_open_tensor(checkpoint, "large.weight", &options, &feed, &err), TRF_OK,
                             &err);
        arrival a;
        fixture_check_status(upload_parts(&feed, (uint32_t)_i, 0, &a, &err), TRF_OK, &err);
        ck_assert_uint_eq(seen, a.bytes - feed.view->extension.data_offset);
        trf_layer_feed_close(&feed);
        options.progress = NULL;
        check_arrival(&a, "large.weight", &options);
        arrival_free(&a);
    }
}
END_TEST

/* Each copy, each wait for one and each take fails once: nothing hangs, and no buffer is lost. */
START_TEST(parts_that_fail) {
    static const char *const kWhat[] = {"no copy", "no wait", "no take"};
    for (uint32_t number = 1;; number++) {
        trf_load_options options;
        trf_load_options_init(&options);
        options.threads = 1 + (int)number % 4 * 3;
        engine.waits = 0;
        engine.fail_copy = _i == 0 ? engine.begun + number : 0;
        engine.fail_wait = _i == 1 ? number : 0;
        arrival a;
        const trf_status status = load_in_parts(&options, 1, _i == 2 ? number : 0, &a, &err);
        arrival_free(&a);
        if (status == TRF_OK) {
            ck_assert_uint_gt(number, 2);
            break;
        }
        fixture_check_status(status, TRF_ERR_CUDA, &err);
        ck_assert_ptr_nonnull(strstr(err.message, kWhat[_i]));
    }
}
END_TEST

static void *load_parts_often(void *context) {
    const int first = *(const int *)context;
    for (int i = 0; i < test_rounds(4); i++) {
        trf_load_options options;
        trf_error error;
        arrival a;
        trf_shard_range shard;
        trf_load_options_init(&options);
        options.threads = 1 + (first + i) % 6;
        fixture_check_status(load_in_parts(&options, 1 + (uint32_t)(first + i) % 3, 0, &a, &error), TRF_OK, &error);
        trf_layer *layer = open_layer("large.weight", &options, &shard);
        EXPECT(a.bytes == layer->view.header.blob_bytes && memcmp(a.memory, layer->blob, a.bytes) == 0);
        trf_layer_free(layer);
        arrival_free(&a);
    }
    return NULL;
}

/* Runs more loads at once than there are buffers; each gets the address of its number. */
static void load_at_once(void *(*load)(void *)) {
    enum {
        LOADS = TRF_STAGING_BUFFERS + 3
    };
    pthread_t threads[LOADS];
    int first[LOADS];
    for (int i = 0; i < LOADS; i++) {
        first[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, load, &first[i]), 0);
    }
    for (int i = 0; i < LOADS; i++)
        pthread_join(threads[i], NULL);
}

/* No load may keep the others from going on. */
START_TEST(several_in_parts) { load_at_once(load_parts_often); }
END_TEST

START_TEST(layers_in_memory) {
    for (int t = 0; t < NUM_TENSORS; t++) {
        trf_layer *layer;
        const char *path = fixture_path("%s.trf", kTensors[t].name);
        fixture_check_status(trf_extract_layer(compressed_path, kTensors[t].name, path, 1, &err), TRF_OK, &err);
        fixture_check_status(trf_layer_open(path, &layer, &err), TRF_OK, &err);
        trf_load_options options;
        trf_layer_feed feed;
        trf_load_options_init(&options);
        fixture_check_status(
            trf_layer_feed_open_memory(layer->blob, layer->view.header.blob_bytes, &options, &feed, &err), TRF_OK,
            &err);
        arrival a;
        fixture_check_status(upload(&feed, &a, &err), TRF_OK, &err);
        check_arrival(&a, kTensors[t].name, &options);
        arrival_free(&a);
        trf_layer_feed_close(&feed);
        trf_layer_free(layer);
    }
}
END_TEST

/* Layers that already lie where they should be are read and described as if they were copied, but nothing is copied. */
START_TEST(layers_in_place) {
    for (int t = 0; t < NUM_TENSORS; t++) {
        trf_load_options options;
        trf_layer_feed feed;
        trf_shard_range shard;
        trf_layer_traits traits, found;
        trf_load_options_init(&options);
        options.threads = 1 + t % 3;
        trf_layer *layer = open_layer(kTensors[t].name, &options, &shard);
        const trf_blob_view *view = &layer->view;
        const uint64_t blob_bytes = view->header.blob_bytes, num_slabs = trf_count_device_slabs(&view->header);
        uint8_t *blob = aligned_alloc(TRF_TILE_ALIGNMENT, blob_bytes);
        trf_device_slab *slabs = calloc(num_slabs, sizeof *slabs), *found_slabs = calloc(num_slabs, sizeof *slabs);
        memcpy(blob, layer->blob, blob_bytes);
        fixture_check_status(trf_layer_feed_open_memory(blob, blob_bytes, &options, &feed, &err), TRF_OK, &err);
        fixture_check_status(trf_staging_open(staging, &err), TRF_OK, &err);
        fixture_check_status(trf_upload_layer(staging, &feed, NULL, NULL, found_slabs, &found, &err), TRF_OK, &err);
        trf_describe_layer(layer, slabs, &traits);
        ck_assert_mem_eq(found_slabs, slabs, num_slabs * sizeof *slabs);
        ck_assert_mem_eq(&found, &traits, sizeof traits);
        ck_assert_uint_eq(engine.begun, 0);
        const uint64_t at = view->tiles[view->num_tiles - 1].data_offset;
        blob[at] ^= 1;
        fixture_check_status(trf_upload_layer(staging, &feed, NULL, NULL, found_slabs, &found, &err), TRF_ERR_CHECKSUM,
                             &err);
        ck_assert_uint_eq(err.offset, at);
        trf_layer_feed_close(&feed);
        trf_layer_free(layer);
        free(blob);
        free(slabs);
        free(found_slabs);
    }
}
END_TEST

static trf_tensor_info info_of(const char *tensor) {
    trf_tensor_info info;
    uint64_t index = 0;
    do
        fixture_check_status(trf_checkpoint_tensor(checkpoint, index++, &info, &err), TRF_OK, &err);
    while (strcmp(info.name, tensor) != 0);
    return info;
}

/* One or two corrupt bytes in tiles in the middle: with any number of threads, the message names the first corrupt tile
 * and where it is. */
START_TEST(corrupt_tiles) {
    size_t bytes;
    uint8_t *file = fixture_read(compressed_path, &bytes);
    const char *damaged = fixture_path("damaged.safetensors");
    const trf_tensor_info info = info_of("large.weight");
    const trf_tile_meta *metas = (const trf_tile_meta *)(file + info.file_offset + TRF_TILES_OFFSET);
    const uint64_t tiles = info.layer.tiles, first = tiles / 2 + (uint64_t)_i;
    const uint64_t at = info.file_offset + metas[first].data_offset;
    char name[64];
    snprintf(name, sizeof name, "byte %llu: tile %llu:", (unsigned long long)at, (unsigned long long)first);
    file[at + metas[first].data_size / 2] ^= 4;
    file[info.file_offset + metas[tiles - 1].data_offset] ^= 1;
    fixture_write(damaged, file, bytes);
    trf_checkpoint *opened;
    fixture_check_status(trf_checkpoint_open(damaged, &opened, &err), TRF_OK, &err);
    for (int threads = 1; threads <= 5; threads += 2) {
        trf_load_options options;
        trf_load_options_init(&options);
        options.threads = threads;
        arrival a;
        fixture_check_status(load_from(opened, "large.weight", &options, &a, &err), TRF_ERR_CHECKSUM, &err);
        ck_assert_msg(strstr(err.message, name) && strstr(err.message, "damaged.safetensors") &&
                          strstr(err.message, "large.weight"),
                      "%s", err.message);
        ck_assert_uint_eq(err.offset, at);
        arrival_free(&a);
        fixture_check_status(load_from(opened, "half.weight", &options, &a, &err), TRF_OK, &err);
        arrival_free(&a);
    }
    trf_checkpoint_close(opened);
    free(file);
}
END_TEST

/* A file that is cut after it was opened. */
START_TEST(files_that_shrink) {
    size_t bytes;
    uint8_t *file = fixture_read(compressed_path, &bytes);
    const char *shrinking = fixture_path("shrinking.safetensors");
    const trf_tensor_info info = info_of("large.weight");
    fixture_write(shrinking, file, bytes);
    trf_checkpoint *opened;
    trf_layer_feed feed;
    trf_load_options options;
    trf_load_options_init(&options);
    fixture_check_status(trf_checkpoint_open(shrinking, &opened, &err), TRF_OK, &err);
    fixture_check_status(trf_layer_feed_open_tensor(opened, "large.weight", &options, &feed, &err), TRF_OK, &err);
    const uint64_t left = info.file_offset + info.bytes / 3;
    ck_assert_int_eq(truncate(shrinking, (off_t)left), 0);
    arrival a;
    trf_status status = upload(&feed, &a, &err);
    trf_layer_feed_fail(&feed, status, &err);
    fixture_check_status(status, TRF_ERR_TRUNCATED, &err);
    ck_assert_uint_eq(err.offset, left);
    arrival_free(&a);
    trf_layer_feed_close(&feed);
    trf_checkpoint_close(opened);
    free(file);
}
END_TEST

typedef struct counted {
    pthread_t caller;
    int calls, stop_at;
    uint64_t done, total;
} counted;

static int count(void *context, const char *tensor, uint64_t done, uint64_t total) {
    counted *c = context;
    ck_assert_str_eq(tensor, "large.weight");
    ck_assert(pthread_equal(pthread_self(), c->caller));
    ck_assert(done >= c->done && done <= total && (c->calls == 0 || total == c->total));
    c->done = done;
    c->total = total;
    return ++c->calls == c->stop_at;
}

/* The caller is told on its own thread, transfer by transfer, and can stop the load at each. */
START_TEST(cancelled_loads) {
    const int threads = 1 + 3 * _i;
    for (int stop_at = 1;; stop_at++) {
        counted c = {pthread_self(), 0, stop_at, 0, 0};
        trf_load_options options;
        trf_load_options_init(&options);
        options.threads = threads;
        options.progress = count;
        options.progress_context = &c;
        arrival a;
        const trf_status status = load_from(checkpoint, "large.weight", &options, &a, &err);
        arrival_free(&a);
        if (status == TRF_OK) {
            ck_assert_uint_eq(c.done, c.total);
            ck_assert_int_lt(c.calls, stop_at);
            if (threads == 1) /* another thread may be done before the caller's own can report */
                ck_assert_int_gt(stop_at, 3);
            break;
        }
        fixture_check_status(status, TRF_ERR_CANCELLED, &err);
        ck_assert_int_eq(c.calls, stop_at);
        ck_assert_ptr_nonnull(strstr(err.message, "large.weight"));
    }
}
END_TEST

/* Each copy, and each wait for one, fails once. */
START_TEST(engines_that_fail) {
    for (uint64_t number = 1;; number++) {
        trf_load_options options;
        trf_load_options_init(&options);
        options.threads = 2;
        engine.waits = 0;
        *(_i ? &engine.fail_wait : &engine.fail_copy) = _i ? number : engine.begun + number;
        arrival a;
        const trf_status status = load_from(checkpoint, "large.weight", &options, &a, &err);
        arrival_free(&a);
        if (status == TRF_OK) {
            ck_assert_uint_gt(number, 2);
            break;
        }
        fixture_check_status(status, TRF_ERR_CUDA, &err);
        ck_assert_ptr_nonnull(strstr(err.message, _i ? "no wait" : "no copy"));
        ck_assert_uint_eq(err.offset, TRF_NO_OFFSET);
    }
}
END_TEST

START_TEST(no_device_memory) {
    for (int t = 0; t < NUM_TENSORS; t++)
        for (int threads = 1; threads <= 8; threads += 3) {
            trf_load_options options;
            trf_load_options_init(&options);
            options.threads = threads;
            arrival a;
            has_no_target = 1;
            fixture_check_status(load_from(checkpoint, kTensors[t].name, &options, &a, &err), TRF_ERR_MEMORY, &err);
            has_no_target = 0;
            ck_assert_ptr_nonnull(strstr(err.message, "no device memory"));
            arrival_free(&a);
        }
}
END_TEST

static void *load_often(void *context) {
    const int first = *(const int *)context;
    for (int i = 0; i < test_rounds(8); i++) {
        trf_load_options options;
        trf_error error;
        trf_load_options_init(&options);
        options.threads = 1 + i % 3;
        arrival a;
        const char *tensor = kTensors[(first + i) % NUM_TENSORS].name;
        ck_assert_int_eq(load_from(checkpoint, tensor, &options, &a, &error), TRF_OK);
        trf_shard_range shard;
        trf_layer *layer = open_layer(tensor, &options, &shard);
        ck_assert(a.bytes == layer->view.header.blob_bytes && memcmp(a.memory, layer->blob, a.bytes) == 0);
        trf_layer_free(layer);
        arrival_free(&a);
    }
    return NULL;
}

/* More loads at once than there are buffers. */
START_TEST(several_at_once) { load_at_once(load_often); }
END_TEST

/* Stops loads half way while others use the same buffers. */
static void *load_or_cancel(void *context) {
    const int first = *(const int *)context;
    for (int i = 0; i < test_rounds(4); i++) {
        counted c = {pthread_self(), 0, 1 + (first + i) % 5, 0, 0};
        trf_load_options options;
        trf_error error;
        arrival a;
        trf_load_options_init(&options);
        options.threads = 1 + (first + i) % 4;
        options.progress = count;
        options.progress_context = &c;
        trf_status status = load_from(checkpoint, "large.weight", &options, &a, &error);
        EXPECT(status == (c.calls == c.stop_at ? TRF_ERR_CANCELLED : TRF_OK));
        arrival_free(&a);
        options.progress = NULL;
        const char *tensor = kTensors[1 + (first + i) % (NUM_TENSORS - 1)].name;
        fixture_check_status(load_from(checkpoint, tensor, &options, &a, &error), TRF_OK, &error);
        trf_shard_range shard;
        trf_layer *layer = open_layer(tensor, &options, &shard);
        EXPECT(a.bytes == layer->view.header.blob_bytes && memcmp(a.memory, layer->blob, a.bytes) == 0);
        trf_layer_free(layer);
        arrival_free(&a);
    }
    return NULL;
}

START_TEST(some_are_cancelled) { load_at_once(load_or_cancel); }
END_TEST

int main(void) {
    Suite *suite = suite_create("upload_layer");
    TCase *tests = tcase_create("upload_layer");
    tcase_set_tags(tests, "threads");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_add_checked_fixture(tests, begin_engine, end_engine);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, whole_layers, 0, 4);
    tcase_add_test(tests, shards);
    tcase_add_loop_test(tests, layers_in_parts, 1, 4);
    tcase_add_loop_test(tests, parts_that_fail, 0, 3);
    tcase_add_test(tests, several_in_parts);
    tcase_add_test(tests, layers_in_memory);
    tcase_add_test(tests, layers_in_place);
    tcase_add_loop_test(tests, corrupt_tiles, 0, 3);
    tcase_add_test(tests, files_that_shrink);
    tcase_add_loop_test(tests, cancelled_loads, 0, 2);
    tcase_add_loop_test(tests, engines_that_fail, 0, 2);
    tcase_add_test(tests, no_device_memory);
    tcase_add_test(tests, several_at_once);
    tcase_add_test(tests, some_are_cancelled);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
