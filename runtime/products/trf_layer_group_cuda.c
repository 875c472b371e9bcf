/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of layers and experts on a GPU. */
#include "trf_cost_model.h"
#include "trf_cuda_call.h"
#include "trf_decode_launch.h"
#include "trf_device_layer.h"
#include "trf_group_launch.h"
#include "trf_layer_group.h"
#include "trf_nvtx.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

/* ---- groups ---- */

static trf_group_product product_of(const trf_planned_member *member) {
    const trf_device_layer *layer = member->plan->layer;
    const trf_product *product = &member->plan->product;
    return (trf_group_product){&layer->view,     &layer->traits,   product->m,
                               product->x_dtype, product->y_dtype, product->y_stride};
}

/* Whether the grouped kernels take a member. It must be a whole layer on its fused path, and if it has edges, its y
 * must have no gaps between rows. */
static int can_group(const trf_planned_member *member) {
    const trf_device_layer *layer = member->plan->layer;
    const trf_product *product = &member->plan->product;
    return member->plan->path == TRF_PATH_FUSED && !trf_shard_cuts_rows(layer) && !trf_shard_cuts_cols(layer) &&
           (!layer->traits.irregular_weights || product->y_stride == layer->view.rows) &&
           !trf_group_refusal(&layer->view, &layer->traits, &layer->context->limits, product->m, product->x_dtype);
}

/* Adds a launch of these members if its estimated time is shorter than that of running them one after another. */
static void add_launch(trf_layer_group *group, const uint32_t *member_index, uint32_t count) {
    const trf_device_limits *limits = &group->context->limits;
    trf_shared_launch made = {.count = count};
    trf_group_product products[TRF_GROUP_MAX_LAYERS];
    double alone_us = 0;
    for (uint32_t i = 0; i < count; i++) {
        const trf_device_layer *layer = group->members[member_index[i]].plan->layer;
        made.member_index[i] = member_index[i];
        products[i] = product_of(&group->members[member_index[i]]);
        alone_us += TRF_LAUNCH_US + trf_fused_microseconds(&layer->view, &layer->traits, limits, products[i].m);
    }
    if (count < 2 || !trf_group_choose(products, count, limits, &made.partition) ||
        made.partition.microseconds + TRF_LAUNCH_US >= alone_us)
        return;
    for (uint32_t i = 0; i < count; i++)
        group->members[member_index[i]].is_in_launch = 1;
    group->launches[group->num_launches++] = made;
    if (group->workspace_bytes < made.partition.workspace_bytes)
        group->workspace_bytes = made.partition.workspace_bytes;
}

static void cuda_choose_launches(trf_layer_group *group) {
    for (uint32_t first = 0; first < group->count; first++) {
        const trf_planned_member *leader = &group->members[first];
        uint32_t member_index[TRF_GROUP_MAX_LAYERS], count = 0;
        if (leader->is_in_launch || !can_group(leader))
            continue;
        for (uint32_t i = first; i < group->count && count < TRF_GROUP_MAX_LAYERS; i++) {
            const trf_planned_member *member = &group->members[i];
            if (!member->is_in_launch && member->plan->product.x_dtype == leader->plan->product.x_dtype &&
                trf_group_fits(&member->plan->layer->view, &leader->plan->layer->view) && can_group(member))
                member_index[count++] = i;
        }
        add_launch(group, member_index, count);
    }
}

static trf_status cuda_launch_group(const trf_layer_group *group, const void *const *x, void *const *y, void *workspace,
                                    trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(group->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    for (uint32_t l = 0; l < group->num_launches && status == TRF_OK; l++) {
        const trf_shared_launch *launch = &group->launches[l];
        trf_group_product products[TRF_GROUP_MAX_LAYERS];
        const void *each_x[TRF_GROUP_MAX_LAYERS];
        void *each_y[TRF_GROUP_MAX_LAYERS];
        for (uint32_t i = 0; i < launch->count; i++) {
            products[i] = product_of(&group->members[launch->member_index[i]]);
            each_x[i] = x[launch->member_index[i]];
            each_y[i] = y[launch->member_index[i]];
        }
        status = trf_check_cuda(
            trf_group_launch(products, launch->count, &launch->partition, each_x, each_y, workspace, stream),
            "a grouped product", err);
    }
    trf_leave_device(&scope);
    return status;
}

/* ---- experts ---- */

/* Chooses the partition for calls of so many tokens. @return whether there is one. */
static int choose_experts_partition(const trf_experts *experts, uint32_t tokens, trf_experts_partition *partition) {
    *partition =
        (trf_experts_partition){.max_rans_bytes = experts->max_rans_bytes, .has_edges = experts->has_edges != 0};
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
            if (experts->refusals[bf16_x])
                continue;
            experts->refused_experts[bf16_x] = i;
            experts->refusals[bf16_x] =
                layer->view.slab_cols != first->view.slab_cols || !trf_group_fits(&layer->view, &first->view)
                    ? "its slabs, classes or raw bits are not those of expert 0"
                    : trf_group_refusal(&layer->view, &layer->traits, &experts->context->limits, 1,
                                        bf16_x ? TRF_DTYPE_BF16 : TRF_DTYPE_F16);
        }
        experts->max_rans_bytes = bytes > experts->max_rans_bytes ? bytes : experts->max_rans_bytes;
        experts->has_edges |= layer->traits.irregular_weights != 0;
    }
    for (int bf16_x = 0; bf16_x < 2 && !choose_experts_partition(experts, 1, &partition); bf16_x++)
        if (!experts->refusals[bf16_x])
            experts->refusals[bf16_x] = "the streams of all experts do not fit this device's shared memory";
}

/* Sets the fields that decide whether one launch can decode all experts. */
static void compare_for_decoding(trf_experts *experts) {
    experts->decode_alike = 1;
    for (uint32_t i = 0; i < experts->count; i++) {
        const trf_device_layer *layer = experts->layers[i];
        if (!layer->traits.coded_slabs || !trf_decode_alike(&layer->view, &experts->layers[0]->view))
            experts->decode_alike = 0;
        if (experts->max_frequency < layer->traits.max_frequency)
            experts->max_frequency = layer->traits.max_frequency;
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
        experts->experts_dev = memory;
    return status;
}

static void cuda_destroy_experts(trf_experts *experts) {
    trf_device_scope scope;
    trf_enter_device(experts->context->device, &scope, NULL);
    cudaDeviceSynchronize();
    cudaFree(experts->experts_dev);
    trf_leave_device(&scope);
}

static trf_status cuda_create_experts_plan(trf_experts_plan *plan, trf_error *err) {
    const trf_experts *experts = plan->experts;
    const int bf16_x = plan->x_dtype == TRF_DTYPE_BF16;
    if (experts->refusals[bf16_x])
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "products of experts do not take expert %u: %s",
                        experts->refused_experts[bf16_x], experts->refusals[bf16_x]);
    choose_experts_partition(experts, plan->max_tokens, &plan->partition);
    plan->workspace_bytes = trf_experts_workspace_bytes(&experts->layers[0]->view, &plan->partition, plan->max_tokens);
    return TRF_OK;
}

static trf_status cuda_linear_experts(const trf_experts_plan *plan, const void *x, const uint32_t *offsets, void *y,
                                      void *workspace, trf_stream stream, trf_error *err) {
    const trf_experts *experts = plan->experts;
    const trf_experts_call call = {
        .view = &experts->layers[0]->view,
        .experts_dev = experts->experts_dev,
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
    const trf_layer_traits largest = {.max_rans_bytes = experts->max_rans_bytes,
                                      .max_frequency = experts->max_frequency};
    trf_decode_request request = {
        .regular_slabs = trf_regular_slabs(view),
        .matrices = experts->count,
        .format = trf_write_format_of(view, as),
        .multiprocessors = (uint32_t)limits->multiprocessors,
        .shared_bytes = limits->shared_bytes,
    };
    request.aligned = trf_rows_are_aligned(view, request.format, (uintptr_t)weights | expert_stride);
    return experts->decode_alike && trf_choose_expert_decode(view, &largest, &request, chosen);
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
            &experts->layers[0]->view, experts->experts_dev, experts->count, as, weights, expert_stride};
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

const trf_group_ops trf_cuda_group_ops = {
    .choose_launches = cuda_choose_launches,
    .launch = cuda_launch_group,
    .fill_experts = cuda_fill_experts,
    .destroy_experts = cuda_destroy_experts,
    .create_experts_plan = cuda_create_experts_plan,
    .linear_experts = cuda_linear_experts,
    .decode_experts = cuda_decode_experts,
};
