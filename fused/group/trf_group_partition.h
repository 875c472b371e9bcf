/* SPDX-License-Identifier: Apache-2.0 */
/* How products of several layers share a launch, and how products of experts do (trf_group_kernel.cuh has the terms and
 * a picture). Plain C: nothing here touches a device. */
#ifndef TRF_GROUP_PARTITION_H
#define TRF_GROUP_PARTITION_H

#include "trf_device_limits.h"
#include "trf_expert_share.h"
#include "trf_fused_variant.h"
#include "trf_group_sizes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Says why the grouped kernels do not take this layer and batch: a static string, or NULL if they do. */
const char *trf_group_refusal(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype);

/* Whether one kernel takes both layers, with x of the same type. */
int trf_group_fits(const trf_device_view *view, const trf_device_view *other);

/* A grouped kernel's shared memory: buffers, then sums. In clusters of one block, warps leave sums in their buffers,
 * too. */
typedef struct trf_group_smem {
    trf_smem_layout layout;
    uint32_t sums_offset;
    uint32_t bytes; /* dynamic, in all */
} trf_group_smem;

/* ---- layers ---- */

/* One layer's product. trf_group_refusal is NULL for it. */
typedef struct trf_group_product {
    const trf_device_view *view;
    const trf_layer_traits *traits;
    uint32_t m;
    trf_dtype x_dtype, y_dtype;
    uint64_t y_stride; /* must be the layer's rows if it has edges */
} trf_group_product;

/* One layer's part of a launch. */
typedef struct trf_group_layer_partition {
    uint32_t clusters;                          /* this and the next two as in trf_fused_kernel.cuh */
    uint32_t k_splits, wave_units;              /* 1 in clusters of one block, whose warps share units evenly */
    uint64_t edge_sums_offset, padded_x_offset; /* in the workspace */
} trf_group_layer_partition;

typedef struct trf_group_partition {
    uint32_t unit_slabs, warps, cluster_size; /* slabs of a unit in a panel; warps of a block; blocks of a cluster */
    uint32_t max_rans_bytes; /* the most bytes of a slab's rANS streams in any layer; a multiple of 16 */
    trf_group_smem smem;
    double microseconds; /* estimated time of the launch, beyond what every launch takes */
    uint64_t workspace_bytes;
    trf_group_layer_partition layers[TRF_GROUP_MAX_LAYERS];
} trf_group_partition;

/* Finds a partition for 1 to TRF_GROUP_MAX_LAYERS products that fit each other (trf_group_fits) and have x of one type.
 * @return whether there is one. */
int trf_group_choose(const trf_group_product *products, uint32_t count, const trf_device_limits *limits,
                     trf_group_partition *partition);

/* ---- experts ---- */

typedef struct trf_experts_partition {
    uint32_t unit_slabs, warps; /* slabs of a unit in a panel; warps of a block */
    uint32_t max_rans_bytes;    /* the most bytes of a slab's rANS streams in any expert; a multiple of 16 */
    uint32_t has_edges;         /* whether any expert has edges */
    trf_group_smem smem;
    trf_expert_cost_model cost_model;
} trf_experts_partition;

/* Sets the partition for calls of so many tokens. The caller has set max_rans_bytes and has_edges; this sets the other
 * fields. view: of any expert. @return whether there is a partition. */
int trf_experts_choose(const trf_device_view *view, uint32_t count, uint32_t tokens, const trf_device_limits *limits,
                       trf_experts_partition *partition);

/* The offset in the workspace of the copy of x with rows of whole 16 bytes, which follows the edges' sums; and the
 * bytes of the whole workspace. */
uint64_t trf_experts_padded_x_offset(const trf_device_view *view, const trf_experts_partition *partition,
                                     uint32_t max_tokens);
uint64_t trf_experts_workspace_bytes(const trf_device_view *view, const trf_experts_partition *partition,
                                     uint32_t max_tokens);

#ifdef __cplusplus
}
#endif

#endif
