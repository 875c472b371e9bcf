/* SPDX-License-Identifier: Apache-2.0 */
/* The product of uncompressed weights by cuBLASLt, with the fastest algorithm that it proposes. The library is opened
 * at run time: it is large, and no other command needs it. */
#ifndef BENCH_CUBLASLT_CUDA_H
#define BENCH_CUBLASLT_CUDA_H

#include "transfuse.h"

#include <cuda_runtime_api.h>

typedef struct bench_cublaslt bench_cublaslt;

/* @return NULL after a message. */
bench_cublaslt *bench_cublaslt_open(void);
void bench_cublaslt_close(bench_cublaslt *lt); /* NULL is allowed */
uint64_t bench_cublaslt_version(const bench_cublaslt *lt);

/* y[m][rows] = x[m][cols] . W^T; W and x of one 16-bit type; accumulated in F32. */
typedef struct bench_cublaslt_product bench_cublaslt_product;

/* lt: outlives it. @return NULL after a message. */
bench_cublaslt_product *bench_cublaslt_product_make(bench_cublaslt *lt, uint32_t rows, uint32_t cols, uint32_t m,
                                                    trf_dtype in, trf_dtype out);
void bench_cublaslt_product_free(bench_cublaslt_product *product); /* NULL is allowed */

/* @return how many algorithms cuBLASLt proposes, 1 to 16; its best guess is the first one. */
int bench_cublaslt_candidates(const bench_cublaslt_product *product);

/* Queues the product with a candidate, by its number from 0. @return 0, or -1 after a message. */
int bench_cublaslt_queue(const bench_cublaslt_product *product, int candidate, const void *w, const void *x, void *y,
                         cudaStream_t stream);

/* The same with the caller's workspace, BENCH_CUBLASLT_WORKSPACE_BYTES of device memory, for calls on several
 * streams. */
enum {
    BENCH_CUBLASLT_WORKSPACE_BYTES = 64 << 20 /* NVIDIA's advice for Hopper is 32 MiB */
};
int bench_cublaslt_queue_workspace(const bench_cublaslt_product *product, int candidate, const void *w, const void *x,
                                   void *y, void *workspace, cudaStream_t stream);

#endif
