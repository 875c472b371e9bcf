/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU product against one in double precision, for every codec and scale layout; and that neither it nor decoding
 * depends on the number of threads. */
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "trf_decode.h"
#include "trf_number_formats.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct product_case {
    trf_dtype dtype;
    trf_codec codec;
    trf_granularity granularity;
    uint32_t scale_group_size;
    uint32_t rows, cols, m;
} product_case;

static const product_case kCases[] = {
    {TRF_DTYPE_BF16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 512, 512, 1},
    {TRF_DTYPE_BF16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 300, 777, 5},
    {TRF_DTYPE_BF16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 1, 1, 3},
    {TRF_DTYPE_BF16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 17, 15, 70},
    {TRF_DTYPE_F16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 290, 530, 4},
    {TRF_DTYPE_F32, TRF_CODEC_BF16, TRF_GRANULARITY_NONE, 0, 257, 260, 9},
    {TRF_DTYPE_F8_E4M3, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 270, 515, 6},
    {TRF_DTYPE_F8_E5M2, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 65, 1030, 33},
    {TRF_DTYPE_I8, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 515, 300, 2},
    {TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_TENSOR, 0, 280, 600, 3},
    {TRF_DTYPE_F16, TRF_CODEC_INT, TRF_GRANULARITY_CHANNEL, 0, 600, 280, 36},
    {TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 16, 270, 530, 3},
    {TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 48, 300, 1000, 5},
    {TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 1024, 64, 1300, 1},
    {TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 32, 300, 310, 8},
    {TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 272, 600, 600, 4},
};
enum {
    CASES = sizeof kCases / sizeof *kCases
};

static trf_layer *encode(const product_case *c, const void *weights, void **blob) {
    trf_encode_options options;
    trf_error err;
    trf_layer *layer;
    uint64_t blob_bytes;
    trf_encode_options_init(&options);
    options.codec = c->codec;
    options.granularity = c->granularity;
    options.scale_group_size = c->scale_group_size;
    const trf_matrix matrix = test_matrix(weights, c->dtype, c->rows, c->cols);
    ck_assert_msg(trf_encode_layer(&matrix, &options, blob, &blob_bytes, NULL, &err) == TRF_OK, "%s", err.message);
    ck_assert_msg(trf_layer_from_memory(*blob, blob_bytes, &layer, &err) == TRF_OK, "%s", err.message);
    return layer;
}

/* The matrix that the product is defined on, in double: for the int codec code * scale, not rounded. */
static double *exact_weights(const product_case *c, const void *blob) {
    const size_t rows = c->rows, cols = c->cols;
    static trf_decode_table table;
    static uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE];
    static float values[TRF_TILE_SIZE * TRF_TILE_SIZE];
    trf_blob_view view;
    const trf_header *header = blob;
    double *exact = malloc(rows * cols * sizeof *exact);
    ck_assert(exact && trf_blob_open(blob, header->blob_bytes, header->blob_bytes, &view, NULL) == TRF_OK);
    trf_decode_table_init(&table, &view);
    for (uint64_t t = 0; t < view.num_tiles; t++) {
        trf_tile_shape shape = trf_tile_shape_of(&view.header, t, view.tiles[t].coding);
        ck_assert_int_eq(trf_decode_tile_ref(&view, &table, t, (const uint8_t *)blob + view.tiles[t].data_offset,
                                             elements, TRF_TILE_SIZE, NULL),
                         TRF_OK);
        trf_elements_to_f32(&view, t, elements, TRF_TILE_SIZE, values, TRF_TILE_SIZE, 1);
        for (uint32_t r = 0; r < shape.rows; r++)
            for (uint32_t k = 0; k < shape.cols; k++) {
                double scale = 1;
                uint64_t at = trf_scale_index(&view, shape.row + r, shape.col + k);
                if (view.extension.scale_dtype == TRF_SCALE_F32)
                    scale = (double)((const float *)view.scales)[at];
                else if (view.num_scales)
                    scale = ldexp((double)trf_f16_to_f32(((const uint16_t *)view.scales)[at]),
                                  view.extension.scale_exponent);
                exact[(shape.row + r) * cols + shape.col + k] = (double)values[r * TRF_TILE_SIZE + k] * scale;
            }
    }
    return exact;
}

/* Expects that every y is within the error of a plain F32 product, computed term by term. */
static void check_product(const product_case *c, const double *w, const float *x, const float *y) {
    for (size_t i = 0; i < c->m; i++)
        for (size_t r = 0; r < c->rows; r++) {
            double sum = 0, magnitude = 0;
            for (size_t k = 0; k < c->cols; k++) {
                double term = w[r * c->cols + k] * (double)x[i * c->cols + k];
                sum += term;
                magnitude += fabs(term);
            }
            double error = fabs((double)y[i * c->rows + r] - sum),
                   bound = magnitude * (FLT_EPSILON / 2) * (2 + sqrt(c->cols));
            if (!(error <= bound))
                ck_abort_msg("y[%zu][%zu] = %a, not %a", i, r, (double)y[i * c->rows + r], sum);
        }
}

static void fill(test_rng *rng, const product_case *c, void *weights, float *x) {
    const size_t count = (size_t)c->rows * c->cols;
    if (c->dtype == TRF_DTYPE_I8)
        test_fill_normal(rng, weights, c->dtype, count, 20);
    else if (c->codec == TRF_CODEC_INT)
        test_fill_normal(rng, weights, c->dtype, count, 0.02);
    else
        test_fill_student(rng, weights, c->dtype, count, 5, trf_dtype_bytes(c->dtype) == 1 ? 1 : 0.02);
    for (size_t i = 0; i < (size_t)c->m * c->cols; i++)
        x[i] = (float)test_normal(rng);
}

START_TEST(product_is_near_double) {
    static const char *const kSimd[] = {"avx512", "avx2", "scalar"};
    const product_case *c = &kCases[_i];
    test_rng rng = {100 + (uint64_t)_i};
    void *weights = malloc((size_t)c->rows * c->cols * trf_dtype_bytes(c->dtype)), *blob;
    float *x = malloc((size_t)c->m * c->cols * sizeof *x), *y = malloc((size_t)c->m * c->rows * sizeof *y);
    ck_assert(weights && x && y);
    fill(&rng, c, weights, x);
    trf_layer *layer = encode(c, weights, &blob);
    double *exact = exact_weights(c, blob);
    for (int simd = 0; simd < 3; simd++) {
        trf_error err;
        setenv("TRF_SIMD", kSimd[simd], 1);
        for (size_t i = 0; i < (size_t)c->m * c->rows; i++)
            y[i] = NAN; /* to be written, not added to */
        ck_assert_msg(trf_layer_matmul_cpu(layer, x, c->m, y, 1, &err) == TRF_OK, "%s", err.message);
        check_product(c, exact, x, y);
    }
    unsetenv("TRF_SIMD");
    trf_layer_free(layer);
    trf_free(blob);
    free(exact);
    free(weights);
    free(x);
    free(y);
}
END_TEST

START_TEST(threads_do_not_matter) {
    const product_case *c = &kCases[_i];
    test_rng rng = {200 + (uint64_t)_i};
    const size_t weight_bytes = (size_t)c->rows * c->cols * trf_dtype_bytes(c->dtype);
    const size_t y_bytes = (size_t)c->m * c->rows * sizeof(float);
    void *weights = malloc(weight_bytes), *blob, *first = malloc(weight_bytes), *again = malloc(weight_bytes);
    float *x = malloc((size_t)c->m * c->cols * sizeof *x), *y = malloc(y_bytes), *z = malloc(y_bytes);
    ck_assert(weights && first && again && x && y && z);
    fill(&rng, c, weights, x);
    trf_layer *layer = encode(c, weights, &blob);
    ck_assert_int_eq(trf_layer_matmul_cpu(layer, x, c->m, y, 1, NULL), TRF_OK);
    ck_assert_int_eq(trf_layer_decode(layer, first, weight_bytes, 1, NULL), TRF_OK);
    if (c->codec == TRF_CODEC_AUTO)
        ck_assert_mem_eq(first, weights, weight_bytes);
    for (int threads = 0; threads <= 7; threads += threads ? 2 : 3) {
        memset(again, 0xA5, weight_bytes);
        ck_assert_int_eq(trf_layer_matmul_cpu(layer, x, c->m, z, threads, NULL), TRF_OK);
        ck_assert_int_eq(trf_layer_decode(layer, again, weight_bytes, threads, NULL), TRF_OK);
        ck_assert_mem_eq(y, z, y_bytes);
        ck_assert_mem_eq(first, again, weight_bytes);
    }
    trf_layer_free(layer);
    trf_free(blob);
    free(weights);
    free(first);
    free(again);
    free(x);
    free(y);
    free(z);
}
END_TEST

START_TEST(refusals) {
    const product_case *c = &kCases[0];
    test_rng rng = {300};
    uint16_t *weights = malloc((size_t)c->rows * c->cols * 2);
    float x[512], y[512];
    void *blob;
    trf_error err;
    ck_assert_ptr_nonnull(weights);
    fill(&rng, c, weights, x);
    trf_layer *layer = encode(c, weights, &blob);
    ck_assert_int_eq(trf_layer_matmul_cpu(layer, x, 0, y, 1, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_matmul_cpu(NULL, x, 1, y, 1, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_matmul_cpu(layer, NULL, 1, y, 1, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_matmul_cpu(layer, x, 1, NULL, 1, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_decode(layer, weights, 512 * 512 * 2 - 1, 1, &err), TRF_ERR_SHAPE);
    ck_assert_int_eq(trf_layer_decode(layer, weights, 512 * 512 * 2 + 2, 1, &err), TRF_ERR_SHAPE);
    trf_layer_free(layer);
    trf_layer_free(NULL);
    ck_assert_int_eq(trf_layer_open("/nonexistent/layer.trf", &layer, &err), TRF_ERR_NOT_FOUND);
    ck_assert_int_eq(trf_layer_open("/", &layer, &err), TRF_ERR_IO);
    ck_assert_int_eq(trf_layer_open("/dev/null", &layer, &err), TRF_ERR_IO);
    trf_free(blob);
    free(weights);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("matmul");
    TCase *tcase = tcase_create("product");
    tcase_set_tags(tcase, "threads");
    tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, product_is_near_double, 0, CASES);
    tcase_add_loop_test(tcase, threads_do_not_matter, 0, CASES);
    tcase_add_test(tcase, refusals);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
