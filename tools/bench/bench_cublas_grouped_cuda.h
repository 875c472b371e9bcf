/* SPDX-License-Identifier: Apache-2.0 */
/* Products of several dense BF16 matrices in one call of cuBLAS: cublasGemmGroupedBatchedEx, of CUDA 12.5 and newer.
 * The library is opened at run time, as cuBLASLt is. */
#ifndef BENCH_CUBLAS_GROUPED_CUDA_H
#define BENCH_CUBLAS_GROUPED_CUDA_H

#include <cuda_runtime_api.h>
#include <stdint.h>

typedef struct bench_grouped bench_grouped;

/* @return NULL after a message. */
bench_grouped *bench_grouped_open(void);
void bench_grouped_close(bench_grouped *grouped); /* NULL is allowed */

/* One matrix: y[tokens][rows] = x[tokens][cols] . W^T. Device memory, BF16, 16-byte aligned; no y overlaps another. */
typedef struct bench_grouped_matrix {
    const void *w, *x;
    void *y;
    uint32_t tokens;
} bench_grouped_matrix;

enum {
    BENCH_GROUPED_MAX_PRODUCTS = 512 /* matrices of a product */
};

typedef struct bench_grouped_product bench_grouped_product;

/* Uploads what a call needs, so that bench_grouped_queue itself uploads and allocates nothing. grouped, and what
 * matrices point to, must outlive the product. @return NULL after a message. */
bench_grouped_product *bench_grouped_product_make(bench_grouped *grouped, uint32_t rows, uint32_t cols,
                                                  const bench_grouped_matrix *matrices, uint32_t count);
void bench_grouped_product_free(bench_grouped_product *product); /* NULL is allowed; graphs that have it must be gone */

/* Queues the product. Products of one bench_grouped share its workspace, so only one stream may use them at a time.
 * @return 0, or -1 after a message. */
int bench_grouped_queue(const bench_grouped_product *product, cudaStream_t stream);

#endif
