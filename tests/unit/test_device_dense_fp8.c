/* SPDX-License-Identifier: Apache-2.0 */
/* Dense BF16 weights that were FP8: packing finds it, and makes a packed FP8 layer of the same weights, the same one
 * on every device; what was not FP8, or does not fit, becomes packed BF16. These tests run on the CPU; tests/gpu/
 * builds this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/fp8_matrices.h"
#include "common/guarded_memory.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "trf_device_layer.h"
#include "trf_number_formats.h"
#include "trf_packed8_head.h"

#include <check.h>
#include <string.h>

enum {
    ON_CPU = TRF_TEST_DEVICE == TRF_DEVICE_CPU,
    LINE_COLS = TRF_PACKED_LINE_TILES * TRF_PACKED_TILE_COLS
};

static trf_error err;
static trf_context *device, *cpu;
static trf_layout found_layout; /* of FP8: PACKED on GPUs that have no kernels for PACKED8 */

static void begin(void) {
    trf_context_info info;
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &cpu, &err), TRF_OK, &err);
    trf_context_get_info(device, &info);
    found_layout = ON_CPU || info.capability == 90 ? TRF_LAYOUT_PACKED8 : TRF_LAYOUT_PACKED;
}

static void end(void) {
    trf_context_destroy(device);
    trf_context_destroy(cpu);
}

/* ---- weights, and layers of them ---- */

typedef struct dense {
    fp8_matrix host;
    uint8_t *memory;
    trf_device_matrix matrix;
} dense;

/* shift: weights in front of the first one; more: weights between a row's end and the next row. All of these are NaN.
 */
static dense upload(trf_context *context, fp8_matrix m, size_t shift, size_t more) {
    const size_t stride = m.cols + more, bytes = sizeof(uint16_t) * (shift + m.rows * stride);
    dense made = {.host = m};
    uint16_t *image = malloc(bytes);
    ck_assert_ptr_nonnull(image);
    memset(image, 0xFF, bytes);
    for (uint32_t row = 0; row < m.rows; row++)
        memcpy(image + shift + row * stride, m.weights + (size_t)row * m.cols, sizeof *image * m.cols);
    made.memory = device_upload(context, image, bytes);
    trf_device_matrix_init(&made.matrix);
    made.matrix.weights = made.memory + sizeof *image * shift;
    made.matrix.rows = m.rows;
    made.matrix.cols = m.cols;
    made.matrix.ld = stride;
    free(image);
    return made;
}

static void release(trf_context *context, dense *weights) {
    trf_device_free(context, weights->memory);
    weights->memory = NULL;
}

static trf_layout layout_of(const trf_device_layer *layer) { return test_device_layer_info(layer).layout; }

static uint8_t *read_buffer(const trf_device_layer *layer) {
    uint8_t *bytes = malloc(layer->view.buffer_bytes);
    ck_assert_ptr_nonnull(bytes);
    fixture_check_status(trf_device_download(layer->context, bytes, layer->view.buffer, layer->view.buffer_bytes, &err),
                         TRF_OK, &err);
    return bytes;
}

static trf_packed8_head head_of(const trf_device_layer *layer) {
    uint8_t *bytes = read_buffer(layer);
    trf_packed8_head head;
    memcpy(&head, bytes, sizeof head);
    free(bytes);
    return head;
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

static trf_status try_pack(const dense *weights, const trf_pack_options *options, trf_device_layer **layer) {
    *layer = NULL;
    return trf_device_layer_pack(device, &weights->matrix, options, layer, &err);
}

static trf_device_layer *pack_on(trf_context *context, const dense *weights) {
    trf_device_layer *layer = NULL;
    fixture_check_status(trf_device_layer_pack(context, &weights->matrix, NULL, &layer, &err), TRF_OK, &err);
    return layer;
}

static void check_weights(const trf_device_layer *layer, const fp8_matrix *m, trf_layout layout) {
    const trf_device_layer_info info = test_device_layer_info(layer);
    uint8_t *decoded = device_decode(layer, TRF_DECODE_SOURCE);
    ck_assert_int_eq(info.layout, layout);
    ck_assert_int_eq(info.layer.codec, TRF_CODEC_BF16);
    ck_assert_int_eq(info.layer.dtype, TRF_DTYPE_BF16);
    ck_assert_uint_eq(info.layer.blob_bytes, 0);
    EXPECT(memcmp(decoded, m->weights, sizeof *m->weights * m->rows * m->cols) == 0);
    fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err);
    free(decoded);
}

/* Packs the weights on the device, from rows that lie anyhow, and on the CPU, and converts a plain layer of them.
 * Expects the weights, and the same bytes of all three; but a GPU without kernels for PACKED8 makes PACKED where the
 * CPU does not. Takes m's weights. @return the layer. */
static trf_device_layer *check_pack(test_rng *rng, fp8_matrix m, trf_layout layout) {
    static const size_t more[] = {0, 0, 1, 8};
    dense weights = upload(device, m, test_below(rng, 3) * 4, more[test_below(rng, 4)]),
          on_cpu = upload(cpu, m, 0, test_below(rng, 2));
    trf_device_layer *layer = pack_on(device, &weights), *reference = pack_on(cpu, &on_cpu), *plain, *converted;
    release(device, &weights);
    check_weights(layer, &m, layout);
    if (layout_of(reference) == layout)
        check_same_bytes(layer, reference);
    fixture_check_status(trf_device_layer_convert(layer, TRF_LAYOUT_PLAIN, NULL, &plain, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_convert(plain, TRF_LAYOUT_PACKED, NULL, &converted, &err), TRF_OK, &err);
    check_same_bytes(layer, converted);
    ck_assert_str_eq(trf_device_layer_get_layout_reason(layer), trf_device_layer_get_layout_reason(converted));
    if (layout_of(reference) == layout)
        ck_assert_str_eq(trf_device_layer_get_layout_reason(layer), trf_device_layer_get_layout_reason(reference));
    trf_device_layer_destroy(converted);
    trf_device_layer_destroy(plain);
    trf_device_layer_destroy(reference);
    release(cpu, &on_cpu);
    free(m.weights);
    return layer;
}

/* ---- what was FP8 ---- */

static const uint32_t kShapes[][2] = {{32, 32},   {17, 300},  {300, 515}, {130, 260},  {64, 1001},
                                      {255, 127}, {128, 129}, {1, 2000},  {192, 1536}, {700, 2100}};

/* loop: shapes. Scales of blocks, or one. */
START_TEST(every_shape) {
    test_rng rng = {100 + (uint64_t)_i};
    const uint32_t rows = kShapes[_i][0], cols = kShapes[_i][1];
    for (int g = 0; g < 2; g++) {
        const fp8_matrix m = fp8_dequantized(&rng, rows, cols, g ? 128 : rows, g ? 128 : cols);
        trf_device_layer *layer = check_pack(&rng, m, found_layout);
        ck_assert_str_eq(trf_device_layer_get_layout_reason(layer), "");
        trf_device_layer_destroy(layer);
    }
}
END_TEST

/* Larger than what a GPU's blocks take at a time. */
START_TEST(large_layers) {
    test_rng rng = {120};
    const int small = test_quick() || ON_CPU;
    fp8_matrix m = fp8_dequantized(&rng, small ? 1088 : 7744, 4416, 128, 128);
    trf_device_layer *layer = check_pack(&rng, m, found_layout);
    trf_device_layer_destroy(layer);
}
END_TEST

/* loop: kinds of what replaces weights. A line of 64 x 1,024 has room for 23. */
START_TEST(records) {
    static const uint16_t odd[] = {0x7FC0, 0xFF80, 0x0001, 0x7F7F, 0x807F};
    test_rng rng = {130 + (uint64_t)_i};
    for (uint32_t count = 22; count <= 24; count++) {
        fp8_matrix m = fp8_new_matrix(200, LINE_COLS + 300);
        for (uint32_t i = 0; i < m.rows * m.cols; i++) /* a few exponents, which packed BF16 takes without records */
            m.weights[i] = fp8_scaled((0x40 + test_below(&rng, 16)) | test_below(&rng, 2) << 7,
                                      i % m.cols < 512 ? 0x1.2345p-9f : 0x1.5p-9f);
        for (uint32_t i = 0; i < count; i++)
            m.weights[(size_t)(64 + 2 * i) * m.cols + 40 * i + 7] = count <= 23 ? odd[_i] : 0x3F81;
        m.weights[3] = 0x8000; /* the code 0x80 */
        trf_device_layer *layer = check_pack(&rng, m, count <= 23 ? found_layout : TRF_LAYOUT_PACKED);
        if (found_layout == TRF_LAYOUT_PACKED8 && count <= 23)
            ck_assert_uint_eq(head_of(layer).num_records, count);
        if (found_layout == TRF_LAYOUT_PACKED8 && count > 23)
            ck_assert_ptr_nonnull(strstr(trf_device_layer_get_layout_reason(layer),
                                         "24 of the weights in rows from 64 and columns from 0 on"));
        trf_device_layer_destroy(layer);
    }
}
END_TEST

/* The rows that are looked at first have one number, which scales of many mantissas give. */
START_TEST(samples_that_mislead) {
    test_rng rng = {140};
    fp8_matrix m = fp8_new_matrix(300, 515);
    for (uint32_t i = 0; i < m.rows * m.cols; i++)
        m.weights[i] = fp8_scaled(i / m.cols % 8 ? test_below(&rng, 0x7F) : 0x38, 0x1.6789p-10f);
    trf_device_layer *layer = check_pack(&rng, m, found_layout);
    if (found_layout == TRF_LAYOUT_PACKED8)
        ck_assert_uint_eq(head_of(layer).num_records, 0);
    trf_device_layer_destroy(layer);
}
END_TEST

/* ---- what was not ---- */

/* loop: kinds. Two numbers are codes; so are zeros, but they prove nothing. */
START_TEST(others) {
    test_rng rng = {200 + (uint64_t)_i};
    const fp8_matrix m = fp8_other_matrix(&rng, _i);
    trf_device_layer *layer = check_pack(&rng, m, _i == FP8_OTHER_CONSTANTS ? found_layout : TRF_LAYOUT_PACKED);
    ck_assert_str_eq(trf_device_layer_get_layout_reason(layer), "");
    trf_device_layer_destroy(layer);
}
END_TEST

/* Scales of rows, and blocks that begin elsewhere; fewer numbers than prove something. */
START_TEST(other_regions) {
    test_rng rng = {220};
    for (int i = 0; i < 3; i++) {
        fp8_matrix m = fp8_dequantized(&rng, i == 2 ? 5 : 300, i == 2 ? 51 : 640,
                                       i == 0   ? 1
                                       : i == 1 ? 96
                                                : 5,
                                       i == 0   ? 640
                                       : i == 1 ? 96
                                                : 51);
        trf_device_layer *layer = check_pack(&rng, m, TRF_LAYOUT_PACKED);
        ck_assert_str_eq(trf_device_layer_get_layout_reason(layer), "");
        trf_device_layer_destroy(layer);
    }
}
END_TEST

START_TEST(bf16_that_is_asked_for) {
    test_rng rng = {230};
    dense weights = upload(device, fp8_dequantized(&rng, 130, 300, 128, 128), 0, 0);
    trf_pack_options options;
    trf_pack_options_init(&options);
    options.packed_bf16 = 1;
    trf_device_layer *layer;
    fixture_check_status(try_pack(&weights, &options, &layer), TRF_OK, &err);
    check_weights(layer, &weights.host, TRF_LAYOUT_PACKED);
    ck_assert_str_eq(trf_device_layer_get_layout_reason(layer), "");
    trf_device_layer_destroy(layer);
    release(device, &weights);
    free(weights.host.weights);
}
END_TEST

/* ---- memory, and what the layer is good for ---- */

/* In the caller's memory, which is large enough for packed BF16; _i: that is what comes of it in the end. */
START_TEST(in_the_callers_memory) {
    test_rng rng = {240 + (uint64_t)_i};
    fp8_matrix m = fp8_dequantized(&rng, 300, 1100, 128, 128);
    for (uint32_t i = 0; i < 24 && _i; i++)
        m.weights[i * 7] = 0x3F81;
    dense weights = upload(device, m, 0, 0);
    trf_layer_size size;
    fixture_check_status(trf_device_layer_get_packed_size(device, &weights.matrix, &size, &err), TRF_OK, &err);
    guarded_memory room = guarded_allocate(device, size.buffer_bytes);
    trf_pack_options options;
    trf_load_options load;
    trf_device_layer *layer, *again = NULL;
    trf_pack_options_init(&options);
    options.memory = (trf_layer_memory){room.at, room.bytes, NULL, 0};
    fixture_check_status(try_pack(&weights, &options, &layer), TRF_OK, &err);
    EXPECT(layer->view.buffer == room.at && !layer->memory);
    const trf_layout layout = _i ? TRF_LAYOUT_PACKED : found_layout;
    check_weights(layer, &m, layout);
    trf_device_layer_destroy(layer);
    trf_load_options_init(&load);
    load.layout = layout;
    load.buffer_is_on_device = 1;
    fixture_check_status(trf_device_layer_create(device, room.at, room.bytes, &load, &again, &err), TRF_OK, &err);
    check_weights(again, &m, layout);
    trf_device_layer_destroy(again);
    free(guarded_read(&room));
    guarded_free(&room);
    release(device, &weights);
    free(m.weights);
}
END_TEST

/* A blob is made of the layer with the default options, as of any packed layer. */
START_TEST(encodes) {
    test_rng rng = {250};
    dense weights = upload(device, fp8_dequantized(&rng, 300, 400, 128, 128), 0, 0);
    trf_device_layer *layer = pack_on(device, &weights), *coded = NULL;
    trf_load_options load;
    uint64_t bytes;
    void *blob;
    fixture_check_status(trf_device_layer_encode(layer, 0, &blob, &bytes, &err), TRF_OK, &err);
    trf_load_options_init(&load);
    fixture_check_status(trf_device_layer_create(device, blob, bytes, &load, &coded, &err), TRF_OK, &err);
    device_check_weights(coded, layer, TRF_DECODE_BF16);
    trf_free(blob);
    trf_device_layer_destroy(coded);
    trf_device_layer_destroy(layer);
    release(device, &weights);
    free(weights.host.weights);
}
END_TEST

/* ---- layers whose weights change ---- */

static trf_status pack_like(const dense *weights, const trf_device_layer *like, trf_device_layer **layer) {
    trf_pack_options options;
    trf_pack_options_init(&options);
    options.like = like;
    return try_pack(weights, &options, layer);
}

static void check_refused(const dense *weights, const trf_device_layer *like, const char *message) {
    trf_device_layer *layer;
    fixture_check_status(pack_like(weights, like, &layer), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_msg(strstr(err.message, message) != NULL, "%s", err.message);
    ck_assert_ptr_null(layer);
}

/* Makes weights of these scales, some of which are no codes. */
static dense make_like(test_rng *rng, float scale, uint32_t records) {
    fp8_matrix m = fp8_new_matrix(200, 300);
    for (uint32_t i = 0; i < m.rows * m.cols; i++)
        m.weights[i] = fp8_scaled(test_below(rng, 0x7F) | test_below(rng, 2) << 7, scale);
    for (uint32_t i = 0; i < records; i++)
        m.weights[i * 64] = 0x3F81;
    return upload(device, m, 0, 0);
}

/* Bytes of a layer that is packed like another take its place, and its plans multiply by the new weights. What needs
 * kernels that those plans do not run is refused, and so is what is no FP8. */
START_TEST(bytes_that_take_the_place_of_others) {
    if (found_layout != TRF_LAYOUT_PACKED8)
        return;
    enum {
        ONE,     /* one constant is enough */
        TWO,     /* of its scale */
        RECORDS, /* and some weights are no codes */
        OTHERS,  /* likewise */
        KINDS
    };
    test_rng rng = {260};
    dense weights[KINDS] = {make_like(&rng, 0x1p-9f, 0), make_like(&rng, 0x1.2345p-9f, 0),
                            make_like(&rng, 0x1.5432p-8f, 5), make_like(&rng, 0x1.2345p-9f, 7)};
    trf_device_layer *one = pack_on(device, &weights[ONE]), *records = pack_on(device, &weights[RECORDS]), *made;
    ck_assert_uint_eq(head_of(one).flags, 0);
    ck_assert_uint_eq(head_of(records).flags, TRF_PACKED8_HAS_LOW | TRF_PACKED8_HAS_RECORDS);
    check_refused(&weights[TWO], one, "it needs second constants, and the other layer does without");
    check_refused(&weights[RECORDS], one, "it needs records, and the other layer does without");

    const trf_plan_options plan_options = test_plan_options(3, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO);
    uint16_t *x = device_make_x(3, 300);
    for (int kind = ONE; kind < KINDS; kind++) {
        fixture_check_status(pack_like(&weights[kind], records, &made), TRF_OK, &err);
        check_weights(made, &weights[kind].host, TRF_LAYOUT_PACKED8);
        ck_assert_uint_eq(made->view.buffer_bytes, records->view.buffer_bytes);
        uint8_t *due = device_multiply(made, &plan_options, x), *bytes = read_buffer(made);
        fixture_check_status(
            trf_device_upload(device, (void *)records->view.buffer, bytes, made->view.buffer_bytes, &err), TRF_OK,
            &err);
        trf_device_layer_destroy(made);
        check_weights(records, &weights[kind].host, TRF_LAYOUT_PACKED8);
        uint8_t *found = device_multiply(records, &plan_options, x);
        EXPECT(memcmp(found, due, sizeof(float) * 3 * 200) == 0);
        free(found);
        free(due);
        free(bytes);
    }

    fp8_matrix other = fp8_new_matrix(200, 300);
    for (uint32_t i = 0; i < other.rows * other.cols; i++)
        other.weights[i] = trf_f64_to_bf16(0.02 * test_normal(&rng));
    dense normal = upload(device, other, 0, 0);
    check_refused(&normal, records, "the weights are no codes times scales of 128x128 of them");
    trf_device_layer *bf16 = pack_on(device, &normal);
    dense codes = upload(device, fp8_dequantized(&rng, 200, 300, 200, 300), 0, 0);
    fixture_check_status(pack_like(&codes, bf16, &made), TRF_OK, &err);
    check_weights(made, &codes.host, TRF_LAYOUT_PACKED);
    trf_device_layer_destroy(made);
    release(device, &codes);
    free(codes.host.weights);
    trf_pack_options both;
    trf_pack_options_init(&both);
    both.like = one;
    both.packed_bf16 = 1;
    fixture_check_status(try_pack(&weights[ONE], &both, &made), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "cannot be packed like one of FP8"));

    trf_device_layer_destroy(bf16);
    trf_device_layer_destroy(one);
    trf_device_layer_destroy(records);
    release(device, &normal);
    free(other.weights);
    for (int kind = 0; kind < KINDS; kind++) {
        release(device, &weights[kind]);
        free(weights[kind].host.weights);
    }
    free(x);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.dense_fp8"))
        return 77;
    Suite *suite = suite_create("device_dense_fp8");
    TCase *tests = tcase_create("device_dense_fp8");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, every_shape, 0, sizeof kShapes / sizeof *kShapes);
    tcase_add_test(tests, large_layers);
    tcase_add_loop_test(tests, records, 0, 5);
    tcase_add_test(tests, samples_that_mislead);
    tcase_add_loop_test(tests, others, 0, FP8_OTHER_KINDS);
    tcase_add_test(tests, other_regions);
    tcase_add_test(tests, bf16_that_is_asked_for);
    tcase_add_loop_test(tests, in_the_callers_memory, 0, 2);
    tcase_add_test(tests, encodes);
    tcase_add_test(tests, bytes_that_take_the_place_of_others);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
