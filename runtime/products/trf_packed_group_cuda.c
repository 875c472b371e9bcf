/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of layers on a GPU: launches of packed layers. */
#include "trf_layer_group.h"

#include "trf_device_layer.h"
#include "trf_packed_group_launch.h"

static trf_packed_group_product product_of(const trf_planned_member *member) {
    const trf_plan *plan = member->plan;
    const trf_device_layer *layer = plan->layer;
    const int is_fp8 = layer->layout->layout == TRF_LAYOUT_PACKED8;
    return (trf_packed_group_product){.view = is_fp8 ? &layer->packed8.packed : &layer->packed,
                                      .m = plan->product.m,
                                      .alone = &plan->partition.packed,
                                      .fp8 = is_fp8 ? &layer->packed8 : NULL};
}

/* A member must be a whole layer on its packed path, which packed BF16 and FP8 layers have. */
static int can_group(const trf_planned_member *member) {
    const trf_device_layer *layer = member->plan->layer;
    if (member->is_in_launch || member->plan->path != TRF_PATH_PACKED || trf_shard_cuts_rows(layer) ||
        trf_shard_cuts_cols(layer))
        return 0;
    const trf_packed_group_product product = product_of(member);
    return trf_packed_group_takes(&product);
}

/* Products that may share a launch, as the launch has them. */
typedef struct candidates {
    trf_packed_group_product products[TRF_PACKED_GROUP_MAX_LAYERS];
    trf_shared_launch launch;
} candidates;

static candidates find_candidates(const trf_layer_group *group, uint32_t first) {
    candidates found = {.launch = {.is_packed = 1}};
    const trf_packed_group_product leader = product_of(&group->members[first]);
    for (uint32_t i = first; i < group->count && found.launch.count < TRF_PACKED_GROUP_MAX_LAYERS; i++) {
        const trf_planned_member *member = &group->members[i];
        const trf_packed_group_product product = product_of(member);
        if (!can_group(member) || !trf_packed_group_fits(&product, &leader))
            continue;
        found.products[found.launch.count] = product;
        found.launch.member_index[found.launch.count++] = i;
    }
    return found;
}

/* The largest layer is the one that fills the device best by itself. */
static void drop_largest(candidates *of) {
    uint32_t largest = 0;
    uint64_t most = 0;
    for (uint32_t i = 0; i < of->launch.count; i++) {
        const trf_packed_view *view = of->products[i].view;
        const uint64_t tiles = (uint64_t)view->bands * view->tiles_per_band;
        if (tiles > most) {
            most = tiles;
            largest = i;
        }
    }
    of->launch.count--;
    for (uint32_t i = largest; i < of->launch.count; i++) {
        of->products[i] = of->products[i + 1];
        of->launch.member_index[i] = of->launch.member_index[i + 1];
    }
}

void trf_cuda_choose_packed_launches(trf_layer_group *group) {
    for (uint32_t first = 0; first < group->count; first++) {
        if (!can_group(&group->members[first]))
            continue;
        candidates found = find_candidates(group, first);
        trf_shared_launch *const launch = &found.launch;
        for (; launch->count >= 2; drop_largest(&found))
            if (trf_packed_group_choose(found.products, launch->count, &group->context->limits,
                                        &launch->partition.packed)) {
                trf_add_shared_launch(group, launch, launch->partition.packed.workspace_bytes);
                break;
            }
    }
}

int trf_cuda_launch_packed_group(const trf_layer_group *group, const trf_shared_launch *launch, const void *const *x,
                                 void *const *y, void *workspace, trf_stream stream) {
    const trf_packed_view *views[TRF_PACKED_GROUP_MAX_LAYERS];
    const trf_packed8_view *views8[TRF_PACKED_GROUP_MAX_LAYERS];
    int is_fp8 = 0; /* all members are, or none */
    const trf_product *products[TRF_PACKED_GROUP_MAX_LAYERS];
    for (uint32_t i = 0; i < launch->count; i++) {
        const trf_plan *plan = group->members[launch->member_index[i]].plan;
        views[i] = &plan->layer->packed;
        views8[i] = &plan->layer->packed8;
        is_fp8 = plan->layer->layout->layout == TRF_LAYOUT_PACKED8;
        products[i] = &plan->product;
    }
    if (is_fp8)
        return trf_packed8_group_launch(views8, products, launch->count, &launch->partition.packed, x, y, workspace,
                                        stream);
    return trf_packed_group_launch(views, products, launch->count, &launch->partition.packed, x, y, workspace, stream);
}
