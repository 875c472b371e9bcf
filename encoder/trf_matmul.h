/* The inner kernels of the CPU product: dot products of rows of W with rows of x. */
#ifndef TRF_MATMUL_H
#define TRF_MATMUL_H

#include <stddef.h>
#include <stdint.h>

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
