/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of the trf_dot_rows_fn functions, on the vector types of gcc and clang. They are compiled once for each
 * instruction set, by files that define TRF_DOT_ROWS (the function's name), TRF_DOT_FLOATS (floats in a vector, 4 to
 * 16) and TRF_DOT_X_ROWS (rows of x at a time: 4 * TRF_DOT_X_ROWS sums must fit the registers). */
#include "trf_matmul.h"

#include <string.h>

typedef float trf_vector __attribute__((vector_size(4 * TRF_DOT_FLOATS)));

enum {
    ROWS_AT_A_TIME = 4
};

static inline __attribute__((always_inline)) trf_vector load(const float *from) {
    trf_vector vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

static inline __attribute__((always_inline)) float add_floats(trf_vector vector) {
    float floats[TRF_DOT_FLOATS];
    memcpy(floats, &vector, sizeof floats);
    for (int half = TRF_DOT_FLOATS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            floats[i] += floats[i + half];
    return floats[0];
}

/* The sums of `rows` rows of W by `x_rows` rows of x; inlined with constants. */
static inline __attribute__((always_inline)) void dot_some_rows(const float *w, size_t w_stride, const float *x,
                                                                size_t x_stride, uint32_t cols, float *sums,
                                                                size_t sums_stride, const int rows, const int x_rows) {
    trf_vector sum[ROWS_AT_A_TIME][TRF_DOT_X_ROWS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < x_rows; i++)
            sum[r][i] = (trf_vector){0};
    for (uint32_t k = 0; k < cols; k += TRF_DOT_FLOATS) {
        trf_vector from_x[TRF_DOT_X_ROWS];
        for (int i = 0; i < x_rows; i++)
            from_x[i] = load(x + (size_t)i * x_stride + k);
        for (int r = 0; r < rows; r++) {
            trf_vector from_w = load(w + (size_t)r * w_stride + k);
            for (int i = 0; i < x_rows; i++)
                sum[r][i] += from_w * from_x[i];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < x_rows; i++)
            sums[(size_t)i * sums_stride + (size_t)r] = add_floats(sum[r][i]);
}

static inline __attribute__((always_inline)) void dot_rows(const float *w, size_t w_stride, uint32_t rows,
                                                           const float *x, size_t x_stride, uint32_t cols, float *sums,
                                                           size_t sums_stride, const int x_rows) {
    uint32_t r = 0;
    for (; r + ROWS_AT_A_TIME <= rows; r += ROWS_AT_A_TIME)
        dot_some_rows(w + r * w_stride, w_stride, x, x_stride, cols, sums + r, sums_stride, ROWS_AT_A_TIME, x_rows);
    for (; r < rows; r++)
        dot_some_rows(w + r * w_stride, w_stride, x, x_stride, cols, sums + r, sums_stride, 1, x_rows);
}

void TRF_DOT_ROWS(const float *w, size_t w_stride, uint32_t rows, const float *x, size_t x_stride, uint32_t m,
                  uint32_t cols, float *sums, size_t sums_stride) {
    uint32_t i = 0;
    for (; i + TRF_DOT_X_ROWS <= m; i += TRF_DOT_X_ROWS)
        dot_rows(w, w_stride, rows, x + i * x_stride, x_stride, cols, sums + i * sums_stride, sums_stride,
                 TRF_DOT_X_ROWS);
    for (; i < m; i++)
        dot_rows(w, w_stride, rows, x + i * x_stride, x_stride, cols, sums + i * sums_stride, sums_stride, 1);
}
