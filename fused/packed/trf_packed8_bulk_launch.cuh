/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of bulk kernels for packed FP8 layers. Each has a source of its own, for the time that the kernels take
 * to compile. */
#ifndef TRF_PACKED8_BULK_LAUNCH_CUH
#define TRF_PACKED8_BULK_LAUNCH_CUH

#include "trf_packed_partition.h"
#include "trf_product.h"

#include <cuda_runtime.h>

/* Do what trf_packed_bulk_launch (trf_packed_bulk_launch.cuh) does. view: the part of a trf_packed8_view. */
typedef cudaError_t trf_packed8_launch_fn(const trf_packed_view *view, const trf_product *product,
                                          const trf_packed_partition *partition, const trf_operands *operands,
                                          const void *x, uint32_t x_stride, void *handover, cudaStream_t stream);

trf_packed8_launch_fn trf_packed8_bulk_launch_with_records; /* and second constants, which may be zeros */
trf_packed8_launch_fn trf_packed8_bulk_launch_by_two;       /* without records */
trf_packed8_launch_fn trf_packed8_bulk_launch_by_one;       /* without records or second constants */

#endif
