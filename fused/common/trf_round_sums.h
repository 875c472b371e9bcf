/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that follows F32 sums: it applies an epilogue, or rounds only. C and CUDA. */
#ifndef TRF_ROUND_SUMS_H
#define TRF_ROUND_SUMS_H

#include "trf_product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Applies the epilogue to the sums and writes epilogue->y, rounded to its type, to nearest even. The epilogue may have
 * no operands and no activation. All pointers are to device memory; the call only enqueues. @return a cudaError_t. */
int trf_launch_round_sums(const trf_sums *sums, const trf_epilogue *epilogue, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
