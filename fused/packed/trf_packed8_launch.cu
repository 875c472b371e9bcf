/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed8_launch.h"

#include "trf_packed8_bulk_launch.cuh"
#include "trf_packed8_wgmma_launch.cuh"
#include "trf_packed_wgmma_sizes.h"
#include "trf_pad_x.h"

int trf_packed8_launch(const trf_packed8_view *view, const trf_product *product, const trf_packed_partition *partition,
                       const trf_operands *operands, void *workspace, trf_stream stream) {
    if (partition->shape < 0 || partition->shape >= TRF_PACKED_SHAPES)
        return cudaErrorInvalidValue;
    const void *x = operands->x;
    uint32_t x_stride;
    const int status = trf_align_x(&x, product->m, view->packed.cols, workspace, &x_stride, stream);
    if (status)
        return status;
    trf_packed8_launch_fn *const launch = trf_packed_is_wgmma(partition->shape)   ? trf_packed8_wgmma_launch
                                          : view->flags & TRF_PACKED8_HAS_RECORDS ? trf_packed8_bulk_launch_with_records
                                          : view->flags & TRF_PACKED8_HAS_LOW     ? trf_packed8_bulk_launch_by_two
                                                                                  : trf_packed8_bulk_launch_by_one;
    return launch(&view->packed, product, partition, operands, x, x_stride,
                  (uint8_t *)workspace + partition->handover_offset, stream);
}
