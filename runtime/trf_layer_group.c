/* Groups of layers: the public functions. */
#include "trf_layer_group.h"
#include "trf_device.h"

#include <stdlib.h>

/* Plans of each layer alone, and the workspace that those need which run so. */
static trf_status plan_entries(trf_layer_group *group, const trf_group_layer *layers, trf_error *err) {
    for (uint32_t i = 0; i < group->count; i++) {
        trf_group_entry *entry = &group->entries[i];
        entry->layer = layers[i].layer;
        trf_status status = trf_linear_plan_init(layers[i].layer, layers[i].m, layers[i].x_dtype, layers[i].y_dtype,
                                                 TRF_PATH_AUTO, &entry->plan, err);
        if (status != TRF_OK)
            return trf_prefix_error(err, status, "layer %u of a group", i);
    }
    if (group->context->ops->groups)
        group->context->ops->groups->plan_launches(group);
    for (uint32_t i = 0; i < group->count; i++) {
        const uint64_t bytes = group->entries[i].plan.workspace_bytes;
        if (!group->entries[i].grouped && group->workspace_bytes < bytes)
            group->workspace_bytes = bytes;
    }
    return TRF_OK;
}

trf_status trf_layer_group_create(const trf_group_layer *layers, uint32_t count, trf_layer_group **group,
                                  trf_error *err) {
    if (!layers || !group || count < 1)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a group needs layers");
    for (uint32_t i = 0; i < count; i++)
        if (!layers[i].layer || layers[i].layer->context != layers[0].layer->context)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "layer %u of a group is %s", i,
                            layers[i].layer ? "of another context" : "missing");
    trf_layer_group *made = calloc(1, sizeof *made);
    if (made) {
        made->context = layers[0].layer->context;
        made->count = count;
        made->entries = calloc(count, sizeof *made->entries);
        made->launches = calloc(count, sizeof *made->launches);
    }
    trf_status status;
    if (!made || !made->entries || !made->launches)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a group of %u layers", count);
    else
        status = plan_entries(made, layers, err);
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
    free(group->entries);
    free(group->launches);
    free(group);
}

uint64_t trf_layer_group_workspace_bytes(const trf_layer_group *group) { return group->workspace_bytes; }

uint32_t trf_layer_group_shared(const trf_layer_group *group, uint32_t *launches) {
    uint32_t shared = 0;
    for (uint32_t i = 0; i < group->count; i++)
        shared += group->entries[i].grouped != 0;
    if (launches)
        *launches = group->num_launches;
    return shared;
}

static trf_status check_group_call(const trf_layer_group *group, const void *const *x, void *const *y,
                                   const void *workspace, trf_error *err) {
    if (!group || !x || !y)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a grouped product needs a group, x and y");
    for (uint32_t i = 0; i < group->count; i++) {
        const trf_linear_plan *plan = &group->entries[i].plan;
        if (!x[i] || !y[i] || (uintptr_t)x[i] % trf_dtype_bytes(plan->x_dtype) ||
            (uintptr_t)y[i] % trf_dtype_bytes(plan->y_dtype))
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                            "layer %u of a group: x and y must be there, and aligned to their elements", i);
    }
    if (group->workspace_bytes && (!workspace || (uintptr_t)workspace % TRF_DEVICE_ALIGNMENT))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "the group needs a %d-byte aligned workspace of %llu bytes", TRF_DEVICE_ALIGNMENT,
                        (unsigned long long)group->workspace_bytes);
    return TRF_OK;
}

trf_status trf_linear_group(const trf_layer_group *group, const void *const *x, void *const *y, void *workspace,
                            trf_stream stream, trf_error *err) {
    trf_status status = check_group_call(group, x, y, workspace, err);
    if (status == TRF_OK && group->num_launches)
        status = group->context->ops->groups->launch(group, x, y, workspace, stream, err);
    for (uint32_t i = 0; i < (group ? group->count : 0) && (status == TRF_OK || status == TRF_ERR_RANS); i++) {
        const trf_group_entry *entry = &group->entries[i];
        if (entry->grouped)
            continue;
        const trf_status one =
            trf_linear(entry->layer, &entry->plan, x[i], y[i], workspace, stream, status == TRF_OK ? err : NULL);
        status = status == TRF_OK ? one : status;
    }
    return status;
}
