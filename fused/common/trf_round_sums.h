/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel behind sums in F32: an epilogue, or rounding alone. C and CUDA. */
#ifndef TRF_ROUND_SUMS_H
#define TRF_ROUND_SUMS_H

#include "trf_product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* epilogue->y = the sums with the epilogue, rounded to its type, to nearest even; it may have no operands and no
 * activation. All in device memory; only enqueues. @return a cudaError_t. */
int trf_launch_round_sums(const trf_sums *sums, const trf_epilogue *epilogue, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
