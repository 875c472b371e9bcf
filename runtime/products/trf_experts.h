/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of trf_experts and trf_moe. trf_experts.c, trf_pack_experts.c and trf_moe.c have the public functions. */
#ifndef TRF_EXPERTS_H
#define TRF_EXPERTS_H

#include "transfuse/experts.h"
#include "trf_context.h"
#include "trf_group_partition.h"
#include "trf_moe_launch.h"
#include "trf_pack_coded_experts_launch.h"
#include "trf_plan.h"

/* What the device has of experts that its kernels multiply by. */
typedef union trf_experts_on_device {
    struct {                            /* coded */
        struct trf_expert *experts_dev; /* [count] */
        uint32_t max_rans_bytes;        /* most bytes of a slab's rANS streams in any expert; a multiple of 16 */
        uint32_t max_frequency;         /* the largest of any symbol in any expert */
        int has_edges;                  /* whether any expert has some */
        int decode_alike;               /* all have coded slabs and can share a launch that decodes them
                                         * (trf_decode_choice.h) */
        const char *refusals[2];        /* why kernels do not take x in F16, and in BF16; NULL: they do */
        uint32_t refused_experts[2];    /* the first expert with that reason */
    };
    trf_packed_experts packed;
} trf_experts_on_device;

struct trf_experts {
    trf_context *context;
    const struct trf_expert_ops *ops; /* of their layout, or NULL */
    trf_device_layer **layers;        /* [count] */
    uint32_t count;
    int owns_layers;     /* they are destroyed with it */
    trf_layer_info info; /* of the first one */
    int is_packed_here;  /* trf_experts_pack made them ... */
    int gate_up_order;   /* ... with rows in this trf_gate_up_order */
    trf_experts_on_device on_device;
};

/* Never changes once it is made. */
struct trf_experts_plan {
    const trf_experts *experts;
    uint32_t max_tokens;
    trf_dtype x_dtype, y_dtype;
    uint64_t workspace_bytes;
    union {
        trf_experts_partition partition;     /* a GPU's, of coded experts */
        trf_packed_experts_partition packed; /* a GPU's, of packed ones */
        trf_plan one;                        /* without ops: the product of any one expert and all tokens */
    };
};

/* Never changes once it is made. */
struct trf_moe {
    const trf_experts *gate_up, *down;
    const trf_experts *up;      /* NULL: gate_up has both */
    trf_pack_rows gate_up_rows; /* how rows in turns follow from those of gate_up and up */
    uint32_t max_tokens, activation;
    trf_moe_shape shape;
    struct trf_moe_packing *packing; /* what a GPU needs to know of coded experts, malloc'd; or NULL */
};

/* What a device's kernels do with the experts of a layout (trf_layout_ops.expert_ops). Experts whose layout has none
 * are multiplied and decoded one after the other. */
typedef struct trf_expert_ops {
    /* Fills on_device. */
    trf_status (*fill)(trf_experts *experts, trf_error *err);
    void (*destroy)(trf_experts *experts);
    /* Sets workspace_bytes, and the device's partition. All else is set. */
    trf_status (*create_plan)(trf_experts_plan *plan, trf_error *err);
    trf_status (*linear)(const trf_experts_plan *plan, const void *x, const uint32_t *offsets, void *y, void *workspace,
                         trf_stream stream, trf_error *err);
    /* Does what trf_experts_decode does, with checked arguments. NULL: they are decoded one after the other. */
    trf_status (*decode)(const trf_experts *experts, trf_decode_as as, void *weights, uint64_t expert_stride,
                         trf_stream stream, trf_error *err);
    /* Finds out what the next two functions need to know of the experts, and whether they take them. NULL: nothing. It
     * sets packing, which free() releases. */
    trf_status (*prepare_moe)(trf_moe *moe, trf_error *err);
    /* Do what the public functions do, with checked arguments and `tokens` up to the most. */
    trf_status (*get_moe_workspace)(const trf_moe *moe, uint32_t tokens, uint64_t *bytes, trf_error *err);
    trf_status (*forward_moe)(const trf_moe *moe, const trf_moe_operands *operands, void *workspace, trf_stream stream,
                              trf_error *err);
} trf_expert_ops;

extern const trf_expert_ops trf_cuda_coded_expert_ops, trf_cuda_packed_expert_ops;

/* Releases experts_dev, or the views of packed experts. */
void trf_cuda_destroy_experts(trf_experts *experts);

/* Whether the device multiplies by so many packed experts. Errors: TRF_ERR_UNSUPPORTED. */
trf_status trf_cuda_check_packed_experts(const trf_context *context, uint32_t count, trf_error *err);

/* trf_expert_ops of mixtures of coded experts. */
trf_status trf_cuda_prepare_coded_moe(trf_moe *moe, trf_error *err);
trf_status trf_cuda_get_coded_moe_workspace(const trf_moe *moe, uint32_t tokens, uint64_t *bytes, trf_error *err);
trf_status trf_cuda_forward_coded_moe(const trf_moe *moe, const trf_moe_operands *operands, void *workspace,
                                      trf_stream stream, trf_error *err);

/* What both kinds of mixtures on a GPU share. */
trf_status trf_cuda_choose_moe(const trf_moe *moe, uint32_t tokens, trf_moe_partition *partition, trf_error *err);
/* call: all but what operands and workspace say. */
trf_status trf_cuda_launch_moe(const trf_moe *moe, const trf_moe_operands *operands, trf_moe_call *call,
                               void *workspace, trf_stream stream, trf_error *err);

/* Makes experts as trf_experts_create does, which then own their layers if `owns_layers` is set. On failure the caller
 * still does. */
trf_status trf_experts_make(trf_device_layer *const *layers, uint32_t count, int owns_layers, trf_experts **experts,
                            trf_error *err);

/* What forward_moe does on the CPU, and the workspace that it needs. */
trf_status trf_cpu_get_moe_workspace(const trf_moe *moe, uint32_t tokens, uint64_t *bytes, trf_error *err);
trf_status trf_cpu_forward_moe(const trf_moe *moe, const trf_moe_operands *operands, void *workspace, trf_error *err);

#endif
