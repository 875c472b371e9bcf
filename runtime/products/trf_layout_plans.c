/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_layout_plans.h"

#include "trf_context.h"
#include "trf_tuning.h"

const char trf_packed_tuned_reason[] = "the layer is packed, and the context's tuning has its kernel";

trf_status trf_plain_take_path(trf_plan *plan, trf_path path, trf_error *err) {
    if (path != TRF_PATH_AUTO && path != TRF_PATH_DENSE)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a plain layer has no %s path", trf_path_name(path));
    plan->path = TRF_PATH_DENSE;
    plan->reason = "the layer is plain";
    return TRF_OK;
}

trf_status trf_packed_take_path(trf_plan *plan, trf_path path, trf_error *err) {
    if (path != TRF_PATH_AUTO && path != TRF_PATH_PACKED)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a packed layer has no %s path", trf_path_name(path));
    plan->path = TRF_PATH_PACKED;
    plan->reason = "the layer is packed";
    return TRF_OK;
}

void trf_packed_set_partition(trf_plan *plan, const trf_packed_partition *partition) {
    plan->partition.packed = *partition;
    plan->kernel = trf_packed_kernel_name(partition->shape);
    plan->cut = partition->shape == TRF_PACKED_GENERAL ? NULL : trf_packed_cut_name(partition->cut);
    plan->device_workspace_bytes = partition->workspace_bytes;
    plan->workspace_bytes = plan->device_workspace_offset + partition->workspace_bytes;
}

/* @return 1 if the context's tuning has a choice for the plan; else 0. */
static int find_tuned(const trf_plan *plan, trf_tuned_kernel *kernel) {
    const trf_context *context = plan->layer->context;
    const trf_tuning_key key = trf_tuning_key_of(plan->layer);
    return context->tuning && trf_tuned_packed(context->tuning, &key, plan->tiles_product.m, kernel);
}

/* @return 1 if the context's tuning has a choice for the plan, and it runs; else 0. */
static int choose_tuned(const trf_plan *plan, trf_packed_partition *partition) {
    trf_tuned_kernel kernel;
    return find_tuned(plan, &kernel) &&
           trf_packed_choose_shape(&plan->layer->packed, &plan->layer->context->limits, plan->tiles_product.m,
                                   kernel.shape, kernel.cut, partition);
}

trf_status trf_packed_choose_partition(trf_plan *plan, trf_error *err) {
    const trf_device_layer *layer = plan->layer;
    trf_packed_partition partition;
    if (choose_tuned(plan, &partition))
        plan->reason = trf_packed_tuned_reason;
    else if (!trf_packed_choose(&layer->packed, &layer->context->limits, plan->tiles_product.m, &partition))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "the packed path does not take this product: %u rows of x are too many", plan->tiles_product.m);
    trf_packed_set_partition(plan, &partition);
    return TRF_OK;
}

const char *trf_packed8_choose_partition(const trf_plan *plan, int *is_tuned, trf_packed_partition *partition) {
    const trf_packed8_view *view = &plan->layer->packed8;
    const trf_device_limits *limits = &plan->layer->context->limits;
    const uint32_t m = plan->tiles_product.m;
    trf_tuned_kernel kernel;
    *is_tuned = 0;
    if (view->flags & TRF_PACKED8_IN_TURNS)
        return "rows of gate and up take turns, which kernels of mixtures alone know";
    if (plan->tiles_product.x_dtype != TRF_DTYPE_BF16)
        return "kernels of packed FP8 take x of BF16";
    *is_tuned =
        find_tuned(plan, &kernel) && trf_packed8_choose_shape(view, limits, m, kernel.shape, kernel.cut, partition);
    if (!*is_tuned && !trf_packed8_choose(view, limits, m, partition))
        return "no kernel of packed FP8 runs on this device, or takes so many rows of x";
    return NULL;
}
