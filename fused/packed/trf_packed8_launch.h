/* SPDX-License-Identifier: Apache-2.0 */
/* Launches products of packed FP8 layers. */
#ifndef TRF_PACKED8_LAUNCH_H
#define TRF_PACKED8_LAUNCH_H

#include "trf_packed8.h"
#include "trf_packed_partition.h"
#include "trf_product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues y = activation(x . W^T + bias) * multiplier + residual. view: a packed FP8 layer in device memory, whose
 * head was checked; whatever else the layer holds, nothing outside of it is read. Its flags say which kernels run:
 * without TRF_PACKED8_HAS_RECORDS no records are looked for, and without TRF_PACKED8_HAS_LOW second constants are taken
 * for zeros, as far as kernels gain by that. product: has x of BF16. partition: one that trf_packed8_choose or
 * trf_packed8_choose_shape made for this layer and product; so the device has compute capability 9.0. operands:
 * device, aligned to their elements. workspace: device, 256-byte aligned, partition->workspace_bytes. @return a
 * cudaError_t; cudaErrorInvalidValue for another partition. */
int trf_packed8_launch(const trf_packed8_view *view, const trf_product *product, const trf_packed_partition *partition,
                       const trf_operands *operands, void *workspace, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
