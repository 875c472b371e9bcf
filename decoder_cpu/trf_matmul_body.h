/* SPDX-License-Identifier: Apache-2.0 */
/* The loops behind trf_dot_rows_fn, on the vector types of gcc and clang. Compiled once for each instruction set, by
 * files that define TRF_DOT_ROWS (the function's name), TRF_DOT_LANES (floats in a vector, 4 to 16) and
 * TRF_DOT_BATCH (rows of x at a time: 4 * TRF_DOT_BATCH sums must fit the registers). */
#include "trf_matmul.h"

#include <string.h>

typedef float trf_vector __attribute__((vector_size(4 * TRF_DOT_LANES)));

enum {
    ROWS_AT_A_TIME = 4
};

static inline __attribute__((always_inline)) trf_vector load(const float *from) {
    trf_vector vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

static inline __attribute__((always_inline)) float add_lanes(trf_vector vector) {
    float lanes[TRF_DOT_LANES];
    memcpy(lanes, &vector, sizeof lanes);
    for (int half = TRF_DOT_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

/* A block of rows x batch sums; inlined with constants. */
static inline __attribute__((always_inline)) void dot_block(const float *w, size_t w_stride, const float *x,
                                                            size_t x_stride, uint32_t cols, float *sums,
                                                            size_t sums_stride, const int rows, const int batch) {
    trf_vector sum[ROWS_AT_A_TIME][TRF_DOT_BATCH];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < batch; i++)
            sum[r][i] = (trf_vector){0};
    for (uint32_t k = 0; k < cols; k += TRF_DOT_LANES) {
        trf_vector from_x[TRF_DOT_BATCH];
        for (int i = 0; i < batch; i++)
            from_x[i] = load(x + (size_t)i * x_stride + k);
        for (int r = 0; r < rows; r++) {
            trf_vector from_w = load(w + (size_t)r * w_stride + k);
            for (int i = 0; i < batch; i++)
                sum[r][i] += from_w * from_x[i];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < batch; i++)
            sums[(size_t)i * sums_stride + (size_t)r] = add_lanes(sum[r][i]);
}

static inline __attribute__((always_inline)) void dot_rows(const float *w, size_t w_stride, uint32_t rows,
                                                           const float *x, size_t x_stride, uint32_t cols, float *sums,
                                                           size_t sums_stride, const int batch) {
    uint32_t r = 0;
    for (; r + ROWS_AT_A_TIME <= rows; r += ROWS_AT_A_TIME)
        dot_block(w + r * w_stride, w_stride, x, x_stride, cols, sums + r, sums_stride, ROWS_AT_A_TIME, batch);
    for (; r < rows; r++)
        dot_block(w + r * w_stride, w_stride, x, x_stride, cols, sums + r, sums_stride, 1, batch);
}

void TRF_DOT_ROWS(const float *w, size_t w_stride, uint32_t rows, const float *x, size_t x_stride, uint32_t m,
                  uint32_t cols, float *sums, size_t sums_stride) {
    uint32_t i = 0;
    for (; i + TRF_DOT_BATCH <= m; i += TRF_DOT_BATCH)
        dot_rows(w, w_stride, rows, x + i * x_stride, x_stride, cols, sums + i * sums_stride, sums_stride,
                 TRF_DOT_BATCH);
    for (; i < m; i++)
        dot_rows(w, w_stride, rows, x + i * x_stride, x_stride, cols, sums + i * sums_stride, sums_stride, 1);
}
