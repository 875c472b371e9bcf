/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of the library that an act (device_acts.h) makes. They are destroyed in the opposite order, however the act
 * ends. Nothing here allocates. */
#ifndef ACT_OBJECTS_H
#define ACT_OBJECTS_H

#include "transfuse/experts.h"
#include "transfuse/groups.h"
#include "transfuse/layouts.h"
#include "transfuse/stacks.h"

typedef enum act_object_kind {
    ACT_CONTEXT,
    ACT_MEMORY, /* of the object's context */
    ACT_BLOB,   /* in `memory`, for trf_free */
    ACT_CHECKPOINT,
    ACT_HOST_LAYER,
    ACT_LAYER,
    ACT_PLAN,
    ACT_GROUP,
    ACT_EXPERTS,
    ACT_EXPERTS_PLAN,
    ACT_MOE,
    ACT_STACK,
    ACT_TUNING,
    ACT_LAYOUT_SET
} act_object_kind;

/* All pointers are NULL at first. */
typedef struct act_object {
    act_object_kind kind;
    trf_context *context;
    void *memory;
    trf_checkpoint *checkpoint;
    trf_layer *host_layer;
    trf_device_layer *layer;
    trf_plan *plan;
    trf_layer_group *group;
    trf_experts *experts;
    trf_experts_plan *experts_plan;
    trf_moe *moe;
    trf_stack *stack;
    trf_tuning *tuning;
    trf_layout_set *layout_set;
} act_object;

/* @return where the act puts an object. */
act_object *act_object_make(act_object_kind kind);
void act_objects_destroy(void);

#endif
