/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers made from dense weights: the weights bit for bit; the same bytes in whichever way the same weights were
 * packed; whose memory they take; what encoding gives; and what is refused. These tests run on the CPU; tests/gpu/
 * builds this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/guarded_memory.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "common/weight_kinds.h"
#include "trf_device_layer.h"
#include "trf_packed_head.h"

#include <check.h>
#include <string.h>

enum {
    MISALIGNED = TRF_TEST_DEVICE == TRF_DEVICE_CPU ? 8 : 128 /* bytes, half of what is asked for */
};

static trf_error err;
static trf_context *device;

static void begin(void) { fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err); }
static void end(void) { trf_context_destroy(device); }

/* ---- weights on the device ---- */

typedef struct device_weights {
    uint16_t *host; /* [rows][cols] */
    uint8_t *memory;
    trf_device_matrix matrix;
} device_weights;

/* shift: weights in front of the first one; more: weights between a row's end and the next row. All of these are NaN,
 * which no row of weights has. */
static device_weights upload(const uint16_t *host, uint32_t rows, uint32_t cols, size_t shift, size_t more) {
    const size_t stride = cols + more, bytes = sizeof *host * (shift + rows * stride);
    device_weights weights = {.host = malloc(sizeof *host * rows * cols)};
    uint16_t *image = malloc(bytes);
    memset(image, 0xFF, bytes);
    for (uint32_t row = 0; row < rows; row++)
        memcpy(image + shift + row * stride, host + (size_t)row * cols, sizeof *host * cols);
    memcpy(weights.host, host, sizeof *host * rows * cols);
    weights.memory = device_upload(device, image, bytes);
    trf_device_matrix_init(&weights.matrix);
    weights.matrix.weights = weights.memory + sizeof *host * shift;
    weights.matrix.rows = rows;
    weights.matrix.cols = cols;
    weights.matrix.ld = more ? stride : 0;
    free(image);
    return weights;
}

static device_weights make(weight_kind kind, uint32_t rows, uint32_t cols, size_t shift, size_t more) {
    uint16_t *host = weight_kind_make(kind, rows, cols);
    const device_weights weights = upload(host, rows, cols, shift, more);
    free(host);
    return weights;
}

static void release(device_weights *weights) {
    trf_device_free(device, weights->memory);
    free(weights->host);
}

static trf_device_layer *pack(const device_weights *weights) {
    trf_device_layer *layer = NULL;
    fixture_check_status(trf_device_layer_pack(device, &weights->matrix, NULL, &layer, &err), TRF_OK, &err);
    return layer;
}

/* ---- what comes of it ---- */

static void check_weights(const trf_device_layer *layer, const device_weights *weights) {
    const trf_device_layer_info info = test_device_layer_info(layer);
    uint8_t *decoded = device_decode(layer, TRF_DECODE_SOURCE);
    ck_assert_int_eq(info.layout, TRF_LAYOUT_PACKED);
    ck_assert_int_eq(info.layer.codec, TRF_CODEC_BF16);
    ck_assert_int_eq(info.layer.dtype, TRF_DTYPE_BF16);
    ck_assert_uint_eq(info.layer.rows, weights->matrix.rows);
    ck_assert_uint_eq(info.layer.cols, weights->matrix.cols);
    ck_assert_uint_eq(info.layer.blob_bytes, 0);
    EXPECT(memcmp(decoded, weights->host, 2ull * weights->matrix.rows * weights->matrix.cols) == 0);
    fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err);
    free(decoded);
}

static void *encode(const device_weights *weights, const trf_encode_options *options, uint64_t *bytes) {
    const trf_matrix matrix = test_matrix(weights->host, TRF_DTYPE_BF16, weights->matrix.rows, weights->matrix.cols);
    void *blob;
    fixture_check_status(trf_encode_layer(&matrix, options, &blob, bytes, NULL, &err), TRF_OK, &err);
    return blob;
}

static trf_device_layer *load(const void *blob, uint64_t bytes, trf_layout layout) {
    trf_load_options options;
    trf_device_layer *layer = NULL;
    trf_load_options_init(&options);
    options.layout = layout;
    fixture_check_status(trf_device_layer_create(device, blob, bytes, &options, &layer, &err), TRF_OK, &err);
    return layer;
}

static uint8_t *read_buffer(const trf_device_layer *layer) {
    uint8_t *bytes = malloc(layer->view.buffer_bytes);
    fixture_check_status(trf_device_download(device, bytes, layer->view.buffer, layer->view.buffer_bytes, &err), TRF_OK,
                         &err);
    return bytes;
}

/* Compares all bytes but what heads say of a blob. */
static void check_same_bytes(const trf_device_layer *found, const trf_device_layer *due) {
    uint8_t *found_bytes = read_buffer(found), *due_bytes = read_buffer(due);
    const trf_packed_head *head = (const trf_packed_head *)found_bytes, *due_head = (const trf_packed_head *)due_bytes;
    ck_assert_uint_eq(found->view.buffer_bytes, due->view.buffer_bytes);
    ck_assert_uint_eq(head->base, due_head->base);
    ck_assert_uint_eq(head->num_stored, due_head->num_stored);
    ck_assert_uint_eq(head->num_records, due_head->num_records);
    EXPECT(memcmp(found_bytes + sizeof *head, due_bytes + sizeof *head, found->view.buffer_bytes - sizeof *head) == 0);
    free(found_bytes);
    free(due_bytes);
}

static const uint32_t kShapes[][2] = {{1, 1},     {64, 32},   {65, 33},   {333, 77},  {16, 1100},
                                      {257, 513}, {600, 520}, {256, 512}, {192, 1536}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0]
};

/* The bytes are the same as from a plain layer, from a coded one and from a load, except for row offsets, which dense
 * weights are packed without; and they do not depend on where rows begin. */
START_TEST(the_same_bytes_whichever_way) {
    static const weight_kind kinds[] = {NORMAL, ZEROS, OUTLIERS, SCALED_COLS}; /* no FP8: test_device_dense_fp8.c */
    static const trf_favor favors[] = {TRF_FAVOR_SPEED, TRF_FAVOR_SIZE};
    for (int shape = 0; shape < SHAPES; shape++) {
        const uint32_t rows = kShapes[shape][0], cols = kShapes[shape][1];
        trf_encode_options options;
        trf_encode_options_init(&options);
        options.favor = favors[shape % 2];
        device_weights weights = make(kinds[_i], rows, cols, shape % 3 == 0 ? 1 : 0, shape % 2 ? 5 : 0);
        uint64_t bytes;
        void *blob = encode(&weights, &options, &bytes);
        trf_device_layer *packed = pack(&weights), *coded = load(blob, bytes, TRF_LAYOUT_CODED),
                         *plain = load(blob, bytes, TRF_LAYOUT_PLAIN), *due[3] = {NULL, NULL, NULL};
        const int has_offsets = (test_layer_info(coded).predictor_modes & TRF_PREDICT_ROW) != 0;
        check_weights(packed, &weights);
        fixture_check_status(trf_device_layer_convert(plain, TRF_LAYOUT_PACKED, NULL, &due[0], &err), TRF_OK, &err);
        if (!has_offsets) {
            fixture_check_status(trf_device_layer_convert(coded, TRF_LAYOUT_PACKED, NULL, &due[1], &err), TRF_OK, &err);
            due[2] = load(blob, bytes, TRF_LAYOUT_PACKED);
        }
        for (int i = 0; i < 3; i++) {
            if (due[i])
                check_same_bytes(packed, due[i]);
            trf_device_layer_destroy(due[i]);
        }
        trf_device_layer_destroy(packed);
        trf_device_layer_destroy(coded);
        trf_device_layer_destroy(plain);
        trf_free(blob);
        release(&weights);
    }
}
END_TEST

/* The layer has more rows than choose the window. One weight in 16 rows has an exponent that occurs in the rows that
 * choose, and one in 8 has another that occurs only in other rows. No window has both. */
START_TEST(the_window_of_evenly_spaced_rows) {
    const uint32_t rows = 4 * TRF_PACKED_WINDOW_ROWS + 3, cols = 200;
    uint16_t *host = malloc(sizeof *host * rows * cols);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t col = 0; col < cols; col++) {
            const uint32_t outer = row % 16 == 0 ? 119 : row % 8 == 1 ? 103 : 110;
            host[row * cols + col] = (uint16_t)((col == 0 ? outer : 108 + col % 8) << 7 | (row & 0x7F));
        }
    device_weights weights = upload(host, rows, cols, 0, 0);
    uint64_t blob_bytes;
    void *blob = encode(&weights, NULL, &blob_bytes);
    trf_device_layer *layer = pack(&weights), *loaded = load(blob, blob_bytes, TRF_LAYOUT_PACKED);
    uint8_t *bytes = read_buffer(layer);
    ck_assert_uint_eq(((const trf_packed_head *)bytes)->base, 104);
    check_weights(layer, &weights);
    check_same_bytes(loaded, layer);
    free(bytes);
    free(host);
    trf_free(blob);
    trf_device_layer_destroy(layer);
    trf_device_layer_destroy(loaded);
    release(&weights);
}
END_TEST

/* Layers that are larger than what GPUs convert at a time. */
START_TEST(large_layers) {
    const int small = test_quick() || TRF_TEST_DEVICE == TRF_DEVICE_CPU;
    device_weights weights = make(_i ? BURSTS : OUTLIERS, small ? 1088 : 7744, 4416, 0, 24);
    trf_device_layer *layer = pack(&weights);
    check_weights(layer, &weights);
    trf_device_layer_destroy(layer);
    release(&weights);
}
END_TEST

/* A layer without a blob of its own encodes to what the default options make of its weights. */
START_TEST(encodes_with_the_default_options) {
    device_weights weights = make(_i ? SCALED_COLS : NORMAL, 333, 300, 0, 0);
    uint64_t bytes, due_bytes;
    void *blob, *due = encode(&weights, NULL, &due_bytes);
    trf_device_layer *layer = pack(&weights);
    fixture_check_status(trf_device_layer_encode(layer, 0, &blob, &bytes, &err), TRF_OK, &err);
    EXPECT(bytes == due_bytes && memcmp(blob, due, bytes) == 0);
    trf_free(blob);
    trf_free(due);
    trf_device_layer_destroy(layer);
    release(&weights);
}
END_TEST

/* The layer multiplies like one that was loaded, and no longer needs the weights that it came from. */
START_TEST(products) {
    device_weights weights = make(EXACT, 600, 520, 0, 8);
    const trf_plan_options options = test_plan_options(5, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO);
    uint16_t *x = device_make_x(5, 520);
    uint64_t bytes;
    void *blob = encode(&weights, NULL, &bytes);
    trf_device_layer *layer = pack(&weights), *due_layer = load(blob, bytes, TRF_LAYOUT_PACKED);
    release(&weights);
    uint8_t *y = device_multiply(layer, &options, x), *due = device_multiply(due_layer, &options, x);
    EXPECT(memcmp(y, due, sizeof(float) * 5 * 600) == 0);
    free(y);
    free(due);
    free(x);
    trf_free(blob);
    trf_device_layer_destroy(layer);
    trf_device_layer_destroy(due_layer);
}
END_TEST

/* ---- memory ---- */

static void check_refused(const trf_device_matrix *matrix, const trf_pack_options *options, trf_status status,
                          const char *message) {
    trf_device_layer *layer = NULL;
    fixture_check_status(trf_device_layer_pack(device, matrix, options, &layer, &err), status, &err);
    ck_assert_msg(strstr(err.message, message) != NULL, "%s", err.message);
    ck_assert_ptr_null(layer);
}

/* A layer in the caller's memory, which can be adopted where it lies. */
START_TEST(in_the_callers_memory) {
    device_weights weights = make(_i ? BURSTS : OUTLIERS, 600, 430, 0, 0);
    trf_layer_size size = {0, 7};
    fixture_check_status(trf_device_layer_get_packed_size(device, &weights.matrix, &size, &err), TRF_OK, &err);
    ck_assert_uint_eq(size.directory_bytes, 0);
    guarded_memory room = guarded_allocate(device, size.buffer_bytes);
    trf_pack_options right, wrong[4];
    trf_load_options options;
    trf_device_layer *layer = NULL, *again = NULL;
    trf_pack_options_init(&right);
    right.memory = (trf_layer_memory){room.at, room.bytes, NULL, 0};
    for (int i = 0; i < 4; i++)
        wrong[i] = right;
    wrong[0].memory.buffer_bytes--;
    wrong[1].memory.buffer = NULL;
    wrong[2].memory.buffer = room.at + MISALIGNED;
    wrong[2].memory.buffer_bytes += MISALIGNED;
    wrong[3].memory.buffer = (void *)(uintptr_t)weights.matrix.weights;
    for (int i = 0; i < 4; i++)
        check_refused(&weights.matrix, &wrong[i], TRF_ERR_ARGUMENT, i == 3 ? "overlaps" : "memory for a layer");
    guarded_check_untouched(&room);
    fixture_check_status(trf_device_layer_pack(device, &weights.matrix, &right, &layer, &err), TRF_OK, &err);
    EXPECT(layer->view.buffer == room.at && !layer->memory);
    check_weights(layer, &weights);
    trf_device_layer_destroy(layer);
    trf_load_options_init(&options);
    options.layout = TRF_LAYOUT_PACKED;
    options.buffer_is_on_device = 1;
    fixture_check_status(trf_device_layer_create(device, room.at, room.bytes, &options, &again, &err), TRF_OK, &err);
    check_weights(again, &weights);
    trf_device_layer_destroy(again);
    free(guarded_read(&room));
    guarded_free(&room);
    release(&weights);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(what_is_no_matrix) {
    device_weights weights = make(NORMAL, 80, 64, 0, 0);
    const trf_device_matrix right = weights.matrix;
    trf_device_matrix wrong[] = {right, right, right, right, right, right, right};
    trf_device_layer *layer = NULL;
    trf_layer_size size = {7, 7};
    wrong[0].weights = NULL;
    wrong[1].weights = (const uint8_t *)right.weights + 1;
    wrong[2].rows = 0;
    wrong[3].cols = 0;
    wrong[4].ld = right.cols - 1;
    wrong[5].ld = UINT64_MAX;
    wrong[6].struct_bytes = 0;
    for (int i = 0; i < 7; i++)
        check_refused(&wrong[i], NULL, TRF_ERR_ARGUMENT, "");
    wrong[0] = right;
    wrong[0].dtype = TRF_DTYPE_F16;
    check_refused(&wrong[0], NULL, TRF_ERR_UNSUPPORTED, "F16");
    fixture_check_status(trf_device_layer_get_packed_size(device, &wrong[0], &size, &err), TRF_ERR_UNSUPPORTED, &err);
    fixture_check_status(trf_device_layer_get_packed_size(device, &wrong[2], &size, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_device_layer_get_packed_size(device, NULL, &size, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_device_layer_get_packed_size(device, &right, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_device_layer_get_packed_size(NULL, &right, &size, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert(size.buffer_bytes == 7 && size.directory_bytes == 7);
    check_refused(NULL, NULL, TRF_ERR_ARGUMENT, "a matrix");
    fixture_check_status(trf_device_layer_pack(NULL, &right, NULL, &layer, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_device_layer_pack(device, &right, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(layer);
    release(&weights);
}
END_TEST

START_TEST(weights_that_are_not_packed) {
    device_weights weights = make(WILD, 300, 300, 0, 0);
    check_refused(&weights.matrix, NULL, TRF_ERR_UNSUPPORTED, "the layer cannot be packed: ");
    ck_assert_uint_eq(err.offset, TRF_NO_OFFSET);
    release(&weights);
}
END_TEST

/* ---- layers whose weights change ---- */

enum {
    LIKE_ROWS = 300,
    LIKE_COLS = 520
};

/* Makes weights that fit the window of N(0, 0.02) in all tiles but so many, in which they are far larger. */
static device_weights make_with_stored(uint32_t tiles) {
    uint16_t *host = weight_kind_make(NORMAL, LIKE_ROWS, LIKE_COLS);
    for (uint32_t tile = 0; tile < tiles; tile++)
        for (uint32_t row = 0; row < TRF_PACKED_TILE_ROWS; row++)
            for (uint32_t col = 0; col < TRF_PACKED_TILE_COLS; col++)
                host[(size_t)row * LIKE_COLS + tile * TRF_PACKED_TILE_COLS + col] += 60 << 7;
    const device_weights weights = upload(host, LIKE_ROWS, LIKE_COLS, 0, 0);
    free(host);
    return weights;
}

static trf_status pack_like(const device_weights *weights, const trf_device_layer *like, uint64_t stored_room,
                            trf_device_layer **layer) {
    trf_pack_options options;
    trf_pack_options_init(&options);
    options.stored_room = stored_room;
    options.like = like;
    *layer = NULL;
    return trf_device_layer_pack(device, &weights->matrix, &options, layer, &err);
}

/* Room for more stored tiles is filled with zeros. There is never more room than packing pays for. */
START_TEST(room_for_stored_tiles) {
    static const uint64_t rooms[] = {0, 1, 3, UINT64_MAX};
    for (uint32_t stored = 0; stored < 2; stored++)
        for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
            device_weights weights = make_with_stored(stored);
            trf_device_layer *layer, *adopted = NULL;
            fixture_check_status(pack_like(&weights, NULL, rooms[i], &layer), TRF_OK, &err);
            uint8_t *bytes = read_buffer(layer);
            const trf_packed_head *head = (const trf_packed_head *)bytes;
            const uint64_t most = trf_packed_most_stored(head), wanted = rooms[i] > most ? most : stored + rooms[i];
            ck_assert_uint_eq(head->num_stored, wanted);
            for (uint64_t at = head->stored_offset + stored * TRF_PACKED_STORED_TILE_BYTES;
                 at < head->common.buffer_bytes; at++)
                ck_assert_uint_eq(bytes[at], 0);
            check_weights(layer, &weights);
            trf_device_layer_destroy(layer);
            trf_load_options options;
            trf_load_options_init(&options);
            options.layout = TRF_LAYOUT_PACKED;
            options.buffer_is_on_device = 1;
            uint8_t *copy = device_upload(device, bytes, head->common.buffer_bytes);
            options.memory = (trf_layer_memory){.buffer = copy, .buffer_bytes = head->common.buffer_bytes};
            fixture_check_status(
                trf_device_layer_create(device, copy, head->common.buffer_bytes, &options, &adopted, &err), TRF_OK,
                &err);
            check_weights(adopted, &weights);
            trf_device_layer_destroy(adopted);
            trf_device_free(device, copy);
            free(bytes);
            release(&weights);
        }
}
END_TEST

/* A layer that is packed like another one has its window and its size. When its bytes take the other's place, plans
 * that existed before multiply by the new weights. */
START_TEST(bytes_that_take_the_place_of_others) {
    device_weights first = make_with_stored(0), second = make_with_stored(2), third = make_with_stored(3);
    trf_device_layer *layer, *made;
    fixture_check_status(pack_like(&first, NULL, 2, &layer), TRF_OK, &err);
    const trf_plan_options plan_options = test_plan_options(3, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO);
    uint16_t *x = weight_kind_make(NORMAL, 3, LIKE_COLS);

    fixture_check_status(pack_like(&third, layer, 0, &made), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_msg(strstr(err.message, "3 tiles would have to be stored, and that has room for 2"), "%s", err.message);
    fixture_check_status(pack_like(&second, layer, 0, &made), TRF_OK, &err);
    ck_assert_uint_eq(made->view.buffer_bytes, layer->view.buffer_bytes);
    ck_assert_int_eq(made->packed.base, layer->packed.base);
    uint8_t *due = device_multiply(made, &plan_options, x), *bytes = read_buffer(made);
    fixture_check_status(trf_device_upload(device, (void *)layer->view.buffer, bytes, made->view.buffer_bytes, &err),
                         TRF_OK, &err);
    trf_device_layer_destroy(made);
    check_weights(layer, &second);
    uint8_t *found = device_multiply(layer, &plan_options, x);
    EXPECT(memcmp(found, due, sizeof(float) * 3 * LIKE_ROWS) == 0);
    free(found);
    free(due);
    free(bytes);

    device_weights other = make(NORMAL, LIKE_ROWS, LIKE_COLS + 1, 0, 0);
    fixture_check_status(pack_like(&other, layer, 0, &made), TRF_ERR_ARGUMENT, &err);
    uint64_t blob_bytes;
    void *blob = encode(&first, NULL, &blob_bytes);
    trf_device_layer *coded = load(blob, blob_bytes, TRF_LAYOUT_CODED);
    fixture_check_status(pack_like(&first, coded, 0, &made), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(made);
    trf_device_layer_destroy(coded);
    trf_free(blob);
    trf_device_layer_destroy(layer);
    free(x);
    release(&other);
    release(&first);
    release(&second);
    release(&third);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.pack_dense"))
        return 77;
    Suite *suite = suite_create("device_pack_dense");
    TCase *tests = tcase_create("device_pack_dense");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, the_same_bytes_whichever_way, 0, 4);
    tcase_add_test(tests, the_window_of_evenly_spaced_rows);
    tcase_add_loop_test(tests, large_layers, 0, 2);
    tcase_add_loop_test(tests, encodes_with_the_default_options, 0, 2);
    tcase_add_test(tests, products);
    tcase_add_loop_test(tests, in_the_callers_memory, 0, 2);
    tcase_add_test(tests, what_is_no_matrix);
    tcase_add_test(tests, weights_that_are_not_packed);
    tcase_add_test(tests, room_for_stored_tiles);
    tcase_add_test(tests, bytes_that_take_the_place_of_others);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
