/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of wide products, by warpgroups: compute capability 9.0 only. C and CUDA. */
#ifndef TRF_WIDE_LAUNCH_H
#define TRF_WIDE_LAUNCH_H

#include "trf_wide_partition.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Does what trf_linear does, with checked arguments; only enqueues. product: the one given to trf_wide_choose;
 * partition: the one that it made. @return a cudaError_t. */
int trf_wide_launch(const trf_device_view *view, const trf_product *product, const trf_wide_partition *partition,
                    const trf_operands *operands, void *workspace, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
