/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers of mixtures of packed experts, and of products of packed experts. C and CUDA; each returns a
 * cudaError_t as an int, and only enqueues work on `stream`. */
#ifndef TRF_MOE_LAUNCH_H
#define TRF_MOE_LAUNCH_H

#include "transfuse.h"
#include "trf_moe_partition.h"
#include "trf_packed.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Packed experts of one shape, without row offsets, all BF16 or all FP8. */
typedef struct trf_packed_experts {
    const trf_packed_view *views_dev; /* [count]; of FP8 experts the parts of trf_packed8_view */
    trf_packed_view first;            /* the first one's view */
    uint32_t count;
    int may_zero; /* whether any of them is zeroing; then all are multiplied by as if they were zeroing */
    int is_fp8;
    int in_turns; /* FP8 experts, TRF_PACKED8_IN_TURNS: rows of gate and up take turns and have scales of their own */
    int are_new;  /* whether the kernel before the product writes them, for whose end it must wait then */
} trf_packed_experts;

/* Enqueues what writes the packed experts of a product, gate and up or down, from which later work has its weights.
 * @return a cudaError_t. */
typedef int trf_moe_make_weights(const void *context, int is_down, trf_stream stream);

typedef struct trf_moe_call {
    trf_packed_experts gate_up, down;
    uint32_t activation; /* a trf_activation: of the gate */
    /* All of these are device memory. */
    const void *x;                        /* BF16 [tokens][hidden], 16-byte aligned */
    const void *ids;                      /* [tokens][top_k], signed, of id_bytes each */
    uint32_t id_bytes;                    /* 4 or 8 */
    const int32_t *map;                   /* [num_ids] or NULL (trf_moe_routes) */
    const float *weights;                 /* [tokens][top_k] */
    const void *gate_up_bias, *down_bias; /* BF16 [experts][rows], or NULL */
    void *y;                              /* BF16 [tokens][hidden], 16-byte aligned */
    uint8_t *workspace;                   /* 256-byte aligned */
    trf_moe_make_weights *make_weights;   /* called before each of the two products; NULL: the weights are there */
    const void *weights_context;
} trf_moe_call;

/* partition: the one that trf_moe_choose made for this shape. gate_up and down may be of different kinds. */
int trf_moe_launch(const trf_moe_call *call, const trf_moe_shape *shape, const trf_moe_partition *partition,
                   trf_stream stream);

typedef struct trf_packed_experts_call {
    trf_packed_experts experts;
    uint32_t max_tokens;
    trf_dtype y_dtype;
    const uint32_t *offsets_dev; /* [count + 1] */
    const void *x;               /* device, BF16 [max_tokens][cols] */
    void *y;                     /* device, [max_tokens][rows] */
    uint8_t *workspace;          /* 256-byte aligned */
} trf_packed_experts_call;

/* Computes y[t] = x[t] . W(e)^T for each token t of expert e, as trf_experts_linear has it. */
int trf_packed_experts_launch(const trf_packed_experts_call *call, const trf_packed_experts_partition *partition,
                              trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
