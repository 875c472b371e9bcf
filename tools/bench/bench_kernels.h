/* SPDX-License-Identifier: Apache-2.0 */
/* What products of compressed weights are compared with: plain 8-bit products, copies, dense experts,
 * and weights that are drawn on the device. */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include "transfuse.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BENCH_RAW8_MAX_M = 64,
    BENCH_RAW8_COLS = 16 /* divides cols */
};

typedef struct bench_raw8 {
    trf_dtype dtype; /* of the weights: I8 (codes), F8_E4M3 or F8_E5M2 */
    uint32_t rows, cols, m;
    const float *scales; /* device, [rows], or NULL */
    const void *x;       /* device, F16 [m][cols], 16-byte aligned */
    void *y;             /* device, [m][rows], F32 or F16 */
    int y_is_f32;
} bench_raw8;

/* y = x . (scale * weights)^T, accumulated in F32. weights: device, [rows][cols], 16-byte aligned. Only queues work. */
cudaError_t bench_raw8_launch(const bench_raw8 *product, const void *weights, cudaStream_t stream);

/* Copies bytes, a multiple of 16, from one place in device memory to another, both 16-byte aligned. Only queues
 * work. */
cudaError_t bench_copy_launch(void *to, const void *from, uint64_t bytes, cudaStream_t stream);

/* Reads bytes, a multiple of 16, of 16-byte aligned device memory. word: device memory that nothing is written to in
 * practice. Only queues work. */
cudaError_t bench_read_launch(const void *from, uint64_t bytes, uint32_t *word, cudaStream_t stream);

/* Fills device memory with normal BF16 of this sigma, which are the same in every run for a seed. Only queues work. */
cudaError_t bench_draw_launch(void *to, uint64_t count, float sigma, uint64_t seed, cudaStream_t stream);

/* Copies rows of row_bytes (even) bytes by number: to[i] = from[ids[i]]. All memory is the device's; ids are in range.
 * Only queues work. */
cudaError_t bench_copy_rows_launch(void *to, const void *from, uint64_t row_bytes, const int64_t *ids, uint32_t count,
                                   cudaStream_t stream);

/* Dense BF16 experts: y[t] = x[t] . W(e)^T for the tokens t of each expert e, offsets[e] to offsets[e + 1] - 1. All
 * pointers in the structure are to device memory. */
typedef struct bench_experts {
    const void *const *weights; /* [count] matrices [rows][cols], 16-byte aligned */
    const uint32_t *offsets;    /* [count + 1] */
    uint32_t count, rows, cols; /* rows a multiple of 16, cols of 32 */
    const void *x;              /* BF16, [tokens][cols], 16-byte aligned */
    void *y;                    /* BF16, [tokens][rows] */
} bench_experts;

/* max_active: at least as many experts as have tokens. Only queues work. */
cudaError_t bench_experts_launch(const bench_experts *product, uint32_t max_active, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
