/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel multiplies by packed experts, and what of its workspace lies where. Plain C: nothing here touches a
 * device. */
#ifndef TRF_MOE_PARTITION_H
#define TRF_MOE_PARTITION_H

#include "trf_device_limits.h"
#include "trf_moe_sizes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* @return whether the device has these kernels, and they take so many experts. */
int trf_moe_device_allows(const trf_device_limits *limits, uint32_t experts);

/* A mixture of experts: y[t] = sum over the routes of t of weight * down(activation(gate(x[t])) * up(x[t])). */
typedef struct trf_moe_shape {
    uint32_t experts; /* here */
    uint32_t num_ids; /* on all devices */
    uint32_t top_k;
    uint32_t hidden;       /* columns of x and y */
    uint32_t gate_up_rows; /* twice the columns of down, each half a multiple of 8 */
} trf_moe_shape;

typedef struct trf_moe_partition {
    int kernel; /* a trf_moe_kernel */
    uint32_t tokens, routes, blocks;
    uint32_t slot_dtype; /* a trf_dtype: of what down writes for each slot */
    /* The workspace. Each part begins at a multiple of 256 bytes. */
    uint64_t counts, first_slots, slot_routes, route_slots; /* of the kernels that sort */
    uint64_t slot_x;                                        /* rows of x in the order of slots */
    uint64_t hidden, slot_y;                                /* of each slot: what gate and up give; what down gives */
    uint64_t gate_up_handover, down_handover;
    uint64_t workspace_bytes;
} trf_moe_partition;

/* Sets the partition for so many tokens. kernel: a trf_moe_kernel, or -1 for the one that should be the fastest. More
 * tokens never need less workspace. @return 0 if the device or the kernel does not allow it, else 1. */
int trf_moe_choose(const trf_moe_shape *shape, const trf_device_limits *limits, uint32_t tokens, int kernel,
                   trf_moe_partition *partition);

/* One product of packed experts, whose offsets the caller has on the device. */
typedef struct trf_packed_experts_partition {
    int kernel;
    uint32_t blocks, x_stride;
    /* the workspace: x copied to rows of whole 16 bytes, where that may be needed | what blocks hand over */
    uint64_t handover_offset, workspace_bytes;
} trf_packed_experts_partition;

/* Sets the partition for a product of `experts` experts of rows x cols, with max_tokens rows of x in all. kernel,
 * @return: as trf_moe_choose. */
int trf_packed_experts_choose(uint32_t experts, uint32_t rows, uint32_t cols, const trf_device_limits *limits,
                              uint32_t max_tokens, int kernel, trf_packed_experts_partition *partition);

#ifdef __cplusplus
}
#endif

#endif
