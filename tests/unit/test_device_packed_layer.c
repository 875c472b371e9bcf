/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers, compared with coded ones of the same blobs and shards in weights, rows and products; whose memory they
 * take, and adopting that memory; and what is refused. These tests run on the CPU; tests/gpu/ builds this file for a
 * GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/guarded_memory.h"
#include "common/packed_layer.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "common/weight_kinds.h"
#include "transfuse/experts.h"
#include "transfuse/stacks.h"
#include "transfuse/tuning.h"
#include "trf_device_layer.h"
#include "trf_layer_feed.h"
#include "trf_number_formats.h"
#include "trf_pack.h"
#include "trf_packed_head.h"
#include "trf_unpack.h"

#include <check.h>

enum {
    ROWS = 600, /* three rows of tiles, of which the last has 88 rows */
    COLS = 430,
    ON_CPU = TRF_TEST_DEVICE == TRF_DEVICE_CPU,
    MISALIGNED = ON_CPU ? 8 : 128 /* bytes, half of what is asked for */
};

static trf_error err;
static trf_context *device;
static trf_checkpoint *checkpoint, *f32_checkpoint;

/* ---- layers in memory ---- */

typedef struct made_blob {
    void *at;
    uint64_t bytes;
} made_blob;

static made_blob encode(weight_kind kind, uint32_t rows, uint32_t cols, trf_favor favor) {
    uint16_t *weights = weight_kind_make(kind, rows, cols);
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, rows, cols);
    trf_encode_options options;
    made_blob blob;
    trf_encode_options_init(&options);
    options.favor = favor;
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob.at, &blob.bytes, NULL, &err), TRF_OK, &err);
    free(weights);
    return blob;
}

static trf_device_layer *make(const made_blob *blob, trf_layout layout, const trf_load_options *shard) {
    trf_load_options options;
    trf_device_layer *layer = NULL;
    trf_load_options_init(&options);
    if (shard)
        options = *shard;
    options.layout = layout;
    fixture_check_status(trf_device_layer_create(device, blob->at, blob->bytes, &options, &layer, &err), TRF_OK, &err);
    return layer;
}

/* Expects the same meaning and the same weights of a shard in both layouts. */
static void check_against_coded(const trf_device_layer *packed, const trf_device_layer *coded, uint64_t most) {
    const trf_device_layer_info info = test_device_layer_info(packed);
    const trf_layer_info due = test_layer_info(coded);
    ck_assert_int_eq(info.layout, TRF_LAYOUT_PACKED);
    ck_assert_mem_eq(&info.layer, &due, sizeof due);
    ck_assert(info.memory_bytes > 256 && info.memory_bytes <= most);
    for (trf_decode_as as = TRF_DECODE_SOURCE; as <= TRF_DECODE_F16; as++)
        device_check_weights(coded, packed, as);
    fixture_check_status(trf_device_layer_check(packed, &err), TRF_OK, &err);
}

static uint64_t most_bytes(const made_blob *blob, const trf_load_options *shard) {
    trf_load_options options;
    trf_layer_size size;
    trf_load_options_init(&options);
    if (shard)
        options = *shard;
    options.layout = TRF_LAYOUT_PACKED;
    fixture_check_status(trf_device_layer_get_size(device, blob->at, blob->bytes, &options, &size, &err), TRF_OK, &err);
    ck_assert_uint_eq(size.directory_bytes, 0);
    return size.buffer_bytes;
}

static const uint32_t kShapes[][2] = {{1, 1}, {64, 32}, {65, 33}, {333, 77}, {16, 1100}, {257, 513}, {600, 520}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0]
};

START_TEST(the_weights_of_the_coded_layer) {
    for (int shape = 0; shape < SHAPES; shape++)
        for (trf_favor favor = TRF_FAVOR_SPEED; favor <= TRF_FAVOR_SIZE; favor++) {
            if (!test_tries(shape + (int)favor + _i))
                continue;
            const made_blob blob = encode((weight_kind)_i, kShapes[shape][0], kShapes[shape][1], favor);
            trf_device_layer *coded = make(&blob, TRF_LAYOUT_CODED, NULL);
            trf_device_layer *packed = make(&blob, TRF_LAYOUT_PACKED, NULL);
            check_against_coded(packed, coded, most_bytes(&blob, NULL));
            trf_device_layer_destroy(packed);
            trf_device_layer_destroy(coded);
            trf_free(blob.at);
        }
}
END_TEST

/* The blob's row offsets, or those of a shard's rows, are taken out; otherwise such rows would be all exceptions. */
START_TEST(rows_of_different_size) {
    static const uint32_t shards[][4] = {{0, 0, 0, 0}, {48, 400, 16, 320}, {272, 0, 0, 0}};
    const made_blob blob = encode(SCALED_ROWS, ROWS, 520, (trf_favor)_i);
    for (int s = 0; s < 3; s++) {
        const trf_load_options shard = test_shard(shards[s]);
        trf_device_layer *packed = make(&blob, TRF_LAYOUT_PACKED, &shard);
        trf_device_layer *coded = make(&blob, TRF_LAYOUT_CODED, &shard), *plain = make(&blob, TRF_LAYOUT_PLAIN, &shard);
        ck_assert(test_layer_info(packed).predictor_modes & TRF_PREDICT_ROW);
        ck_assert_ptr_nonnull(packed->packed.row_offsets);
        ck_assert_uint_eq(packed->packed.num_stored, 0);
        check_against_coded(packed, coded, most_bytes(&blob, &shard));
        for (trf_decode_as as = TRF_DECODE_SOURCE; as <= TRF_DECODE_BF16; as++)
            device_check_weights(plain, packed, as);
        trf_device_layer_destroy(packed);
        trf_device_layer_destroy(coded);
        trf_device_layer_destroy(plain);
    }
    trf_free(blob.at);
}
END_TEST

/* ---- windows ---- */

/* Finds the window by its definition: from the weights of 128 rows of a shard, or of all rows if it has fewer, one by
 * one. */
static trf_packed_window count_window(const uint16_t *weights, uint32_t cols, const trf_shard_range *shard,
                                      uint32_t first_col, const int8_t *offsets) {
    uint64_t exponents[256] = {0}, zeros = 0, all = 0;
    const uint32_t step = shard->rows < 128 ? 1 : shard->rows / 128;
    for (uint32_t i = 0; i < 128 && i < shard->rows; i++)
        for (uint32_t col = 0; col < shard->cols; col++) {
            const uint32_t row = i * step, weight = weights[(size_t)row * cols + first_col + col];
            const int exponent = weight >> 7 & 0xFF, left = exponent - (offsets ? offsets[row] : 0);
            zeros += (weight & 0x7FFF) == 0;
            exponents[exponent > 0 && exponent < 255 && left > 0 && left < 255 ? left : 0]++;
            all++;
        }
    exponents[0] = 0;
    return trf_choose_packed_window(exponents, 10000 * zeros > all);
}

/* The windows that a load and a conversion choose, with row offsets taken out or without any; for layers with fewer
 * than 128 rows, with 128 and with more; zeroing or not. */
START_TEST(the_window_of_128_rows) {
    static const uint32_t shapes[][2] = {{1, 1}, {127, 300}, {128, 65}, {333, 77}, {600, 520}, {1300, 260}};
    static const uint32_t shards[][4] = {{0, 0, 0, 0}, {48, 272, 16, 48}, {304, 0, 0, 0}};
    const weight_kind kind = (weight_kind)(_i / 2);
    for (int shape = 0; shape < 6; shape++) {
        if (!test_tries(shape + _i))
            continue;
        const uint32_t rows = shapes[shape][0], cols = shapes[shape][1];
        uint16_t *weights = weight_kind_make(kind, rows, cols);
        const made_blob blob = encode(kind, rows, cols, (trf_favor)(_i % 2));
        for (int s = 0; s < (rows > 320 ? 3 : 1); s++) {
            const trf_load_options shard = test_shard(shards[s]);
            trf_device_layer *coded = make(&blob, TRF_LAYOUT_CODED, &shard),
                             *made[2] = {make(&blob, TRF_LAYOUT_PACKED, &shard), NULL};
            trf_layer_feed feed;
            fixture_check_status(trf_device_layer_convert(coded, TRF_LAYOUT_PACKED, NULL, &made[1], &err), TRF_OK,
                                 &err);
            fixture_check_status(trf_layer_feed_open_memory(blob.at, blob.bytes, &shard, &feed, &err), TRF_OK, &err);
            const int8_t *offsets = feed.view->row_offsets;
            const trf_packed_window due = count_window(weights + (size_t)shard.first_row * cols, cols, &feed.shard,
                                                       shard.first_col, offsets ? offsets + feed.shard.row : NULL);
            EXPECT(kind != SCALED_ROWS || rows < 320 || offsets != NULL);
            EXPECT(kind == OUTLIERS || rows == 1 || due.zeroing == (kind == ZEROS));
            trf_layer_feed_close(&feed);
            for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(made[i]->packed.base, (int)due.base);
                ck_assert_int_eq(made[i]->packed.zeroing, (int)due.zeroing);
                trf_device_layer_destroy(made[i]);
            }
            trf_device_layer_destroy(coded);
        }
        trf_free(blob.at);
        free(weights);
    }
}
END_TEST

/* ---- bytes ---- */

/* Packs rows and columns of weights without row offsets by the reference. */
static packed_layer pack_again(const uint16_t *weights, uint32_t cols, const trf_load_options *shard,
                               const trf_device_layer *packed) {
    const trf_layer_info info = test_layer_info(packed);
    packed_layer due = packed_layer_make((uint32_t)info.rows, (uint32_t)info.cols, 0);
    for (uint32_t row = 0; row < due.rows; row++)
        memcpy(due.weights + (size_t)row * due.cols, weights + (shard->first_row + row) * cols + shard->first_col,
               2ull * due.cols);
    const trf_pack_input input = {due.weights, due.cols, due.rows, due.cols, NULL};
    const trf_packed_window window = trf_pack_window(&input);
    fixture_check_status(packed_layer_pack(&due, &window, &err), TRF_OK, &err);
    return due;
}

/* Compares all of a buffer except for what the head says of its source, which the reference does not know. */
static void check_buffer(const trf_device_layer *packed, const packed_layer *due) {
    const uint64_t bytes = due->head.common.buffer_bytes, lines = due->head.lines_offset;
    uint8_t *found = aligned_alloc(TRF_PACKED_ALIGNMENT, bytes);
    ck_assert_ptr_nonnull(found);
    ck_assert_uint_eq(packed->view.buffer_bytes, bytes);
    fixture_check_status(trf_device_download(device, found, packed->view.buffer, bytes, &err), TRF_OK, &err);
    const trf_packed_head *head = (const trf_packed_head *)found;
    EXPECT(head->num_records == due->head.num_records && head->num_stored == due->head.num_stored);
    EXPECT(head->lines_offset == lines && head->tiles_offset == due->head.tiles_offset);
    const int is_due = memcmp(found + lines, due->packed + lines, bytes - lines) == 0;
    for (uint64_t at = lines; !is_due && at < bytes; at++)
        if (found[at] != due->packed[at])
            ck_abort_msg("byte %llu of %llu, lines from %llu, tiles from %llu on: %02x, not %02x",
                         (unsigned long long)at, (unsigned long long)bytes, (unsigned long long)lines,
                         (unsigned long long)head->tiles_offset, found[at], due->packed[at]);
    free(found);
}

/* Loads a shard packed, to the library's memory and to the caller's; and loads it coded and packs that. */
static void check_bytes(const uint16_t *weights, const made_blob *blob, uint32_t cols, const trf_load_options *shard) {
    trf_load_options placed = *shard;
    guarded_memory room = guarded_allocate(device, most_bytes(blob, shard));
    placed.memory = (trf_layer_memory){room.at, room.bytes, NULL, 0};
    trf_device_layer *made[3] = {make(blob, TRF_LAYOUT_PACKED, shard), make(blob, TRF_LAYOUT_PACKED, &placed)};
    trf_device_layer *coded = make(blob, TRF_LAYOUT_CODED, shard);
    fixture_check_status(trf_device_layer_convert(coded, TRF_LAYOUT_PACKED, NULL, &made[2], &err), TRF_OK, &err);
    trf_device_layer_destroy(coded);
    packed_layer due = pack_again(weights, cols, shard, made[0]);
    for (int i = 0; i < 3; i++) {
        check_buffer(made[i], &due);
        trf_device_layer_destroy(made[i]);
    }
    packed_layer_free(&due);
    guarded_free(&room);
}

/* On a GPU these are layers that are packed straight from their slabs; parts for which this is tried and which are then
 * packed from dense rows, since tiles must be stored; parts that a shard or the layer's end cuts; and rows that wait
 * for the next part. */
START_TEST(the_bytes_of_the_reference) {
    static const weight_kind kinds[] = {NORMAL, ZEROS, OUTLIERS, SCALED_COLS, BURSTS};
    static const uint32_t shapes[][2] = {{64, 64}, {1088, 1472}, {7744, 4416}, {6700, 4410}};
    static const uint32_t shards[][4] = {{0, 0, 0, 0}, {320, 0, 0, 0}, {64, 704, 0, 0}, {144, 0, 256, 0}};
    const weight_kind kind = kinds[_i % 5];
    for (int shape = 0; shape < (ON_CPU || test_quick() ? 2 : 4); shape++) {
        if (shape >= 2 && shape % 2 != _i % 2)
            continue;
        const uint32_t rows = shapes[shape][0], cols = shapes[shape][1];
        uint16_t *weights = weight_kind_make(kind, rows, cols);
        const made_blob blob = encode(kind, rows, cols, (trf_favor)(_i / 5));
        for (int s = 0; s < (shape == 0 || (kind == BURSTS && shape == 1) ? 1 : 4); s++) {
            if (shape > 0 && !test_tries(_i + s))
                continue;
            const trf_load_options shard = test_shard(shards[s]);
            check_bytes(weights, &blob, cols, &shard);
        }
        trf_free(blob.at);
        free(weights);
    }
}
END_TEST

static uint8_t *read_buffer(const trf_device_layer *packed) {
    uint8_t *bytes = malloc(packed->view.buffer_bytes);
    fixture_check_status(
        trf_device_download(packed->context, bytes, packed->view.buffer, packed->view.buffer_bytes, &err), TRF_OK,
        &err);
    return bytes;
}

/* A GPU makes the same bytes from a blob as the CPU, including heads and row offsets; also from a blob in the device's
 * memory. */
START_TEST(the_bytes_of_the_cpu) {
    static const uint32_t shapes[][2] = {{333, 77}, {600, 520}, {1088, 1472}};
    static const uint32_t shards[][4] = {{0, 0, 0, 0}, {48, 272, 16, 48}};
    const weight_kind kind = _i / 2 == WILD ? BURSTS : (weight_kind)(_i / 2);
    trf_context *cpu;
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &cpu, &err), TRF_OK, &err);
    /* A tile with bursts must be stored, for which small layers have no room. */
    for (int shape = kind == BURSTS ? 2 : 0; shape < 3; shape++) {
        const made_blob blob = encode(kind, shapes[shape][0], shapes[shape][1], (trf_favor)(_i % 2));
        uint8_t *blob_dev = device_upload(device, blob.at, blob.bytes);
        for (int s = 0; s < (kind == BURSTS ? 1 : 2); s++) {
            trf_load_options options = test_shard(shards[s]);
            trf_device_layer *due, *found[2] = {make(&blob, TRF_LAYOUT_PACKED, &options), NULL};
            options.layout = TRF_LAYOUT_PACKED;
            fixture_check_status(trf_device_layer_create(cpu, blob.at, blob.bytes, &options, &due, &err), TRF_OK, &err);
            options.buffer_is_on_device = 1;
            fixture_check_status(trf_device_layer_create(device, blob_dev, blob.bytes, &options, &found[1], &err),
                                 TRF_OK, &err);
            uint8_t *due_bytes = read_buffer(due);
            for (int i = 0; i < 2; i++) {
                uint8_t *bytes = read_buffer(found[i]);
                ck_assert_uint_eq(found[i]->view.buffer_bytes, due->view.buffer_bytes);
                EXPECT(memcmp(bytes, due_bytes, due->view.buffer_bytes) == 0);
                free(bytes);
                trf_device_layer_destroy(found[i]);
            }
            free(due_bytes);
            trf_device_layer_destroy(due);
        }
        trf_device_free(device, blob_dev);
        trf_free(blob.at);
    }
    trf_context_destroy(cpu);
}
END_TEST

/* ---- products ---- */

/* Products have the same sums as the reference. */
START_TEST(the_sums_of_the_reference) {
    static const weight_kind kinds[] = {NORMAL, ZEROS, OUTLIERS, SCALED_ROWS};
    static const uint32_t batches[] = {1, 2, 7, 33};
    for (int b = 0; b < 4; b++)
        for (int shape = 0; shape < SHAPES; shape++) {
            if (!test_tries(b + shape + _i))
                continue;
            const uint32_t m = batches[b], rows = kShapes[shape][0], cols = kShapes[shape][1];
            const made_blob blob = encode(kinds[_i], rows, cols, TRF_FAVOR_SPEED);
            trf_device_layer *packed = make(&blob, TRF_LAYOUT_PACKED, NULL);
            const trf_plan_options options = test_plan_options(m, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_PACKED);
            uint16_t *x = device_make_x(m, cols);
            float *wide = malloc(sizeof *wide * m * cols), *due = malloc(sizeof *due * m * rows);
            for (size_t i = 0; i < (size_t)m * cols; i++)
                wide[i] = trf_bf16_to_f32(x[i]);
            fixture_check_status(trf_multiply_packed(&packed->packed, wide, m, due, &err), TRF_OK, &err);
            uint8_t *found = device_multiply(packed, &options, x);
            EXPECT(memcmp(found, due, sizeof *due * m * rows) == 0);
            free(found);
            free(due);
            free(wide);
            free(x);
            trf_device_layer_destroy(packed);
            trf_free(blob.at);
        }
}
END_TEST

/* Everything that a product may have: exact sums are the same as the coded layer's, and so is everything made from
 * them. */
START_TEST(all_that_products_have) {
    const uint32_t rows = kShapes[_i][0], cols = kShapes[_i][1];
    const made_blob blob = encode(EXACT, rows, cols, TRF_FAVOR_SPEED);
    trf_device_layer *packed = make(&blob, TRF_LAYOUT_PACKED, NULL), *coded = make(&blob, TRF_LAYOUT_CODED, NULL);
    for (uint32_t variant = 0; variant < 96; variant++) {
        const uint32_t m = (const uint32_t[]){1, 3, 40}[variant / 4 % 3];
        trf_plan_options options = test_plan_options(
            m, TRF_DTYPE_BF16, (const trf_dtype[]){TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16}[variant % 3],
            TRF_PATH_AUTO);
        uint16_t *x = malloc(2ull * m * cols);
        for (uint32_t i = 0; i < m * cols; i++)
            x[i] = (uint16_t)(0x3F00 | (i * 29 % 3) << 7 | (i % 2) << 15);
        options.activation = (trf_activation)(variant % 4);
        options.has_bias = variant / 4 % 2;
        options.has_multiplier = variant / 8 % 2;
        options.has_residual = variant / 16 % 2;
        options.y_stride = variant / 32 % 2 ? rows + 5 : 0;
        options.residual_stride = options.has_residual ? options.y_stride : 0;
        options.multiplier_stride = options.has_multiplier && variant / 32 % 2 ? rows + 2 : 0;
        uint8_t *found = device_multiply(packed, &options, x);
        uint8_t *due = device_multiply(coded, &options, x);
        const uint64_t stride = options.y_stride ? options.y_stride : rows;
        EXPECT(memcmp(found, due, ((m - 1) * stride + rows) * trf_dtype_bytes(options.y_dtype)) == 0);
        free(found);
        free(due);
        free(x);
    }
    trf_device_layer_destroy(packed);
    trf_device_layer_destroy(coded);
    trf_free(blob.at);
}
END_TEST

/* Only the CPU refuses TWO_STEP. */
START_TEST(paths) {
    const made_blob blob = encode(NORMAL, 80, 64, TRF_FAVOR_SPEED);
    trf_device_layer *layers[] = {make(&blob, TRF_LAYOUT_CODED, NULL), make(&blob, TRF_LAYOUT_PLAIN, NULL),
                                  make(&blob, TRF_LAYOUT_PACKED, NULL)};
    trf_plan *plan = NULL;
    for (trf_path path = TRF_PATH_FUSED; path < TRF_PATH_PACKED; path++) {
        if (path == TRF_PATH_TWO_STEP && !ON_CPU)
            continue;
        fixture_check_status(test_make_plan(layers[2], 4, TRF_DTYPE_BF16, TRF_DTYPE_F32, path, &plan, &err),
                             TRF_ERR_UNSUPPORTED, &err);
        ck_assert(strstr(err.message, trf_path_name(path)) && strstr(err.message, "packed layer"));
    }
    for (int i = 0; i < 2; i++) {
        fixture_check_status(test_make_plan(layers[i], 4, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_PACKED, &plan, &err),
                             TRF_ERR_UNSUPPORTED, &err);
        ck_assert(strstr(err.message, "packed path") && strstr(err.message, i ? "plain" : "coded"));
    }
    ck_assert_ptr_null(plan);
    fixture_check_status(test_make_plan(layers[2], 4, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err),
                         TRF_OK, &err);
    const trf_plan_info info = test_plan_info(plan);
    ck_assert_int_eq(info.path, TRF_PATH_PACKED);
    ck_assert_str_eq(info.path_name, "packed");
    ck_assert_ptr_nonnull(info.reason);
    trf_plan_destroy(plan);
    for (int i = 0; i < 3; i++)
        trf_device_layer_destroy(layers[i]);
    trf_free(blob.at);
}
END_TEST

/* ---- checkpoints and their shards ---- */

static const fixture_tensor kTensors[] = {
    {"bf16", "BF16", {ROWS, COLS}, 2, 0}, {"odd", "BF16", {333, 77}, 2, 0},         {"f16", "F16", {300, 300}, 2, 0},
    {"i8", "I8", {300, 300}, 2, 0},       {"experts", "BF16", {2, 300, 300}, 3, 0},
};
static const char *const kNames[] = {"bf16", "odd", "experts[1]", "f32"};
static const trf_row_range kRanges[] = {{256, 256}, {0, 256}, {512, 88}};
/* first_row, num_rows, first_col, num_cols; a number of 0 means to the end. */
static const uint32_t kShards[][4] = {
    {0, 0, 0, 0},        {256, 256, 0, 0}, {0, 0, 256, 0}, {16, 32, 0, 0},
    {48, 416, 272, 144}, {512, 0, 0, 416}, {0, 64, 0, 32},
};
enum {
    NUM_NAMES = sizeof kNames / sizeof kNames[0],
    NUM_SHARDS = sizeof kShards / sizeof kShards[0],
    NUM_PARTS = NUM_SHARDS + 1 /* and one of several ranges */
};

static void begin(void) {
    fixture_begin();
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
    checkpoint = fixture_open_compressed(kTensors, sizeof kTensors / sizeof kTensors[0]);
    f32_checkpoint = device_layers_open_f32_as_bf16(ROWS, COLS);
}

static void end(void) {
    trf_checkpoint_close(checkpoint);
    trf_checkpoint_close(f32_checkpoint);
    trf_context_destroy(device);
    fixture_end();
}

static int has_part(const char *tensor, int index) {
    return index == 0 || strcmp(tensor, "bf16") == 0 || strcmp(tensor, "f32") == 0;
}

static trf_load_options part(int index, trf_layout layout) {
    trf_load_options options = test_shard(kShards[index % NUM_SHARDS]);
    options.threads = 2;
    options.layout = layout;
    if (index == NUM_SHARDS) {
        options.row_ranges = kRanges;
        options.num_row_ranges = 3;
        options.first_col = 16;
    }
    return options;
}

static trf_checkpoint *checkpoint_of(const char *tensor) {
    return strcmp(tensor, "f32") == 0 ? f32_checkpoint : checkpoint;
}

static trf_device_layer *load(const char *tensor, const trf_load_options *options) {
    trf_device_layer *layer = NULL;
    fixture_check_status(trf_device_layer_load(device, checkpoint_of(tensor), tensor, options, &layer, &err), TRF_OK,
                         &err);
    return layer;
}

static uint64_t most_load_bytes(const char *tensor, const trf_load_options *options) {
    trf_layer_size size;
    fixture_check_status(trf_device_layer_get_load_size(device, checkpoint_of(tensor), tensor, options, &size, &err),
                         TRF_OK, &err);
    return size.buffer_bytes;
}

static void check_load(const char *tensor, const trf_load_options *options, trf_status status, const char *message) {
    trf_device_layer *layer = NULL;
    fixture_check_status(trf_device_layer_load(device, checkpoint, tensor, options, &layer, &err), status, &err);
    ck_assert_msg(strstr(err.message, message) != NULL, "%s", err.message);
    ck_assert_ptr_null(layer);
}

START_TEST(shards) {
    for (int p = 0; p < NUM_PARTS; p++) {
        if (!has_part(kNames[_i], p))
            continue;
        const trf_load_options options = part(p, TRF_LAYOUT_PACKED), of_coded = part(p, TRF_LAYOUT_CODED);
        trf_device_layer *packed = load(kNames[_i], &options), *coded = load(kNames[_i], &of_coded);
        check_against_coded(packed, coded, most_load_bytes(kNames[_i], &options));
        trf_device_layer_destroy(packed);
        trf_device_layer_destroy(coded);
    }
}
END_TEST

/* ---- memory ---- */

static trf_status adopt(const void *buffer, uint64_t bytes, trf_load_options options, trf_device_layer **layer) {
    options.buffer_is_on_device = 1;
    options.layout = options.layout == TRF_LAYOUT_CODED ? TRF_LAYOUT_PACKED : options.layout;
    return trf_device_layer_create(device, buffer, bytes, &options, layer, &err);
}

static void check_same(trf_device_layer *a, trf_device_layer *b) {
    const trf_device_layer_info of_a = test_device_layer_info(a), of_b = test_device_layer_info(b);
    uint8_t *first = device_decode(a, TRF_DECODE_SOURCE), *second = device_decode(b, TRF_DECODE_SOURCE);
    EXPECT(memcmp(&of_a.layer, &of_b.layer, sizeof of_a.layer) == 0);
    EXPECT(of_a.layout == of_b.layout && of_a.memory_bytes == of_b.memory_bytes);
    EXPECT(memcmp(first, second, of_a.layer.rows * of_a.layer.cols * trf_dtype_bytes(of_a.layer.dtype)) == 0);
    free(first);
    free(second);
}

/* A layer in the caller's memory; then one adopted from a copy of the part of that memory that it took, as when torch
 * moves tensors. */
START_TEST(in_the_callers_memory) {
    for (int p = 0; p < NUM_PARTS; p++) {
        trf_load_options options = part(p, TRF_LAYOUT_PACKED), whole = part(0, TRF_LAYOUT_PACKED);
        trf_device_layer *again = NULL;
        trf_layer_size size;
        if (!has_part(kNames[_i], p))
            continue;
        trf_device_layer *own = load(kNames[_i], &options);
        guarded_memory room = guarded_allocate(device, most_load_bytes(kNames[_i], &options));
        options.memory = (trf_layer_memory){room.at, room.bytes, NULL, 0};
        trf_device_layer *placed = load(kNames[_i], &options);
        EXPECT(placed->view.buffer == room.at && !placed->memory);
        check_same(own, placed);
        const uint64_t used = test_device_layer_info(placed).memory_bytes;
        trf_device_layer_destroy(placed);
        fixture_check_status(adopt(room.at, room.bytes, whole, &again), TRF_OK, &err); /* with room after it */
        check_same(own, again);
        trf_device_layer_destroy(again);
        uint8_t *bytes = guarded_read(&room);
        guarded_memory moved = guarded_allocate(device, used);
        fixture_check_status(trf_device_upload(device, moved.at, bytes, used, &err), TRF_OK, &err);
        guarded_free(&room);
        whole.buffer_is_on_device = 1;
        fixture_check_status(trf_device_layer_get_size(device, moved.at, used, &whole, &size, &err), TRF_OK, &err);
        ck_assert(size.buffer_bytes == used && size.directory_bytes == 0);
        fixture_check_status(adopt(moved.at, used, whole, &again), TRF_OK, &err);
        EXPECT(again->view.buffer == moved.at);
        check_same(own, again);
        trf_device_layer_destroy(again);
        trf_device_layer_destroy(own);
        uint8_t *still = guarded_read(&moved);
        EXPECT(memcmp(bytes, still, used) == 0);
        guarded_free(&moved);
        free(bytes);
        free(still);
    }
}
END_TEST

START_TEST(memory_that_does_not_do) {
    const trf_load_options good = part(_i, TRF_LAYOUT_PACKED);
    guarded_memory room = guarded_allocate(device, most_load_bytes("bf16", &good));
    const trf_layer_memory right = {room.at, room.bytes, NULL, 0};
    trf_layer_memory wrong[] = {right, right, right, right};
    wrong[0].buffer_bytes--;
    wrong[1].buffer_bytes = 0;
    wrong[2].buffer = (uint8_t *)right.buffer + MISALIGNED;
    wrong[3].buffer = NULL;
    for (int i = 0; i < 4; i++) {
        trf_load_options options = good;
        options.memory = wrong[i];
        check_load("bf16", &options, TRF_ERR_ARGUMENT, "compressed.safetensors: tensor 'bf16': ");
    }
    guarded_check_untouched(&room);
    guarded_free(&room);
}
END_TEST

/* ---- buffers that are not good ---- */

START_TEST(heads_that_are_not_good) {
    trf_load_options options = part(0, TRF_LAYOUT_PACKED), whole = options;
    trf_device_layer *own = load("odd", &options), *layer = NULL;
    guarded_memory room = guarded_allocate(device, own->view.buffer_bytes);
    fixture_check_status(trf_device_download(device, room.at, own->view.buffer, room.bytes, &err), TRF_OK, &err);
    trf_device_layer_destroy(own);
    for (uint32_t at = 0; at < TRF_DATA_CHECKSUM_OFFSET; at++) {
        room.at[at] ^= (uint8_t)(1u << at % 8);
        const trf_status status = adopt(room.at, room.bytes, whole, &layer);
        EXPECT(status == (at < 4 ? TRF_ERR_MAGIC : TRF_ERR_CHECKSUM) && !layer);
        room.at[at] ^= (uint8_t)(1u << at % 8);
    }
    fixture_check_status(adopt(room.at, room.bytes - 1, whole, &layer), TRF_ERR_TRUNCATED, &err);
    fixture_check_status(adopt(room.at, 255, whole, &layer), TRF_ERR_TRUNCATED, &err);
    fixture_check_status(adopt(room.at + MISALIGNED, room.bytes - MISALIGNED, whole, &layer), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(adopt(room.at, room.bytes, part(0, TRF_LAYOUT_PLAIN), &layer), TRF_ERR_HEADER, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "'packed'"));
    whole.num_rows = 16;
    fixture_check_status(adopt(room.at, room.bytes, whole, &layer), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_null(layer);
    trf_packed_head *head = (trf_packed_head *)room.at;
    memset(&head->coded_header, 0, sizeof head->coded_header); /* as trf_pack leaves it: without a blob */
    trf_packed_head_seal(head);
    fixture_check_status(adopt(room.at, room.bytes, part(0, TRF_LAYOUT_PACKED), &layer), TRF_ERR_HEADER, &err);
    ck_assert_ptr_null(layer);
    guarded_free(&room);
}
END_TEST

/* After the head, a wrong bit either is refused, or the buffer is valid and only has other weights. */
START_TEST(mutated_buffers) {
    test_rng rng = {11 + (uint64_t)_i};
    const made_blob blob = encode(_i ? SCALED_ROWS : OUTLIERS, 333, 300, TRF_FAVOR_SPEED);
    trf_device_layer *own = make(&blob, TRF_LAYOUT_PACKED, NULL);
    const uint64_t bytes = own->view.buffer_bytes;
    guarded_memory room = guarded_allocate(device, bytes);
    memcpy(room.at, own->view.buffer, bytes);
    const trf_packed_head *head = (const trf_packed_head *)room.at;
    int refused = 0;
    for (int round = 0; round < test_rounds(400); round++) {
        const uint64_t most = round % 2 ? head->tiles_offset : bytes;
        const uint64_t at = sizeof *head + test_random(&rng) % (most - sizeof *head);
        const uint8_t bit = (uint8_t)(1u << test_below(&rng, 8));
        trf_device_layer *layer = NULL;
        room.at[at] ^= bit;
        const trf_status status = adopt(room.at, bytes, part(0, TRF_LAYOUT_PACKED), &layer);
        if (status == TRF_OK) {
            free(device_decode(layer, TRF_DECODE_ELEMENTS));
            trf_device_layer_destroy(layer);
        } else {
            EXPECT(status == TRF_ERR_TILE && err.offset >= sizeof *head && err.offset < bytes && !layer);
            refused++;
        }
        room.at[at] ^= bit;
    }
    ck_assert_int_gt(refused, 0);
    guarded_free(&room);
    trf_device_layer_destroy(own);
    trf_free(blob.at);
}
END_TEST

/* ---- what is refused ---- */

/* Opens a compressed safetensors file with one tensor that cannot be packed. */
static trf_checkpoint *open_wild(void) {
    static const char header[] = "{\"wild\":{\"dtype\":\"BF16\",\"shape\":[300,300],\"data_offsets\":[0,180000]}}     ";
    const uint64_t length = (sizeof header - 1) / 8 * 8;
    const char *source = fixture_path("wild.safetensors"), *made = fixture_path("wild_coded.safetensors");
    uint16_t *weights = weight_kind_make(WILD, 300, 300);
    uint8_t *file = malloc(8 + length + 180000);
    trf_checkpoint *opened;
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, weights, 180000);
    fixture_write(source, file, 8 + length + 180000);
    fixture_check_status(trf_compress_checkpoint(source, made, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_open(made, &opened, &err), TRF_OK, &err);
    free(weights);
    free(file);
    return opened;
}

START_TEST(what_cannot_be_packed) {
    trf_load_options options = part(0, TRF_LAYOUT_PACKED);
    trf_device_layer *layer = NULL;
    trf_checkpoint *wild = open_wild();
    fixture_check_status(trf_device_layer_load(device, wild, "wild", &options, &layer, &err), TRF_ERR_UNSUPPORTED,
                         &err);
    ck_assert_ptr_nonnull(strstr(err.message, "wild_coded.safetensors: tensor 'wild': the layer cannot be packed: "));
    ck_assert_uint_eq(err.offset, TRF_NO_OFFSET);
    ck_assert_ptr_null(layer);
    options.layout = TRF_LAYOUT_PLAIN;
    fixture_check_status(trf_device_layer_load(device, wild, "wild", &options, &layer, &err), TRF_OK, &err);
    trf_device_layer_destroy(layer);
    trf_checkpoint_close(wild);
    const made_blob blob = encode(WILD, 64, 64, TRF_FAVOR_SIZE);
    options = part(0, TRF_LAYOUT_PACKED);
    layer = NULL;
    fixture_check_status(trf_device_layer_create(device, blob.at, blob.bytes, &options, &layer, &err),
                         TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_null(layer);
    trf_free(blob.at);
}
END_TEST

START_TEST(what_packed_layers_are_not) {
    trf_load_options options = part(0, TRF_LAYOUT_PACKED);
    const trf_load_options as_coded = part(0, TRF_LAYOUT_CODED), as_plain = part(0, TRF_LAYOUT_PLAIN);
    trf_device_layer *mixed[] = {load("experts[0]", &options), load("experts[1]", &as_coded)},
                     *plain[] = {load("experts[0]", &as_plain), load("experts[1]", &as_plain)};
    trf_experts *experts = NULL;
    trf_stack *stack;
    trf_layer_size size = {7, 7};
    check_load("f16", &options, TRF_ERR_UNSUPPORTED, "tensor 'f16': the layout 'packed' does not take the codec fp16");
    check_load("i8", &options, TRF_ERR_UNSUPPORTED, "the layout 'packed' does not take the codec int");
    fixture_check_status(trf_device_layer_get_load_size(device, checkpoint, "i8", &options, &size, &err),
                         TRF_ERR_UNSUPPORTED, &err);
    ck_assert(size.buffer_bytes == 7 && size.directory_bytes == 7);
    fixture_check_status(trf_experts_create(mixed, 2, &experts, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "expert 1 is coded, expert 0 packed"));
    fixture_check_status(trf_experts_create(plain, 2, &experts, &err), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "layout 'plain'"));
    ck_assert_ptr_null(experts);
    fixture_check_status(trf_stack_create(device, &stack, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_load(stack, checkpoint, "bf16", &options, &err), TRF_ERR_UNSUPPORTED, &err);
    trf_stack_destroy(stack);
    for (int i = 0; i < 2; i++) {
        trf_device_layer_destroy(mixed[i]);
        trf_device_layer_destroy(plain[i]);
    }
}
END_TEST

static int stop(void *context, const char *tensor, uint64_t done, uint64_t total) {
    (void)context;
    EXPECT(strcmp(tensor, "bf16") == 0);
    return done == total;
}

START_TEST(stopped_loads) {
    trf_load_options options = part(_i, TRF_LAYOUT_PACKED);
    options.progress = stop;
    check_load("bf16", &options, TRF_ERR_CANCELLED, "tensor 'bf16'");
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.packed_layer"))
        return 77;
    Suite *suite = suite_create("device_packed_layer");
    TCase *tests = tcase_create("device_packed_layer");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, the_weights_of_the_coded_layer, 0, WILD);
    tcase_add_loop_test(tests, the_window_of_128_rows, 0, 2 * WILD);
    tcase_add_loop_test(tests, the_bytes_of_the_reference, 0, 10);
    if (!ON_CPU)
        tcase_add_loop_test(tests, the_bytes_of_the_cpu, 0, 2 * (WILD + 1));
    tcase_add_loop_test(tests, rows_of_different_size, 0, 2);
    if (ON_CPU) /* it looks into the layer */
        tcase_add_loop_test(tests, the_sums_of_the_reference, 0, 4);
    tcase_add_loop_test(tests, all_that_products_have, 0, SHAPES);
    tcase_add_test(tests, paths);
    tcase_add_loop_test(tests, shards, 0, NUM_NAMES);
    tcase_add_loop_test(tests, in_the_callers_memory, 0, NUM_NAMES);
    tcase_add_loop_test(tests, memory_that_does_not_do, 0, 3);
    if (ON_CPU) { /* there a buffer can be changed in place, and all of it is checked */
        tcase_add_test(tests, heads_that_are_not_good);
        tcase_add_loop_test(tests, mutated_buffers, 0, 2);
    }
    tcase_add_test(tests, what_cannot_be_packed);
    tcase_add_test(tests, what_packed_layers_are_not);
    tcase_add_loop_test(tests, stopped_loads, 0, NUM_PARTS);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
