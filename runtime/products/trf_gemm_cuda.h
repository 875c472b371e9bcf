/* SPDX-License-Identifier: Apache-2.0 */
/* Dense products by cuBLASLt. Its library is opened when a context is made, and needed only by dense products, those of
 * the two-step path and of plain layers: it has half a gigabyte, which no CPU command should load and no fused product
 * should miss. */
#ifndef TRF_GEMM_CUDA_H
#define TRF_GEMM_CUDA_H

#include "trf_error.h"

/* A cuBLASLt handle and the algorithms that it chose. Thread-safe. */
typedef struct trf_gemm trf_gemm;

/* y[m][rows] = x[m][cols] . w[rows][cols]^T, all row-major without padding, but for y where trf_gemm_operands has some;
 * accumulated in F32, rounded once. */
typedef struct trf_gemm_shape {
    uint32_t m, rows, cols; /* 1 to 2^31 - 1 */
    uint32_t in_dtype;      /* trf_dtype of x and w: BF16 or F16 */
    uint32_t out_dtype;     /* of y: the same, or F32 */
} trf_gemm_shape;

/* For the device that is current. Where the library is not found *gemm is made nevertheless, and the calls below return
 * TRF_ERR_UNSUPPORTED. Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_gemm_create(trf_gemm **gemm, trf_error *err);
void trf_gemm_destroy(trf_gemm *gemm); /* NULL is allowed */

/* Device memory that trf_gemm_multiply needs as its workspace, whatever the alignment of x and y. Chooses the
 * algorithms, on the host. Errors: TRF_ERR_UNSUPPORTED (no library, or it has no algorithm), TRF_ERR_CUDA. */
trf_status trf_gemm_workspace(trf_gemm *gemm, const trf_gemm_shape *shape, uint64_t *workspace_bytes, trf_error *err);

/* Device memory. */
typedef struct trf_gemm_operands {
    const void *w;     /* 16-byte aligned */
    const void *x;     /* aligned to its elements; to 16 bytes is faster */
    void *y;           /* as x */
    uint64_t y_stride; /* elements from a row of y to the next, at least its rows; a multiple of 16 bytes is faster */
    void *workspace;   /* 256-byte aligned */
    uint64_t workspace_bytes; /* trf_gemm_workspace or more */
} trf_gemm_operands;

/* Enqueues the product on `stream`. Does not allocate or wait; capturable. The algorithm, and so every bit of y, is
 * that of a y without padding where y_stride is a multiple of 16 bytes. Errors: as above. */
trf_status trf_gemm_multiply(trf_gemm *gemm, const trf_gemm_shape *shape, const trf_gemm_operands *operands,
                             trf_stream stream, trf_error *err);

#endif
