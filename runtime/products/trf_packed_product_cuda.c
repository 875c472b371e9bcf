/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_product_cuda.h"

#include "trf_cuda_call.h"
#include "trf_layout_plans.h"
#include "trf_linear_cuda.h"
#include "trf_packed8_launch.h"
#include "trf_packed_launch.h"
#include "trf_two_step_cuda.h"

/* trf_plan_create has looked up before whether TWO_STEP is faster. Here AUTO means PACKED. */
trf_status trf_cuda_create_packed_plan(trf_plan *plan, trf_path path, trf_error *err) {
    if (path == TRF_PATH_TWO_STEP) {
        plan->path = TRF_PATH_TWO_STEP;
        plan->reason = "the two-step path was asked for";
        return trf_plan_two_step(plan, err);
    }
    trf_status status = trf_packed_take_path(plan, path, err);
    return status == TRF_OK ? trf_packed_choose_partition(plan, err) : status;
}

static trf_status launch_product(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err) {
    if (plan->path == TRF_PATH_TWO_STEP)
        return trf_multiply_two_step(plan, operands, workspace, stream, err);
    return trf_check_cuda(trf_packed_launch(&plan->layer->packed, &plan->tiles_product, &plan->partition.packed,
                                            operands, workspace, stream),
                          "the packed product", err);
}

trf_status trf_cuda_linear_packed(const trf_plan *plan, const trf_operands *operands, void *workspace,
                                  trf_stream stream, trf_error *err) {
    return trf_cuda_launch_product(plan, launch_product, operands, workspace, stream, err);
}

/* ---- packed FP8 ---- */

/* trf_plan_create has looked up before whether TWO_STEP is faster. Here AUTO means PACKED where there is a kernel, and
 * else TWO_STEP. */
trf_status trf_cuda_create_packed8_plan(trf_plan *plan, trf_path path, trf_error *err) {
    trf_packed_partition partition = {0};
    int is_tuned;
    const char *const refusal = trf_packed8_choose_partition(plan, &is_tuned, &partition);
    if (path == TRF_PATH_TWO_STEP || (path == TRF_PATH_AUTO && refusal)) {
        plan->path = TRF_PATH_TWO_STEP;
        plan->reason = path == TRF_PATH_AUTO ? refusal : "the two-step path was asked for";
        return trf_plan_two_step(plan, err);
    }
    trf_status status = trf_packed_take_path(plan, path, err);
    if (status != TRF_OK)
        return status;
    if (refusal)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the packed path does not take this product: %s",
                        refusal);
    if (is_tuned)
        plan->reason = trf_packed_tuned_reason;
    trf_packed_set_partition(plan, &partition);
    return TRF_OK;
}

static trf_status launch_product8(const trf_plan *plan, const trf_operands *operands, void *workspace,
                                  trf_stream stream, trf_error *err) {
    if (plan->path == TRF_PATH_TWO_STEP)
        return trf_multiply_two_step(plan, operands, workspace, stream, err);
    return trf_check_cuda(trf_packed8_launch(&plan->layer->packed8, &plan->tiles_product, &plan->partition.packed,
                                             operands, workspace, stream),
                          "the packed product", err);
}

trf_status trf_cuda_linear_packed8(const trf_plan *plan, const trf_operands *operands, void *workspace,
                                   trf_stream stream, trf_error *err) {
    return trf_cuda_launch_product(plan, launch_product8, operands, workspace, stream, err);
}
