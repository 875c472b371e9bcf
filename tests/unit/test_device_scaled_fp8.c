/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled FP8 in device memory: coded layers give the BF16 weights that the CPU decodes from the golden files, by
 * decoding, by looking rows up and by multiplying; layers in other layouts are those of BF16 weights. These tests run
 * on the CPU; tests/gpu/ builds this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "trf_device_layer.h"
#include "trf_layer.h"
#include "trf_number_formats.h"

#include <check.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    M = 3 /* rows of x */
};

static trf_error err;
static trf_context *device;
static glob_t files;

static void begin(void) {
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/scaled_fp8_*.trf", 0, NULL, &files), 0);
    ck_assert_uint_ge(files.gl_pathc, 6);
}

static void end(void) {
    globfree(&files);
    trf_context_destroy(device);
}

/* ---- a golden file, and its weights ---- */

typedef struct golden {
    trf_layer *host;
    uint32_t rows, cols;
    size_t bytes;      /* of the weights */
    uint16_t *weights; /* BF16, as the CPU decodes them */
} golden;

static golden open_golden(const char *path) {
    golden g = {0};
    fixture_check_status(trf_layer_open(path, &g.host, &err), TRF_OK, &err);
    g.rows = g.host->view.header.rows;
    g.cols = g.host->view.header.cols;
    g.bytes = (size_t)g.rows * g.cols * sizeof *g.weights;
    g.weights = malloc(g.bytes);
    ck_assert_ptr_nonnull(g.weights);
    fixture_check_status(trf_layer_decode(g.host, g.weights, g.bytes, 0, &err), TRF_OK, &err);
    return g;
}

static void close_golden(golden *g) {
    free(g->weights);
    trf_layer_free(g->host);
}

static trf_status create(const golden *g, trf_layout layout, trf_device_layer **layer) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = layout;
    options.packed_bf16 = 1; /* packed FP8: test_device_packed8_layer.c */
    return trf_device_layer_create(device, g->host->blob, g->host->view.header.blob_bytes, &options, layer, &err);
}

/* ---- device memory ---- */

static void *allocate(uint64_t bytes) {
    void *memory;
    fixture_check_status(trf_device_allocate(device, bytes, &memory, &err), TRF_OK, &err);
    return memory;
}

static void *upload(const void *from, uint64_t bytes) {
    void *memory = allocate(bytes);
    fixture_check_status(trf_device_upload(device, memory, from, bytes, &err), TRF_OK, &err);
    return memory;
}

static void expect_weights(const void *found_dev, const uint16_t *due, size_t count, const char *path,
                           const char *what) {
    uint16_t *found = malloc(count * sizeof *found);
    ck_assert_ptr_nonnull(found);
    fixture_check_status(trf_device_download(device, found, found_dev, count * sizeof *found, &err), TRF_OK, &err);
    for (size_t i = 0; i < count; i++)
        if (found[i] != due[i])
            ck_abort_msg("%s, %s: weight %zu is 0x%04X, not 0x%04X", path, what, i, found[i], due[i]);
    free(found);
}

static void check_decoding(const golden *g, trf_device_layer *layer, trf_decode_as as, const char *path,
                           const char *what) {
    void *decoded = allocate(g->bytes);
    fixture_check_status(trf_device_layer_decode(layer, as, decoded, g->bytes, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err);
    expect_weights(decoded, g->weights, g->bytes / sizeof *g->weights, path, what);
    trf_device_free(device, decoded);
}

/* ---- what a layer gives ---- */

static void check_rows(const golden *g, trf_device_layer *layer, const char *path) {
    const uint32_t count = g->rows < 40 ? g->rows : 40;
    const size_t bytes = (size_t)count * g->cols * sizeof(uint16_t);
    int32_t ids[40];
    uint16_t *due = malloc(bytes);
    ck_assert_ptr_nonnull(due);
    for (uint32_t i = 0; i < count; i++) {
        ids[i] = (int32_t)((i * 7 + g->rows - 1) % g->rows);
        memcpy(due + (size_t)i * g->cols, g->weights + (size_t)ids[i] * g->cols, g->cols * sizeof *due);
    }
    void *ids_dev = upload(ids, count * sizeof *ids), *rows = allocate(bytes);
    fixture_check_status(test_decode_rows(layer,
                                          test_row_request(ids_dev, sizeof *ids, count, TRF_DECODE_BF16, rows, bytes),
                                          NULL, &err),
                         TRF_OK, &err);
    expect_weights(rows, due, bytes / sizeof *due, path, "rows");
    trf_device_free(device, rows);
    trf_device_free(device, ids_dev);
    free(due);
}

static uint16_t *make_x(const golden *g) {
    test_rng rng = {g->rows + g->cols};
    uint16_t *x = malloc(M * g->cols * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (uint32_t i = 0; i < M * g->cols; i++)
        x[i] = trf_f64_to_bf16(test_normal(&rng));
    return x;
}

/* Expects products in F32 to be near those in F64, where all weights are numbers. */
static void check_product(const golden *g, trf_device_layer *layer, const char *path) {
    uint16_t *x = make_x(g);
    float *y = malloc(M * g->rows * sizeof *y);
    void *x_dev = upload(x, M * g->cols * sizeof *x), *y_dev = allocate(M * g->rows * sizeof *y);
    trf_plan *plan;
    ck_assert_ptr_nonnull(y);
    fixture_check_status(test_make_plan(layer, M, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err), TRF_OK,
                         &err);
    const uint64_t workspace_bytes = test_plan_info(plan).workspace_bytes;
    void *workspace = workspace_bytes ? allocate(workspace_bytes) : NULL;
    fixture_check_status(test_multiply(plan, x_dev, y_dev, workspace, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_download(device, y, y_dev, M * g->rows * sizeof *y, &err), TRF_OK, &err);
    for (uint32_t m = 0; m < M; m++)
        for (uint32_t row = 0; row < g->rows; row++) {
            double due = 0, magnitude = 0;
            for (uint32_t col = 0; col < g->cols; col++) {
                const double term = (double)trf_bf16_to_f32(g->weights[(size_t)row * g->cols + col]) *
                                    (double)trf_bf16_to_f32(x[m * g->cols + col]);
                due += term;
                magnitude += fabs(term);
            }
            if (isfinite(magnitude) && magnitude < 1e37 &&
                !(fabs((double)y[m * g->rows + row] - due) <= 1e-5 * magnitude + 1e-37))
                ck_abort_msg("%s: product %u of row %u is %g, not %g", path, m, row, (double)y[m * g->rows + row], due);
        }
    if (workspace)
        trf_device_free(device, workspace);
    trf_plan_destroy(plan);
    trf_device_free(device, x_dev);
    trf_device_free(device, y_dev);
    free(x);
    free(y);
}

START_TEST(coded) {
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *path = files.gl_pathv[i];
        golden g = open_golden(path);
        trf_device_layer *layer;
        trf_plan *plan = NULL;
        fixture_check_status(create(&g, TRF_LAYOUT_CODED, &layer), TRF_OK, &err);
        ck_assert_int_eq(test_layer_info(layer).codec, TRF_CODEC_E4M3);
        ck_assert_int_eq(test_layer_info(layer).dtype, TRF_DTYPE_BF16);
        check_decoding(&g, layer, TRF_DECODE_SOURCE, path, "as its source");
        check_decoding(&g, layer, TRF_DECODE_BF16, path, "as BF16");
        check_decoding(&g, layer, TRF_DECODE_ELEMENTS, path, "as elements");
        void *memory = allocate(g.bytes);
        ck_assert_int_eq(trf_device_layer_decode(layer, TRF_DECODE_F16, memory, g.bytes, NULL, &err),
                         TRF_ERR_UNSUPPORTED);
        trf_device_free(device, memory);
        check_rows(&g, layer, path);
        check_product(&g, layer, path);
        ck_assert_int_eq(test_make_plan(layer, 1, TRF_DTYPE_F16, TRF_DTYPE_F16, TRF_PATH_AUTO, &plan, &err),
                         TRF_ERR_ARGUMENT);
        trf_device_layer_destroy(layer);
        close_golden(&g);
    }
}
END_TEST

/* ---- other layouts ---- */

static void check_other_layout(const golden *g, trf_device_layer *layer, const char *path, const char *what) {
    ck_assert_int_eq(test_layer_info(layer).codec, TRF_CODEC_BF16);
    check_decoding(g, layer, TRF_DECODE_SOURCE, path, what);
    check_rows(g, layer, path);
}

START_TEST(plain) {
    for (size_t i = 0; i < files.gl_pathc; i++) {
        golden g = open_golden(files.gl_pathv[i]);
        trf_device_layer *coded_layer, *loaded, *converted;
        fixture_check_status(create(&g, TRF_LAYOUT_CODED, &coded_layer), TRF_OK, &err);
        fixture_check_status(create(&g, TRF_LAYOUT_PLAIN, &loaded), TRF_OK, &err);
        fixture_check_status(trf_device_layer_convert(coded_layer, TRF_LAYOUT_PLAIN, NULL, &converted, &err), TRF_OK,
                             &err);
        check_other_layout(&g, loaded, files.gl_pathv[i], "loaded plain");
        check_other_layout(&g, converted, files.gl_pathv[i], "made plain");
        trf_device_layer_destroy(loaded);
        trf_device_layer_destroy(converted);
        trf_device_layer_destroy(coded_layer);
        close_golden(&g);
    }
}
END_TEST

/* Packs the dense weights, for comparison. @return NULL if packing refuses them. */
static trf_device_layer *pack_dense(const golden *g, void *weights_dev) {
    trf_device_matrix matrix;
    trf_device_layer *layer = NULL;
    trf_device_matrix_init(&matrix);
    matrix.weights = weights_dev;
    matrix.rows = g->rows;
    matrix.cols = g->cols;
    trf_pack_options options;
    trf_pack_options_init(&options);
    options.packed_bf16 = 1; /* packed FP8: test_device_dense_fp8.c */
    const trf_status status = trf_device_layer_pack(device, &matrix, &options, &layer, &err);
    ck_assert_msg(status == TRF_OK || status == TRF_ERR_UNSUPPORTED, "%s", err.message);
    return layer;
}

/* Expects the same buffers, or two refusals. */
static void compare_packed(const golden *g, const trf_device_layer *dense, trf_status status, trf_device_layer *layer,
                           const char *path, const char *what) {
    if (!dense) {
        ck_assert_msg(status == TRF_ERR_UNSUPPORTED, "%s, %s: status %d, where dense weights are refused", path, what,
                      (int)status);
        return;
    }
    ck_assert_msg(status == TRF_OK, "%s, %s: %s", path, what, err.message);
    const uint64_t bytes = dense->view.buffer_bytes;
    ck_assert_uint_eq(layer->view.buffer_bytes, bytes);
    uint8_t *const buffers = malloc(2 * bytes);
    ck_assert_ptr_nonnull(buffers);
    fixture_check_status(trf_device_download(device, buffers, dense->view.buffer, bytes, &err), TRF_OK, &err);
    fixture_check_status(trf_device_download(device, buffers + bytes, layer->view.buffer, bytes, &err), TRF_OK, &err);
    ck_assert_msg(memcmp(buffers, buffers + bytes, bytes) == 0, "%s, %s: another buffer", path, what);
    free(buffers);
    check_other_layout(g, layer, path, what);
    trf_device_layer_destroy(layer);
}

START_TEST(packed) {
    int packed_some = 0, packed_as_fp8 = 0;
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *path = files.gl_pathv[i];
        golden g = open_golden(path);
        trf_device_layer *coded_layer, *made = NULL;
        void *weights = upload(g.weights, g.bytes);
        trf_device_layer *const dense = pack_dense(&g, weights);
        packed_some |= dense != NULL;
        fixture_check_status(create(&g, TRF_LAYOUT_CODED, &coded_layer), TRF_OK, &err);
        trf_status status = trf_device_layer_convert(coded_layer, TRF_LAYOUT_PACKED, NULL, &made, &err);
        if (status == TRF_OK && test_device_layer_info(made).layout == TRF_LAYOUT_PACKED8) {
            check_other_layout(&g, made, path, "converted to packed FP8");
            trf_device_layer_destroy(made);
            packed_as_fp8 = 1;
        } else {
            compare_packed(&g, dense, status, made, path, "converted");
        }
        status = create(&g, TRF_LAYOUT_PACKED, &made);
        compare_packed(&g, dense, status, made, path, "loaded");
        trf_device_layer_destroy(coded_layer);
        if (dense)
            trf_device_layer_destroy(dense);
        trf_device_free(device, weights);
        close_golden(&g);
    }
    ck_assert(packed_some && packed_as_fp8);
}
END_TEST

/* ---- a large layer, which GPUs load and convert in parts, and a shard of it ---- */

enum {
    LARGE_ROWS = 8500, /* two parts of 4,096 rows, and some */
    LARGE_COLS = 520,
    BLOCK = 128
};
static const uint32_t kShard[4] = {48, 8400, 16, 480}; /* first row, rows, first column, columns */

/* Weights that were FP8 with a scale for each block, encoded as that. weights: as they must come back. */
static void *encode_large(uint16_t *weights, uint64_t *blob_bytes) {
    test_rng rng = {77};
    float scales[(LARGE_ROWS / BLOCK + 1) * (LARGE_COLS / BLOCK + 1)];
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        scales[i] = ldexpf(1.0f + (float)test_below(&rng, 1 << 23) * 0x1p-23f, -12);
    for (uint32_t row = 0; row < LARGE_ROWS; row++)
        for (uint32_t col = 0; col < LARGE_COLS; col++) {
            const double value = 100 * test_normal(&rng);
            const uint32_t code = trf_f64_to_bf16(fabs(value) < 448 ? value : 448) >> 4, magnitude = code & 0x7FF;
            const uint32_t e4m3 = magnitude < 8 * 121 ? 0 : magnitude - 8 * 120; /* the exponents' biases are 127, 7 */
            weights[(size_t)row * LARGE_COLS + col] = trf_scale_fp8(
                (value < 0 ? 0x80 : 0) | e4m3, scales[row / BLOCK * (LARGE_COLS / BLOCK + 1) + col / BLOCK]);
        }
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, LARGE_ROWS, LARGE_COLS);
    trf_encode_options options;
    void *blob;
    trf_encode_options_init(&options);
    options.codec = TRF_CODEC_E4M3;
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob, blob_bytes, NULL, &err), TRF_OK, &err);
    return blob;
}

START_TEST(shard_of_a_large_layer) {
    static const trf_layout kLayouts[] = {TRF_LAYOUT_CODED, TRF_LAYOUT_PLAIN, TRF_LAYOUT_PACKED};
    golden g = {.rows = kShard[1], .cols = kShard[3], .bytes = (size_t)kShard[1] * kShard[3] * sizeof(uint16_t)};
    uint16_t *weights = malloc(LARGE_ROWS * LARGE_COLS * sizeof *weights);
    g.weights = malloc(g.bytes);
    ck_assert(weights && g.weights);
    uint64_t blob_bytes;
    void *blob = encode_large(weights, &blob_bytes);
    trf_device_layer *layers[3], *converted;
    for (uint32_t row = 0; row < g.rows; row++)
        memcpy(g.weights + (size_t)row * g.cols, weights + (size_t)(kShard[0] + row) * LARGE_COLS + kShard[2],
               g.cols * sizeof *weights);
    for (int i = 0; i < 3; i++) {
        trf_load_options options = test_shard(kShard);
        options.layout = kLayouts[i];
        fixture_check_status(trf_device_layer_create(device, blob, blob_bytes, &options, &layers[i], &err), TRF_OK,
                             &err);
        if (i > 0) /* coded shards that cut tiles are not decoded as a whole */
            check_decoding(&g, layers[i], TRF_DECODE_BF16, "a shard", trf_layout_name(kLayouts[i]));
        check_rows(&g, layers[i], "a shard");
    }
    for (int i = 1; i < 3; i++) {
        fixture_check_status(trf_device_layer_convert(layers[0], kLayouts[i], NULL, &converted, &err), TRF_OK, &err);
        check_decoding(&g, converted, TRF_DECODE_BF16, "a converted shard", trf_layout_name(kLayouts[i]));
        trf_device_layer_destroy(converted);
    }
    check_product(&g, layers[0], "a shard");
    for (int i = 0; i < 3; i++)
        trf_device_layer_destroy(layers[i]);
    trf_free(blob);
    free(weights);
    free(g.weights);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.scaled_fp8"))
        return 77;
    Suite *suite = suite_create("device_scaled_fp8");
    TCase *tests = tcase_create("device_scaled_fp8");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, begin, end);
    tcase_add_test(tests, coded);
    tcase_add_test(tests, plain);
    tcase_add_test(tests, packed);
    tcase_add_test(tests, shard_of_a_large_layer);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
