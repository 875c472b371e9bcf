/* SPDX-License-Identifier: Apache-2.0 */
/* Estimated times of products that decode their weights on the way; planning compares partitions by them. All constants
 * of the estimates stand in trf_cost_model.c, each with its unit; they are fits to measurements on an H200
 * (docs/notebook/2026-11-22-fused-kernel.md). Times are microseconds, beyond what every launch takes. Plain C. */
#ifndef TRF_COST_MODEL_H
#define TRF_COST_MODEL_H

#include "trf_fused_partition.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What every launch takes and no estimate here contains: the time before its first step and after its last one, as far
 * as the next launch does not hide it. */
#define TRF_LAUNCH_US 3.0
/* The time that a block needs to enter an expert (latencies of loading arguments, directory, table and first slabs),
 * and to leave it. */
#define TRF_EXPERT_BEGIN_US 6.0

/* ---- one layer ---- */

/* The cost of a layer's product with this partition. Those fields of the partition that depend on shared memory do not
 * matter. */
double trf_cost_of_fused(const trf_device_view *view, const trf_fused_partition *partition, uint32_t multiprocessors,
                         uint32_t m);

/* ---- layers that share a launch, and experts ---- */

/* What the cost model knows of a layer that a block of a grouped kernel walks. */
typedef struct trf_cost_layer {
    uint32_t units, panels;       /* units of whole bands; regular panels */
    uint32_t unit_slabs, warps;   /* slabs of a unit in a panel; warps of a block */
    double slab_us, lone_step_us; /* the time of a slab; the least time of a step, however few warps are at work */
    double sum_bytes;             /* bytes of sums that a warp leaves */
} trf_cost_layer;

trf_cost_layer trf_cost_layer_of(const trf_device_view *view, uint32_t unit_slabs, uint32_t warps, uint32_t m);

/* The cost of a step, in which each of the block's warps that are at work walks one panel. */
double trf_cost_of_step(const trf_cost_layer *layer, double warps_at_work);

/* The cost of a block that is no part of a cluster and has so many units, which its warps share evenly (stream-K). */
double trf_cost_of_stream_k(const trf_cost_layer *layer, uint32_t units);

/* The cost of a block of a cluster of several blocks. It has `waves` waves of wave_units units, and so many panels of
 * each, which are cut among k_splits warps. */
double trf_cost_of_split_k(const trf_cost_layer *layer, uint32_t waves, uint32_t wave_units, uint32_t panels,
                           uint32_t k_splits, uint32_t cluster_size);

#ifdef __cplusplus
}
#endif

#endif
