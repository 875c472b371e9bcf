/* Dense products by cuBLASLt. Its library is opened when a context is made, and needed only by the two-step path: it
 * has half a gigabyte, which no CPU command should load and no fused product should miss. */
#ifndef TRF_GEMM_H
#define TRF_GEMM_H

#include "trf_error.h"

/* A cuBLASLt handle and the algorithms that it chose. Thread-safe. */
typedef struct trf_gemm trf_gemm;

/* y[m][rows] = x[m][cols] . w[rows][cols]^T, all row-major without padding; accumulated in F32, rounded once. */
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

/* Enqueues the product on `stream`. w: device, 16-byte aligned; x, y: device, aligned to their elements (to 16 bytes is
 * faster); workspace: 256-byte aligned, of trf_gemm_workspace or more. Does not allocate or wait; capturable. Errors:
 * as above. */
trf_status trf_gemm_multiply(trf_gemm *gemm, const trf_gemm_shape *shape, const void *w, const void *x, void *y,
                             void *workspace, uint64_t workspace_bytes, trf_stream stream, trf_error *err);

#endif
