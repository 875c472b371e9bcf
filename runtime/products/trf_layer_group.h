/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of trf_layer_group and trf_experts. trf_layer_group.c and trf_experts.c have the public functions. */
#ifndef TRF_LAYER_GROUP_H
#define TRF_LAYER_GROUP_H

#include "transfuse/experts.h"
#include "transfuse/groups.h"
#include "trf_context.h"
#include "trf_group_partition.h"
#include "trf_plan.h"

/* A member of a group, and the plan of its product. */
typedef struct trf_planned_member {
    trf_plan *plan;   /* the layer's alone */
    int is_in_launch; /* whether one of the device's launches computes it; otherwise trf_linear does */
} trf_planned_member;

/* One launch for several members. */
typedef struct trf_shared_launch {
    trf_group_partition partition;
    uint32_t count, member_index[TRF_GROUP_MAX_LAYERS]; /* indices of its members in the group */
} trf_shared_launch;

struct trf_layer_group {
    trf_context *context;
    uint32_t count, num_launches;
    uint64_t workspace_bytes;
    trf_planned_member *members; /* [count] */
    trf_shared_launch *launches; /* [num_launches]; room for one for each member */
};

struct trf_experts {
    trf_context *context;
    trf_device_layer **layers; /* [count] */
    uint32_t count;
    int owns_layers;     /* they are destroyed with it */
    trf_layer_info info; /* of the first one */
    /* The following fields are a GPU's. */
    struct trf_expert *experts_dev; /* [count] */
    uint32_t max_rans_bytes;        /* most bytes of a slab's rANS streams in any expert; a multiple of 16 */
    uint32_t max_frequency;         /* the largest of any symbol in any expert */
    int has_edges;                  /* whether any expert has some */
    int decode_alike;               /* all have coded slabs and can share a launch that decodes them
                                     * (trf_decode_choice.h) */
    const char *refusals[2];        /* why kernels do not take x in F16, and in BF16; NULL: they do */
    uint32_t refused_experts[2];    /* the first expert with that reason */
};

/* Never changes once it is made. */
struct trf_experts_plan {
    const trf_experts *experts;
    uint32_t max_tokens;
    trf_dtype x_dtype, y_dtype;
    uint64_t workspace_bytes;
    union {
        trf_experts_partition partition; /* a GPU's */
        trf_plan one;                    /* the CPU's: the product of any one expert and all tokens */
    };
};

typedef struct trf_group_ops {
    /* Decides which members run together. Sets their is_in_launch, launches and num_launches, and raises
     * workspace_bytes to what the launches need. */
    void (*choose_launches)(trf_layer_group *group);
    /* Runs the launches alone. x and y have entries for all members. */
    trf_status (*launch)(const trf_layer_group *group, const void *const *x, void *const *y, void *workspace,
                         trf_stream stream, trf_error *err);
    /* Fills the fields that are the device's. */
    trf_status (*fill_experts)(trf_experts *experts, trf_error *err);
    void (*destroy_experts)(trf_experts *experts);
    /* Sets workspace_bytes, and either partition or one. All else is set. */
    trf_status (*create_experts_plan)(trf_experts_plan *plan, trf_error *err);
    trf_status (*linear_experts)(const trf_experts_plan *plan, const void *x, const uint32_t *offsets, void *y,
                                 void *workspace, trf_stream stream, trf_error *err);
    /* Does what trf_experts_decode does, with checked arguments. */
    trf_status (*decode_experts)(const trf_experts *experts, trf_decode_as as, void *weights, uint64_t expert_stride,
                                 trf_stream stream, trf_error *err);
} trf_group_ops;

extern const trf_group_ops trf_cuda_group_ops;

#endif
