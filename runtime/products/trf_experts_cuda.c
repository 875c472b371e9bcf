/* SPDX-License-Identifier: Apache-2.0 */
/* Coded experts on a GPU. */
#include "trf_cuda_call.h"
#include "trf_decode_launch.h"
#include "trf_device_layer.h"
#include "trf_experts.h"
#include "trf_group_launch.h"
#include "trf_nvtx.h"

#include <stdlib.h>

/* Chooses the partition for calls of so many tokens. @return whether there is one. */
static int choose_experts_partition(const trf_experts *experts, uint32_t tokens, trf_experts_partition *partition) {
    *partition = (trf_experts_partition){.max_rans_bytes = experts->on_device.max_rans_bytes,
                                         .has_edges = experts->on_device.has_edges != 0};
    return trf_experts_choose(&experts->layers[0]->view, experts->count, tokens, &experts->context->limits, partition);
}

/* Finds out whether the kernels take these experts, and why if they do not. */
static void find_refusals(trf_experts *experts) {
    const trf_device_layer *first = experts->layers[0];
    trf_experts_partition partition;
    for (uint32_t i = 0; i < experts->count; i++) {
        const trf_device_layer *layer = experts->layers[i];
        const uint32_t bytes = (layer->traits.max_rans_bytes + 15) / 16 * 16;
        for (int bf16_x = 0; bf16_x < 2; bf16_x++) {
            if (experts->on_device.refusals[bf16_x])
                continue;
            experts->on_device.refused_experts[bf16_x] = i;
            experts->on_device.refusals[bf16_x] =
                layer->view.slab_cols != first->view.slab_cols || !trf_group_fits(&layer->view, &first->view)
                    ? "its slabs, classes or raw bits are not those of expert 0"
                    : trf_group_refusal(&layer->view, &layer->traits, &experts->context->limits, 1,
                                        bf16_x ? TRF_DTYPE_BF16 : TRF_DTYPE_F16);
        }
        experts->on_device.max_rans_bytes =
            bytes > experts->on_device.max_rans_bytes ? bytes : experts->on_device.max_rans_bytes;
        experts->on_device.has_edges |= layer->traits.irregular_weights != 0;
    }
    for (int bf16_x = 0; bf16_x < 2 && !choose_experts_partition(experts, 1, &partition); bf16_x++)
        if (!experts->on_device.refusals[bf16_x])
            experts->on_device.refusals[bf16_x] = "the streams of all experts do not fit this device's shared memory";
}

/* Sets the fields that decide whether one launch can decode all experts. */
static void compare_for_decoding(trf_experts *experts) {
    experts->on_device.decode_alike = 1;
    for (uint32_t i = 0; i < experts->count; i++) {
        const trf_device_layer *layer = experts->layers[i];
        if (!layer->traits.coded_slabs || !trf_decode_alike(&layer->view, &experts->layers[0]->view))
            experts->on_device.decode_alike = 0;
        if (experts->on_device.max_frequency < layer->traits.max_frequency)
            experts->on_device.max_frequency = layer->traits.max_frequency;
    }
}

static trf_status cuda_fill_experts(trf_experts *experts, trf_error *err) {
    find_refusals(experts);
    compare_for_decoding(experts);
    const uint64_t bytes = experts->count * sizeof(trf_expert);
    trf_expert *list = calloc(experts->count, sizeof *list);
    void *memory = NULL;
    if (!list)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u experts", experts->count);
    for (uint32_t i = 0; i < experts->count; i++) {
        list[i].view = experts->layers[i]->view;
        list[i].has_edges = experts->layers[i]->traits.irregular_weights != 0;
    }
    trf_status status = experts->context->ops->allocate(experts->context, bytes, &memory, err);
    if (status == TRF_OK)
        status = experts->context->ops->upload(experts->context, memory, list, bytes, err);
    free(list);
    if (status != TRF_OK && memory)
        experts->context->ops->release(experts->context, memory);
    else
        experts->on_device.experts_dev = memory;
    return status;
}

static trf_status cuda_create_experts_plan(trf_experts_plan *plan, trf_error *err) {
    const trf_experts *experts = plan->experts;
    const int bf16_x = plan->x_dtype == TRF_DTYPE_BF16;
    if (experts->on_device.refusals[bf16_x])
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "products of experts do not take expert %u: %s",
                        experts->on_device.refused_experts[bf16_x], experts->on_device.refusals[bf16_x]);
    choose_experts_partition(experts, plan->max_tokens, &plan->partition);
    plan->workspace_bytes = trf_experts_workspace_bytes(&experts->layers[0]->view, &plan->partition, plan->max_tokens);
    return TRF_OK;
}

static trf_status cuda_linear_experts(const trf_experts_plan *plan, const void *x, const uint32_t *offsets, void *y,
                                      void *workspace, trf_stream stream, trf_error *err) {
    const trf_experts *experts = plan->experts;
    const trf_experts_call call = {
        .view = &experts->layers[0]->view,
        .experts_dev = experts->on_device.experts_dev,
        .count = experts->count,
        .max_tokens = plan->max_tokens,
        .x_dtype = plan->x_dtype,
        .y_dtype = plan->y_dtype,
        .offsets_dev = offsets,
        .x = x,
        .y = y,
        .workspace = workspace,
    };
    trf_device_scope scope;
    trf_status status = trf_enter_device(experts->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(trf_experts_launch(&call, &plan->partition, &experts->context->limits, stream),
                            "a product of experts", err);
    trf_leave_device(&scope);
    return status;
}

/* Chooses how one launch decodes all experts. @return whether it can. */
static int choose_decode(const trf_experts *experts, trf_decode_as as, const void *weights, uint64_t expert_stride,
                         trf_expert_decode_choice *chosen) {
    const trf_device_view *view = &experts->layers[0]->view;
    const trf_device_limits *limits = &experts->context->limits;
    const trf_layer_traits largest = {.max_rans_bytes = experts->on_device.max_rans_bytes,
                                      .max_frequency = experts->on_device.max_frequency};
    trf_decode_request request = {
        .regular_slabs = trf_regular_slabs(view),
        .matrices = experts->count,
        .format = trf_write_format_of(view, as),
        .multiprocessors = (uint32_t)limits->multiprocessors,
        .shared_bytes = limits->shared_bytes,
    };
    request.aligned = trf_rows_are_aligned(view, request.format, (uintptr_t)weights | expert_stride);
    return experts->on_device.decode_alike && trf_choose_expert_decode(view, &largest, &request, chosen);
}

/* Decodes all regular slabs in one launch, or those of each expert in a launch of its own. Edges take one launch for
 * each expert that has some. */
static int launch_decode(const trf_experts *experts, trf_decode_as as, void *weights, uint64_t expert_stride,
                         trf_stream stream) {
    trf_expert_decode_choice chosen;
    const int together = choose_decode(experts, as, weights, expert_stride, &chosen);
    int error = 0;
    if (together) {
        const trf_expert_decoding decoding = {
            &experts->layers[0]->view, experts->on_device.experts_dev, experts->count, as, weights, expert_stride};
        error = trf_launch_decode_experts(&decoding, &chosen, stream);
    }
    for (uint32_t i = 0; i < experts->count && !error; i++) {
        const trf_device_layer *layer = experts->layers[i];
        void *const matrix = (uint8_t *)weights + i * expert_stride;
        if (!together)
            error = trf_launch_decode_layer(&layer->view, &layer->traits, as, matrix, stream);
        else if (layer->traits.irregular_weights)
            error = trf_launch_decode_edges(&layer->view, as, matrix, stream);
    }
    return error;
}

static trf_status cuda_decode_experts(const trf_experts *experts, trf_decode_as as, void *weights,
                                      uint64_t expert_stride, trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(experts->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("decode");
    const int error = launch_decode(experts, as, weights, expert_stride, stream);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding experts", err);
}

const trf_expert_ops trf_cuda_coded_expert_ops = {
    .fill = cuda_fill_experts,
    .destroy = trf_cuda_destroy_experts,
    .create_plan = cuda_create_experts_plan,
    .linear = cuda_linear_experts,
    .decode = cuda_decode_experts,
    .prepare_moe = trf_cuda_prepare_coded_moe,
    .get_moe_workspace = trf_cuda_get_coded_moe_workspace,
    .forward_moe = trf_cuda_forward_coded_moe,
};
