/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product's launchers. C and CUDA; each returns a cudaError_t as an int, and only enqueues work on
 * `stream`. */
#ifndef TRF_FUSED_LAUNCH_H
#define TRF_FUSED_LAUNCH_H

#include "trf_fused_partition.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Does what trf_linear does, with checked arguments. product: the one given to trf_fused_choose; partition: the one
 * that it made. */
int trf_fused_launch(const trf_device_view *view, const trf_layer_traits *traits, const trf_product *product,
                     const trf_fused_partition *partition, const trf_operands *operands, void *workspace,
                     trf_stream stream);

/* Computes the edges' part of the product: edge_sums[m][rows] = x . W^T over the weights that are not in regular slabs,
 * with scales and offsets applied. All m x rows values are written, zeros where there are no edges. x: device, rows of
 * x_stride elements. edge_sums: device, F32. The order of additions is fixed. */
int trf_launch_edge_product(const trf_device_view *view, uint32_t m, trf_dtype x_dtype, const void *x,
                            uint64_t x_stride, float *edge_sums, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
