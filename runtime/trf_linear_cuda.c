/* SPDX-License-Identifier: Apache-2.0 */
/* y = x . W^T by coded layers on a GPU: plans, and which path runs them. */
#include "trf_linear_cuda.h"

#include "trf_cuda_call.h"
#include "trf_fused_launch.h"
#include "trf_nvtx.h"
#include "trf_round_sums.h"
#include "trf_two_step.h"
#include "trf_wide_launch.h"

static trf_status plan_wide(trf_plan *plan, trf_error *err) {
    const trf_device_layer *layer = plan->layer;
    const trf_device_limits *limits = &layer->context->limits;
    const trf_product *product = &plan->tiles_product;
    const char *const refusal = trf_wide_refusal(&layer->view, &layer->traits, limits, product->m, product->x_dtype);
    if (refusal)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the wide path does not take this product: %s",
                        refusal);
    plan->path = TRF_PATH_WIDE;
    plan->reason = "the wide path was asked for";
    trf_wide_choose(&layer->view, &layer->traits, limits, product, &plan->work.wide);
    plan->device_workspace_bytes = plan->work.wide.workspace_bytes;
    return TRF_OK;
}

/* AUTO: which path is the fastest is found before (trf_plan_create); here it is FUSED where that takes the product,
 * else TWO_STEP. */
trf_status trf_cuda_create_plan(trf_plan *plan, trf_path path, trf_error *err) {
    if (path == TRF_PATH_WIDE)
        return plan_wide(plan, err);
    if (path == TRF_PATH_DENSE || path == TRF_PATH_PACKED)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a coded layer has no %s path", trf_path_name(path));
    const trf_device_layer *layer = plan->layer;
    const trf_device_limits *limits = &layer->context->limits;
    const trf_product *product = &plan->tiles_product;
    const char *const refusal = trf_fused_refusal(&layer->view, &layer->traits, limits, product->m, product->x_dtype);
    if (!refusal && path != TRF_PATH_TWO_STEP) {
        plan->path = TRF_PATH_FUSED;
        plan->reason = NULL;
        trf_fused_choose(&layer->view, &layer->traits, limits, product, &plan->work.fused);
        plan->device_workspace_bytes = plan->work.fused.workspace_bytes;
        return TRF_OK;
    }
    if (path == TRF_PATH_FUSED)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the fused path does not take this product: %s",
                        refusal);
    plan->path = TRF_PATH_TWO_STEP;
    plan->reason = path == TRF_PATH_TWO_STEP ? "the two-step path was asked for" : refusal;
    trf_status status = trf_plan_two_step(plan, err);
    if (status != TRF_OK && refusal)
        return trf_prefix_error(err, status,
                                "the fused path does not take this product (%s), the two-step path neither", refusal);
    return status;
}

static trf_status launch_product(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err) {
    const trf_device_layer *layer = plan->layer;
    const trf_product *product = &plan->tiles_product;
    if (plan->path == TRF_PATH_TWO_STEP)
        return trf_multiply_two_step(plan, operands, workspace, stream, err);
    if (plan->path == TRF_PATH_WIDE)
        return trf_check_cuda(trf_wide_launch(&layer->view, product, &plan->work.wide, operands, workspace, stream),
                              "the wide product", err);
    return trf_check_cuda(
        trf_fused_launch(&layer->view, &layer->traits, product, &plan->work.fused, operands, workspace, stream),
        "the fused product", err);
}

trf_status trf_cuda_linear(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                           trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(plan->layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push(trf_path_name(plan->path));
    status = launch_product(plan, operands, workspace, stream, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

trf_status trf_cuda_round_sums(const trf_context *context, const trf_sums *sums, const trf_epilogue *epilogue,
                               trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(trf_launch_round_sums(sums, epilogue, stream), "an epilogue", err);
    trf_leave_device(&scope);
    return status;
}
