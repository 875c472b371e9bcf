/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates of how long a product of a packed layer takes; partitions are chosen by them. Plain C: nothing here touches
 * a device. */
#ifndef TRF_PACKED_ESTIMATE_H
#define TRF_PACKED_ESTIMATE_H

#include "trf_packed_partition.h"
#include "trf_packed_wgmma_sizes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a product's time is computed from. All fields are doubles, so that a search (tools/packed_choice) can take them
 * as a list. Only together do they give the time; one by one they are no measurements. Units: nanoseconds, and bytes a
 * nanosecond. */
typedef struct trf_packed_costs {
    /* Bulk kernels: launch, first stage and sums to y; sums by way of memory; the barriers of a cluster of n blocks. */
    double bulk_start, bulk_stream_k, bulk_cluster[TRF_MAX_CLUSTER + 1];
    double bulk_copy; /* bytes a nanosecond that a multiprocessor gets */
    double bulk_read; /* share of the memory bandwidth that the memory clock allows */
    /* A k block whose copies have arrived, with 1, 2, 4 and 8 x tiles; 0 if there is no such kernel. */
    double bulk_k_block[TRF_PACKED_BULK_SHAPES][4];

    /* wgmma kernels: the same, and a longer start if registers are moved. */
    double wgmma_start, wgmma_registers, wgmma_cluster[TRF_MAX_CLUSTER + 1];
    double wgmma_copy, wgmma_read;
    double wgmma_stream_k, wgmma_fronts; /* sums by way of memory, without fronts and with them */
    double wgmma_tile;                   /* the begin and end of each tile of a block */
    double wgmma_row, wgmma_cluster_row; /* for each row of x: its sums to y, and to other blocks */
    double wgmma_back_row;               /* for each row of x: its sums from a back to a front */
    double wgmma_sharer_row;             /* for each row of x, and each block that shares a tile without a front */
    double wgmma_shared_x;     /* added to a k block of shared tiles without fronts if there are several x blocks */
    double wgmma_back_k_block; /* factor of a k block of a back if there are several x blocks */
    double wgmma_k_block, wgmma_k_block_row; /* the time of a warpgroup for a k block whose copies have arrived */
    double wgmma_product_row; /* for a k block, each row of x and each band: the time of the tensor cores, ... */
    double wgmma_power_row;   /* ... and their time where power is the limit */
    /* with 192 rows of W: factors of a warpgroup's time and of the product's time */
    double wgmma_192_k_block, wgmma_192_product;
} trf_packed_costs;

/* The costs on compute capability 9.0. */
extern const trf_packed_costs trf_packed_sm_90_costs;

/* @return those of packed FP8 layers with these flags, TRF_PACKED8_HAS_LOW and TRF_PACKED8_HAS_RECORDS. */
trf_packed_costs trf_packed8_sm_90_costs(uint32_t flags);

/* @return the nanoseconds of a product of m rows of x. slab_bytes: of the layer's packed slabs, by which it is BF16 or
 * FP8. partition: one that trf_packed_choose_shape or trf_packed8_choose_shape made. */
double trf_packed_estimate(const trf_packed_costs *costs, uint32_t slab_bytes, const trf_packed_view *view,
                           const trf_device_limits *limits, uint32_t m, const trf_packed_partition *partition);

/* @return the nanoseconds of products in one launch of a bulk kernel. slab_bytes: of the layers' packed slabs. views,
 * m, partitions: of `count` products, all with one shape, x tiles and size of clusters; all clusters run at once. */
double trf_packed_estimate_group(const trf_packed_costs *costs, uint32_t slab_bytes,
                                 const trf_packed_view *const *views, const trf_device_limits *limits,
                                 const uint32_t *m, const trf_packed_partition *partitions, uint32_t count);

#ifdef __cplusplus
}
#endif

#endif
