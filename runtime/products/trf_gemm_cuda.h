/* SPDX-License-Identifier: Apache-2.0 */
/* Dense products by cuBLASLt. Its library is opened when a context is made, since it has half a gigabyte, which a
 * command on the CPU should not load. Only dense products need it, those of the two-step path and of plain layers;
 * fused products work without it. */
#ifndef TRF_GEMM_CUDA_H
#define TRF_GEMM_CUDA_H

#include "trf_error.h"

/* A cuBLASLt handle and the algorithms that it chose. Thread-safe. */
typedef struct trf_gemm trf_gemm;

/* y[m][rows] = x[m][cols] . w[rows][cols]^T. All are row-major without padding, except y, which trf_gemm_operands may
 * give some. Sums are accumulated in F32 and rounded once. */
typedef struct trf_gemm_shape {
    uint32_t m, rows, cols; /* 1 to 2^31 - 1 */
    uint32_t in_dtype;      /* trf_dtype of x and w: BF16 or F16 */
    uint32_t out_dtype;     /* of y: the same, or F32 */
} trf_gemm_shape;

/* Makes a handle for the current device. If the library is not found, *gemm is made nevertheless, and the calls below
 * return TRF_ERR_UNSUPPORTED. Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_gemm_create(trf_gemm **gemm, trf_error *err);
void trf_gemm_destroy(trf_gemm *gemm); /* NULL is allowed */

/* Computes how much device memory trf_gemm_multiply needs as its workspace, whatever the alignment of x and y. Chooses
 * the algorithms, on the host. Errors: TRF_ERR_UNSUPPORTED (no library, or it has no algorithm), TRF_ERR_CUDA. */
trf_status trf_gemm_workspace(trf_gemm *gemm, const trf_gemm_shape *shape, uint64_t *workspace_bytes, trf_error *err);

/* All pointers are to device memory. */
typedef struct trf_gemm_operands {
    const void *w;     /* 16-byte aligned */
    const void *x;     /* aligned to its elements; to 16 bytes is faster */
    void *y;           /* as x */
    uint64_t y_stride; /* elements from a row of y to the next, at least its rows; a multiple of 16 bytes is faster */
    void *workspace;   /* 256-byte aligned */
    uint64_t workspace_bytes; /* trf_gemm_workspace or more */
} trf_gemm_operands;

/* Enqueues the product on `stream`. It does not allocate or wait, and can be captured. Where y_stride is a multiple of
 * 16 bytes, the algorithm, and so every bit of y, is the same as for a y without padding. Errors: as above. */
trf_status trf_gemm_multiply(trf_gemm *gemm, const trf_gemm_shape *shape, const trf_gemm_operands *operands,
                             trf_stream stream, trf_error *err);

#endif
