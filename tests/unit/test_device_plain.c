/* SPDX-License-Identifier: Apache-2.0 */
/* Plain layers, compared with coded ones of the same tensors and shards in weights, rows and products; whose memory
 * they take, and adopting that memory; and what is refused. These tests run on the CPU; tests/gpu/ builds this file for
 * a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/guarded_memory.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "transfuse/experts.h"
#include "transfuse/groups.h"
#include "transfuse/stacks.h"
#include "transfuse/tuning.h"
#include "trf_device_layer.h"
#include "trf_number_formats.h"
#include "trf_plain_head.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 1100, /* five rows of tiles, of which the last has 76 rows */
    COLS = 700,
    ON_CPU = TRF_TEST_DEVICE == TRF_DEVICE_CPU,
    MISALIGNED = ON_CPU ? 8 : 128 /* bytes, half of what is asked for */
};

static const fixture_tensor kTensors[] = {
    {"bf16", "BF16", {ROWS, COLS}, 2, 0},     {"f16", "F16", {ROWS, COLS}, 2, 0},    {"odd", "BF16", {333, 77}, 2, 0},
    {"small", "F16", {87, 203}, 2, 0},        {"e4m3", "F8_E4M3", {300, 300}, 2, 0}, {"i8", "I8", {300, 300}, 2, 0},
    {"experts", "BF16", {2, 300, 300}, 3, 0},
};
/* The last one is in a checkpoint of its own: F32 in the codec bf16. */
static const char *const kNames[] = {"bf16", "f16", "odd", "small", "experts[1]", "f32"};
static const trf_row_range kRanges[] = {{768, 256}, {0, 256}, {1024, 76}};
/* first_row, num_rows, first_col, num_cols; a number of 0 means to the end. */
static const uint32_t kShards[][4] = {
    {0, 0, 0, 0},        {256, 512, 0, 0},  {0, 0, 256, 0},  {16, 32, 0, 0},
    {48, 416, 272, 400}, {1024, 0, 0, 688}, {0, 256, 0, 16}, {304, 0, 528, 64},
};
enum {
    NUM_NAMES = sizeof kNames / sizeof kNames[0],
    NUM_SHARDS = sizeof kShards / sizeof kShards[0],
    NUM_PARTS = NUM_SHARDS + 1 /* and one of several ranges */
};

static trf_error err;
static trf_context *device;
static trf_checkpoint *checkpoint, *f32_checkpoint;

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

/* Whether the tensor has this part. */
static int has_part(const char *tensor, int index) {
    return index == 0 || strcmp(tensor, "bf16") == 0 || strcmp(tensor, "f16") == 0 || strcmp(tensor, "f32") == 0;
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

static trf_device_layer *load_part(const char *tensor, int index, trf_layout layout) {
    const trf_load_options options = part(index, layout);
    return load(tensor, &options);
}

static void check_load(const char *tensor, const trf_load_options *options, trf_status status, const char *message) {
    trf_device_layer *layer = NULL;
    fixture_check_status(trf_device_layer_load(device, checkpoint, tensor, options, &layer, &err), status, &err);
    ck_assert_msg(strstr(err.message, message) != NULL, "%s", err.message);
    ck_assert_ptr_null(layer);
}

/* ---- weights ---- */

START_TEST(the_weights_of_the_coded_layer) {
    for (int p = 0; p < NUM_PARTS; p++) {
        if (!has_part(kNames[_i], p))
            continue;
        trf_device_layer *plain = load_part(kNames[_i], p, TRF_LAYOUT_PLAIN);
        trf_device_layer *coded = load_part(kNames[_i], p, TRF_LAYOUT_CODED);
        const trf_device_layer_info info = test_device_layer_info(plain);
        const trf_layer_info coded_info = test_layer_info(coded);
        ck_assert_int_eq(info.layout, TRF_LAYOUT_PLAIN);
        ck_assert_mem_eq(&info.layer, &coded_info, sizeof coded_info);
        ck_assert_uint_eq(info.memory_bytes, trf_plain_buffer_bytes(info.layer.rows, info.layer.cols));
        for (trf_decode_as as = TRF_DECODE_SOURCE; as <= TRF_DECODE_F16; as++)
            device_check_weights(coded, plain, as);
        fixture_check_status(trf_device_layer_check(plain, &err), TRF_OK, &err);
        trf_device_layer_destroy(plain);
        trf_device_layer_destroy(coded);
    }
}
END_TEST

/* ---- products ---- */

static trf_dtype x_dtype_of(const trf_layer_info *info) {
    return info->codec == TRF_CODEC_FP16 ? TRF_DTYPE_F16 : TRF_DTYPE_BF16;
}

/* A whole layer's y is bit for bit that of a call that decodes the same weights: the two-step path's or, on the CPU,
 * that of the coded layer's only path. */
START_TEST(the_products_of_the_coded_layer) {
    static const uint32_t batches[] = {1, 3, 33, 70};
    trf_device_layer *plain = load_part(kNames[_i], 0, TRF_LAYOUT_PLAIN);
    trf_device_layer *coded = load_part(kNames[_i], 0, TRF_LAYOUT_CODED);
    const trf_layer_info info = test_layer_info(plain);
    for (int b = 0; b < 4; b++)
        for (int variant = 0; variant < 4; variant++) {
            uint16_t *x = device_make_x(batches[b], info.cols);
            trf_plan_options options =
                test_plan_options(batches[b], x_dtype_of(&info), variant % 2 ? TRF_DTYPE_F32 : x_dtype_of(&info),
                                  b % 2 ? TRF_PATH_AUTO : TRF_PATH_DENSE);
            if (variant >= 2) {
                options.activation = TRF_ACTIVATION_SILU;
                options.has_bias = options.has_residual = 1;
                options.y_stride = options.residual_stride = info.rows + 5;
            }
            uint8_t *found = device_multiply(plain, &options, x);
            options.path = ON_CPU ? TRF_PATH_FUSED : TRF_PATH_TWO_STEP;
            uint8_t *due = device_multiply(coded, &options, x);
            const uint64_t stride = options.y_stride ? options.y_stride : info.rows;
            EXPECT(memcmp(found, due, ((options.m - 1) * stride + info.rows) * trf_dtype_bytes(options.y_dtype)) == 0);
            free(found);
            free(due);
            free(x);
        }
    trf_device_layer_destroy(plain);
    trf_device_layer_destroy(coded);
}
END_TEST

/* Shards, whose sums have another order, against F64. */
START_TEST(products_of_shards) {
    trf_device_layer *plain = load_part(kNames[_i], 0, TRF_LAYOUT_PLAIN);
    for (int p = 1; p < NUM_PARTS; p++) {
        trf_device_layer_destroy(plain);
        plain = load_part(kNames[_i], p, TRF_LAYOUT_PLAIN);
        const trf_layer_info info = test_layer_info(plain);
        const uint32_t m = 5;
        uint16_t *x = device_make_x(m, info.cols), *w = (uint16_t *)device_decode(plain, TRF_DECODE_ELEMENTS);
        const trf_plan_options options = test_plan_options(m, x_dtype_of(&info), TRF_DTYPE_F32, TRF_PATH_AUTO);
        float *y = (float *)device_multiply(plain, &options, x);
        float (*const value)(uint16_t) = info.codec == TRF_CODEC_FP16 ? trf_f16_to_f32 : trf_bf16_to_f32;
        for (uint32_t i = 0; i < m; i++)
            for (uint32_t r = 0; r < info.rows; r++) {
                double sum = 0, size = 0;
                for (uint32_t c = 0; c < info.cols; c++) {
                    const double one =
                        (double)value(x[i * info.cols + c]) * (double)value(w[(size_t)r * info.cols + c]);
                    sum += one;
                    size += fabs(one);
                }
                EXPECT(fabs((double)y[i * info.rows + r] - sum) <= info.cols * 0x1p-24 * size + 1e-30);
            }
        free(x);
        free(w);
        free(y);
    }
    trf_device_layer_destroy(plain);
}
END_TEST

START_TEST(paths_of_each_layout) {
    trf_device_layer *plain = load_part("bf16", 0, TRF_LAYOUT_PLAIN);
    trf_device_layer *coded = load_part("bf16", 0, TRF_LAYOUT_CODED);
    trf_plan *plan = NULL;
    for (trf_path path = TRF_PATH_FUSED; path <= TRF_PATH_PACKED; path++) {
        if (path == TRF_PATH_DENSE)
            continue;
        fixture_check_status(test_make_plan(plain, 4, TRF_DTYPE_BF16, TRF_DTYPE_F32, path, &plan, &err),
                             TRF_ERR_UNSUPPORTED, &err);
        ck_assert(strstr(err.message, trf_path_name(path)) && strstr(err.message, "plain"));
    }
    fixture_check_status(test_make_plan(coded, 4, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_DENSE, &plan, &err),
                         TRF_ERR_UNSUPPORTED, &err);
    ck_assert(strstr(err.message, "dense") && strstr(err.message, "coded"));
    ck_assert_ptr_null(plan);
    fixture_check_status(test_make_plan(plain, 4, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err), TRF_OK,
                         &err);
    const trf_plan_info info = test_plan_info(plan);
    ck_assert_int_eq(info.path, TRF_PATH_DENSE);
    ck_assert_str_eq(info.path_name, "dense");
    ck_assert_ptr_nonnull(info.reason);
    trf_plan_destroy(plan);
    trf_device_layer_destroy(plain);
    trf_device_layer_destroy(coded);
}
END_TEST

/* A group of both layouts: members that are plain run alone. */
START_TEST(groups_of_both) {
    trf_device_layer *layers[] = {load_part("bf16", 0, TRF_LAYOUT_PLAIN), load_part("bf16", 0, TRF_LAYOUT_CODED),
                                  load_part("bf16", 4, TRF_LAYOUT_PLAIN)};
    trf_group_member members[3];
    guarded_memory y[3];
    const void *x[3];
    void *y_at[3], *workspace;
    trf_layer_group *group;
    uint16_t *numbers = device_make_x(2, COLS);
    void *on_device = device_upload(device, numbers, 4 * COLS);
    for (int i = 0; i < 3; i++) {
        members[i] = test_group_member(layers[i], 2, TRF_DTYPE_BF16, TRF_DTYPE_F32);
        y[i] = guarded_allocate(device, 8ull * test_layer_info(layers[i]).rows);
        x[i] = on_device;
        y_at[i] = y[i].at;
    }
    fixture_check_status(trf_layer_group_create(members, 3, &group, &err), TRF_OK, &err);
    fixture_check_status(trf_device_allocate(device, test_group_info(group).workspace_bytes, &workspace, &err), TRF_OK,
                         &err);
    fixture_check_status(trf_linear_group(group, x, y_at, workspace, NULL, &err), TRF_OK, &err);
    for (int i = 0; i < 3; i++) {
        const trf_plan_options options = test_plan_options(2, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO);
        uint8_t *found = guarded_read(&y[i]), *due = device_multiply(layers[i], &options, numbers);
        EXPECT(memcmp(found, due, y[i].bytes) == 0);
        free(found);
        free(due);
        guarded_free(&y[i]);
    }
    trf_layer_group_destroy(group);
    trf_device_free(device, workspace);
    trf_device_free(device, on_device);
    free(numbers);
    for (int i = 0; i < 3; i++)
        trf_device_layer_destroy(layers[i]);
}
END_TEST

/* ---- memory ---- */

/* Makes memory of the caller's, as large as the library says. */
static guarded_memory make_room(const char *tensor, trf_load_options *options) {
    trf_layer_size size;
    fixture_check_status(trf_device_layer_get_load_size(device, checkpoint_of(tensor), tensor, options, &size, &err),
                         TRF_OK, &err);
    ck_assert_uint_eq(size.directory_bytes, 0);
    guarded_memory room = guarded_allocate(device, size.buffer_bytes);
    options->memory = (trf_layer_memory){room.at, size.buffer_bytes, NULL, 0};
    return room;
}

static trf_status adopt(const void *buffer, uint64_t bytes, trf_load_options options, trf_device_layer **layer) {
    options.buffer_is_on_device = 1;
    return trf_device_layer_create(device, buffer, bytes, &options, layer, &err);
}

/* Expects that two layers have the same meaning and the same weights. */
static void check_same(trf_device_layer *a, trf_device_layer *b) {
    const trf_device_layer_info of_a = test_device_layer_info(a), of_b = test_device_layer_info(b);
    uint8_t *first = device_decode(a, TRF_DECODE_SOURCE), *second = device_decode(b, TRF_DECODE_SOURCE);
    EXPECT(memcmp(&of_a.layer, &of_b.layer, sizeof of_a.layer) == 0);
    EXPECT(of_a.layout == of_b.layout && of_a.memory_bytes == of_b.memory_bytes);
    EXPECT(memcmp(first, second, of_a.layer.rows * of_a.layer.cols * trf_dtype_bytes(of_a.layer.dtype)) == 0);
    free(first);
    free(second);
}

/* A layer in the caller's memory; then one adopted from a copy of that memory, as when torch moves tensors. The options
 * ask only for the layout. */
START_TEST(in_the_callers_memory) {
    for (int p = 0; p < NUM_PARTS; p++) {
        trf_load_options options = part(p, TRF_LAYOUT_PLAIN), whole = part(0, TRF_LAYOUT_PLAIN);
        trf_device_layer *again = NULL;
        trf_layer_size size;
        if (!has_part(kNames[_i], p))
            continue;
        trf_device_layer *own = load(kNames[_i], &options);
        guarded_memory room = make_room(kNames[_i], &options);
        trf_device_layer *placed = load(kNames[_i], &options);
        EXPECT(placed->view.buffer == room.at && !placed->memory);
        check_same(own, placed);
        trf_device_layer_destroy(placed);
        uint8_t *bytes = guarded_read(&room);
        guarded_memory moved = guarded_allocate(device, room.bytes);
        fixture_check_status(trf_device_upload(device, moved.at, bytes, room.bytes, &err), TRF_OK, &err);
        guarded_free(&room);
        whole.buffer_is_on_device = 1;
        fixture_check_status(trf_device_layer_get_size(device, moved.at, moved.bytes, &whole, &size, &err), TRF_OK,
                             &err);
        ck_assert(size.buffer_bytes == moved.bytes && size.directory_bytes == 0);
        fixture_check_status(adopt(moved.at, moved.bytes, whole, &again), TRF_OK, &err);
        EXPECT(again->view.buffer == moved.at);
        check_same(own, again);
        trf_device_layer_destroy(again);
        trf_device_layer_destroy(own);
        uint8_t *still = guarded_read(&moved);
        EXPECT(memcmp(bytes, still, moved.bytes) == 0);
        guarded_free(&moved);
        free(bytes);
        free(still);
    }
}
END_TEST

START_TEST(memory_that_does_not_do) {
    trf_load_options good = part(_i, TRF_LAYOUT_PLAIN);
    guarded_memory room = make_room("f16", &good);
    const trf_layer_memory right = good.memory;
    trf_layer_memory wrong[] = {right, right, right, right};
    wrong[0].buffer_bytes--;
    wrong[1].buffer_bytes = 0;
    wrong[2].buffer = (uint8_t *)right.buffer + MISALIGNED;
    wrong[3].buffer = NULL;
    for (int i = 0; i < 4; i++) {
        trf_load_options options = good;
        options.memory = wrong[i];
        check_load("f16", &options, TRF_ERR_ARGUMENT, "compressed.safetensors: tensor 'f16': ");
    }
    guarded_check_untouched(&room);
    trf_device_layer_destroy(load("f16", &good));
    guarded_free(&room);
}
END_TEST

/* A buffer is refused if any byte of its head but the data checksum is changed, if it is cut or misaligned, or if the
 * options ask for something else. */
START_TEST(heads_that_are_not_good) {
    trf_load_options options = part(0, TRF_LAYOUT_PLAIN), whole = options;
    guarded_memory room = make_room("odd", &options);
    trf_device_layer *layer = load("odd", &options), *none = NULL;
    uint8_t *bytes = guarded_read(&room);
    trf_device_layer_destroy(layer);
    for (uint32_t at = 0; at < TRF_DATA_CHECKSUM_OFFSET; at++) {
        bytes[at] ^= 1u << at % 8;
        fixture_check_status(trf_device_upload(device, room.at, bytes, room.bytes, &err), TRF_OK, &err);
        const trf_status status = adopt(room.at, room.bytes, whole, &none);
        EXPECT(status == (at < 4 ? TRF_ERR_MAGIC : TRF_ERR_CHECKSUM) && !none);
        bytes[at] ^= 1u << at % 8;
    }
    fixture_check_status(trf_device_upload(device, room.at, bytes, room.bytes, &err), TRF_OK, &err);
    fixture_check_status(adopt(room.at, room.bytes - 1, whole, &none), TRF_ERR_TRUNCATED, &err);
    fixture_check_status(adopt(room.at, 255, whole, &none), TRF_ERR_TRUNCATED, &err);
    fixture_check_status(adopt(room.at + MISALIGNED, room.bytes - MISALIGNED, whole, &none), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(adopt(room.at, room.bytes, part(0, TRF_LAYOUT_CODED), &none), TRF_ERR_MAGIC, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "another layout"));
    whole.num_rows = 16;
    fixture_check_status(adopt(room.at, room.bytes, whole, &none), TRF_ERR_UNSUPPORTED, &err);
    whole.num_rows = 333;
    whole.memory = (trf_layer_memory){room.at + 256, room.bytes, NULL, 0};
    fixture_check_status(adopt(room.at, room.bytes, whole, &none), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_null(none);
    whole.memory = (trf_layer_memory){room.at, room.bytes, NULL, 0};
    fixture_check_status(adopt(room.at, room.bytes, whole, &layer), TRF_OK, &err);
    trf_device_layer_destroy(layer);
    guarded_free(&room);
    free(bytes);
}
END_TEST

/* A head may have the right checksum and still contradict itself. */
START_TEST(heads_that_contradict_themselves) {
    trf_load_options options = part(0, TRF_LAYOUT_PLAIN), whole = options;
    guarded_memory room = make_room("odd", &options);
    trf_device_layer_destroy(load("odd", &options));
    trf_plain_head *bytes = (trf_plain_head *)guarded_read(&room);
    for (int wrong = 0; wrong < 9; wrong++) {
        trf_plain_head head = *bytes;
        trf_device_layer *none = NULL;
        head.rows += wrong == 0 ? 1 : wrong == 1 ? -head.rows : 0;
        head.cols += wrong == 2;
        head.weight_dtype = wrong == 3 ? TRF_DTYPE_F16 : wrong == 4 ? TRF_DTYPE_NONE : head.weight_dtype;
        head.coded_header.source_dtype = wrong == 5 ? TRF_DTYPE_I8 : head.coded_header.source_dtype;
        head.coded_header.magic += wrong == 6;
        trf_layout_head_finish(&head.common, (trf_layout)(TRF_LAYOUT_PLAIN + (wrong == 7)),
                               TRF_PLAIN_VERSION + (wrong == 8), bytes->common.buffer_bytes);
        fixture_check_status(trf_device_upload(device, room.at, &head, sizeof head, &err), TRF_OK, &err);
        fixture_check_status(adopt(room.at, room.bytes, whole, &none), wrong == 8 ? TRF_ERR_VERSION : TRF_ERR_HEADER,
                             &err);
        ck_assert_ptr_null(none);
    }
    free(bytes);
    guarded_free(&room);
}
END_TEST

/* A blob that lies coded on the device, or on the host, is transcoded. */
START_TEST(blobs_in_memory) {
    trf_device_layer *due = load_part("bf16", 4, TRF_LAYOUT_PLAIN), *coded = load_part("bf16", 0, TRF_LAYOUT_CODED),
                     *made = NULL;
    trf_load_options options = part(4, TRF_LAYOUT_PLAIN);
    const uint64_t bytes = coded->view.buffer_bytes;
    void *host = aligned_alloc(256, (bytes + 255) / 256 * 256);
    fixture_check_status(trf_device_download(device, host, coded->view.buffer, bytes, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_create(device, host, bytes, &options, &made, &err), TRF_OK, &err);
    check_same(due, made);
    trf_device_layer_destroy(made);
    fixture_check_status(adopt(coded->view.buffer, bytes, options, &made), TRF_OK, &err);
    check_same(due, made);
    trf_device_layer_destroy(made);
    trf_device_layer_destroy(coded);
    trf_device_layer_destroy(due);
    free(host);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(what_plain_layers_are_not) {
    trf_load_options options = part(0, TRF_LAYOUT_PLAIN);
    trf_device_layer *layers[] = {load("experts[0]", &options), load("experts[1]", &options)};
    trf_experts *experts = NULL;
    trf_stack *stack;
    trf_layer_size size = {7, 7};
    check_load("e4m3", &options, TRF_ERR_UNSUPPORTED, "tensor 'e4m3': the layout 'plain' does not take the codec fp8");
    check_load("i8", &options, TRF_ERR_UNSUPPORTED, "the layout 'plain' does not take the codec int");
    fixture_check_status(trf_device_layer_get_load_size(device, checkpoint, "i8", &options, &size, &err),
                         TRF_ERR_UNSUPPORTED, &err);
    ck_assert(size.buffer_bytes == 7 && size.directory_bytes == 7);
    fixture_check_status(trf_experts_create(layers, 2, &experts, &err), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "layout 'plain'"));
    fixture_check_status(trf_experts_load(device, checkpoint, "experts", &options, &experts, &err), TRF_ERR_UNSUPPORTED,
                         &err);
    ck_assert_ptr_null(experts);
    fixture_check_status(trf_stack_create(device, &stack, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_load(stack, checkpoint, "bf16", &options, &err), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "layout 'plain'"));
    trf_stack_destroy(stack);
    options.layout = (trf_layout)7;
    check_load("bf16", &options, TRF_ERR_UNSUPPORTED, "layout 7");
    trf_device_layer_destroy(layers[0]);
    trf_device_layer_destroy(layers[1]);
}
END_TEST

typedef struct stopping {
    int calls, stop_at;
} stopping;

static int stop(void *context, const char *tensor, uint64_t done, uint64_t total) {
    stopping *s = context;
    EXPECT(strcmp(tensor, "bf16") == 0 && done <= total);
    return ++s->calls == s->stop_at;
}

START_TEST(stopped_loads) {
    trf_load_options options = part(_i, TRF_LAYOUT_PLAIN);
    options.progress = stop;
    for (int stop_at = 1;; stop_at++) {
        stopping s = {0, stop_at};
        trf_device_layer *layer = NULL;
        options.progress_context = &s;
        trf_status status = trf_device_layer_load(device, checkpoint, "bf16", &options, &layer, &err);
        if (status == TRF_OK) {
            ck_assert_int_gt(stop_at, 1);
            trf_device_layer_destroy(layer);
            break;
        }
        fixture_check_status(status, TRF_ERR_CANCELLED, &err);
        ck_assert_ptr_null(layer);
    }
}
END_TEST

/* ---- corrupt tiles ---- */

enum {
    CORRUPT_TILE = 7 /* the second one of its row */
};

/* Makes the checksums right again. */
static void seal(uint8_t *blob, const trf_blob_view *view, uint64_t tile) {
    trf_tile_meta *meta = (trf_tile_meta *)(blob + TRF_TILES_OFFSET) + tile;
    meta->checksum = trf_tile_checksum(blob + meta->data_offset, meta->data_size, tile);
    ((trf_header *)blob)->head_checksum = trf_head_checksum(blob, view->extension.data_offset);
}

/* Flips a bit of a tile's rANS streams so that only decoding can detect it. blob: 16-byte aligned. */
static void corrupt(uint8_t *blob, uint64_t bytes, uint64_t tile) {
    trf_blob_view view;
    fixture_check_status(trf_blob_validate(blob, bytes, &view, &err), TRF_OK, &err);
    const trf_tile_shape shape = trf_tile_shape_of(&view.header, tile, view.tiles[tile].coding);
    uint8_t *const data = blob + view.tiles[tile].data_offset;
    const uint32_t first = trf_find_tile_sections(&shape, view.header.raw_bits).rans_streams + TRF_RANS_FIXED_BYTES;
    uint16_t *weights = malloc(2ull * ROWS * COLS);
    trf_status status = TRF_OK;
    for (uint32_t at = first; status != TRF_ERR_RANS; at++) {
        trf_layer *layer = NULL;
        ck_assert_uint_lt(at, view.tiles[tile].data_size);
        data[at] ^= 4;
        seal(blob, &view, tile);
        status = trf_layer_from_memory(blob, bytes, &layer, NULL);
        status = status == TRF_OK ? trf_layer_decode(layer, weights, 2ull * ROWS * COLS, 2, NULL) : TRF_ERR_TILE;
        trf_layer_free(layer);
        if (status != TRF_ERR_RANS)
            data[at] ^= 4;
    }
    free(weights);
}

/* The load fails and says where. Parts without the corrupt tile are loaded. */
START_TEST(corrupt_layers) {
    const char *path = fixture_path("corrupt.safetensors");
    trf_tensor_info info;
    size_t bytes;
    uint64_t index = 0;
    do
        fixture_check_status(trf_checkpoint_tensor(checkpoint, index++, &info, &err), TRF_OK, &err);
    while (strcmp(info.name, "bf16") != 0);
    uint8_t *file = fixture_read(fixture_path("compressed.safetensors"), &bytes);
    trf_header header;
    memcpy(&header, file + info.file_offset, sizeof header);
    uint8_t *blob = aligned_alloc(256, (header.blob_bytes + 255) / 256 * 256);
    memcpy(blob, file + info.file_offset, header.blob_bytes);
    corrupt(blob, header.blob_bytes, CORRUPT_TILE);
    memcpy(file + info.file_offset, blob, header.blob_bytes);
    const uint64_t due = info.file_offset + ((trf_tile_meta *)(blob + TRF_TILES_OFFSET))[CORRUPT_TILE].data_offset;
    fixture_write(path, file, bytes);
    trf_checkpoint *good = checkpoint;
    fixture_check_status(trf_checkpoint_open(path, &checkpoint, &err), TRF_OK, &err);
    for (int p = 0; p < NUM_PARTS; p++) {
        static const int has_tile[NUM_PARTS] = {1, 1, 1, 0, 0, 0, 0, 0, 0};
        const trf_load_options options = part(p, TRF_LAYOUT_PLAIN);
        if (p == 7) /* its columns begin in the third tile */
            continue;
        if (!has_tile[p]) {
            trf_device_layer_destroy(load("bf16", &options));
            continue;
        }
        check_load("bf16", &options, TRF_ERR_RANS, "corrupt.safetensors: tensor 'bf16': ");
        ck_assert_ptr_nonnull(strstr(err.message, "tile 7"));
        ck_assert_uint_eq(err.offset, due);
    }
    trf_checkpoint_close(checkpoint);
    checkpoint = good;
    free(blob);
    free(file);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.plain"))
        return 77;
    Suite *suite = suite_create("device_plain");
    TCase *tests = tcase_create("device_plain");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, the_weights_of_the_coded_layer, 0, NUM_NAMES);
    tcase_add_loop_test(tests, the_products_of_the_coded_layer, 0, NUM_NAMES);
    tcase_add_loop_test(tests, products_of_shards, 0, 2);
    tcase_add_test(tests, paths_of_each_layout);
    tcase_add_test(tests, groups_of_both);
    tcase_add_loop_test(tests, in_the_callers_memory, 0, NUM_NAMES);
    tcase_add_loop_test(tests, memory_that_does_not_do, 0, 3);
    tcase_add_test(tests, heads_that_are_not_good);
    tcase_add_test(tests, heads_that_contradict_themselves);
    tcase_add_test(tests, blobs_in_memory);
    tcase_add_test(tests, what_plain_layers_are_not);
    tcase_add_loop_test(tests, stopped_loads, 0, NUM_PARTS);
    tcase_add_test(tests, corrupt_layers);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
