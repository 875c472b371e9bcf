/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel multiplies by a packed layer, and how the product is cut over a device (trf_packed_product.cuh,
 * trf_packed_bulk.cuh and trf_packed_wgmma.cuh have pictures). Plain C: nothing here touches a device. */
#ifndef TRF_PACKED_PARTITION_H
#define TRF_PACKED_PARTITION_H

#include "trf_device_limits.h"
#include "trf_packed.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_PACKED_BLOCK_WARPS = 8, /* of the general kernel */
    TRF_PACKED_MAX_X_TILES = 8, /* of a block: 64 rows of x */
    TRF_PACKED_GENERAL = -1     /* in place of a bulk kernel's shape */
};

typedef struct trf_packed_partition {
    int shape; /* trf_packed_bulk_shape, trf_packed_wgmma_shape; TRF_PACKED_GENERAL: the kernel that runs everywhere */
    uint32_t x_tiles; /* of a block: 1, 2, 4 or 8; of wgmma kernels 8 to 32 */
    uint64_t blocks;
    uint32_t x_blocks; /* that have the same weights, and other rows of x; of bulk kernels 1 */
    uint32_t parts;    /* the general kernel's split-K: into which a band's packed tiles are cut */
    /* Bulk and wgmma kernels. */
    uint32_t tiles, stages; /* block tiles of the product; stages of a tile */
    uint32_t cluster;       /* blocks of a cluster, which cut a tile's stages; 1 with stream-K */
    uint32_t whole;         /* wgmma: tiles, the first ones, that are not cut by stream-K */
    /* x copied to rows of whole 16 bytes, at 0, where it may be needed | partial sums. */
    uint64_t partials_offset, workspace_bytes;
} trf_packed_partition;

/* Of the general kernel. @return 0 where a product of so many rows of x is too large for a grid or for memory, else
 * 1. */
int trf_packed_choose_general(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                              trf_packed_partition *partition);

/* Of the bulk kernel of a shape. @return 0 if the device or the batch does not let it run, else 1. */
int trf_packed_choose_bulk(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                           trf_packed_partition *partition);

/* How blocks of wgmma kernels share a product: clusters of 2 or 4 blocks for each tile, as the number says, or blocks
 * that stay, each with whole tiles, and of those that are left over an equal share of stages. */
typedef enum trf_packed_cut {
    TRF_PACKED_CUT_STREAM_K = 0,
    TRF_PACKED_CUT_WHOLE = 1, /* nothing is left over for stream-K: some blocks have a tile more */
    TRF_PACKED_CUT_2 = 2,
    TRF_PACKED_CUT_4 = 4
} trf_packed_cut;

/* Of the wgmma kernel of a shape. @return 0 if the device does not let it run, or not cut so, else 1. */
int trf_packed_choose_wgmma(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                            trf_packed_cut cut, trf_packed_partition *partition);

/* The one that should be the fastest. @return as trf_packed_choose_general. */
int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition);

#ifdef __cplusplus
}
#endif

#endif
