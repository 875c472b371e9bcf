/* SPDX-License-Identifier: Apache-2.0 */
/* The workspace: dense weights [rows][cols] of x's type | what the dense product needs, at a multiple of 256 bytes. */
#include "trf_two_step_cuda.h"

#include "trf_dense_product_cuda.h"
#include "trf_device_layer.h"

trf_status trf_plan_two_step(trf_plan *plan, trf_error *err) {
    const trf_device_view *view = &plan->layer->view;
    return trf_plan_dense_product(plan, 2ull * view->rows * view->cols, err);
}

trf_status trf_multiply_two_step(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err) {
    const trf_decode_as as = plan->tiles_product.x_dtype == TRF_DTYPE_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    trf_status status = plan->layer->layout->decode(plan->layer, as, workspace, stream, err);
    return status == TRF_OK ? trf_multiply_by_dense(plan, workspace, operands, workspace, stream, err) : status;
}
