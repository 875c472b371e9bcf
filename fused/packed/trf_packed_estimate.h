/* SPDX-License-Identifier: Apache-2.0 */
/* How long a product of a packed layer should take, by which partitions are chosen. Plain C: nothing here touches a
 * device. */
#ifndef TRF_PACKED_ESTIMATE_H
#define TRF_PACKED_ESTIMATE_H

#include "trf_packed_partition.h"
#include "trf_packed_wgmma_sizes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a product is reckoned from. Doubles alone, so that a search (tools/packed_choice) can take them as a list.
 * Together they give the time; one by one they are no measurements. Nanoseconds; bytes a nanosecond. */
typedef struct trf_packed_costs {
    /* Bulk kernels: launch, first stage, sums to y; sums by way of memory; a cluster's meetings, by its blocks. */
    double bulk_start, bulk_stream_k, bulk_cluster[TRF_MAX_CLUSTER + 1];
    double bulk_copy;                               /* bytes that a multiprocessor gets */
    double bulk_read;                               /* of the memory's bandwidth by its clock */
    double bulk_k_block[TRF_PACKED_BULK_SHAPES][4]; /* whose copies are there, by 1, 2, 4 and 8 x tiles; 0: no kernel */

    /* wgmma kernels likewise, and more of a start if registers are moved. */
    double wgmma_start, wgmma_registers, wgmma_cluster[TRF_MAX_CLUSTER + 1];
    double wgmma_copy, wgmma_read;
    double wgmma_stream_k, wgmma_fronts; /* sums by way of memory, without fronts and with them */
    double wgmma_tile;                   /* of each tile of a block: begin and end */
    double wgmma_row, wgmma_cluster_row; /* for each row of x: sums to y, and to other blocks */
    double wgmma_back_row;               /* likewise: a back's sums to a front */
    double wgmma_sharer_row;             /* for each block that shares a tile without a front */
    double wgmma_shared_x;               /* more for a k block of shared tiles without fronts, by several x blocks */
    double wgmma_back_k_block;           /* factor of a k block of a back, by several x blocks */
    double wgmma_k_block, wgmma_k_block_row; /* a warpgroup's way through a k block whose copies are there */
    double wgmma_product_row;                /* of a k block, for each row of x and band: the tensor cores' time, ... */
    double wgmma_power_row;                  /* ... and what they may by the power that there is */
    double wgmma_192_k_block, wgmma_192_product; /* factors of these two, of blocks of 192 rows of W */
} trf_packed_costs;

/* The costs on compute capability 9.0. */
extern const trf_packed_costs trf_packed_sm_90_costs;

/* @return nanoseconds of a product of m rows of x, cut so by trf_packed_choose_shape. */
double trf_packed_estimate(const trf_packed_costs *costs, const trf_packed_view *view, const trf_device_limits *limits,
                           uint32_t m, const trf_packed_partition *partition);

#ifdef __cplusplus
}
#endif

#endif
