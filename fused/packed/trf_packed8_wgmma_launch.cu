/* SPDX-License-Identifier: Apache-2.0 */
/* The wgmma kernels for packed FP8 layers. All layers have the same ones, which use second constants and look for
 * records: with more than 64 rows of x, forming is not the limit, and others would take as long to compile again. */
#include "trf_packed8_wgmma_launch.cuh"

#include "trf_packed_wgmma_kernels.cuh"

cudaError_t trf_packed8_wgmma_launch(const trf_packed_view *view, const trf_product *product,
                                     const trf_packed_partition *partition, const trf_operands *operands, const void *x,
                                     uint32_t x_stride, void *handover, cudaStream_t stream) {
    return trf_packed_wgmma_launch_as<trf_packed_wgmma_fp8<true, true>>(view, product, partition, operands, x, x_stride,
                                                                        handover, stream);
}
