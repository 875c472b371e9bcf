/* SPDX-License-Identifier: Apache-2.0 */
/* Products y = x . W^T of coded layers on a GPU: how they are planned, and which path runs them. */
#include "trf_linear_cuda.h"

#include "trf_cuda_call.h"
#include "trf_fused_launch.h"
#include "trf_nvtx.h"
#include "trf_round_sums.h"
#include "trf_two_step_cuda.h"
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
    trf_wide_choose(&layer->view, &layer->traits, limits, product, &plan->partition.wide);
    plan->device_workspace_bytes = plan->partition.wide.workspace_bytes;
    return TRF_OK;
}

static const char *fused_refusal(const trf_plan *plan, uint32_t m) {
    const trf_device_layer *layer = plan->layer;
    return trf_fused_refusal(&layer->view, &layer->traits, &layer->context->limits, m, plan->tiles_product.x_dtype);
}

/* @return the rows of x in the last fused pass of a plan. */
static uint32_t last_pass_rows(uint32_t m) { return (m - 1) % TRF_FUSED_MAX_M + 1; }

/* Whether fused kernels take, in passes, a product with too many rows for one of them. */
static int takes_passes(const trf_plan *plan) {
    const uint32_t m = plan->tiles_product.m;
    return m > TRF_FUSED_MAX_M && !fused_refusal(plan, TRF_FUSED_MAX_M) && !fused_refusal(plan, last_pass_rows(m));
}

static void plan_fused(trf_plan *plan) {
    const trf_device_layer *layer = plan->layer;
    const trf_device_limits *limits = &layer->context->limits;
    trf_fused_passes *const passes = &plan->partition.fused;
    trf_product pass = plan->tiles_product;
    plan->path = TRF_PATH_FUSED;
    plan->reason = NULL;
    pass.m = last_pass_rows(plan->tiles_product.m);
    trf_fused_choose(&layer->view, &layer->traits, limits, &pass, &passes->last);
    plan->device_workspace_bytes = passes->last.workspace_bytes;
    if (plan->tiles_product.m <= TRF_FUSED_MAX_M)
        return;
    pass.m = TRF_FUSED_MAX_M;
    trf_fused_choose(&layer->view, &layer->traits, limits, &pass, &passes->full);
    if (plan->device_workspace_bytes < passes->full.workspace_bytes)
        plan->device_workspace_bytes = passes->full.workspace_bytes;
}

/* trf_plan_create has looked up the fastest path before. If that found none, AUTO is FUSED where that takes the
 * product, and else TWO_STEP; or FUSED in passes if there is no TWO_STEP either. */
trf_status trf_cuda_create_plan(trf_plan *plan, trf_path path, trf_error *err) {
    if (path == TRF_PATH_WIDE)
        return plan_wide(plan, err);
    if (path == TRF_PATH_DENSE || path == TRF_PATH_PACKED)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a coded layer has no %s path", trf_path_name(path));
    const char *const refusal = fused_refusal(plan, plan->tiles_product.m);
    if (!refusal && path != TRF_PATH_TWO_STEP) {
        plan_fused(plan);
        return TRF_OK;
    }
    if (path == TRF_PATH_FUSED)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the fused path does not take this product: %s",
                        refusal);
    plan->path = TRF_PATH_TWO_STEP;
    plan->reason = path == TRF_PATH_TWO_STEP ? "the two-step path was asked for" : refusal;
    trf_status status = trf_plan_two_step(plan, err);
    if (status == TRF_ERR_UNSUPPORTED && path == TRF_PATH_AUTO && takes_passes(plan)) {
        plan_fused(plan);
        return TRF_OK;
    }
    if (status != TRF_OK && refusal)
        return trf_prefix_error(err, status,
                                "the fused path does not take this product (%s), the two-step path neither", refusal);
    return status;
}

/* Advances the operands by one pass. A pass has a multiple of 64 rows, so addresses keep their alignment, and the bits
 * of y do not change. */
static void skip_rows(trf_operands *operands, const trf_product *pass, uint32_t cols) {
    const uint64_t y_bytes = trf_dtype_bytes(pass->y_dtype) * pass->m;
    operands->x = (const uint8_t *)operands->x + trf_dtype_bytes(pass->x_dtype) * pass->m * cols;
    operands->y = (uint8_t *)operands->y + y_bytes * pass->y_stride;
    if (pass->has_multiplier)
        operands->multiplier = (const uint8_t *)operands->multiplier + y_bytes * pass->multiplier_stride;
    if (pass->has_residual)
        operands->residual = (const uint8_t *)operands->residual + y_bytes * pass->residual_stride;
}

static trf_status launch_fused(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                               trf_error *err) {
    const trf_device_layer *layer = plan->layer;
    const trf_fused_passes *passes = &plan->partition.fused;
    trf_product pass = plan->tiles_product;
    trf_operands at = *operands;
    uint32_t left = pass.m;
    int error = 0;
    for (pass.m = TRF_FUSED_MAX_M; !error && left > TRF_FUSED_MAX_M; left -= pass.m) {
        error = trf_fused_launch(&layer->view, &layer->traits, &pass, &passes->full, &at, workspace, stream);
        skip_rows(&at, &pass, layer->view.cols);
    }
    pass.m = left;
    if (!error)
        error = trf_fused_launch(&layer->view, &layer->traits, &pass, &passes->last, &at, workspace, stream);
    return trf_check_cuda(error, "the fused product", err);
}

static trf_status launch_product(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err) {
    if (plan->path == TRF_PATH_TWO_STEP)
        return trf_multiply_two_step(plan, operands, workspace, stream, err);
    if (plan->path == TRF_PATH_WIDE)
        return trf_check_cuda(trf_wide_launch(&plan->layer->view, &plan->tiles_product, &plan->partition.wide, operands,
                                              workspace, stream),
                              "the wide product", err);
    return launch_fused(plan, operands, workspace, stream, err);
}

trf_status trf_cuda_launch_product(const trf_plan *plan, trf_cuda_launch *launch, const trf_operands *operands,
                                   void *workspace, trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(plan->layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push(trf_path_name(plan->path));
    status = launch(plan, operands, workspace, stream, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

trf_status trf_cuda_linear(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                           trf_error *err) {
    return trf_cuda_launch_product(plan, launch_product, operands, workspace, stream, err);
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
