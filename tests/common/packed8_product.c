/* SPDX-License-Identifier: Apache-2.0 */
#include "common/packed8_product.h"

#include "common/expect.h"
#include "trf_number_formats.h"
#include "trf_packed8.h"

#include <check.h>

enum {
    RECORD = 0x3E80, /* 64 * 2^-8 */
    RECORDS_A_LINE = 8
};

static packed8_product allocate(const packed8_layer *layer, uint32_t m) {
    packed8_product p = {*layer, m, NULL, NULL};
    p.x = calloc((size_t)m * layer->cols, sizeof *p.x);
    p.exact = calloc((size_t)m * layer->rows, sizeof *p.exact);
    ck_assert(p.x && p.exact);
    return p;
}

static void multiply_exactly(packed8_product *p) {
    const uint32_t rows = p->layer.rows, cols = p->layer.cols;
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t n = 0; n < p->m; n++) {
            const uint16_t *w = p->layer.weights + (size_t)row * cols, *x = p->x + (size_t)n * cols;
            double sum = 0;
            for (uint32_t col = 0; col < cols; col++)
                sum += (double)(trf_bf16_to_f32(w[col]) * trf_bf16_to_f32(x[col]));
            p->exact[(size_t)n * rows + row] = (float)sum;
            EXPECT((double)p->exact[(size_t)n * rows + row] == sum);
        }
}

/* Makes random weights of a line records until it has `count`. */
static void add_records(test_rng *rng, packed8_layer *layer, uint32_t first_row, uint32_t first_col, uint32_t count) {
    const uint32_t rows = layer->rows - first_row < 64 ? layer->rows - first_row : 64,
                   cols = layer->cols - first_col < 1024 ? layer->cols - first_col : 1024;
    for (uint32_t i = 0; i < count && i < rows * cols;) {
        const size_t row = first_row + test_below(rng, rows), col = first_col + test_below(rng, cols);
        uint16_t *const weight = layer->weights + (i || first_row || first_col ? row * layer->cols + col : 0);
        if ((*weight & 0x7FFF) == RECORD)
            continue;
        *weight = (uint16_t)(RECORD | test_below(rng, 2) << 15);
        i++;
    }
}

/* A scale with the same mantissa, from 2^-8 on. */
static float near_one_256th(float scale) { return trf_f32_from_bits((trf_f32_bits(scale) & 0x7FFFFF) | 119u << 23); }

packed8_product packed8_product_make(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t m, int kind) {
    packed8_layer layer = packed8_layer_make(rng, rows, cols, 128, 128, kind == BY_ONE ? SCALES_BF16 : SCALES_F32);
    trf_error err;
    if (kind == IN_TURNS)
        packed8_layer_take_turns(&layer, rng, SCALES_F32);
    for (size_t i = 0; i < layer.num_scales; i++) {
        layer.scales[i] = near_one_256th(layer.scales[i]);
        if (layer.second_scales)
            layer.second_scales[i] = near_one_256th(layer.second_scales[i]);
    }
    if (kind != BY_ONE)
        layer.scales[0] = 0x1.3579bp-8f; /* needs two constants */
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        layer.codes[i] = (uint8_t)((test_below(rng, 8) ? 7 << 3 | test_below(rng, 16) : 0) | test_below(rng, 2) << 7);
    packed8_layer_define_weights(&layer);
    const uint32_t last_row = (rows - 1) / 64 * 64, last_col = (cols - 1) / 1024 * 1024;
    for (uint32_t row = 0; kind >= WITH_RECORDS && row < rows; row += 64)
        for (uint32_t col = 0; col < cols; col += 1024)
            add_records(rng, &layer, row, col,
                        row == last_row && col == last_col
                            ? trf_packed8_max_records(kind == IN_TURNS ? TRF_PACKED8_IN_TURNS : 0)
                            : RECORDS_A_LINE);
    ck_assert_msg(packed8_layer_pack(&layer, 1, &err) == TRF_OK, "%s", err.message);
    packed8_product p = allocate(&layer, m);
    for (size_t i = 0; i < (size_t)m * cols; i++)
        p.x[i] = trf_f32_to_bf16((float)test_below(rng, 9) - 4);
    multiply_exactly(&p);
    return p;
}

packed8_product packed8_product_make_classes(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t m,
                                             uint32_t first_class) {
    static uint32_t ends[2 * PACKED8_CLASSES];
    packed8_layer layer = packed8_layer_make(rng, rows, cols, 64, 128, SCALES_F32);
    const uint32_t exponents = TRF_PACKED8_MAX_SCALE_EXPONENT - TRF_PACKED8_MIN_SCALE_EXPONENT + 1;
    trf_error err;
    packed8_find_classes(ends);
    for (uint32_t i = 0; i < layer.num_scales; i++)
        layer.scales[i] = trf_f32_from_bits((TRF_PACKED8_MIN_SCALE_EXPONENT + i % exponents) << 23 |
                                            ends[(2 * first_class + i) % (2 * PACKED8_CLASSES)]);
    packed8_layer_define_weights(&layer);
    ck_assert_msg(packed8_layer_pack(&layer, 0, &err) == TRF_OK, "%s", err.message);
    return allocate(&layer, m);
}

void packed8_product_pick(packed8_product *p, uint32_t first_col) {
    memset(p->x, 0, sizeof *p->x * p->m * p->layer.cols);
    for (uint32_t n = 0; n < p->m; n++) {
        p->x[(size_t)n * p->layer.cols + first_col + n] = 0x3F80;
        for (uint32_t row = 0; row < p->layer.rows; row++)
            p->exact[(size_t)n * p->layer.rows + row] =
                trf_bf16_to_f32(p->layer.weights[(size_t)row * p->layer.cols + first_col + n]);
    }
}

void packed8_product_free(packed8_product *p) {
    packed8_layer_free(&p->layer);
    free(p->x);
    free(p->exact);
}

void packed8_product_check(const packed8_product *p, const void *y, trf_dtype dtype, uint64_t stride,
                           const char *what) {
    for (uint32_t n = 0; n < p->m; n++)
        for (uint32_t row = 0; row < p->layer.rows; row++) {
            const float exact = p->exact[(size_t)n * p->layer.rows + row];
            const size_t at = n * stride + row;
            const uint32_t half = ((const uint16_t *)y)[at];
            const int is_right = dtype == TRF_DTYPE_F32    ? ((const float *)y)[at] == exact
                                 : dtype == TRF_DTYPE_BF16 ? half == trf_f32_to_bf16(exact)
                                                           : half == trf_f32_to_f16(exact);
            if (!is_right)
                ck_abort_msg("%s: %ux%u, y[%u][%u] is %g, not %g", what, p->layer.rows, p->layer.cols, n, row,
                             dtype == TRF_DTYPE_F32    ? (double)((const float *)y)[at]
                             : dtype == TRF_DTYPE_BF16 ? (double)trf_bf16_to_f32((uint16_t)half)
                                                       : (double)trf_f16_to_f32((uint16_t)half),
                             (double)exact);
        }
}
