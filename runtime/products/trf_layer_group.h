/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of trf_layer_group, whose public functions are in trf_layer_group.c. */
#ifndef TRF_LAYER_GROUP_H
#define TRF_LAYER_GROUP_H

#include "transfuse/groups.h"
#include "trf_context.h"
#include "trf_group_partition.h"
#include "trf_packed_group_partition.h"
#include "trf_plan.h"

/* A member of a group, and the plan of its product. */
typedef struct trf_planned_member {
    trf_plan *plan;   /* the layer's alone */
    int is_in_launch; /* whether one of the device's launches computes it; otherwise trf_linear does */
} trf_planned_member;

enum {
    TRF_SHARED_LAUNCH_MAX = 8 /* members */
};
TRF_STATIC_ASSERT((int)TRF_GROUP_MAX_LAYERS <= TRF_SHARED_LAUNCH_MAX, "coded members have room");
TRF_STATIC_ASSERT((int)TRF_PACKED_GROUP_MAX_LAYERS <= TRF_SHARED_LAUNCH_MAX, "packed members have room");

/* One launch for several members, which are all coded or all packed. */
typedef struct trf_shared_launch {
    int is_packed; /* which partition is set */
    union {
        trf_group_partition coded;
        trf_packed_group_partition packed;
    } partition;
    uint32_t count, member_index[TRF_SHARED_LAUNCH_MAX]; /* indices of its members in the group */
} trf_shared_launch;

struct trf_layer_group {
    trf_context *context;
    uint32_t count, num_launches;
    uint64_t workspace_bytes;
    trf_planned_member *members; /* [count] */
    trf_shared_launch *launches; /* [num_launches]; room for one for each member */
};

typedef struct trf_group_ops {
    /* Decides which members run together. Sets their is_in_launch, launches and num_launches, and raises
     * workspace_bytes to what the launches need. */
    void (*choose_launches)(trf_layer_group *group);
    /* Runs the launches alone. x and y have entries for all members. */
    trf_status (*launch)(const trf_layer_group *group, const void *const *x, void *const *y, void *workspace,
                         trf_stream stream, trf_error *err);
} trf_group_ops;

extern const trf_group_ops trf_cuda_group_ops;

/* Adds a launch to those of the group. Its partition needs so many bytes of workspace. */
static inline void trf_add_shared_launch(trf_layer_group *group, const trf_shared_launch *launch,
                                         uint64_t workspace_bytes) {
    for (uint32_t i = 0; i < launch->count; i++)
        group->members[launch->member_index[i]].is_in_launch = 1;
    group->launches[group->num_launches++] = *launch;
    if (group->workspace_bytes < workspace_bytes)
        group->workspace_bytes = workspace_bytes;
}

/* ---- packed members on a GPU: trf_packed_group_cuda.c ---- */

/* Adds launches of packed members to the group, where these should be faster than launches of their own. Members that
 * are in a launch already stay there. */
void trf_cuda_choose_packed_launches(trf_layer_group *group);

/* Enqueues such a launch. x, y: of its members. workspace: as trf_linear_group takes it. @return a cudaError_t. */
int trf_cuda_launch_packed_group(const trf_layer_group *group, const trf_shared_launch *launch, const void *const *x,
                                 void *const *y, void *workspace, trf_stream stream);

#endif
