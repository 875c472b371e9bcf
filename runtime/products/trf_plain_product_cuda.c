/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_plain_product_cuda.h"

#include "trf_cuda_call.h"
#include "trf_dense_product_cuda.h"
#include "trf_layout_plans.h"
#include "trf_linear_cuda.h"
#include "trf_plain_layer.h"

trf_status trf_cuda_create_plain_plan(trf_plan *plan, trf_path path, trf_error *err) {
    trf_status status = trf_plain_take_path(plan, path, err);
    return status == TRF_OK ? trf_plan_dense_product(plan, 0, err) : status;
}

static trf_status launch_product(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err) {
    return trf_multiply_by_dense(plan, trf_plain_weights(plan->layer), operands, workspace, stream, err);
}

trf_status trf_cuda_linear_plain(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err) {
    return trf_cuda_launch_product(plan, launch_product, operands, workspace, stream, err);
}
