/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the fastest of the algorithms that cuBLASLt proposes for a product. */
#ifndef BENCH_CANDIDATES_CUDA_H
#define BENCH_CANDIDATES_CUDA_H

#include "bench_cublaslt_cuda.h"

/* What calls multiply. Call number i takes weights[i * step % count]. */
typedef struct bench_candidate_operands {
    const void *const *weights; /* device: matrices; [count] */
    uint32_t count, step;
    const void *x;
    void *y;
} bench_candidate_operands;

/* Times a graph of `calls` calls with each candidate. @return the fastest one, or -1 after a message. */
int bench_fastest_candidate(const bench_cublaslt_product *product, const bench_candidate_operands *operands,
                            uint32_t calls, cudaStream_t stream);

#endif
