/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of layers on a GPU: launches of coded layers. trf_packed_group_cuda.c has those of packed ones. */
#include "trf_cost_model.h"
#include "trf_cuda_call.h"
#include "trf_device_layer.h"
#include "trf_group_launch.h"
#include "trf_layer_group.h"

#include <cuda_runtime_api.h>

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
    if (count < 2 || !trf_group_choose(products, count, limits, &made.partition.coded) ||
        made.partition.coded.microseconds + TRF_LAUNCH_US >= alone_us)
        return;
    trf_add_shared_launch(group, &made, made.partition.coded.workspace_bytes);
}

static void choose_coded_launches(trf_layer_group *group) {
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

static void cuda_choose_launches(trf_layer_group *group) {
    choose_coded_launches(group);
    trf_cuda_choose_packed_launches(group);
}

static int launch_coded(const trf_layer_group *group, const trf_shared_launch *launch, const void *const *x,
                        void *const *y, void *workspace, trf_stream stream) {
    trf_group_product products[TRF_GROUP_MAX_LAYERS];
    for (uint32_t i = 0; i < launch->count; i++)
        products[i] = product_of(&group->members[launch->member_index[i]]);
    return trf_group_launch(products, launch->count, &launch->partition.coded, x, y, workspace, stream);
}

static trf_status cuda_launch_group(const trf_layer_group *group, const void *const *x, void *const *y, void *workspace,
                                    trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(group->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    for (uint32_t l = 0; l < group->num_launches && status == TRF_OK; l++) {
        const trf_shared_launch *launch = &group->launches[l];
        const void *each_x[TRF_SHARED_LAUNCH_MAX];
        void *each_y[TRF_SHARED_LAUNCH_MAX];
        for (uint32_t i = 0; i < launch->count; i++) {
            each_x[i] = x[launch->member_index[i]];
            each_y[i] = y[launch->member_index[i]];
        }
        status = trf_check_cuda((launch->is_packed ? trf_cuda_launch_packed_group
                                                   : launch_coded)(group, launch, each_x, each_y, workspace, stream),
                                "a grouped product", err);
    }
    trf_leave_device(&scope);
    return status;
}

const trf_group_ops trf_cuda_group_ops = {
    .choose_launches = cuda_choose_launches,
    .launch = cuda_launch_group,
};
