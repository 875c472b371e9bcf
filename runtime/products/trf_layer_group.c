/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of layers: the public functions. */
#include "trf_layer_group.h"

#include "trf_struct.h"

#include <stdlib.h>

void trf_group_member_init(trf_group_member *member) { *member = (trf_group_member){.struct_bytes = sizeof *member}; }

/* Reads member `index` of the caller's array, whose first element says which size the elements have. */
static trf_status take_member(const trf_group_member *members, uint32_t index, trf_group_member *member,
                              trf_error *err) {
    static const trf_struct_type type = {"trf_group_member", sizeof *member,
                                         TRF_STRUCT_BYTES(trf_group_member, y_dtype)};
    const trf_group_member *at = (const trf_group_member *)((const uint8_t *)members + index * members[0].struct_bytes);
    trf_group_member_init(member);
    trf_status status = trf_take_struct(&type, member, at, err);
    if (status == TRF_OK && at->struct_bytes != members[0].struct_bytes)
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "its struct_bytes is not that of the first one");
    if (status == TRF_OK && !member->layer)
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "it is missing");
    return status;
}

/* Makes the plan of one layer alone. */
static trf_status plan_member(trf_layer_group *group, const trf_group_member *members, uint32_t index, trf_error *err) {
    trf_group_member member;
    trf_plan_options options;
    trf_status status = take_member(members, index, &member, err);
    if (status != TRF_OK)
        return status;
    if (!group->context)
        group->context = member.layer->context;
    if (member.layer->context != group->context)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "it is of another context");
    trf_plan_options_init(&options);
    options.m = member.m;
    options.x_dtype = member.x_dtype;
    options.y_dtype = member.y_dtype;
    options.y_stride = member.y_stride;
    return trf_plan_create(member.layer, &options, &group->members[index].plan, err);
}

/* Makes the plans of all members, and counts the workspace of those that are in no launch. */
static trf_status plan_members(trf_layer_group *group, const trf_group_member *members, trf_error *err) {
    for (uint32_t i = 0; i < group->count; i++) {
        trf_status status = plan_member(group, members, i, err);
        if (status != TRF_OK)
            return trf_prefix_error(err, status, "layer %u of a group", i);
    }
    if (group->context->ops->groups)
        group->context->ops->groups->choose_launches(group);
    for (uint32_t i = 0; i < group->count; i++) {
        const uint64_t bytes = group->members[i].plan->workspace_bytes;
        if (!group->members[i].is_in_launch && group->workspace_bytes < bytes)
            group->workspace_bytes = bytes;
    }
    return TRF_OK;
}

trf_status trf_layer_group_create(const trf_group_member *members, uint32_t count, trf_layer_group **group,
                                  trf_error *err) {
    if (!members || !group || count < 1)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a group needs layers");
    trf_layer_group *made = calloc(1, sizeof *made);
    if (made) {
        made->count = count;
        made->members = calloc(count, sizeof *made->members);
        made->launches = calloc(count, sizeof *made->launches);
    }
    trf_status status;
    if (!made || !made->members || !made->launches)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a group of %u layers", count);
    else
        status = plan_members(made, members, err);
    if (status != TRF_OK) {
        trf_layer_group_destroy(made);
        return status;
    }
    *group = made;
    return TRF_OK;
}

void trf_layer_group_destroy(trf_layer_group *group) {
    if (!group)
        return;
    for (uint32_t i = 0; group->members && i < group->count; i++)
        trf_plan_destroy(group->members[i].plan);
    free(group->members);
    free(group->launches);
    free(group);
}

void trf_layer_group_get_info(const trf_layer_group *group, trf_layer_group_info *info) {
    *info = (trf_layer_group_info){
        .workspace_bytes = group->workspace_bytes, .members = group->count, .launches = group->num_launches};
    for (uint32_t i = 0; i < group->count; i++)
        info->sharing += group->members[i].is_in_launch != 0;
}

/* Checks that no member writes what another one, or itself, reads or writes: before any of them does. */
static trf_status check_overlaps(const trf_layer_group *group, const void *const *x, void *const *y, trf_error *err) {
    for (uint32_t i = 0; i < group->count; i++) {
        const trf_operand_rows written = trf_y_rows_of(group->members[i].plan, y[i]);
        for (uint32_t j = 0; j < group->count; j++) {
            const trf_operand_rows read = trf_x_rows_of(group->members[j].plan, x[j]),
                                   other = trf_y_rows_of(group->members[j].plan, y[j]);
            const int is_read = trf_operands_overlap(&read, &written);
            if (is_read || (j < i && trf_operands_overlap(&other, &written)))
                return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                                "layer %u of a group: y overlaps the %s of layer %u", i, is_read ? "x" : "y", j);
        }
    }
    return TRF_OK;
}

static trf_status check_group_call(const trf_layer_group *group, const void *const *x, void *const *y,
                                   const void *workspace, trf_error *err) {
    if (!group || !x || !y)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a grouped product needs a group, x and y");
    for (uint32_t i = 0; i < group->count; i++) {
        const trf_product *product = &group->members[i].plan->product;
        if (!x[i] || !y[i] || (uintptr_t)x[i] % trf_dtype_bytes(product->x_dtype) ||
            (uintptr_t)y[i] % trf_dtype_bytes(product->y_dtype))
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                            "layer %u of a group: x and y must be there, and aligned to their elements", i);
    }
    trf_status status = check_overlaps(group, x, y, err);
    if (status != TRF_OK)
        return status;
    return trf_check_workspace("the group", workspace, group->workspace_bytes, err);
}

trf_status trf_linear_group(const trf_layer_group *group, const void *const *x, void *const *y, void *workspace,
                            trf_stream stream, trf_error *err) {
    trf_status status = check_group_call(group, x, y, workspace, err);
    if (status == TRF_OK && group->num_launches)
        status = group->context->ops->groups->launch(group, x, y, workspace, stream, err);
    for (uint32_t i = 0; i < (group ? group->count : 0) && (status == TRF_OK || status == TRF_ERR_RANS); i++) {
        const trf_planned_member *member = &group->members[i];
        const trf_operands operands = {.struct_bytes = sizeof operands, .x = x[i], .y = y[i]};
        if (member->is_in_launch)
            continue;
        const trf_status one = trf_linear(member->plan, &operands, workspace, stream, status == TRF_OK ? err : NULL);
        status = status == TRF_OK ? one : status;
    }
    return status;
}
