/* y = x . W^T on the device: plans, and which path runs them. */
#include "trf_cuda_call.h"
#include "trf_two_step.h"

enum {
    WORKSPACE_ALIGNMENT = 256
};

static trf_status trf_check_types(const trf_layer_info *info, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                                  trf_error *err) {
    if (m < 1)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs one row of x at least");
    if ((x_dtype != TRF_DTYPE_BF16 && x_dtype != TRF_DTYPE_F16) ||
        (info->codec == TRF_CODEC_BF16 && x_dtype != TRF_DTYPE_BF16) ||
        (info->codec == TRF_CODEC_FP16 && x_dtype != TRF_DTYPE_F16))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "weights of codec %s do not multiply x of %s",
                        trf_codec_name(info->codec), trf_dtype_name(x_dtype));
    if (y_dtype != TRF_DTYPE_BF16 && y_dtype != TRF_DTYPE_F16 && y_dtype != TRF_DTYPE_F32)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "y cannot be %s", trf_dtype_name(y_dtype));
    return TRF_OK;
}

trf_status trf_linear_plan_init(const trf_device_layer *device_layer, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                                trf_path path, trf_linear_plan *plan, trf_error *err) {
    if (!device_layer || !plan || path < TRF_PATH_AUTO || path > TRF_PATH_TWO_STEP)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a plan needs a layer and a path");
    trf_status status = trf_check_types(&device_layer->info, m, x_dtype, y_dtype, err);
    if (status != TRF_OK)
        return status;
    const trf_device_limits *limits = &device_layer->context->limits;
    trf_linear_plan made = {.m = m, .x_dtype = x_dtype, .y_dtype = y_dtype, .path = TRF_PATH_FUSED};
    made.reason = path == TRF_PATH_TWO_STEP
                      ? "the two-step path was asked for"
                      : trf_fused_refuses(&device_layer->view, &device_layer->facts, limits, m, x_dtype);
    if (!made.reason) {
        trf_fused_choose(&device_layer->view, &device_layer->facts, limits, &made);
    } else if (path == TRF_PATH_FUSED) {
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the fused path does not take this product: %s",
                        made.reason);
    } else {
        made.path = TRF_PATH_TWO_STEP;
        status = trf_two_step_plan(device_layer, &made, err);
        if (status != TRF_OK)
            return trf_fail_in(err, status, "the fused path does not take this product (%s), the two-step path neither",
                               made.reason);
    }
    made.choice[TRF_PLAN_LAYER] = device_layer->serial;
    *plan = made;
    return TRF_OK;
}

static trf_status trf_check_call(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x,
                                 const void *y, const void *workspace, trf_error *err) {
    if (!layer || !plan || !x || !y)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs a layer, a plan, x and y");
    if (plan->choice[TRF_PLAN_LAYER] != layer->serial)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the plan belongs to another layer");
    if ((uintptr_t)x % trf_dtype_bytes(plan->x_dtype) || (uintptr_t)y % trf_dtype_bytes(plan->y_dtype))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "x and y must be aligned to their elements");
    if (plan->workspace_bytes && (!workspace || (uintptr_t)workspace % WORKSPACE_ALIGNMENT))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "the plan needs a %d-byte aligned workspace of %llu bytes", WORKSPACE_ALIGNMENT,
                        (unsigned long long)plan->workspace_bytes);
    return TRF_OK;
}

trf_status trf_linear(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x, void *y,
                      void *workspace, trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_check_call(device_layer, plan, x, y, workspace, err);
    if (status == TRF_OK)
        status = trf_enter_device(device_layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    if (plan->path == TRF_PATH_TWO_STEP)
        status = trf_two_step_run(device_layer, plan, x, y, workspace, stream, err);
    else
        status =
            trf_check_cuda(trf_fused_launch(&device_layer->view, &device_layer->facts, plan, x, y, workspace, stream),
                           "the fused product", err);
    trf_leave_device(&scope);
    return status;
}
