/* SPDX-License-Identifier: Apache-2.0 */
#include "act_objects.h"

#include <stdlib.h>

enum {
    MOST_OBJECTS = 64
};

static act_object objects[MOST_OBJECTS];
static size_t num_objects;

act_object *act_object_make(act_object_kind kind) {
    if (num_objects == MOST_OBJECTS)
        abort(); /* a test may */
    objects[num_objects] = (act_object){.kind = kind};
    return &objects[num_objects++];
}

static void destroy(const act_object *object) {
    switch (object->kind) {
    case ACT_CONTEXT:
        trf_context_destroy(object->context);
        break;
    case ACT_MEMORY:
        if (object->memory)
            trf_device_free(object->context, object->memory);
        break;
    case ACT_BLOB:
        trf_free(object->memory);
        break;
    case ACT_CHECKPOINT:
        trf_checkpoint_close(object->checkpoint);
        break;
    case ACT_HOST_LAYER:
        trf_layer_free(object->host_layer);
        break;
    case ACT_LAYER:
        trf_device_layer_destroy(object->layer);
        break;
    case ACT_PLAN:
        trf_plan_destroy(object->plan);
        break;
    case ACT_GROUP:
        trf_layer_group_destroy(object->group);
        break;
    case ACT_EXPERTS:
        trf_experts_destroy(object->experts);
        break;
    case ACT_EXPERTS_PLAN:
        trf_experts_plan_destroy(object->experts_plan);
        break;
    case ACT_MOE:
        trf_moe_destroy(object->moe);
        break;
    case ACT_STACK:
        trf_stack_destroy(object->stack);
        break;
    case ACT_TUNING:
        trf_tuning_free(object->tuning);
        break;
    case ACT_LAYOUT_SET:
        trf_layout_set_free(object->layout_set);
        break;
    }
}

void act_objects_destroy(void) {
    while (num_objects > 0)
        destroy(&objects[--num_objects]);
}
