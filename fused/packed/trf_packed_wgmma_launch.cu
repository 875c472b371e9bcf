/* SPDX-License-Identifier: Apache-2.0 */
/* The wgmma kernels for packed BF16 layers. */
#include "trf_packed_wgmma_launch.cuh"

#include "trf_packed_wgmma_kernels.cuh"

cudaError_t trf_packed_wgmma_launch(const trf_packed_view *view, const trf_product *product,
                                    const trf_packed_partition *partition, const trf_operands *operands, const void *x,
                                    uint32_t x_stride, void *handover, cudaStream_t stream) {
    return (view->zeroing
                ? trf_packed_wgmma_launch_as<trf_packed_wgmma_bf16<trf_packed_former<true>>>
                : trf_packed_wgmma_launch_as<trf_packed_wgmma_bf16<trf_packed_former<false>>>)(view, product, partition,
                                                                                               operands, x, x_stride,
                                                                                               handover, stream);
}
