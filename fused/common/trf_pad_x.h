/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that copy x to rows that begin at multiples of 16 bytes. C and CUDA; each launcher returns a cudaError_t as
 * an int, and only enqueues work on `stream`. */
#ifndef TRF_PAD_X_H
#define TRF_PAD_X_H

#include "transfuse.h"
#include "trf_planning.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies x[m][cols] of 16-bit values to padded[m][stride]. stride is a multiple of 8; the elements after the last
 * column of each row become 0. */
int trf_launch_pad_x(const void *x, uint32_t m, uint32_t cols, void *padded, uint64_t stride, trf_stream stream);

/* Sees to it that rows of *x begin at multiples of 16 bytes: x is copied to padded, in rows of trf_padded_x_stride, if
 * it lies otherwise. Sets *x and *stride to what there is then. */
static inline int trf_align_x(const void **x, uint32_t m, uint32_t cols, void *padded, uint32_t *stride,
                              trf_stream stream) {
    *stride = cols;
    if ((uintptr_t)*x % 16 == 0 && cols % 8 == 0)
        return 0;
    *stride = trf_padded_x_stride(cols);
    const int status = trf_launch_pad_x(*x, m, cols, padded, *stride, stream);
    *x = padded;
    return status;
}

/* Does what trf_launch_pad_x does for the first *end_dev rows of x, at most max_tokens. *end_dev is in device
 * memory. */
int trf_launch_pad_tokens(const void *x, const uint32_t *end_dev, uint32_t max_tokens, uint32_t cols, void *padded,
                          uint64_t stride, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
