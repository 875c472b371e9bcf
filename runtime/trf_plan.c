/* Products: the public functions. They check arguments; the device's operations do the rest. */
#include "trf_device.h"
#include "trf_tuning.h"
#include "trf_two_step.h"

trf_status trf_check_types(const trf_layer_info *info, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
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

/* What the workspace of a shard's product begins with: x and y of its whole tiles, where that is not what the caller
 * has; y in F32 if an epilogue follows. Each part begins at a multiple of 256 bytes; the device's own workspace
 * follows. */
typedef struct trf_shard_workspace {
    uint64_t y, inner; /* x is at 0 */
} trf_shard_workspace;

static trf_shard_workspace shard_workspace_of(const trf_device_layer *layer, const trf_linear_plan *plan,
                                              int has_epilogue) {
    const uint64_t m = plan->m, y_bytes = trf_dtype_bytes(has_epilogue ? TRF_DTYPE_F32 : plan->y_dtype);
    trf_shard_workspace offsets;
    offsets.y =
        trf_shard_cuts_cols(layer) ? trf_device_align(m * layer->view.cols * trf_dtype_bytes(plan->x_dtype)) : 0;
    offsets.inner = offsets.y + (trf_shard_cuts_rows(layer) ? trf_device_align(m * layer->view.rows * y_bytes) : 0);
    return offsets;
}

/* The path that AUTO stands for, and why; TRF_PATH_AUTO: the device's plan operation knows. */
static trf_path path_for(const trf_device_layer *layer, uint32_t m, const char **reason) {
    const trf_context *context = layer->context;
    const trf_tuning_key key = trf_tuning_key_of(layer);
    const trf_path tuned = context->tuning ? trf_tuned_path(context->tuning, &key, m) : TRF_PATH_AUTO;
    *reason = tuned != TRF_PATH_AUTO ? "the context's tuning has another path for this batch"
                                     : "another path is faster for this batch, on GPUs of this generation";
    return tuned != TRF_PATH_AUTO ? tuned : trf_crossover_path(context->limits.capability, &key, m);
}

static trf_status plan_path(const trf_device_layer *layer, trf_path path, trf_linear_plan *plan, trf_error *err) {
    const trf_device_ops *ops = layer->context->ops;
    const char *reason = NULL;
    const trf_path found = path == TRF_PATH_AUTO ? path_for(layer, plan->m, &reason) : TRF_PATH_AUTO;
    trf_linear_plan made = *plan;
    /* What was found may be refused: for a layer that is like the one measured, not the same. */
    if (found == TRF_PATH_AUTO || ops->plan(layer, found, &made, NULL) != TRF_OK)
        return ops->plan(layer, path, plan, err);
    *plan = made;
    if (plan->path != TRF_PATH_FUSED)
        plan->reason = reason;
    return TRF_OK;
}

trf_status trf_linear_plan_init(const trf_device_layer *device_layer, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                                trf_path path, trf_linear_plan *plan, trf_error *err) {
    if (!device_layer || !plan || path < TRF_PATH_AUTO || path > TRF_PATH_WIDE)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a plan needs a layer and a path");
    trf_linear_plan made = {.m = m, .x_dtype = x_dtype, .y_dtype = y_dtype};
    trf_status status = trf_check_types(&device_layer->info, m, x_dtype, y_dtype, err);
    if (status == TRF_OK)
        status = plan_path(device_layer, path, &made, err);
    if (status != TRF_OK)
        return status;
    made.workspace_bytes += shard_workspace_of(device_layer, &made, 0).inner;
    made.epilogue_workspace_bytes += shard_workspace_of(device_layer, &made, 1).inner;
    made.choice[TRF_PLAN_LAYER] = device_layer->serial;
    *plan = made;
    return TRF_OK;
}

static trf_status check_plan(const trf_device_layer *layer, const trf_linear_plan *plan, int has_epilogue,
                             const void *workspace, trf_error *err) {
    if (!layer || !plan)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs a layer and a plan");
    if (plan->choice[TRF_PLAN_LAYER] != layer->serial)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the plan belongs to another layer");
    const uint64_t needed = has_epilogue ? plan->epilogue_workspace_bytes : plan->workspace_bytes;
    if (needed && (!workspace || (uintptr_t)workspace % TRF_DEVICE_ALIGNMENT))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "the plan needs a %d-byte aligned workspace of %llu bytes", TRF_DEVICE_ALIGNMENT,
                        (unsigned long long)needed);
    return TRF_OK;
}

static trf_status check_call(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, const void *y,
                             int has_epilogue, const void *workspace, trf_error *err) {
    if (!x || !y)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs x and y");
    trf_status status = check_plan(layer, plan, has_epilogue, workspace, err);
    if (status != TRF_OK)
        return status;
    if ((uintptr_t)x % trf_dtype_bytes(plan->x_dtype) || (uintptr_t)y % trf_dtype_bytes(plan->y_dtype))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "x and y must be aligned to their elements");
    return TRF_OK;
}

/* Of an epilogue's operand. may_be_y: whether it may be all of y. */
static trf_status check_operand(const char *name, const void *operand, uint64_t bytes, const void *y, uint64_t y_bytes,
                                uint64_t element_bytes, int may_be_y, trf_error *err) {
    const uintptr_t at = (uintptr_t)operand, y_at = (uintptr_t)y;
    if (!operand || (may_be_y && operand == y))
        return TRF_OK;
    if (at % element_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the epilogue's %s must be aligned to its elements",
                        name);
    if (at < y_at + y_bytes && y_at < at + bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the epilogue's %s overlaps y%s", name,
                        may_be_y ? " and is not y" : "");
    return TRF_OK;
}

static trf_status check_epilogue(const trf_device_layer *layer, const trf_linear_plan *plan,
                                 const trf_epilogue *epilogue, const void *y, trf_error *err) {
    const uint64_t element_bytes = trf_dtype_bytes(plan->y_dtype), row = element_bytes * layer->info.rows,
                   all = row * plan->m;
    if (epilogue->activation < TRF_ACTIVATION_NONE || epilogue->activation > TRF_ACTIVATION_GELU_TANH)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no activation %d", (int)epilogue->activation);
    trf_status status = check_operand("bias", epilogue->bias, row, y, all, element_bytes, 0, err);
    if (status == TRF_OK)
        status = check_operand("multiplier", epilogue->multiplier, all, y, all, element_bytes, 1, err);
    if (status == TRF_OK)
        status = check_operand("residual", epilogue->residual, all, y, all, element_bytes, 1, err);
    return status;
}

/* x of whole tiles: zeros but for the shard's columns. */
static trf_status spread_x(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *wide_x,
                           trf_stream stream, trf_error *err) {
    const trf_device_ops *ops = layer->context->ops;
    const uint64_t element_bytes = trf_dtype_bytes(plan->x_dtype), width = element_bytes * layer->shard.cols,
                   pitch = element_bytes * layer->view.cols;
    trf_status status = ops->copy_rows(layer->context, wide_x, pitch, NULL, 0, pitch, plan->m, stream, err);
    if (status != TRF_OK)
        return status;
    return ops->copy_rows(layer->context, (uint8_t *)wide_x + element_bytes * layer->shard.col, pitch, x, width, width,
                          plan->m, stream, err);
}

/* The shard's rows of y out of those of its whole tiles, with the epilogue. */
static trf_status take_rows(const trf_device_layer *layer, const trf_linear_plan *plan, const void *tiles_y, void *y,
                            const trf_epilogue *epilogue, trf_stream stream, trf_error *err) {
    const trf_device_ops *ops = layer->context->ops;
    if (epilogue) {
        const trf_sums sums = {(const float *)tiles_y + layer->shard.row, layer->view.rows, plan->m, layer->shard.rows};
        return ops->apply_epilogue(layer->context, &sums, plan->y_dtype, y, epilogue, stream, err);
    }
    const uint64_t element_bytes = trf_dtype_bytes(plan->y_dtype), width = element_bytes * layer->shard.rows;
    return ops->copy_rows(layer->context, y, width, (const uint8_t *)tiles_y + element_bytes * layer->shard.row,
                          element_bytes * layer->view.rows, width, plan->m, stream, err);
}

static int is_empty_epilogue(const trf_epilogue *epilogue) {
    return !epilogue || (!epilogue->activation && !epilogue->bias && !epilogue->multiplier && !epilogue->residual);
}

/* decoded: whether trf_linear_decode has been called. */
static trf_status multiply_layer(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x,
                                 void *y, const trf_epilogue *epilogue, int decoded, void *workspace, trf_stream stream,
                                 trf_error *err) {
    if (is_empty_epilogue(epilogue))
        epilogue = NULL;
    trf_status status = check_call(device_layer, plan, x, y, epilogue != NULL, workspace, err);
    if (status == TRF_OK && epilogue)
        status = check_epilogue(device_layer, plan, epilogue, y, err);
    if (status != TRF_OK)
        return status;
    const trf_device_layer *layer = device_layer;
    const trf_device_ops *ops = layer->context->ops;
    const trf_shard_workspace offsets = shard_workspace_of(layer, plan, epilogue != NULL);
    const int cuts_rows = trf_shard_cuts_rows(layer);
    uint8_t *const base = workspace;
    trf_linear_plan inner = *plan;
    inner.workspace_bytes = (epilogue ? plan->epilogue_workspace_bytes : plan->workspace_bytes) - offsets.inner;
    if (cuts_rows && epilogue)
        inner.y_dtype = TRF_DTYPE_F32;
    if (plan->path == TRF_PATH_TWO_STEP)
        inner.choice[TRF_TWO_STEP_DECODED] = decoded != 0;
    if (trf_shard_cuts_cols(layer)) {
        status = spread_x(layer, plan, x, base, stream, err);
        x = base;
    }
    if (status == TRF_OK)
        status = ops->linear(layer, &inner, x, cuts_rows ? base + offsets.y : y, cuts_rows ? NULL : epilogue,
                             offsets.inner ? base + offsets.inner : workspace, stream, err);
    if ((status == TRF_OK || status == TRF_ERR_RANS) && cuts_rows) { /* in the latter case y is NaN */
        trf_status taken = take_rows(layer, plan, base + offsets.y, y, epilogue, stream, status == TRF_OK ? err : NULL);
        status = status == TRF_OK ? taken : status;
    }
    return status;
}

trf_status trf_linear_with(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x, void *y,
                           const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    return multiply_layer(device_layer, plan, x, y, epilogue, 0, workspace, stream, err);
}

trf_status trf_linear_decoded(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x, void *y,
                              const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    return multiply_layer(device_layer, plan, x, y, epilogue, 1, workspace, stream, err);
}

trf_status trf_linear_decode(const trf_device_layer *device_layer, const trf_linear_plan *plan,
                             const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    const int has_epilogue = !is_empty_epilogue(epilogue);
    trf_status status = check_plan(device_layer, plan, has_epilogue, workspace, err);
    if (status != TRF_OK)
        return status;
    const trf_device_ops *ops = device_layer->context->ops;
    const uint64_t inner = shard_workspace_of(device_layer, plan, has_epilogue).inner;
    return ops->decode_ahead
               ? ops->decode_ahead(device_layer, plan, inner ? (uint8_t *)workspace + inner : workspace, stream, err)
               : TRF_OK;
}

trf_status trf_linear(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x, void *y,
                      void *workspace, trf_stream stream, trf_error *err) {
    return trf_linear_with(device_layer, plan, x, y, NULL, workspace, stream, err);
}
