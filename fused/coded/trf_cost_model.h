/* SPDX-License-Identifier: Apache-2.0 */
/* Estimated times of products that are decoded on the way: what planning compares partitions by. All constants of the
 * estimates stand in trf_cost_model.c, each with its unit; they are fits to measurements on an H200
 * (docs/notebook/2026-11-22-fused-kernel.md). Microseconds, beyond what every launch takes. Plain C. */
#ifndef TRF_COST_MODEL_H
#define TRF_COST_MODEL_H

#include "trf_fused_partition.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What every launch takes, and no estimate here contains: what comes before its first step and behind its last one, as
 * far as the next launch does not hide it. */
#define TRF_LAUNCH_US 3.0
/* For a block to enter an expert (arguments, directory, table, first slabs: latencies of memory) and to leave it. */
#define TRF_EXPERT_BEGIN_US 6.0

/* ---- one layer ---- */

/* The cost of a layer's product that is cut so; what of the partition depends on shared memory does not matter. */
double trf_cost_of_fused(const trf_device_view *view, const trf_fused_partition *partition, uint32_t multiprocessors,
                         uint32_t m);

/* ---- layers that share a launch, and experts ---- */

/* What the cost model knows of a layer that a block of a grouped kernel walks. */
typedef struct trf_cost_layer {
    uint32_t units, panels;       /* of whole bands; regular ones */
    uint32_t unit_slabs, warps;   /* slabs of a unit in a panel; of a block */
    double slab_us, lone_step_us; /* of a slab; of a step at least, however few warps are at work */
    double sum_bytes;             /* that a warp leaves */
} trf_cost_layer;

trf_cost_layer trf_cost_layer_of(const trf_device_view *view, uint32_t unit_slabs, uint32_t warps, uint32_t m);

/* The cost of a step, in which so many warps of a block walk a panel each. */
double trf_cost_of_step(const trf_cost_layer *layer, double warps_at_work);

/* The cost of a block alone with so many units, whose warps share them evenly (stream-K). */
double trf_cost_of_stream_k(const trf_cost_layer *layer, uint32_t units);

/* The cost of a block of a cluster of several blocks: waves of wave_units units, of each so many panels, cut among
 * k_splits warps. */
double trf_cost_of_split_k(const trf_cost_layer *layer, uint32_t waves, uint32_t wave_units, uint32_t panels,
                           uint32_t k_splits, uint32_t cluster_size);

#ifdef __cplusplus
}
#endif

#endif
