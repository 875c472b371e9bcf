/* Several layers' products in one launch, and products of experts: the choice, and the launchers. C and CUDA; launchers
 * return a cudaError_t as an int and only enqueue work on `stream`. */
#ifndef TRF_GROUP_LAUNCH_H
#define TRF_GROUP_LAUNCH_H

#include "trf_expert_partition.h"
#include "trf_fused_launch.h"
#include "trf_group_limits.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the grouped kernels take this layer and batch. @return NULL, or why not: a static string. */
const char *trf_group_refuses(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype);

/* Whether one kernel takes both layers, with x of one type. */
int trf_group_fits(const trf_device_view *view, const trf_device_view *other);

/* ---- layers ---- */

/* One layer's product, which trf_group_refuses takes. */
typedef struct trf_group_product {
    const trf_device_view *view;
    const trf_layer_traits *traits;
    uint32_t m;
    trf_dtype x_dtype, y_dtype;
} trf_group_product;

/* One layer's part of a launch. */
typedef struct trf_group_layer_partition {
    uint32_t clusters;             /* as trf_fused_kernel.cuh has it, as what follows */
    uint32_t k_splits, wave_units; /* 1 for clusters of one block, whose warps share units evenly */
    uint64_t edges, padded_x;      /* offsets in the workspace */
} trf_group_layer_partition;

typedef struct trf_group_choice {
    uint32_t slabs, warps, cluster; /* slabs that a warp walks side by side; warps of a block; blocks of a cluster */
    uint32_t rans_bytes;            /* of the layer with the longest streams */
    double microseconds;            /* estimated, of a whole launch but what every launch takes */
    uint64_t workspace_bytes;
    trf_group_layer_partition layers[TRF_GROUP_LAYERS];
} trf_group_choice;

/* products: 1 to TRF_GROUP_LAYERS that fit each other (trf_group_fits), x of one type. @return whether there is a cut
 * for them. */
int trf_group_choose(const trf_group_product *products, uint32_t count, const trf_device_limits *limits,
                     trf_group_choice *choice);

/* y[i] = x[i] . W^T of each; products, count: those of the choice. workspace: 256-byte aligned. */
int trf_group_launch(const trf_group_product *products, uint32_t count, const trf_group_choice *choice,
                     const void *const *x, void *const *y, void *workspace, trf_stream stream);

/* ---- experts ---- */

/* One expert, as the kernels see it: an array of them lies in device memory. */
typedef struct trf_expert {
    trf_device_view view;
    uint32_t has_edges, unused;
} trf_expert;

typedef struct trf_experts_choice {
    uint32_t slabs, warps; /* slabs that a warp walks side by side; warps of a block */
    uint32_t rans_bytes;   /* of the expert with the longest streams */
    uint32_t edges;        /* whether any expert has some */
    trf_expert_cost_model cost_model;
} trf_experts_choice;

/* Sets all but stream_bytes and edges, which are set, for calls of so many tokens. view: of any expert. @return whether
 * there is a choice. */
int trf_experts_choose(const trf_device_view *view, uint32_t count, uint32_t tokens, const trf_device_limits *limits,
                       trf_experts_choice *choice);

/* A call of experts. */
typedef struct trf_experts_call {
    const trf_device_view *view;   /* of any expert: shape and codec */
    const trf_expert *experts_dev; /* [count] */
    uint32_t count, max_rows;
    trf_dtype x_dtype, y_dtype;
    const uint32_t *offsets_dev; /* [count + 1] */
    const void *x;               /* device, [tokens][cols] */
    void *y;                     /* device, [tokens][rows] */
    uint8_t *workspace;
} trf_experts_call;

uint64_t trf_experts_workspace_bytes(const trf_device_view *view, const trf_experts_choice *choice, uint32_t max_rows);
int trf_experts_launch(const trf_experts_call *call, const trf_experts_choice *choice, const trf_device_limits *limits,
                       trf_stream stream);

/* As trf_launch_edge_product, for the tokens of all experts that have edges. partial: [max_rows][rows]. */
int trf_launch_expert_edge_product(const trf_experts_call *call, const void *x, uint64_t x_stride, float *partial,
                                   trf_stream stream);

/* As trf_launch_pad_x, for *end rows of x, a number in device memory, and max_rows at most. */
int trf_launch_pad_tokens(const void *x, const uint32_t *end_dev, uint32_t max_rows, uint32_t cols, void *padded,
                          uint64_t stride, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
