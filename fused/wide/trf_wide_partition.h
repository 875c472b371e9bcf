/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the wide kernels take a product, and how its work is cut over a device (trf_wide_kernel.cuh has the terms and
 * a picture). Plain C: nothing here touches a device. */
#ifndef TRF_WIDE_PARTITION_H
#define TRF_WIDE_PARTITION_H

#include "trf_device_limits.h"
#include "trf_product.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trf_wide_partition {
    uint32_t threads, x_rows; /* of a block; x_rows: rows of x that it multiplies by */
    uint32_t producers;       /* of a block: each has a range of panels, and trf_wide_block_units warps */
    uint32_t panels;          /* regular panels of the layer */
    uint32_t decoding_blocks; /* blocks of a cluster that decode for each other, 1 or 2 */
    uint32_t k_splits;        /* blocks of a cluster that share a work item's columns: 1, 2, 4 or 8 */
    uint32_t x_ranges;        /* how many ranges x's rows are cut into, each of decoding_blocks * x_rows rows */
    uint32_t work_items, clusters;
    /* Shared memory. There is one stage for each producer. */
    trf_smem_layout smem;
    uint32_t stages_offset, x_stages_offset, x_stage_bytes, shared_bytes;
    /* The workspace: first an aligned copy of x, then the sums to which an epilogue is applied. */
    uint64_t epilogue_sums_offset, workspace_bytes;
} trf_wide_partition;

/* Says why there are no wide kernels for the device: a static string, or NULL if there are. */
const char *trf_wide_device_refusal(const trf_device_limits *limits);

/* Says why the wide kernels do not take this layer and batch: a static string, or NULL if they do. */
const char *trf_wide_refusal(const trf_device_view *view, const trf_layer_traits *traits,
                             const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype);

/* Finds the partition with the shortest walk of a decoder. To be called only if trf_wide_refusal is NULL. */
void trf_wide_choose(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                     const trf_product *product, trf_wide_partition *partition);

#ifdef __cplusplus
}
#endif

#endif
