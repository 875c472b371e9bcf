/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers of products of several layers in one launch, and of products of experts. C and CUDA; each returns a
 * cudaError_t as an int, and only enqueues work on `stream`. */
#ifndef TRF_GROUP_LAUNCH_H
#define TRF_GROUP_LAUNCH_H

#include "trf_group_partition.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes y[i] = x[i] . W^T for each layer. products, count: the ones that the partition was made for. workspace:
 * 256-byte aligned. */
int trf_group_launch(const trf_group_product *products, uint32_t count, const trf_group_partition *partition,
                     const void *const *x, void *const *y, void *workspace, trf_stream stream);

/* One call of a product of experts. */
typedef struct trf_experts_call {
    const trf_device_view *view;   /* of any expert, for shape and codec */
    const trf_expert *experts_dev; /* [count] */
    uint32_t count, max_tokens;
    trf_dtype x_dtype, y_dtype;
    const uint32_t *offsets_dev; /* [count + 1] */
    const void *x;               /* device, [tokens][cols] */
    void *y;                     /* device, [tokens][rows] */
    uint8_t *workspace;
} trf_experts_call;

int trf_experts_launch(const trf_experts_call *call, const trf_experts_partition *partition,
                       const trf_device_limits *limits, trf_stream stream);

/* Does what trf_launch_edge_product does, for the tokens of all experts that have edges. x replaces call->x: it is the
 * same, or its padded copy, with rows of x_stride elements. edge_sums: [max_tokens][rows]. */
int trf_launch_expert_edge_product(const trf_experts_call *call, const void *x, uint64_t x_stride, float *edge_sums,
                                   trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
