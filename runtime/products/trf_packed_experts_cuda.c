/* SPDX-License-Identifier: Apache-2.0 */
/* Packed experts on a GPU, and mixtures of them. */
#include "trf_cuda_call.h"
#include "trf_device_layer.h"
#include "trf_experts.h"
#include "trf_nvtx.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

trf_status trf_cuda_check_packed_experts(const trf_context *context, uint32_t count, trf_error *err) {
    if (trf_moe_device_allows(&context->limits, count))
        return TRF_OK;
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                    "products of packed experts need a GPU of compute capability 9.0 and at most %d experts; this one "
                    "has %d.%d, and there are %u",
                    TRF_MOE_MAX_EXPERTS, context->limits.capability / 10, context->limits.capability % 10, count);
}

void trf_cuda_destroy_experts(trf_experts *experts) {
    trf_device_scope scope;
    trf_enter_device(experts->context->device, &scope, NULL);
    trf_pass_over_cuda(cudaDeviceSynchronize());
    cudaFree(experts->layers[0]->layout->layout == TRF_LAYOUT_CODED ? (void *)experts->on_device.experts_dev
                                                                    : (void *)experts->on_device.packed.views_dev);
    trf_leave_device(&scope);
}

/* Sets the views of experts, and what their kernels need to know of them. */
static trf_status take_views(const trf_experts *experts, trf_packed_view *views, trf_packed_experts *packed,
                             trf_error *err) {
    packed->is_fp8 = experts->layers[0]->layout->layout == TRF_LAYOUT_PACKED8;
    packed->in_turns = packed->is_fp8 && experts->layers[0]->packed8.flags & TRF_PACKED8_IN_TURNS;
    for (uint32_t i = 0; i < experts->count; i++) {
        const trf_device_layer *layer = experts->layers[i];
        views[i] = packed->is_fp8 ? layer->packed8.packed : layer->packed;
        packed->may_zero |= views[i].zeroing != 0;
        if (packed->is_fp8 && packed->in_turns != ((layer->packed8.flags & TRF_PACKED8_IN_TURNS) != 0))
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                            "rows of gate and up have scales of their own in expert %u, and not in expert %u",
                            packed->in_turns ? 0 : i, packed->in_turns ? i : 0);
        if (views[i].row_offsets)
            return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                            "expert %u was packed with its row offsets; pack it from dense weights", i);
    }
    packed->first = views[0];
    packed->count = experts->count;
    return TRF_OK;
}

static trf_status cuda_fill(trf_experts *experts, trf_error *err) {
    const trf_context *context = experts->context;
    trf_packed_experts packed = {0};
    const uint64_t bytes = experts->count * sizeof(trf_packed_view);
    void *memory = NULL;
    trf_status status = trf_cuda_check_packed_experts(context, experts->count, err);
    if (status != TRF_OK)
        return status;
    trf_packed_view *views = calloc(experts->count, sizeof *views);
    if (!views)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u experts", experts->count);
    status = take_views(experts, views, &packed, err);
    if (status == TRF_OK)
        status = context->ops->allocate(context, bytes, &memory, err);
    if (status == TRF_OK)
        status = context->ops->upload(context, memory, views, bytes, err);
    if (status == TRF_OK)
        packed.views_dev = memory;
    else if (memory)
        context->ops->release(context, memory);
    experts->on_device.packed = packed;
    free(views);
    return status;
}

static trf_status cuda_create_plan(trf_experts_plan *plan, trf_error *err) {
    const trf_experts *experts = plan->experts;
    if (plan->x_dtype != TRF_DTYPE_BF16)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "products of packed experts do not take x in %s",
                        trf_dtype_name(plan->x_dtype));
    if (!trf_packed_experts_choose(experts->count, experts->info.rows, experts->info.cols, &experts->context->limits,
                                   plan->max_tokens, -1, &plan->packed))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "products of %u packed experts of %ux%u do not take %u tokens at once", experts->count,
                        experts->info.rows, experts->info.cols, plan->max_tokens);
    plan->workspace_bytes = plan->packed.workspace_bytes;
    return TRF_OK;
}

static trf_status cuda_linear(const trf_experts_plan *plan, const void *x, const uint32_t *offsets, void *y,
                              void *workspace, trf_stream stream, trf_error *err) {
    const trf_packed_experts_call call = {.experts = plan->experts->on_device.packed,
                                          .max_tokens = plan->max_tokens,
                                          .y_dtype = plan->y_dtype,
                                          .offsets_dev = offsets,
                                          .x = x,
                                          .y = y,
                                          .workspace = workspace};
    trf_device_scope scope;
    trf_status status = trf_enter_device(plan->experts->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(trf_packed_experts_launch(&call, &plan->packed, stream), "a product of experts", err);
    trf_leave_device(&scope);
    return status;
}

trf_status trf_cuda_choose_moe(const trf_moe *moe, uint32_t tokens, trf_moe_partition *partition, trf_error *err) {
    if (trf_moe_choose(&moe->shape, &moe->gate_up->context->limits, tokens, -1, partition))
        return TRF_OK;
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a mixture of %u experts does not take %u tokens at once",
                    moe->shape.experts, tokens);
}

static trf_status cuda_get_moe_workspace(const trf_moe *moe, uint32_t tokens, uint64_t *bytes, trf_error *err) {
    trf_moe_partition partition;
    trf_status status = trf_cuda_choose_moe(moe, tokens, &partition, err);
    if (status == TRF_OK)
        *bytes = partition.workspace_bytes;
    return status;
}

trf_status trf_cuda_launch_moe(const trf_moe *moe, const trf_moe_operands *operands, trf_moe_call *call,
                               void *workspace, trf_stream stream, trf_error *err) {
    trf_moe_partition partition;
    trf_device_scope scope;
    call->activation = moe->activation;
    call->x = operands->x;
    call->ids = operands->ids;
    call->id_bytes = operands->id_bytes;
    call->map = operands->expert_map;
    call->weights = operands->weights;
    call->gate_up_bias = operands->gate_up_bias;
    call->down_bias = operands->down_bias;
    call->y = operands->y;
    call->workspace = workspace;
    trf_status status = trf_cuda_choose_moe(moe, operands->tokens, &partition, err);
    if (status == TRF_OK)
        status = trf_enter_device(moe->gate_up->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("experts");
    status = trf_check_cuda(trf_moe_launch(call, &moe->shape, &partition, stream), "a mixture of experts", err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

static trf_status cuda_forward_moe(const trf_moe *moe, const trf_moe_operands *operands, void *workspace,
                                   trf_stream stream, trf_error *err) {
    trf_moe_call call = {.gate_up = moe->gate_up->on_device.packed, .down = moe->down->on_device.packed};
    return trf_cuda_launch_moe(moe, operands, &call, workspace, stream, err);
}

const trf_expert_ops trf_cuda_packed_expert_ops = {
    .fill = cuda_fill,
    .destroy = trf_cuda_destroy_experts,
    .create_plan = cuda_create_plan,
    .linear = cuda_linear,
    .get_moe_workspace = cuda_get_moe_workspace,
    .forward_moe = cuda_forward_moe,
};
