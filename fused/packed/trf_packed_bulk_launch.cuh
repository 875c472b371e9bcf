/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRF_PACKED_BULK_LAUNCH_CUH
#define TRF_PACKED_BULK_LAUNCH_CUH

#include "trf_packed_partition.h"
#include "trf_product.h"

#include <cuda_runtime.h>

#include <stdint.h>

/* Does what trf_packed_launch does, for a partition with a bulk kernel. x replaces operands->x: it is the same, or its
 * copy in the workspace, with rows of whole 16 bytes as bulk copies need them, and x_stride elements from row to row.
 * handover: trf_packed_handover_bytes of workspace, 16-byte aligned. */
cudaError_t trf_packed_bulk_launch(const trf_packed_view *view, const trf_product *product,
                                   const trf_packed_partition *partition, const trf_operands *operands, const void *x,
                                   uint32_t x_stride, void *handover, cudaStream_t stream);

#endif
