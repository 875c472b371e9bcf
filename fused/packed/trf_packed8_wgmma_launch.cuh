/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRF_PACKED8_WGMMA_LAUNCH_CUH
#define TRF_PACKED8_WGMMA_LAUNCH_CUH

#include "trf_packed_partition.h"
#include "trf_product.h"

#include <cuda_runtime.h>

/* Does what trf_packed_wgmma_launch does, for a packed FP8 layer. view: the part of a trf_packed8_view. */
cudaError_t trf_packed8_wgmma_launch(const trf_packed_view *view, const trf_product *product,
                                     const trf_packed_partition *partition, const trf_operands *operands, const void *x,
                                     uint32_t x_stride, void *handover, cudaStream_t stream);

#endif
