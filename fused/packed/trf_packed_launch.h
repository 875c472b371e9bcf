/* SPDX-License-Identifier: Apache-2.0 */
/* Launches products of packed layers. */
#ifndef TRF_PACKED_LAUNCH_H
#define TRF_PACKED_LAUNCH_H

#include "trf_packed_partition.h"
#include "trf_product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues y = activation(x . W^T + bias) * multiplier + residual. view: a packed layer in device memory, whose head
 * was checked; whatever else the layer holds, nothing outside of it is read. product: has x of BF16. partition: the one
 * that trf_packed_choose made for this product. operands: device, aligned to their elements. workspace: device,
 * 256-byte aligned, partition->workspace_bytes. @return a cudaError_t. */
int trf_packed_launch(const trf_packed_view *view, const trf_product *product, const trf_packed_partition *partition,
                      const trf_operands *operands, void *workspace, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
