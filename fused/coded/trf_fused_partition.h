/* SPDX-License-Identifier: Apache-2.0 */
/* Which fused kernel computes a product, and how the work is cut over a device (trf_fused_kernel.cuh has the terms and
 * a picture). Plain C: nothing here touches a device. */
#ifndef TRF_FUSED_PARTITION_H
#define TRF_FUSED_PARTITION_H

#include "trf_device_limits.h"
#include "trf_fused_variant.h"
#include "trf_product.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trf_fused_partition {
    uint32_t variant, x_tiles, warps, unit_slabs; /* of the kernel; unit_slabs: slabs that a unit has in a panel */
    uint32_t cluster_size, clusters;              /* blocks of a cluster; clusters */
    uint32_t units, panels;            /* of the layer: units of whole bands, regular panels; either may be 0 */
    uint32_t k_splits, wave_units;     /* warps that share a unit's panels; units that a block walks at once */
    uint32_t waves, block_panels;      /* of the block that has the most; waves is 0 with stream-K */
    uint32_t is_stream_k, wave_panels; /* wave_panels: of all blocks, with stream-K */
    /* Shared memory. */
    trf_smem_layout smem;
    uint32_t sums_offset, sums_stride; /* sums_stride: from one warp's sums to the next */
    /* Whether a cluster's sums take the place of the stages of x or, without a pipeline of x, of the warps' buffers.
     * That needs less space, but one more barrier. */
    uint32_t cluster_sums_replace_buffers;
    uint32_t x_stages_offset, x_stage_cols; /* of the pipelines of x; columns of a stage, 0 if there is none */
    uint32_t shared_bytes;                  /* dynamic */
    /* Offsets in the workspace, which begins with the edges' sums. */
    uint64_t partials_offset, padded_x_offset, epilogue_sums_offset, workspace_bytes;
} trf_fused_partition;

/* Whether sums go to the workspace, from where an epilogue, possibly an empty one, brings them to y. This is also done
 * if there are edges and the rows of y are not contiguous, since kernels use one index for y and for the edges'
 * sums. */
static inline int trf_fused_has_sums_in_workspace(const trf_device_view *view, const trf_layer_traits *traits,
                                                  const trf_product *product) {
    return trf_has_epilogue(product) || (traits->irregular_weights && product->y_stride != view->rows);
}

/* The number of warps of a block: as many as the kernel is made for, or fewer. */
uint32_t trf_fused_block_warps(const trf_fused_partition *partition);

/* Says why the fused kernels do not take this layer and batch: a static string, or NULL if they do. */
const char *trf_fused_refusal(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype);

/* Finds the partition that is estimated to be the fastest. To be called only if trf_fused_refusal is NULL. */
void trf_fused_choose(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                      const trf_product *product, trf_fused_partition *partition);

/* Returns the estimated time of the product, beyond what every launch takes. To be called only if trf_fused_refusal is
 * NULL. */
double trf_fused_microseconds(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m);

#ifdef __cplusplus
}
#endif

#endif
