/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU product, and its inner kernels: dot products of rows of W with rows of x. */
#ifndef TRF_MATMUL_H
#define TRF_MATMUL_H

#include "trf_error.h"

#include <stddef.h>
#include <stdint.h>

/* @return how many threads can be at work on a layer of so many rows; threads: as trf_thread_count takes it. */
int trf_matmul_workers(uint32_t rows, int threads);

/* Bytes of scratch that so many workers need. */
uint64_t trf_matmul_scratch_bytes(int workers);

/* Does what trf_layer_matmul_cpu does, without allocating. scratch: 64-byte aligned,
 * trf_matmul_scratch_bytes(workers). */
trf_status trf_multiply_layer(const trf_layer *layer, const float *x, uint32_t m, float *y, int workers, void *scratch,
                              trf_error *err);

/* Dense weights, row-major [rows][cols]. */
typedef struct trf_dense_weights {
    const uint16_t *weights;
    trf_dtype dtype; /* BF16 or F16 */
    uint32_t rows, cols;
} trf_dense_weights;

/* The same for dense weights: gives the bits that trf_multiply_layer gives for a layer of these weights. */
trf_status trf_multiply_dense(const trf_dense_weights *dense, const float *x, uint32_t m, float *y, int workers,
                              void *scratch, trf_error *err);

/* ---- dot products ---- */

enum {
    TRF_DOT_COLS = 16 /* cols are a multiple of it */
};

/* sums[i * sums_stride + r] = sum over k < cols of w[r * w_stride + k] * x[i * x_stride + k], for r < rows and i <
 * m, in F32. The order of additions depends on cols alone. */
typedef void trf_dot_rows_fn(const float *w, size_t w_stride, uint32_t rows, const float *x, size_t x_stride,
                             uint32_t m, uint32_t cols, float *sums, size_t sums_stride);

trf_dot_rows_fn trf_dot_rows_portable;
#ifdef TRF_HAVE_X86_SIMD
trf_dot_rows_fn trf_dot_rows_avx2;
trf_dot_rows_fn trf_dot_rows_avx512;
#endif

#endif
