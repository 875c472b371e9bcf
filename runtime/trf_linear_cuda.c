/* y = x . W^T on a GPU: plans, and which path runs them. */
#include "trf_linear_cuda.h"

#include "trf_cuda_call.h"
#include "trf_device_layer.h"
#include "trf_nvtx.h"
#include "trf_two_step.h"
#include "trf_wide_launch.h"

static trf_status plan_wide(const trf_device_layer *layer, trf_linear_plan *plan, trf_error *err) {
    const trf_device_limits *limits = &layer->context->limits;
    const char *const refusal = trf_wide_refuses(&layer->view, &layer->traits, limits, plan->m, plan->x_dtype);
    if (refusal)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the wide path does not take this product: %s",
                        refusal);
    plan->path = TRF_PATH_WIDE;
    plan->reason = "the wide path was asked for";
    trf_wide_choose(&layer->view, &layer->traits, limits, plan);
    return TRF_OK;
}

/* AUTO: which path is the fastest is found before (trf_linear_plan_init); here it is FUSED where that takes the
 * product, else TWO_STEP. */
trf_status trf_cuda_plan(const trf_device_layer *layer, trf_path path, trf_linear_plan *plan, trf_error *err) {
    if (path == TRF_PATH_WIDE)
        return plan_wide(layer, plan, err);
    const trf_device_limits *limits = &layer->context->limits;
    const char *const refusal = trf_fused_refuses(&layer->view, &layer->traits, limits, plan->m, plan->x_dtype);
    if (!refusal && path != TRF_PATH_TWO_STEP) {
        plan->path = TRF_PATH_FUSED;
        plan->reason = NULL;
        trf_fused_choose(&layer->view, &layer->traits, limits, plan);
        return TRF_OK;
    }
    if (path == TRF_PATH_FUSED)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the fused path does not take this product: %s",
                        refusal);
    plan->path = TRF_PATH_TWO_STEP;
    plan->reason = path == TRF_PATH_TWO_STEP ? "the two-step path was asked for" : refusal;
    trf_status status = trf_two_step_plan(layer, plan, err);
    if (status != TRF_OK && refusal)
        return trf_prefix_error(err, status,
                                "the fused path does not take this product (%s), the two-step path neither", refusal);
    return status;
}

static trf_status launch_product(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *y,
                                 const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    if (plan->path == TRF_PATH_TWO_STEP)
        return trf_two_step_multiply(layer, plan, x, y, epilogue, workspace, stream, err);
    if (plan->path == TRF_PATH_WIDE)
        return trf_check_cuda(trf_wide_launch(&layer->view, &layer->traits, plan, x, y, epilogue, workspace, stream),
                              "the wide product", err);
    return trf_check_cuda(trf_fused_launch(&layer->view, &layer->traits, plan, x, y, epilogue, workspace, stream),
                          "the fused product", err);
}

trf_status trf_cuda_linear(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *y,
                           const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push(trf_path_name(plan->path));
    status = launch_product(layer, plan, x, y, epilogue, workspace, stream, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

trf_status trf_cuda_decode_ahead(const trf_device_layer *layer, const trf_linear_plan *plan, void *workspace,
                                 trf_stream stream, trf_error *err) {
    return plan->path == TRF_PATH_TWO_STEP ? trf_two_step_decode(layer, plan, workspace, stream, err) : TRF_OK;
}

trf_status trf_cuda_apply_epilogue(const trf_context *context, const trf_sums *sums, trf_dtype y_dtype, void *y,
                                   const trf_epilogue *epilogue, trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(trf_launch_round_sums(sums, y_dtype, y, epilogue, stream), "an epilogue", err);
    trf_leave_device(&scope);
    return status;
}
