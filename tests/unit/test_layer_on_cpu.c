/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of the CPU: what opening, decoding and multiplying refuse, and how; what a path may be; allocations and
 * mappings that fail (TRF_TEST_WRAPS_ALLOCATIONS); and dense products, which no layer is needed for. */
#include "common/checkpoint_fixture.h"
#include "common/failing_memory.h"
#include "common/run_suite.h"
#include "transfuse/cpu.h"
#include "trf_matmul.h"
#include "trf_number_formats.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GOLDEN TRF_TEST_DATA_DIR "/golden/bf16_quads_slabs128_53x131.trf"
#define SCALED                                                                                                         \
    TRF_TEST_DATA_DIR "/golden/int_r2_scale_group16_f16.trf" /* F16 codes with scales: decoding needs memory */

static trf_error err;

START_TEST(what_opening_refuses) {
    trf_layer *layer = NULL;
    uint64_t nothing = 0;
    ck_assert_int_eq(trf_layer_open(NULL, &layer, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_open(GOLDEN, NULL, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_from_memory(NULL, 8, &layer, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_from_memory(&nothing, 8, NULL, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_from_memory(NULL, 0, &layer, &err), TRF_ERR_TRUNCATED);
    ck_assert_int_eq(trf_layer_open(fixture_path("none.trf"), &layer, &err), TRF_ERR_NOT_FOUND);
    ck_assert_int_eq(trf_layer_open(GOLDEN "/below", &layer, &err), TRF_ERR_NOT_FOUND);
    ck_assert_int_eq(trf_layer_open(TRF_TEST_DATA_DIR, &layer, &err), TRF_ERR_IO); /* a folder */
    ck_assert_msg(strstr(err.message, "not a regular file") != NULL, "%s", err.message);
    const char *fifo = fixture_path("fifo");
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(trf_layer_open(fifo, &layer, &err), TRF_ERR_IO); /* and does not wait for a writer */
    char name[5000];
    memset(name, 'a', sizeof name);
    name[sizeof name - 1] = 0;
    ck_assert_int_eq(trf_layer_open(name, &layer, &err), TRF_ERR_IO);
    fixture_write(fixture_path("empty.trf"), "", 0);
    ck_assert_int_eq(trf_layer_open(fixture_path("empty.trf"), &layer, &err), TRF_ERR_TRUNCATED);
    ck_assert_msg(strstr(err.message, "empty.trf") != NULL, "%s", err.message);
    ck_assert_int_eq(trf_layer_open(TRF_TEST_DATA_DIR "/golden/corrupt/tiny_flags_1.trf", &layer, &err),
                     TRF_ERR_HEADER);
    ck_assert_msg(strstr(err.message, "tiny_flags_1.trf") != NULL, "%s", err.message);
    ck_assert_ptr_null(layer);
}
END_TEST

START_TEST(what_calls_refuse) {
    trf_layer *layer = NULL;
    trf_layer_info info;
    uint16_t weights[53 * 131 + 1];
    float x[131], y[53];
    fixture_check_status(trf_layer_open(GOLDEN, &layer, &err), TRF_OK, &err);
    trf_layer_get_info(layer, &info);
    ck_assert(info.rows == 53 && info.cols == 131 && info.codec == TRF_CODEC_BF16 && info.slab_cols == 128);
    ck_assert(info.tiles == 1 && info.exceptions == 200);
    const uint64_t bytes = 2 * 53 * 131;
    ck_assert_int_eq(trf_layer_decode(NULL, weights, bytes, 1, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_decode(layer, NULL, bytes, 1, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_decode(layer, weights, bytes - 2, 1, &err), TRF_ERR_SHAPE);
    ck_assert_int_eq(trf_layer_decode(layer, weights, bytes + 1, 1, &err), TRF_ERR_SHAPE);
    ck_assert_int_eq(trf_layer_decode(layer, weights, bytes, 3, &err), TRF_OK);
    uint8_t *odd = malloc(bytes + 1); /* an odd address is allowed */
    ck_assert_int_eq(trf_layer_decode(layer, odd + 1, bytes, 1, &err), TRF_OK);
    ck_assert_mem_eq(odd + 1, weights, bytes);
    free(odd);
    ck_assert_int_eq(trf_layer_matmul_cpu(NULL, x, 1, y, 1, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_matmul_cpu(layer, NULL, 1, y, 1, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_matmul_cpu(layer, x, 1, NULL, 1, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_layer_matmul_cpu(layer, x, 0, y, 1, &err), TRF_ERR_ARGUMENT);
    trf_layer_free(layer);
    trf_layer_free(NULL);
}
END_TEST

/* Opens, decodes and multiplies. */
static trf_status use_layer(void *context) {
    static uint16_t weights[53 * 91];
    static float x[91], y[53];
    trf_layer *layer = NULL;
    trf_status status = trf_layer_open(context, &layer, &err);
    if (status == TRF_OK)
        status = trf_layer_decode(layer, weights, sizeof weights, 1, &err);
    if (status == TRF_OK)
        status = trf_layer_matmul_cpu(layer, x, 1, y, 1, &err);
    trf_layer_free(layer);
    return status;
}

/* A mapping that fails is TRF_ERR_IO. */
START_TEST(every_allocation_fails_once) {
    ck_assert_int_gt(fail_each_allocation(use_layer, (void *)SCALED, TRF_ERR_IO, &err), 4);
}
END_TEST

/* What only decoding can see stops a product, too. */
START_TEST(corrupt_streams) {
    trf_layer *layer = NULL;
    static float x[64], y[64];
    static uint8_t weights[64 * 64];
    fixture_check_status(trf_layer_open(TRF_TEST_DATA_DIR "/golden/corrupt/rans_word_left.trf", &layer, &err), TRF_OK,
                         &err);
    trf_layer_info info;
    trf_layer_get_info(layer, &info);
    ck_assert(info.rows <= 64 && info.cols <= 64);
    ck_assert_int_eq(trf_layer_decode(layer, weights, (uint64_t)info.rows * info.cols, 2, &err), TRF_ERR_RANS);
    ck_assert_int_eq(trf_layer_matmul_cpu(layer, x, 1, y, 2, &err), TRF_ERR_RANS);
    trf_layer_free(layer);
}
END_TEST

/* Small integers, whose sums are exact in any order. loop: BF16, F16. */
START_TEST(dense_products) {
    enum {
        ROWS = 300,
        COLS = 270,
        M = 3
    };
    uint16_t *w = malloc(2 * ROWS * COLS);
    float *x = malloc(4 * M * COLS), *y = malloc(4 * M * ROWS);
    for (int i = 0; i < ROWS * COLS; i++)
        w[i] = _i ? trf_f64_to_f16(i * 7 % 31 - 15) : trf_f64_to_bf16(i * 7 % 31 - 15);
    for (int i = 0; i < M * COLS; i++)
        x[i] = (float)(i * 5 % 13 - 6);
    const trf_dense_weights dense = {w, _i ? TRF_DTYPE_F16 : TRF_DTYPE_BF16, ROWS, COLS};
    const int workers = trf_matmul_workers(ROWS, 5);
    ck_assert_int_le(workers, 2);
    void *scratch;
    ck_assert_int_eq(posix_memalign(&scratch, 64, trf_matmul_scratch_bytes(workers)), 0);
    fixture_check_status(trf_multiply_dense(&dense, x, M, y, workers, scratch, &err), TRF_OK, &err);
    for (int m = 0; m < M; m++)
        for (int row = 0; row < ROWS; row++) {
            int sum = 0;
            for (int col = 0; col < COLS; col++)
                sum += ((row * COLS + col) * 7 % 31 - 15) * ((m * COLS + col) * 5 % 13 - 6);
            ck_assert_msg(y[m * ROWS + row] == (float)sum, "y[%d][%d] is %g, not %d", m, row, (double)y[m * ROWS + row],
                          sum);
        }
    free(scratch);
    free(w);
    free(x);
    free(y);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("layer_on_cpu");
    TCase *tests = tcase_create("layer_on_cpu");
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_test(tests, what_opening_refuses);
    tcase_add_test(tests, what_calls_refuse);
    tcase_add_test(tests, every_allocation_fails_once);
    tcase_add_test(tests, corrupt_streams);
    tcase_add_loop_test(tests, dense_products, 0, 2);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
