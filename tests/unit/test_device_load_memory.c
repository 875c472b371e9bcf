/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of checkpoints that are loaded to the caller's memory, compared with the library's own, for shards, rows of
 * several ranges and experts; what ends a load, and that nobody writes beside the caller's buffers. These tests run on
 * the CPU; tests/gpu/ builds this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/guarded_memory.h"
#include "common/run_suite.h"
#include "common/same_products.h"
#include "common/test_calls.h"
#include "transfuse/experts.h"
#include "transfuse/stacks.h"
#include "trf_device_layer.h"

#include <check.h>
#include <string.h>
#include <unistd.h>

enum {
    ROWS = 1100, /* five rows of tiles, of which the last has 76 rows */
    COLS = 700,
    M = 3,
    ON_CPU = TRF_TEST_DEVICE == TRF_DEVICE_CPU,
    MISALIGNED = ON_CPU ? 8 : 128 /* bytes, half of what is asked for */
};

static const fixture_tensor kTensors[] = {
    {"bf16", "BF16", {ROWS, COLS}, 2, 0},       {"f16", "F16", {ROWS, COLS}, 2, 0},
    {"e4m3", "F8_E4M3", {ROWS, COLS}, 2, 0},    {"i8", "I8", {ROWS, COLS}, 2, 0},
    {"experts", "BF16", {4, ROWS, COLS}, 3, 0}, {"norm", "BF16", {COLS}, 1, 0},
};
static const char *const kNames[] = {"bf16", "f16", "e4m3", "i8", "experts[0]", "experts[3]", "bf16_trf"};
static const trf_row_range kRanges[] = {{768, 256}, {0, 256}, {1024, 76}};

/* Shards; the last but one has several ranges. A number of 0 means to the end. */
static const uint32_t kShards[][4] = {
    {0, 0, 0, 0}, {256, 512, 0, 0}, {0, 0, 256, 0}, {16, 32, 0, 0}, {48, 416, 272, 400}, {1024, 0, 0, 0},
};
enum {
    NUM_NAMES = sizeof kNames / sizeof kNames[0],
    NUM_SHARDS = sizeof kShards / sizeof kShards[0],
    NUM_PARTS = NUM_SHARDS + 1 /* and one of several ranges */
};

static trf_error err;
static trf_context *device;
static trf_checkpoint *checkpoint;

static void begin(void) {
    fixture_begin();
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
    checkpoint = fixture_open_compressed(kTensors, sizeof kTensors / sizeof kTensors[0]);
}

static void end(void) {
    trf_checkpoint_close(checkpoint);
    trf_context_destroy(device);
    fixture_end();
}

static trf_load_options part(int index) {
    trf_load_options options = test_shard(kShards[index % NUM_SHARDS]);
    options.threads = 2;
    if (index == NUM_SHARDS) {
        options.row_ranges = kRanges;
        options.num_row_ranges = 3;
        options.first_col = 16;
    }
    return options;
}

/* Both parts of a layer's memory, as large as the library says. */
typedef struct load_room {
    guarded_memory blob, directory;
} load_room;

static load_room make_room(const char *tensor, trf_load_options *options) {
    trf_layer_size size;
    fixture_check_status(trf_device_layer_get_load_size(device, checkpoint, tensor, options, &size, &err), TRF_OK,
                         &err);
    ck_assert_int_eq(size.directory_bytes == 0, ON_CPU);
    load_room room = {guarded_allocate(device, size.buffer_bytes), guarded_allocate(device, size.directory_bytes)};
    options->memory = (trf_layer_memory){room.blob.at, size.buffer_bytes, room.directory.at, size.directory_bytes};
    return room;
}

/* Also checks that the canaries are as they were. */
static void free_room(load_room *room) {
    free(guarded_read(&room->blob));
    free(guarded_read(&room->directory));
    guarded_free(&room->blob);
    guarded_free(&room->directory);
}

static trf_device_layer *load(const char *tensor, const trf_load_options *options) {
    trf_device_layer *layer = NULL;
    fixture_check_status(trf_device_layer_load(device, checkpoint, tensor, options, &layer, &err), TRF_OK, &err);
    return layer;
}

static void check_load(const char *tensor, const trf_load_options *options, trf_status status, const char *message) {
    trf_device_layer *layer = NULL;
    fixture_check_status(trf_device_layer_load(device, checkpoint, tensor, options, &layer, &err), status, &err);
    ck_assert_msg(strstr(err.message, message) != NULL, "%s", err.message);
    ck_assert_ptr_null(layer);
}

/* Two layers have the same meaning and the same products. */
static void check_same(trf_device_layer *a, trf_device_layer *b) {
    EXPECT(memcmp(&a->shard, &b->shard, sizeof a->shard) == 0);
    EXPECT(memcmp(&a->info, &b->info, sizeof a->info) == 0);
    check_same_products(device, a, b, M);
}

/* ---- tests ---- */

START_TEST(the_same_in_any_memory) {
    for (int i = 0; i < NUM_PARTS; i++) {
        trf_load_options options = part(i);
        if (!test_tries(i + _i))
            continue;
        trf_device_layer *own = load(kNames[_i], &options);
        load_room room = make_room(kNames[_i], &options);
        trf_device_layer *placed = load(kNames[_i], &options);
        uint8_t *blob = guarded_read(&room.blob), *own_blob = malloc(own->view.buffer_bytes);
        fixture_check_status(trf_device_download(device, own_blob, own->view.buffer, own->view.buffer_bytes, &err),
                             TRF_OK, &err);
        EXPECT(placed->view.buffer == room.blob.at && room.blob.bytes == own->view.buffer_bytes);
        EXPECT(memcmp(blob, own_blob, room.blob.bytes) == 0);
        check_same(own, placed);
        trf_device_layer_destroy(own);
        trf_device_layer_destroy(placed);
        uint8_t *still = guarded_read(&room.blob); /* the caller's, and as it was */
        EXPECT(memcmp(blob, still, room.blob.bytes) == 0);
        free(blob);
        free(own_blob);
        free(still);
        free_room(&room);
    }
}
END_TEST

/* Larger buffers are accepted, too. On the CPU a directory is not needed, and an alignment of 16 bytes suffices. */
START_TEST(memory_that_does) {
    trf_load_options options = part(_i);
    trf_device_layer *own = load("bf16", &options);
    load_room room = make_room("bf16", &options), larger;
    larger.blob = guarded_allocate(device, room.blob.bytes + 1024);
    larger.directory = guarded_allocate(device, room.directory.bytes + 1024);
    const int shift = ON_CPU ? 16 : 256;
    options.memory =
        (trf_layer_memory){larger.blob.at + shift, room.blob.bytes + 100, larger.directory.at, larger.directory.bytes};
    if (ON_CPU)
        options.memory.directory = NULL, options.memory.directory_bytes = 0;
    trf_device_layer *placed = load("bf16", &options);
    check_same(own, placed);
    if (_i == 0) { /* and for a blob that is already there */
        trf_load_options there = part(0);
        trf_device_layer *adopted = NULL;
        there.buffer_is_on_device = 1;
        there.memory = options.memory;
        fixture_check_status(
            trf_device_layer_create(device, options.memory.buffer, room.blob.bytes, &there, &adopted, &err), TRF_OK,
            &err);
        EXPECT(adopted->view.buffer == options.memory.buffer);
        check_same(own, adopted);
        trf_device_layer_destroy(adopted);
    }
    trf_device_layer_destroy(own);
    trf_device_layer_destroy(placed);
    uint8_t *found = guarded_read(&larger.blob), *head = guarded_read(&room.blob);
    EXPECT(memcmp(found, head, (size_t)shift) == 0); /* canaries */
    free(found);
    free(head);
    guarded_check_untouched(&room.blob);
    free_room(&larger);
    free_room(&room);
}
END_TEST

/* Memory that is refused is not written to. */
START_TEST(memory_that_does_not_do) {
    trf_load_options good = part(_i);
    load_room room = make_room("f16", &good);
    const trf_layer_memory right = good.memory;
    trf_layer_memory wrong[8];
    for (int i = 0; i < 8; i++)
        wrong[i] = right;
    wrong[0].buffer_bytes--;
    wrong[1].buffer_bytes = 0;
    wrong[2].buffer = (uint8_t *)right.buffer + MISALIGNED;
    wrong[3].buffer = NULL;
    wrong[3].directory_bytes += ON_CPU; /* else there would be no memory at all, and the library would use its own */
    wrong[4].directory = NULL;
    wrong[5].directory_bytes--;
    wrong[6].directory = (uint8_t *)right.directory + MISALIGNED;
    wrong[7].directory = (uint8_t *)right.buffer - 256; /* which reaches into the blob */
    for (int i = 0; i < (ON_CPU ? 4 : 8); i++) {
        trf_load_options options = good;
        options.memory = wrong[i];
        check_load("f16", &options, TRF_ERR_ARGUMENT, "compressed.safetensors: tensor 'f16': ");
    }
    guarded_check_untouched(&room.blob);
    guarded_check_untouched(&room.directory);
    trf_device_layer_destroy(load("f16", &good));
    free_room(&room);
}
END_TEST

/* The size of a load that is refused cannot be had either: both calls have the same status. */
START_TEST(sizes_that_there_are_not) {
    static const struct {
        const char *tensor;
        uint32_t first_row;
        trf_status status;
    } wrong[] = {
        {"nothing", 0, TRF_ERR_NOT_FOUND}, {"experts[4]", 0, TRF_ERR_NOT_FOUND}, {"experts", 0, TRF_ERR_ARGUMENT},
        {"norm", 0, TRF_ERR_ARGUMENT},     {"bf16", 8, TRF_ERR_ARGUMENT},        {"bf16", 1104, TRF_ERR_ARGUMENT},
    };
    trf_layer_size size = {7, 7};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        trf_load_options options = part(0);
        options.first_row = wrong[i].first_row;
        fixture_check_status(trf_device_layer_get_load_size(device, checkpoint, wrong[i].tensor, &options, &size, &err),
                             wrong[i].status, &err);
        ck_assert_msg(strstr(err.message, wrong[i].tensor) != NULL, "%s", err.message);
        check_load(wrong[i].tensor, &options, wrong[i].status, wrong[i].tensor);
    }
    fixture_check_status(trf_device_layer_get_load_size(NULL, checkpoint, "bf16", NULL, &size, &err), TRF_ERR_ARGUMENT,
                         &err);
    fixture_check_status(trf_device_layer_get_load_size(device, NULL, "bf16", NULL, &size, &err), TRF_ERR_ARGUMENT,
                         &err);
    fixture_check_status(trf_device_layer_get_load_size(device, checkpoint, NULL, NULL, &size, &err), TRF_ERR_ARGUMENT,
                         &err);
    fixture_check_status(trf_device_layer_get_load_size(device, checkpoint, "bf16", NULL, NULL, &err), TRF_ERR_ARGUMENT,
                         &err);
    ck_assert(size.buffer_bytes == 7 && size.directory_bytes == 7);
    fixture_check_status(trf_device_layer_get_load_size(device, checkpoint, "bf16", NULL, &size, &err), TRF_OK, &err);
    trf_load_options whole = part(0);
    load_room room = make_room("bf16", &whole);
    ck_assert(size.buffer_bytes == room.blob.bytes && size.directory_bytes == room.directory.bytes);
    free_room(&room);
}
END_TEST

/* One memory cannot take several layers. */
START_TEST(experts_and_stacks_have_their_own) {
    trf_load_options options = part(0);
    load_room room = make_room("bf16", &options);
    trf_experts *experts = NULL;
    trf_stack *stack;
    fixture_check_status(trf_experts_load(device, checkpoint, "experts", &options, &experts, &err), TRF_ERR_ARGUMENT,
                         &err);
    ck_assert_ptr_null(experts);
    fixture_check_status(trf_stack_create(device, &stack, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_load(stack, checkpoint, "bf16", &options, &err), TRF_ERR_ARGUMENT, &err);
    trf_stack_destroy(stack);
    guarded_check_untouched(&room.blob);
    free_room(&room);
}
END_TEST

/* Experts in the caller's memory, one by one. */
START_TEST(experts_of_placed_layers) {
    trf_device_layer *layers[4];
    load_room rooms[4];
    trf_experts *experts;
    for (int i = 0; i < 4; i++) {
        char name[32];
        trf_load_options options = part(0);
        snprintf(name, sizeof name, "experts[%d]", i);
        rooms[i] = make_room(name, &options);
        layers[i] = load(name, &options);
    }
    fixture_check_status(trf_experts_create(layers, 4, &experts, &err), TRF_OK, &err);
    ck_assert_uint_eq(trf_experts_count(experts), 4);
    trf_experts_destroy(experts);
    for (int i = 0; i < 4; i++) {
        trf_device_layer_destroy(layers[i]);
        free_room(&rooms[i]);
    }
}
END_TEST

typedef struct stopping {
    int calls, stop_at;
} stopping;

static int stop(void *context, const char *tensor, uint64_t done, uint64_t total) {
    stopping *s = context;
    EXPECT(strcmp(tensor, "e4m3") == 0 && done <= total);
    return ++s->calls == s->stop_at;
}

START_TEST(stopped_loads) {
    trf_load_options options = part(_i);
    load_room room = make_room("e4m3", &options);
    options.progress = stop;
    for (int stop_at = 1;; stop_at++) {
        stopping s = {0, stop_at};
        trf_device_layer *layer = NULL;
        options.progress_context = &s;
        trf_status status = trf_device_layer_load(device, checkpoint, "e4m3", &options, &layer, &err);
        if (status == TRF_OK) {
            ck_assert_int_gt(stop_at, 1);
            trf_device_layer_destroy(layer);
            break;
        }
        fixture_check_status(status, TRF_ERR_CANCELLED, &err);
        ck_assert_ptr_null(layer);
    }
    free_room(&room);
}
END_TEST

/* Files that are cut after the checkpoint was opened: after the tensor's head, within it, and before it. */
START_TEST(files_that_are_cut) {
    static const fixture_tensor tensor = {"w", "BF16", {ROWS, COLS}, 2, 0};
    const char *source = fixture_path("one.safetensors"), *path = fixture_path("cut.safetensors");
    size_t bytes;
    trf_checkpoint *several = checkpoint;
    trf_tensor_info info;
    fixture_write_safetensors(source, NULL, &tensor, 1, 8, 2);
    fixture_check_status(trf_compress_checkpoint(source, path, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_open(path, &checkpoint, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_tensor(checkpoint, 0, &info, &err), TRF_OK, &err);
    uint8_t *content = fixture_read(path, &bytes);
    const uint64_t cuts[] = {bytes - 1, bytes - 300000, info.file_offset + 700, info.file_offset + 10};
    for (int i = 0; i < 4; i++)
        for (int p = 0; p < NUM_PARTS; p++) {
            trf_load_options options = part(p);
            load_room room = make_room("w", &options);
            const int reaches = p != 1 && p != 3 && p != 4; /* rows after the first two cuts */
            ck_assert_int_eq(truncate(path, (off_t)cuts[i]), 0);
            if (reaches || i >= 2)
                check_load("w", &options, TRF_ERR_TRUNCATED, "tensor 'w': ");
            fixture_write(path, content, bytes);
            free_room(&room);
        }
    ck_assert_int_eq(truncate(path, (off_t)cuts[3]), 0);
    trf_layer_size size;
    fixture_check_status(trf_device_layer_get_load_size(device, checkpoint, "w", NULL, &size, &err), TRF_ERR_TRUNCATED,
                         &err);
    free(content);
    trf_checkpoint_close(checkpoint);
    checkpoint = several;
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.load_memory"))
        return 77;
    Suite *suite = suite_create("device_load_memory");
    TCase *tests = tcase_create("device_load_memory");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, the_same_in_any_memory, 0, NUM_NAMES);
    tcase_add_loop_test(tests, memory_that_does, 0, NUM_PARTS);
    tcase_add_loop_test(tests, memory_that_does_not_do, 0, 3);
    tcase_add_test(tests, sizes_that_there_are_not);
    tcase_add_test(tests, experts_and_stacks_have_their_own);
    tcase_add_test(tests, experts_of_placed_layers);
    tcase_add_loop_test(tests, stopped_loads, 0, NUM_PARTS);
    tcase_add_test(tests, files_that_are_cut);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
