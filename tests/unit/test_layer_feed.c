/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds of layers (loader/trf_layer_feed.h): blobs in files, in host memory, and in memory from which bytes must be
 * copied back (which may fail) all give the same. Every allocation fails once: each time there is a status and nothing
 * is lost (the address sanitizer's run looks for leaks). TRF_TEST_WRAPS_ALLOCATIONS. */
#include "common/checkpoint_fixture.h"
#include "common/failing_memory.h"
#include "common/run_suite.h"
#include "trf_layer_from_feed.h"

#include <check.h>
#include <string.h>

static trf_error err;
static trf_checkpoint *checkpoint;
static uint8_t *blob; /* 256-byte aligned */
static uint64_t blob_bytes;
static const uint32_t tile_at_fault = 7; /* of 4 x 3: the third row of tiles */

static void begin(void) {
    static const fixture_tensor tensors[] = {{"w.weight", "BF16", {1000, 700}, 2, 0}};
    size_t bytes;
    fixture_begin();
    checkpoint = fixture_open_compressed(tensors, 1);
    const char *path = fixture_path("w.trf");
    fixture_check_status(trf_extract_layer(fixture_path("compressed.safetensors"), "w.weight", path, 0, &err), TRF_OK,
                         &err);
    uint8_t *file = fixture_read(path, &bytes);
    blob_bytes = bytes;
    blob = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memcpy(blob, file, bytes);
    free(file);
}

static void end(void) {
    free(blob);
    trf_checkpoint_close(checkpoint);
    fixture_end();
}

/* ---- memory that bytes are copied back from ---- */

typedef struct far_memory {
    int copies, fails_at; /* number of the copy that fails, from 1; 0: none */
} far_memory;

/* A trf_copy_back_fn; one thread at a time. */
static trf_status copy_back(void *context, void *to_host, const void *from, uint64_t bytes, trf_error *error) {
    far_memory *far = context;
    if (++far->copies == far->fails_at)
        return trf_fail(error, TRF_ERR_CUDA, TRF_NO_OFFSET, "no copy back");
    memcpy(to_host, from, bytes);
    return TRF_OK;
}

typedef enum feed_place {
    IN_FILE,
    IN_HOST_MEMORY,
    IN_FAR_MEMORY,
    FEED_PLACES
} feed_place;

typedef struct attempt_args {
    feed_place place;
    const trf_load_options *options;
    far_memory far;
    trf_layer *layer;
    trf_shard_range shard;
} attempt_args;

static trf_status open_feed(attempt_args *args, trf_layer_feed *feed) {
    switch (args->place) {
    case IN_FILE:
        return trf_layer_feed_open_tensor(checkpoint, "w.weight", args->options, feed, &err);
    case IN_HOST_MEMORY:
        return trf_layer_feed_open_memory(blob, blob_bytes, args->options, feed, &err);
    default:
        return trf_layer_feed_open_device(blob, blob_bytes, copy_back, &args->far, args->options, feed, &err);
    }
}

/* Opens the feed's layer in host memory. It makes no assertions. */
static trf_status open_layer(void *context) {
    attempt_args *args = context;
    trf_layer_feed feed;
    args->far.copies = 0;
    trf_status status = open_feed(args, &feed);
    if (status != TRF_OK)
        return status;
    status = trf_layer_from_feed(&feed, NULL, &args->layer, &err);
    if (status != TRF_OK)
        trf_layer_feed_fail(&feed, status, &err);
    args->shard = feed.shard;
    trf_layer_feed_close(&feed);
    return status;
}

/* The same, but frees the layer. */
static trf_status try_layer(void *context) {
    attempt_args *args = context;
    trf_status status = open_layer(args);
    if (status == TRF_OK)
        trf_layer_free(args->layer);
    return status;
}

/* ---- what is loaded ---- */

static const trf_row_range kRanges[] = {{512, 256}, {0, 256}, {768, 232}};

/* Options for the whole layer, a shard that cuts tiles, or rows of several ranges. */
static trf_load_options options_of(int what) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.threads = 1;
    if (what == 1) {
        options.first_row = 304, options.num_rows = 416;
        options.first_col = 48, options.num_cols = 400;
    }
    if (what == 2) {
        options.row_ranges = kRanges;
        options.num_row_ranges = 3;
    }
    return options;
}

START_TEST(all_places_give_the_same) {
    const trf_load_options options = options_of(_i);
    attempt_args first = {.place = IN_FILE, .options = &options};
    fixture_check_status(open_layer(&first), TRF_OK, &err);
    for (int place = IN_HOST_MEMORY; place < FEED_PLACES; place++) {
        attempt_args other = {.place = (feed_place)place, .options = &options};
        fixture_check_status(open_layer(&other), TRF_OK, &err);
        const uint64_t bytes = first.layer->view.header.blob_bytes;
        ck_assert_uint_eq(other.layer->view.header.blob_bytes, bytes);
        ck_assert_mem_eq(other.layer->blob, first.layer->blob, bytes);
        ck_assert_mem_eq(&other.shard, &first.shard, sizeof first.shard);
        trf_layer *again; /* which any reader takes */
        fixture_check_status(trf_layer_from_memory(other.layer->blob, bytes, &again, &err), TRF_OK, &err);
        trf_layer_free(again);
        trf_layer_free(other.layer);
    }
    trf_layer_free(first.layer);
}
END_TEST

/* Wherever the blob is, the message says which tile it is, and the offset counts from the blob's or the file's first
 * byte. */
START_TEST(corrupt_tiles_are_found) {
    for (int place = IN_HOST_MEMORY; place < FEED_PLACES; place++)
        for (int what = 0; what < 3; what++) {
            const trf_load_options options = options_of(what);
            attempt_args args = {.place = (feed_place)place, .options = &options};
            trf_blob_view view;
            char name[64];
            fixture_check_status(trf_blob_open(blob, blob_bytes, blob_bytes, &view, &err), TRF_OK, &err);
            const uint64_t at = view.tiles[tile_at_fault].data_offset;
            snprintf(name, sizeof name, "byte %llu: tile %u:", (unsigned long long)at, tile_at_fault);
            blob[at + 3] ^= 1;
            fixture_check_status(open_layer(&args), TRF_ERR_CHECKSUM, &err);
            blob[at + 3] ^= 1;
            ck_assert_uint_eq(err.offset, at);
            ck_assert_msg(strstr(err.message, name) != NULL, "%s", err.message);
        }
}
END_TEST

/* Each copy back fails once, those of the head first. */
START_TEST(copies_that_fail) {
    const trf_load_options options = options_of(_i);
    for (int number = 1;; number++) {
        attempt_args args = {.place = IN_FAR_MEMORY, .options = &options, .far = {.fails_at = number}};
        const trf_status status = try_layer(&args);
        if (status == TRF_OK) {
            ck_assert_int_gt(number, 2 + 4);
            break;
        }
        fixture_check_status(status, TRF_ERR_CUDA, &err);
        ck_assert_ptr_nonnull(strstr(err.message, "no copy back"));
        ck_assert_uint_eq(err.offset, TRF_NO_OFFSET);
    }
}
END_TEST

START_TEST(every_allocation_fails_once) {
    const trf_load_options options = options_of(_i / FEED_PLACES);
    attempt_args args = {.place = (feed_place)(_i % FEED_PLACES), .options = &options};
    /* TRF_ERR_IO is mmap's */
    ck_assert_int_gt(fail_each_allocation(try_layer, &args, TRF_ERR_IO, &err), 2);
}
END_TEST

static int stop_at_once(void *context, const char *tensor, uint64_t done, uint64_t total) {
    (void)context, (void)tensor, (void)done, (void)total;
    return 1;
}

START_TEST(stopped_at_once) {
    for (int place = 0; place < FEED_PLACES; place++) {
        trf_load_options options = options_of(_i);
        options.progress = stop_at_once;
        attempt_args args = {.place = (feed_place)place, .options = &options};
        fixture_check_status(try_layer(&args), TRF_ERR_CANCELLED, &err);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("layer_feed");
    TCase *tests = tcase_create("layer_feed");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, all_places_give_the_same, 0, 3);
    tcase_add_test(tests, corrupt_tiles_are_found);
    tcase_add_loop_test(tests, copies_that_fail, 0, 3);
    tcase_add_loop_test(tests, every_allocation_fails_once, 0, 3 * FEED_PLACES);
    tcase_add_loop_test(tests, stopped_at_once, 0, 3);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
