/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel multiplies by a packed layer, and how the product is cut over a device (trf_packed_general.cuh,
 * trf_packed_bulk.cuh and trf_packed_wgmma.cuh have pictures). Plain C: nothing here touches a device. */
#ifndef TRF_PACKED_PARTITION_H
#define TRF_PACKED_PARTITION_H

#include "trf_device_limits.h"
#include "trf_packed.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_PACKED_GENERAL_WARPS = 8,   /* of a block of the general kernel */
    TRF_PACKED_MMA_MAX_X_TILES = 8, /* of a block of the general kernel or a bulk one: 64 rows of x */
    TRF_PACKED_X_TILE_ROWS = 8,
    TRF_PACKED_GENERAL = -1, /* in place of a bulk kernel's shape */
    TRF_PACKED_MAX_CANDIDATES = 8
};

typedef struct trf_packed_partition {
    int shape; /* trf_packed_bulk_shape, trf_packed_wgmma_shape; TRF_PACKED_GENERAL: the kernel that runs everywhere */
    uint32_t x_tiles; /* of a block: 1, 2, 4 or 8; of wgmma kernels 8 to 32 */
    uint64_t blocks;
    uint32_t x_blocks; /* x blocks of the batch, each of 8 * x_tiles rows of x; of bulk kernels 1 */
    uint32_t k_splits; /* of the general kernel: into which a band's packed tiles are cut */
    /* Bulk and wgmma kernels. */
    uint32_t tiles, k_blocks; /* block tiles of the product; k blocks of a tile */
    uint32_t cut;             /* as trf_packed_choose_shape was given it */
    uint32_t cluster_size; /* blocks of a cluster, which cut a tile's k blocks; 1 of blocks alone, which stay or not */
    uint32_t whole_tiles;  /* wgmma: the first ones, that are not cut by stream-K */
    uint32_t front_k_blocks; /* ... and of each other tile its front; 0: those have none (trf_packed_wgmma_share.cuh) */
    /* x copied to rows of whole 16 bytes, at 0, where it may be needed | what blocks hand to each other. */
    uint64_t handover_offset, workspace_bytes;
} trf_packed_partition;

/* Sets the partition of the general kernel. @return 0 where a product of so many rows of x is too large for a grid
 * or for memory, else 1. */
int trf_packed_choose_general(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                              trf_packed_partition *partition);

/* How blocks of bulk and wgmma kernels share a product: a cluster of so many blocks for each tile, 1 to
 * TRF_MAX_CLUSTER; or TRF_PACKED_STREAM_K, blocks that stay, which have an equal share of all k blocks. Blocks *stay*
 * if there are no more than multiprocessors, and each goes on from tile to tile (persistent blocks). wgmma kernels:
 * blocks stay with 1, too, each with whole tiles, some with one more than others; with stream-K those tiles are shared
 * that are left when all blocks have had as many whole ones. Bulk kernels have either clusters or stream-K, by their
 * shape. */
enum {
    TRF_PACKED_STREAM_K = 0
};

/* Sets the partition of a shape's bulk or wgmma kernel, with the product cut so. @return 0 if the device, the batch
 * or the kernel does not let it run so, else 1. */
int trf_packed_choose_shape(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                            uint32_t cut, trf_packed_partition *partition);

/* Those bulk and wgmma kernels and cuts that may be the fastest, n at most and no more than TRF_PACKED_MAX_CANDIDATES:
 * they should take at most 15 % longer than the first one, which trf_packed_choose takes; in the order of these times.
 * @return how many; 0 where only the general kernel runs. */
uint32_t trf_packed_candidates(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                               trf_packed_partition *out, uint32_t n);

/* The one that should be the fastest. @return as trf_packed_choose_general. */
int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition);

/* @return "general", "bulk-256", "wgmma-128" ..., as tunings and plans call the kernels; "?" of what is no shape. */
const char *trf_packed_kernel_name(int shape);

/* @return whether there was a kernel of that name which is gone: tunings may still name it. */
int trf_packed_is_former_kernel(const char *name);
/* @return the shape of the bulk or wgmma kernel of that name; TRF_PACKED_GENERAL if there is none. */
int trf_packed_find_kernel(const char *name);

/* @return "stream-k", "1" ... "8"; "?" of what is no cut. */
const char *trf_packed_cut_name(uint32_t cut);

#ifdef __cplusplus
}
#endif

#endif
