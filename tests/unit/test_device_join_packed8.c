/* SPDX-License-Identifier: Apache-2.0 */
/* Packed FP8 layers that are joined: bytes, weights, memory, and what is refused. These tests run on the CPU;
 * tests/gpu/ builds this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/packed8_layer.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "trf_device_layer.h"
#include "trf_encode.h"
#include "trf_packed8_form.h"

#include <check.h>
#include <string.h>

enum {
    MAX_LAYERS = 4
};

static trf_error err;
static trf_context *device;

static void begin(void) { fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err); }

static void end(void) { trf_context_destroy(device); }

typedef struct made_blob {
    void *at;
    uint64_t bytes;
} made_blob;

static made_blob encode(const void *weights, trf_dtype dtype, uint32_t rows, uint32_t cols) {
    const trf_matrix matrix = test_matrix(weights, dtype, rows, cols);
    trf_encode_options options;
    made_blob blob;
    trf_encode_options_init(&options);
    options.codec = TRF_CODEC_E4M3;
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob.at, &blob.bytes, NULL, &err), TRF_OK, &err);
    return blob;
}

/* Makes FP8 weights with scales of 128x128, one of which is an exception, so that there is a record, if `has_record`.
 */
static packed8_layer make_weights(uint64_t seed, uint32_t rows, uint32_t cols, int scale_kind, int has_record) {
    test_rng rng = {seed};
    packed8_layer made = packed8_layer_make(&rng, rows, cols, 128, 128, scale_kind);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        made.codes[i] = (uint8_t)trf_packed8_nearest_code(trf_f64_to_bf16(60 * test_normal(&rng)), 1);
    packed8_layer_define_weights(&made);
    if (has_record)
        made.weights[(size_t)rows * cols - 3] = 0x7F81;
    return made;
}

static trf_device_layer *load(const made_blob *blob, trf_layout layout, const uint32_t *shard) {
    trf_load_options options;
    trf_device_layer *layer = NULL;
    trf_load_options_init(&options);
    if (shard)
        options = test_shard(shard);
    options.layout = layout;
    fixture_check_status(trf_device_layer_create(device, blob->at, blob->bytes, &options, &layer, &err), TRF_OK, &err);
    return layer;
}

static trf_device_layer *join(trf_device_layer *const *layers, uint32_t count) {
    trf_device_layer *joined = NULL;
    fixture_check_status(trf_device_layer_join((const trf_device_layer *const *)layers, count, NULL, &joined, &err),
                         TRF_OK, &err);
    ck_assert_int_eq(test_device_layer_info(joined).layout, TRF_LAYOUT_PACKED8);
    return joined;
}

static uint8_t *read_buffer(const trf_device_layer *layer) {
    uint8_t *bytes = malloc(layer->view.buffer_bytes);
    ck_assert_ptr_nonnull(bytes);
    fixture_check_status(trf_device_download(layer->context, bytes, layer->view.buffer, layer->view.buffer_bytes, &err),
                         TRF_OK, &err);
    return bytes;
}

static void check_same_bytes(const trf_device_layer *a, const trf_device_layer *b) {
    uint8_t *of_a = read_buffer(a), *of_b = read_buffer(b);
    ck_assert_uint_eq(a->view.buffer_bytes, b->view.buffer_bytes);
    for (uint64_t i = 0; i < a->view.buffer_bytes; i++)
        if (of_a[i] != of_b[i])
            ck_abort_msg("byte %llu of %llu is %02x, not %02x", (unsigned long long)i,
                         (unsigned long long)a->view.buffer_bytes, of_a[i], of_b[i]);
    free(of_a);
    free(of_b);
}

/* Parts of a layer, joined, are the layer, byte for byte. _i: kind of scales, and whether there is a record. */
START_TEST(parts_of_a_layer) {
    static const uint32_t rows[] = {0, 64, 192, 384, 470}, cols[] = {128, 1100, 2100};
    for (size_t wide = 0; wide < sizeof cols / sizeof *cols; wide++) {
        packed8_layer from = make_weights(20 + wide, 470, cols[wide], _i & 1, _i >> 1);
        const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols);
        trf_device_layer *whole = load(&blob, TRF_LAYOUT_PACKED8, NULL), *parts[MAX_LAYERS];
        for (int i = 0; i < MAX_LAYERS; i++)
            parts[i] = load(&blob, TRF_LAYOUT_PACKED8, (const uint32_t[]){rows[i], rows[i + 1] - rows[i], 0, 0});
        trf_device_layer *joined = join(parts, MAX_LAYERS);
        for (int i = 0; i < MAX_LAYERS; i++)
            trf_device_layer_destroy(parts[i]);
        check_same_bytes(whole, joined);
        device_check_weights(whole, joined, TRF_DECODE_SOURCE);
        trf_device_layer_destroy(joined);
        trf_device_layer_destroy(whole);
        trf_free(blob.at);
        packed8_layer_free(&from);
    }
}
END_TEST

/* Layers of several blobs: only the second has records, and a second constant. */
START_TEST(layers_of_several_blobs) {
    enum {
        COLS = 700
    };
    const uint32_t rows[] = {128, 64, 100}, all = 128 + 64 + 100;
    trf_device_layer *layers[3];
    uint16_t *weights = malloc(sizeof *weights * all * COLS);
    ck_assert_ptr_nonnull(weights);
    for (uint32_t i = 0, row = 0; i < 3; row += rows[i], i++) {
        packed8_layer from = make_weights(30 + i, rows[i], COLS, i == 1 ? SCALES_F32 : SCALES_BF16, i == 1);
        const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, rows[i], COLS);
        layers[i] = load(&blob, TRF_LAYOUT_PACKED8, NULL);
        memcpy(weights + (size_t)row * COLS, from.weights, sizeof *weights * rows[i] * COLS);
        trf_free(blob.at);
        packed8_layer_free(&from);
    }
    trf_device_layer *joined = join(layers, 3);
    for (int i = 0; i < 3; i++)
        trf_device_layer_destroy(layers[i]);
    uint8_t *bytes = read_buffer(joined);
    ck_assert_uint_eq(((const trf_packed8_head *)bytes)->num_records, 1);
    ck_assert_uint_eq(((const trf_packed8_head *)bytes)->flags, TRF_PACKED8_ALL_FLAGS);
    uint16_t *decoded = (uint16_t *)device_decode(joined, TRF_DECODE_BF16);
    ck_assert_mem_eq(decoded, weights, sizeof *weights * all * COLS);
    trf_device_layer *adopted = NULL;
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = TRF_LAYOUT_PACKED8;
    options.buffer_is_on_device = 1; /* on the CPU this validates the whole buffer */
    fixture_check_status(
        trf_device_layer_create(device, joined->view.buffer, joined->view.buffer_bytes, &options, &adopted, &err),
        TRF_OK, &err);
    device_check_weights(joined, adopted, TRF_DECODE_SOURCE);
    trf_device_layer_destroy(adopted);
    trf_device_layer_destroy(joined);
    free(bytes);
    free(decoded);
    free(weights);
}
END_TEST

/* E4M3 without scales, in the caller's memory; encoding it gives the codes again. */
START_TEST(codes_in_the_callers_memory) {
    enum {
        ROWS = 192,
        COLS = 300
    };
    test_rng rng = {40};
    uint8_t codes[ROWS * COLS];
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(test_below(&rng, 127) | test_below(&rng, 2) << 7);
    const made_blob blob = encode(codes, TRF_DTYPE_F8_E4M3, ROWS, COLS);
    trf_device_layer *whole = load(&blob, TRF_LAYOUT_CODED, NULL), *made = NULL;
    trf_device_layer *parts[] = {load(&blob, TRF_LAYOUT_PACKED8, (const uint32_t[]){0, 64, 0, 0}),
                                 load(&blob, TRF_LAYOUT_PACKED8, (const uint32_t[]){64, 128, 0, 0})};
    const trf_device_layer *const *layers = (const trf_device_layer *const *)parts;
    trf_layer_size size;
    trf_layer_memory memory = {0};
    fixture_check_status(trf_device_layer_get_joined_size(layers, 2, &size, &err), TRF_OK, &err);
    ck_assert_uint_eq(size.directory_bytes, 0);
    fixture_check_status(trf_device_allocate(device, size.buffer_bytes, &memory.buffer, &err), TRF_OK, &err);
    memory.buffer_bytes = size.buffer_bytes - 1;
    ck_assert_int_eq(trf_device_layer_join(layers, 2, &memory, &made, &err), TRF_ERR_ARGUMENT);
    memory.buffer_bytes++;
    fixture_check_status(trf_device_layer_join(layers, 2, &memory, &made, &err), TRF_OK, &err);
    ck_assert_ptr_eq(made->view.buffer, memory.buffer);
    ck_assert_ptr_null(made->memory);
    device_check_weights(whole, made, TRF_DECODE_SOURCE);
    made_blob again;
    fixture_check_status(trf_device_layer_encode(made, 1, &again.at, &again.bytes, &err), TRF_OK, &err);
    ck_assert_uint_eq(again.bytes, blob.bytes);
    ck_assert_mem_eq(again.at, blob.at, blob.bytes);
    const trf_layer_memory overlapping = {(void *)(uintptr_t)parts[0]->view.buffer, size.buffer_bytes, NULL, 0};
    trf_device_layer *none = NULL;
    ck_assert_int_eq(trf_device_layer_join(layers, 2, &overlapping, &none, &err), TRF_ERR_ARGUMENT);
    ck_assert_ptr_null(none);
    trf_device_layer_destroy(made);
    trf_device_free(device, memory.buffer);
    for (int i = 0; i < 2; i++)
        trf_device_layer_destroy(parts[i]);
    trf_device_layer_destroy(whole);
    trf_free(again.at);
    trf_free(blob.at);
}
END_TEST

static void expect_refusal(const trf_device_layer *first, const trf_device_layer *second, trf_status status,
                           const char *part) {
    const trf_device_layer *const layers[] = {first, second};
    trf_device_layer *joined = NULL;
    trf_layer_size size;
    ck_assert_int_eq(trf_device_layer_join(layers, 2, NULL, &joined, &err), status);
    ck_assert_ptr_null(joined);
    if (!strstr(err.message, part))
        ck_abort_msg("the message is '%s', without '%s'", err.message, part);
    ck_assert_int_eq(trf_device_layer_get_joined_size(layers, 2, &size, &err), status);
}

START_TEST(what_is_refused) {
    packed8_layer from = make_weights(50, 192, 256, SCALES_F32, 0), wide = make_weights(51, 64, 384, SCALES_F32, 0);
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, 192, 256),
                    other = encode(wide.weights, TRF_DTYPE_BF16, 64, 384),
                    codes = encode(from.codes, TRF_DTYPE_F8_E4M3, 192, 256);
    trf_device_layer *whole = load(&blob, TRF_LAYOUT_PACKED8, NULL), *coded = load(&blob, TRF_LAYOUT_CODED, NULL),
                     *ragged = load(&blob, TRF_LAYOUT_PACKED8, (const uint32_t[]){0, 80, 0, 0}),
                     *wider = load(&other, TRF_LAYOUT_PACKED8, NULL), *plain = load(&codes, TRF_LAYOUT_PACKED8, NULL);
    expect_refusal(whole, coded, TRF_ERR_UNSUPPORTED, "layer 1 is coded");
    expect_refusal(ragged, whole, TRF_ERR_UNSUPPORTED, "layer 0 has 80 rows");
    expect_refusal(whole, wider, TRF_ERR_ARGUMENT, "layer 1, 64x384 weights of BF16, is not joined to 192x256");
    expect_refusal(whole, plain, TRF_ERR_ARGUMENT, "weights of F8_E4M3, is not joined");
    expect_refusal(whole, NULL, TRF_ERR_ARGUMENT, "no layer 1");
    ck_assert_int_eq(trf_device_layer_join(NULL, 0, NULL, &whole, &err), TRF_ERR_ARGUMENT);
    trf_device_layer *joined = join((trf_device_layer *[]){whole, ragged}, 2); /* the last one may have any rows */
    ck_assert_uint_eq(test_layer_info(joined).rows, 272);
    trf_device_layer *made[] = {whole, coded, ragged, wider, plain, joined};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        trf_device_layer_destroy(made[i]);
    trf_free(blob.at);
    trf_free(other.at);
    trf_free(codes.at);
    packed8_layer_free(&from);
    packed8_layer_free(&wide);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.join_packed8"))
        return 77;
    Suite *suite = suite_create("device_join_packed8");
    TCase *tests = tcase_create("device_join_packed8");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, begin, end);
    tcase_add_loop_test(tests, parts_of_a_layer, 0, 4);
    tcase_add_test(tests, layers_of_several_blobs);
    tcase_add_test(tests, codes_in_the_callers_memory);
    tcase_add_test(tests, what_is_refused);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
