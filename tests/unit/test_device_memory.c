/* SPDX-License-Identifier: Apache-2.0 */
/* Layers made from blobs in memory, and in the caller's memory: shards against the same ones from a file, rows of
 * several ranges against the rows of the whole layer, what is checked and what is not, and that nobody writes beside
 * the caller's buffers. These tests run on the CPU; tests/gpu/ builds this file for a GPU, too, with its ordinal as
 * TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/guarded_memory.h"
#include "common/run_suite.h"
#include "common/same_products.h"
#include "transfuse/device_memory.h"
#include "trf_device_layer.h"
#include "trf_layer.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 1100, /* five rows of tiles, of which the last has 76 rows */
    COLS = 700,
    M = 3,
    MISALIGNED = TRF_TEST_DEVICE == TRF_DEVICE_CPU ? 8 : 128 /* bytes, half of what is asked for */
};

static const struct {
    const char *name, *dtype;
    trf_codec codec;
    trf_granularity granularity;
    uint32_t scale_group_size;
    trf_favor favor;
    int has_row_offsets; /* rows and columns have various magnitudes, so that their exponents are predicted */
} kLayers[] = {
    {"bf16", "BF16", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SPEED, 0},
    {"bf16 with offsets", "BF16", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SPEED, 1},
    {"fp16 pairs", "F16", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SIZE, 0},
    {"e4m3", "F8_E4M3", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SPEED, 0},
    {"e5m2", "F8_E5M2", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SPEED, 0},
    {"i8", "I8", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SPEED, 0},
    {"tensor", "F32", TRF_CODEC_INT, TRF_GRANULARITY_TENSOR, 0, TRF_FAVOR_SPEED, 0},
    {"channel", "F32", TRF_CODEC_INT, TRF_GRANULARITY_CHANNEL, 0, TRF_FAVOR_SIZE, 0},
    {"scale group 48", "F32", TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 48, TRF_FAVOR_SPEED, 0},
    {"scale group 1024", "F32", TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 1024, TRF_FAVOR_SPEED, 0},
    {"block 48", "F32", TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 48, TRF_FAVOR_SPEED, 0},
    {"block 512", "F32", TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 512, TRF_FAVOR_SPEED, 0},
};
enum {
    NUM_LAYERS = sizeof kLayers / sizeof kLayers[0]
};

/* first_row, num_rows, first_col, num_cols; a number of 0 means to the end. */
static const uint32_t kShards[][4] = {
    {0, 0, 0, 0},        {0, 256, 0, 0},     {256, 512, 0, 0}, {1024, 0, 0, 0}, {0, 0, 0, 512},
    {0, 0, 256, 0},      {512, 256, 256, 0}, {16, 32, 0, 0},   {0, 0, 240, 32}, {0, 0, 0, 688},
    {48, 416, 272, 400}, {304, 80, 528, 64}, {128, 0, 32, 16},
};
enum {
    NUM_SHARDS = sizeof kShards / sizeof kShards[0]
};

/* Rows of several ranges, and columns. */
static const struct {
    trf_row_range ranges[4];
    uint32_t count, first_col, num_cols;
} kRanges[] = {
    {{{0, 256}}, 1, 0, 0},
    {{{256, 512}}, 1, 256, 0},
    {{{0, 256}, {512, 256}}, 2, 0, 0},
    {{{512, 256}, {0, 256}}, 2, 0, 0},             /* in any order */
    {{{0, 512}, {512, 256}, {768, 332}}, 3, 0, 0}, /* all of them, in order */
    {{{256, 256}, {768, 256}, {1024, 76}}, 3, 0, 256},
    {{{768, 256}, {0, 256}, {512, 256}, {1024, 76}}, 4, 272, 400},
    {{{512, 512}, {0, 256}}, 2, 16, 0},
    {{{16, 400}}, 1, 48, 0}, /* a single range: any rows that a shard can have */
    {{{304, 796}}, 1, 0, 0},
};
enum {
    NUM_RANGES = sizeof kRanges / sizeof kRanges[0]
};

static trf_error err;
static trf_context *device;

/* A layer in a file and in host memory. */
typedef struct stored_layer {
    const char *path;
    uint8_t *blob; /* 256-byte aligned */
    uint64_t bytes;
    trf_layer *layer;
    uint8_t *weights; /* decoded */
    size_t value_bytes;
} stored_layer;

static stored_layer layers[NUM_LAYERS];

/* ---- what is loaded ---- */

/* Multiplies BF16 weights by powers of two. */
static void vary_exponents(const char *path) {
    size_t bytes;
    uint8_t *file = fixture_read(path, &bytes);
    uint16_t *weights = (uint16_t *)(file + bytes - 2 * ROWS * COLS);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < COLS; c++)
            if (weights[r * COLS + c] & 0x7F80)
                weights[r * COLS + c] = (uint16_t)(weights[r * COLS + c] + (r / 5 % 11 + c % 3 * 6) * 0x80);
    fixture_write(path, file, bytes);
    free(file);
}

static stored_layer store(int index) {
    static const char *const all[] = {"*", NULL};
    const fixture_tensor tensor = {"w.weight", kLayers[index].dtype, {ROWS, COLS}, 2, 0};
    const char *source = fixture_path("in%d.safetensors", index), *trf = fixture_path("%d.trf", index);
    stored_layer stored = {.path = fixture_path("packed%d.safetensors", index)};
    trf_checkpoint_options options;
    size_t bytes;
    fixture_write_safetensors(source, NULL, &tensor, 1, 8, 5);
    if (kLayers[index].has_row_offsets)
        vary_exponents(source);
    trf_checkpoint_options_init(&options);
    options.encode.codec = kLayers[index].codec;
    options.encode.granularity = kLayers[index].granularity;
    options.encode.scale_group_size = kLayers[index].scale_group_size;
    options.encode.favor = kLayers[index].favor;
    options.include = all; /* F32 too */
    fixture_check_status(trf_compress_checkpoint(source, stored.path, &options, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_extract_layer(stored.path, "w.weight", trf, 0, &err), TRF_OK, &err);
    uint8_t *file = fixture_read(trf, &bytes);
    stored.bytes = bytes;
    stored.blob = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memcpy(stored.blob, file, bytes);
    free(file);
    fixture_check_status(trf_layer_from_memory(stored.blob, bytes, &stored.layer, &err), TRF_OK, &err);
    stored.value_bytes = trf_dtype_bytes((trf_dtype)stored.layer->view.header.source_dtype);
    stored.weights = malloc(ROWS * COLS * stored.value_bytes);
    fixture_check_status(trf_layer_decode(stored.layer, stored.weights, ROWS * COLS * stored.value_bytes, 2, &err),
                         TRF_OK, &err);
    if (kLayers[index].has_row_offsets)
        ck_assert_uint_eq(stored.layer->view.header.predictor_modes & TRF_PREDICT_ROW, TRF_PREDICT_ROW);
    return stored;
}

static void begin(void) {
    fixture_begin();
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
    for (int index = 0; index < NUM_LAYERS; index++)
        layers[index] = store(index);
}

static void end(void) {
    for (int index = 0; index < NUM_LAYERS; index++) {
        trf_layer_free(layers[index].layer);
        free(layers[index].blob);
        free(layers[index].weights);
    }
    trf_context_destroy(device);
    fixture_end();
}

static trf_load_options shard_options(const uint32_t shard[4]) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.first_row = shard[0], options.num_rows = shard[1];
    options.first_col = shard[2], options.num_cols = shard[3];
    options.threads = 3;
    return options;
}

static trf_load_options range_options(int i) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.row_ranges = kRanges[i].ranges;
    options.num_row_ranges = kRanges[i].count;
    options.first_col = kRanges[i].first_col, options.num_cols = kRanges[i].num_cols;
    options.threads = 2;
    return options;
}

static trf_status load(const char *path, const trf_load_options *options, trf_device_layer **layer) {
    trf_checkpoint *checkpoint;
    fixture_check_status(trf_checkpoint_open(path, &checkpoint, &err), TRF_OK, &err);
    trf_status status = trf_device_layer_load(device, checkpoint, "w.weight", options, layer, &err);
    trf_checkpoint_close(checkpoint);
    return status;
}

static trf_device_layer *create(const void *blob, uint64_t bytes, const trf_load_options *options) {
    trf_device_layer *layer = NULL;
    fixture_check_status(trf_device_layer_create(device, blob, bytes, options, &layer, &err), TRF_OK, &err);
    return layer;
}

/* ---- the caller's memory ---- */

/* Both parts of a layer's memory, as large as the library says. */
typedef struct layer_room {
    guarded_memory blob, directory;
    trf_layer_size size;
} layer_room;

static layer_room make_room(const void *blob, uint64_t bytes, trf_load_options *options) {
    layer_room room;
    fixture_check_status(trf_device_layer_get_size(device, blob, bytes, options, &room.size, &err), TRF_OK, &err);
    room.blob = guarded_allocate(device, room.size.buffer_bytes);
    room.directory = guarded_allocate(device, room.size.directory_bytes);
    ck_assert_int_eq(room.size.directory_bytes == 0, TRF_TEST_DEVICE == TRF_DEVICE_CPU);
    options->memory =
        (trf_layer_memory){room.blob.at, room.size.buffer_bytes, room.directory.at, room.size.directory_bytes};
    return room;
}

static void free_room(layer_room *room) {
    guarded_free(&room->blob);
    guarded_free(&room->directory);
}

/* ---- comparing ---- */

/* A device layer's blob, malloc'd and 16-byte aligned. */
static uint8_t *read_blob(const trf_device_layer *layer) {
    uint8_t *blob = aligned_alloc(256, (layer->view.buffer_bytes + 255) / 256 * 256);
    fixture_check_status(trf_device_download(device, blob, layer->view.buffer, layer->view.buffer_bytes, &err), TRF_OK,
                         &err);
    return blob;
}

/* Expects the same blob with the same meaning. */
static void check_same(const trf_device_layer *a, const trf_device_layer *b) {
    uint8_t *first = read_blob(a), *second = read_blob(b);
    EXPECT(a->view.buffer_bytes == b->view.buffer_bytes);
    EXPECT(memcmp(first, second, a->view.buffer_bytes) == 0);
    EXPECT(memcmp(&a->shard, &b->shard, sizeof a->shard) == 0);
    EXPECT(memcmp(&a->info, &b->info, sizeof a->info) == 0);
    free(first);
    free(second);
}

/* Decodes whole tiles on the device, and compares them. */
static void check_decoded_there(const trf_device_layer *layer, const uint8_t *weights, uint64_t bytes) {
    void *decoded;
    uint8_t *found = malloc(bytes);
    fixture_check_status(trf_device_allocate(device, bytes, &decoded, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_decode(layer, TRF_DECODE_SOURCE, decoded, bytes, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_download(device, found, decoded, bytes, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err);
    EXPECT(memcmp(found, weights, bytes) == 0);
    trf_device_free(device, decoded);
    free(found);
}

/* Checks that a layer's blob is valid, and that it holds the rows rows[] of the stored layer, in columns from `col`
 * on. */
static void check_rows(const trf_device_layer *layer, const stored_layer *stored, const uint32_t *rows, uint32_t col) {
    const trf_shard_range *shard = &layer->shard;
    const uint32_t all_rows = layer->view.rows, all_cols = layer->view.cols;
    const size_t each = stored->value_bytes;
    const uint64_t bytes = (uint64_t)all_rows * all_cols * each;
    uint8_t *blob = read_blob(layer), *found = malloc(bytes);
    trf_layer *own;
    fixture_check_status(trf_layer_from_memory(blob, layer->view.buffer_bytes, &own, &err), TRF_OK, &err);
    fixture_check_status(trf_layer_decode(own, found, bytes, 2, &err), TRF_OK, &err);
    for (uint32_t r = 0; r < shard->rows; r++)
        EXPECT(memcmp(found + ((uint64_t)(shard->row + r) * all_cols + shard->col) * each,
                      stored->weights + ((uint64_t)rows[r] * COLS + col) * each, shard->cols * each) == 0);
    if (all_rows == shard->rows && all_cols == shard->cols)
        check_decoded_there(layer, found, bytes);
    trf_layer_free(own);
    free(blob);
    free(found);
}

/* Lists the rows of a shard, or of ranges; malloc'd. */
static uint32_t *list_rows(const trf_load_options *options) {
    uint32_t *rows = malloc(ROWS * sizeof *rows), count = 0;
    for (uint32_t i = 0; i < options->num_row_ranges; i++)
        for (uint32_t r = 0; r < options->row_ranges[i].count; r++)
            rows[count++] = options->row_ranges[i].first + r;
    for (uint32_t r = options->first_row; !options->num_row_ranges && r < ROWS; r++)
        rows[count++] = r;
    return rows;
}

/* Loads from a file, from memory, and from memory to the caller's memory. All must be the same, with the right rows. */
static void check_everywhere(const stored_layer *stored, trf_load_options options) {
    trf_device_layer *from_file = NULL;
    fixture_check_status(load(stored->path, &options, &from_file), TRF_OK, &err);
    trf_device_layer *from_memory = create(stored->blob, stored->bytes, &options);
    uint32_t *rows = list_rows(&options);
    check_same(from_file, from_memory);
    check_rows(from_memory, stored, rows, options.first_col);

    layer_room room = make_room(stored->blob, stored->bytes, &options);
    trf_device_layer *placed = create(stored->blob, stored->bytes, &options);
    EXPECT(room.size.buffer_bytes == from_file->view.buffer_bytes);
    EXPECT(placed->view.buffer == room.blob.at);
    check_same(from_file, placed);
    check_same_products(device, from_file, placed, M);
    check_rows(placed, stored, rows, options.first_col);
    uint8_t *blob = guarded_read(&room.blob), *same = read_blob(from_file);
    EXPECT(memcmp(blob, same, room.size.buffer_bytes) == 0);
    free(guarded_read(&room.directory));
    trf_device_layer_destroy(placed);
    uint8_t *still = guarded_read(&room.blob); /* the caller's, and as it was */
    EXPECT(memcmp(blob, still, room.size.buffer_bytes) == 0);
    free(blob);
    free(same);
    free(still);
    free(rows);
    free_room(&room);
    trf_device_layer_destroy(from_file);
    trf_device_layer_destroy(from_memory);
}

/* ---- tests ---- */

START_TEST(whole_layers_are_the_file) {
    const stored_layer *stored = &layers[_i];
    trf_load_options options;
    trf_load_options_init(&options);
    layer_room room = make_room(stored->blob, stored->bytes, &options);
    ck_assert_uint_eq(room.size.buffer_bytes, stored->bytes);
    trf_device_layer *layer = create(stored->blob, stored->bytes, &options);
    uint8_t *blob = guarded_read(&room.blob);
    EXPECT(memcmp(blob, stored->blob, stored->bytes) == 0);
    free(blob);
    trf_device_layer_destroy(layer);
    free_room(&room);
    check_everywhere(stored, shard_options(kShards[0]));
}
END_TEST

START_TEST(shards_from_memory) {
    for (int s = 0; s < NUM_SHARDS; s++)
        if (test_tries(s + _i))
            check_everywhere(&layers[_i], shard_options(kShards[s]));
}
END_TEST

START_TEST(rows_of_several_ranges) {
    for (int i = 0; i < NUM_RANGES; i++)
        if (test_tries(i + _i))
            check_everywhere(&layers[_i], range_options(i));
}
END_TEST

/* All ranges in order are the layer itself; one range is the shard of these rows. */
START_TEST(ranges_that_are_shards) {
    static const struct {
        int range;
        uint32_t shard[4];
    } alike[] = {{1, {256, 512, 256, 0}}, {8, {16, 400, 48, 0}}, {9, {304, 796, 0, 0}}};
    const stored_layer *stored = &layers[_i];
    trf_load_options all = range_options(4);
    trf_device_layer *layer = create(stored->blob, stored->bytes, &all);
    uint8_t *blob = read_blob(layer);
    ck_assert_uint_eq(layer->view.buffer_bytes, stored->bytes);
    EXPECT(memcmp(blob, stored->blob, stored->bytes) == 0);
    free(blob);
    trf_device_layer_destroy(layer);
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
        trf_load_options one = range_options(alike[i].range), shard = shard_options(alike[i].shard);
        trf_device_layer *a = create(stored->blob, stored->bytes, &one),
                         *b = create(stored->blob, stored->bytes, &shard);
        check_same(a, b);
        check_same_products(device, a, b, M);
        trf_device_layer_destroy(a);
        trf_device_layer_destroy(b);
    }
}
END_TEST

START_TEST(ranges_that_are_none) {
    static const struct {
        trf_row_range ranges[3];
        uint32_t count;
        trf_status status;
    } wrong[] = {
        {{{0, 0}}, 1, TRF_ERR_ARGUMENT},
        {{{0, 256}, {256, 0}}, 2, TRF_ERR_ARGUMENT},
        {{{1100, 16}}, 1, TRF_ERR_ARGUMENT},
        {{{1024, 77}}, 1, TRF_ERR_ARGUMENT},
        {{{256, 4294967295u}}, 1, TRF_ERR_ARGUMENT},
        {{{4294967040u, 512}}, 1, TRF_ERR_ARGUMENT},
        {{{0, 512}, {256, 256}}, 2, TRF_ERR_ARGUMENT},            /* twice */
        {{{0, 1024}, {0, 1024}, {0, 1024}}, 3, TRF_ERR_ARGUMENT}, /* more than there are */
        {{{8, 256}}, 1, TRF_ERR_ARGUMENT},                        /* a single range: multiples of 16, as for a shard */
        {{{16, 40}}, 1, TRF_ERR_ARGUMENT},
        {{{0, 16}, {256, 256}}, 2, TRF_ERR_UNSUPPORTED},
        {{{16, 240}, {256, 256}}, 2, TRF_ERR_UNSUPPORTED},
        {{{0, 256}, {512, 128}}, 2, TRF_ERR_UNSUPPORTED},
        {{{1024, 76}, {0, 256}}, 2, TRF_ERR_UNSUPPORTED}, /* only the last one may end with the matrix */
    };
    const stored_layer *stored = &layers[0];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        trf_load_options options;
        trf_device_layer *layer = NULL;
        trf_layer_size size = {7, 7};
        trf_load_options_init(&options);
        options.row_ranges = wrong[i].ranges;
        options.num_row_ranges = wrong[i].count;
        fixture_check_status(load(stored->path, &options, &layer), wrong[i].status, &err);
        ck_assert_ptr_nonnull(strstr(err.message, "w.weight"));
        fixture_check_status(trf_device_layer_create(device, stored->blob, stored->bytes, &options, &layer, &err),
                             wrong[i].status, &err);
        if (wrong[i].status == TRF_ERR_UNSUPPORTED)
            ck_assert_ptr_nonnull(strstr(err.message, "as a layer of its own"));
        fixture_check_status(trf_device_layer_get_size(device, stored->blob, stored->bytes, &options, &size, &err),
                             wrong[i].status, &err);
        ck_assert(!layer && size.buffer_bytes == 7 && size.directory_bytes == 7);
    }
    trf_load_options options = range_options(2);
    trf_device_layer *layer = NULL;
    options.num_rows = 256;
    fixture_check_status(load(stored->path, &options, &layer), TRF_ERR_ARGUMENT, &err);
    options = range_options(2);
    options.row_ranges = NULL;
    fixture_check_status(load(stored->path, &options, &layer), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(layer);
}
END_TEST

/* Damage outside a shard is not seen; inside it is, and in the head it always is. Offsets are the blob's. */
START_TEST(only_what_is_loaded_is_checked) {
    static const uint32_t above[4] = {0, 512, 0, 0}, beside[4] = {0, 0, 0, 512}, touching[4] = {1024, 0, 16, 0};
    const uint32_t tile = 14; /* the last but one column of tiles ends there: row 4, column 2 */
    const stored_layer *stored = &layers[0];
    const uint64_t at = stored->layer->view.tiles[tile].data_offset;
    uint8_t *damaged = aligned_alloc(256, (stored->bytes + 255) / 256 * 256);
    trf_load_options options = shard_options(above);
    trf_device_layer *layer = NULL;
    char place[64];
    snprintf(place, sizeof place, "byte %llu: tile %u:", (unsigned long long)at, tile);
    memcpy(damaged, stored->blob, stored->bytes);
    damaged[at + 5] ^= 1;
    trf_device_layer_destroy(create(damaged, stored->bytes, &options));
    options = shard_options(beside);
    trf_device_layer_destroy(create(damaged, stored->bytes, &options));
    options = range_options(2);
    trf_device_layer_destroy(create(damaged, stored->bytes, &options));
    for (int whole = 0; whole < 2; whole++) {
        options = shard_options(whole ? kShards[0] : touching);
        fixture_check_status(trf_device_layer_create(device, damaged, stored->bytes, &options, &layer, &err),
                             TRF_ERR_CHECKSUM, &err);
        ck_assert_uint_eq(err.offset, at);
        ck_assert_msg(strstr(err.message, place) != NULL, "%s", err.message);
    }
    damaged[at + 5] ^= 1;
    damaged[900] ^= 1;
    options = shard_options(above);
    trf_layer_size size;
    fixture_check_status(trf_device_layer_create(device, damaged, stored->bytes, &options, &layer, &err),
                         TRF_ERR_CHECKSUM, &err);
    fixture_check_status(trf_device_layer_get_size(device, damaged, stored->bytes, &options, &size, &err),
                         TRF_ERR_CHECKSUM, &err);
    damaged[900] ^= 1;
    fixture_check_status(trf_device_layer_create(device, damaged, stored->bytes - 128, &options, &layer, &err),
                         TRF_ERR_TRUNCATED, &err);
    fixture_check_status(trf_device_layer_create(device, damaged, 100, &options, &layer, &err), TRF_ERR_TRUNCATED,
                         &err);
    fixture_check_status(trf_device_layer_create(device, damaged + 8, stored->bytes - 8, &options, &layer, &err),
                         TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(layer);
    free(damaged);
}
END_TEST

/* Memory that is refused is not written to. */
START_TEST(memory_that_does_not_do) {
    const stored_layer *stored = &layers[1];
    trf_load_options good = shard_options(kShards[_i]);
    layer_room room = make_room(stored->blob, stored->bytes, &good);
    const trf_layer_memory right = good.memory;
    const int has_directory = room.size.directory_bytes != 0;
    trf_layer_memory wrong[9];
    for (int i = 0; i < 9; i++)
        wrong[i] = right;
    wrong[0].buffer_bytes--;
    wrong[1].buffer_bytes = 0;
    wrong[2].buffer = (uint8_t *)right.buffer + MISALIGNED;
    wrong[3].buffer = NULL;
    wrong[4].directory = room.blob.at + 256; /* inside of the blob */
    wrong[4].directory_bytes = room.size.directory_bytes;
    wrong[5].directory = NULL;
    wrong[6].directory_bytes--;
    wrong[7].directory = (uint8_t *)right.directory + MISALIGNED;
    wrong[8].directory = (uint8_t *)right.buffer - 256; /* which reaches into the blob */
    for (int i = 0; i < (has_directory ? 9 : 4); i++) {
        trf_load_options options = good;
        trf_device_layer *layer = NULL;
        options.memory = wrong[i];
        fixture_check_status(trf_device_layer_create(device, stored->blob, stored->bytes, &options, &layer, &err),
                             TRF_ERR_ARGUMENT, &err);
        ck_assert_ptr_null(layer);
    }
    guarded_check_untouched(&room.blob);
    guarded_check_untouched(&room.directory);
    trf_device_layer_destroy(create(stored->blob, stored->bytes, &good));
    free_room(&room);
}
END_TEST

static guarded_memory upload_blob(const stored_layer *stored) {
    guarded_memory blob = guarded_allocate(device, stored->bytes);
    fixture_check_status(trf_device_upload(device, blob.at, stored->blob, stored->bytes, &err), TRF_OK, &err);
    return blob;
}

/* A blob on the device is used where it lies, unless there is a place for it or only a part is loaded. */
START_TEST(blobs_on_the_device) {
    const stored_layer *stored = &layers[_i];
    guarded_memory blob = upload_blob(stored);
    for (int how = 0; how < 4; how++) {
        trf_load_options options;
        trf_load_options_init(&options);
        options.buffer_is_on_device = 1;
        layer_room room = make_room(blob.at, stored->bytes, &options);
        if (how == 0) /* nothing of the caller's */
            options.memory = (trf_layer_memory){0};
        if (how == 1) /* a directory alone */
            options.memory.buffer = NULL, options.memory.buffer_bytes = 0;
        if (how == 2) /* the same */
            options.memory.buffer = blob.at, options.memory.buffer_bytes = stored->bytes;
        trf_device_layer *layer = create(blob.at, stored->bytes, &options);
        EXPECT(layer->view.buffer == (how < 3 ? blob.at : room.blob.at));
        uint32_t *rows = list_rows(&options);
        check_rows(layer, stored, rows, 0);
        trf_device_layer_destroy(layer);
        uint8_t *found = guarded_read(&blob);
        EXPECT(memcmp(found, stored->blob, stored->bytes) == 0);
        if (how < 3)
            guarded_check_untouched(&room.blob);
        free(found);
        free(rows);
        free(guarded_read(&room.directory));
        free_room(&room);
    }
    guarded_free(&blob);
}
END_TEST

START_TEST(shards_of_blobs_on_the_device) {
    const stored_layer *stored = &layers[_i];
    guarded_memory blob = upload_blob(stored);
    for (int s = 1; s < NUM_SHARDS + NUM_RANGES; s++) {
        trf_load_options options = s < NUM_SHARDS ? shard_options(kShards[s]) : range_options(s - NUM_SHARDS);
        trf_device_layer *from_file = NULL;
        if (!test_tries(s + _i))
            continue;
        fixture_check_status(load(stored->path, &options, &from_file), TRF_OK, &err);
        options.buffer_is_on_device = 1;
        trf_device_layer *from_device = create(blob.at, stored->bytes, &options);
        check_same(from_file, from_device);
        check_same_products(device, from_file, from_device, M);
        trf_device_layer_destroy(from_device);
        layer_room room = make_room(blob.at, stored->bytes, &options);
        from_device = create(blob.at, stored->bytes, &options);
        EXPECT(from_device->view.buffer == room.blob.at);
        check_same(from_file, from_device);
        trf_device_layer_destroy(from_device);
        trf_device_layer_destroy(from_file);
        free(guarded_read(&room.blob));
        free(guarded_read(&room.directory));
        free_room(&room);
    }
    free(guarded_read(&blob));
    guarded_free(&blob);
}
END_TEST

START_TEST(corrupt_blobs_on_the_device) {
    static const uint32_t touching[4] = {1024, 0, 0, 0}, above[4] = {0, 1024, 0, 0};
    const stored_layer *stored = &layers[0];
    const uint64_t at = stored->layer->view.tiles[13].data_offset;
    stored_layer damaged = *stored;
    damaged.blob = malloc(stored->bytes);
    memcpy(damaged.blob, stored->blob, stored->bytes);
    damaged.blob[at] ^= 1;
    guarded_memory blob = upload_blob(&damaged);
    trf_device_layer *layer = NULL;
    for (int whole = 0; whole < 2; whole++) {
        trf_load_options options = shard_options(whole ? kShards[0] : touching);
        options.buffer_is_on_device = 1;
        fixture_check_status(trf_device_layer_create(device, blob.at, stored->bytes, &options, &layer, &err),
                             TRF_ERR_CHECKSUM, &err);
        ck_assert_uint_eq(err.offset, at);
        ck_assert_ptr_null(layer);
    }
    trf_load_options options = shard_options(above);
    options.buffer_is_on_device = 1;
    trf_device_layer_destroy(create(blob.at, stored->bytes, &options));
    options.memory = (trf_layer_memory){blob.at, stored->bytes, NULL, 0}; /* a shard would be copied over it */
    fixture_check_status(trf_device_layer_create(device, blob.at, stored->bytes, &options, &layer, &err),
                         TRF_ERR_ARGUMENT, &err);
    options = shard_options(above);
    options.buffer_is_on_device = 1;
    fixture_check_status(
        trf_device_layer_create(device, blob.at + MISALIGNED, stored->bytes - MISALIGNED, &options, &layer, &err),
        TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(layer);
    guarded_free(&blob);
    free(damaged.blob);
}
END_TEST

typedef struct stopping {
    int calls, stop_at;
    uint64_t done, total;
} stopping;

static int count(void *context, const char *tensor, uint64_t done, uint64_t total) {
    stopping *s = context;
    EXPECT(tensor && !*tensor); /* a blob has no name */
    EXPECT(done >= s->done && done <= total);
    s->done = done;
    s->total = total;
    return ++s->calls == s->stop_at;
}

START_TEST(stopped_loads) {
    const stored_layer *stored = &layers[0];
    trf_load_options options = shard_options(kShards[_i]);
    layer_room room = make_room(stored->blob, stored->bytes, &options);
    for (int stop_at = 1;; stop_at++) {
        stopping s = {0, stop_at, 0, 0};
        trf_device_layer *layer = NULL;
        options.progress = count;
        options.progress_context = &s;
        trf_status status = trf_device_layer_create(device, stored->blob, stored->bytes, &options, &layer, &err);
        if (status == TRF_OK) {
            ck_assert_uint_eq(s.done, s.total);
            ck_assert_int_gt(stop_at, 1);
            trf_device_layer_destroy(layer);
            break;
        }
        fixture_check_status(status, TRF_ERR_CANCELLED, &err);
        ck_assert_ptr_null(layer);
    }
    free(guarded_read(&room.blob));
    free(guarded_read(&room.directory));
    free_room(&room);
}
END_TEST

static void *create_often(void *context) {
    const int first = *(const int *)context;
    for (int i = 0; i < test_rounds(12); i++) {
        const stored_layer *stored = &layers[(first + i) % NUM_LAYERS];
        trf_load_options options = shard_options(kShards[(first + 3 * i) % NUM_SHARDS]);
        trf_device_layer *layer = NULL;
        trf_error own;
        options.threads = 1 + i % 3;
        EXPECT(trf_device_layer_create(device, stored->blob, stored->bytes, &options, &layer, &own) == TRF_OK);
        trf_device_layer_destroy(layer);
    }
    return NULL;
}

START_TEST(several_at_once) {
    enum {
        THREADS = 6
    };
    pthread_t threads[THREADS];
    int first[THREADS];
    for (int i = 0; i < THREADS; i++) {
        first[i] = i;
        EXPECT(pthread_create(&threads[i], NULL, create_often, &first[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.memory"))
        return 77;
    Suite *suite = suite_create("device_memory");
    TCase *tests = tcase_create("device_memory"), *threads = tcase_create("threads");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, whole_layers_are_the_file, 0, NUM_LAYERS);
    tcase_add_loop_test(tests, shards_from_memory, 0, NUM_LAYERS);
    tcase_add_loop_test(tests, rows_of_several_ranges, 0, NUM_LAYERS);
    tcase_add_loop_test(tests, ranges_that_are_shards, 0, NUM_LAYERS);
    tcase_add_test(tests, ranges_that_are_none);
    tcase_add_test(tests, only_what_is_loaded_is_checked);
    tcase_add_loop_test(tests, memory_that_does_not_do, 0, 3);
    tcase_add_loop_test(tests, blobs_on_the_device, 0, NUM_LAYERS);
    tcase_add_loop_test(tests, shards_of_blobs_on_the_device, 0, NUM_LAYERS);
    tcase_add_test(tests, corrupt_blobs_on_the_device);
    tcase_add_loop_test(tests, stopped_loads, 0, 3);
    suite_add_tcase(suite, tests);
    tcase_set_tags(threads, "threads");
    tcase_add_unchecked_fixture(threads, begin, end);
    tcase_set_timeout(threads, 240);
    tcase_add_test(threads, several_at_once);
    suite_add_tcase(suite, threads);
    return run_suite(suite);
}
