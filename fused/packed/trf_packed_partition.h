/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel multiplies by a packed layer, and how the product is cut over a device (trf_packed_general.cuh,
 * trf_packed_bulk.cuh and trf_packed_wgmma.cuh have pictures). Plain C: nothing here touches a device. */
#ifndef TRF_PACKED_PARTITION_H
#define TRF_PACKED_PARTITION_H

#include "trf_device_limits.h"
#include "trf_packed8.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_PACKED_GENERAL_WARPS = 8,   /* of a block of the general kernel */
    TRF_PACKED_MMA_MAX_X_TILES = 8, /* of a block of the general kernel or a bulk one: 64 rows of x */
    TRF_PACKED_X_TILE_ROWS = 8,
    TRF_PACKED_GENERAL = -1, /* in place of a bulk kernel's shape */
    TRF_PACKED_MAX_CANDIDATES = 8,
    TRF_PACKED_GROUP_MAX_LAYERS = 8, /* of a launch (trf_packed_group_partition.h): they fit into 4 KiB of arguments */
    TRF_PACKED_GROUP_MAX_M = 32      /* rows of x of each */
};

typedef struct trf_packed_partition {
    /* A trf_packed_bulk_shape or trf_packed_wgmma_shape; or TRF_PACKED_GENERAL, the kernel that runs everywhere. */
    int shape;
    uint32_t x_tiles; /* of a block: 1, 2, 4 or 8; with wgmma kernels 8 to 32 */
    uint64_t blocks;
    uint32_t x_blocks; /* x blocks of the batch, each of 8 * x_tiles rows of x; 1 with bulk kernels */
    uint32_t k_splits; /* of the general kernel: how many parts a band's packed tiles are cut into */
    /* The next fields are for bulk and wgmma kernels. */
    uint32_t tiles, k_blocks; /* block tiles of the product; k blocks of a tile */
    uint32_t cut;             /* the cut that trf_packed_choose_shape was given */
    /* blocks of a cluster, which share a tile's k blocks; 1 for blocks alone, whether they stay or not */
    uint32_t cluster_size;
    uint32_t whole_tiles; /* wgmma: the number of tiles, from the first on, that blocks do not share */
    /* ... and the k blocks of the front of each other tile; 0: these have no fronts (trf_packed_wgmma_share.cuh) */
    uint32_t front_k_blocks;
    /* The workspace: x copied to rows of whole 16 bytes, where that may be needed | what blocks hand over to each
     * other. */
    uint64_t handover_offset, workspace_bytes;
} trf_packed_partition;

/* Sets the partition of the general kernel. @return 0 where a product of so many rows of x is too large for a grid
 * or for memory, else 1. */
int trf_packed_choose_general(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                              trf_packed_partition *partition);

/* A *cut* says how blocks of bulk and wgmma kernels share a product. It is either the number of blocks of a cluster, 1
 * to TRF_MAX_CLUSTER, and each tile has one cluster; or TRF_PACKED_STREAM_K: blocks stay, and each has an equal share
 * of all k blocks. Blocks *stay* if there are no more of them than multiprocessors, and each goes on from tile to tile
 * (persistent blocks).
 *
 * With wgmma kernels, blocks stay with a cut of 1, too; each has whole tiles, some one more than others. With stream-K,
 * all blocks have the same number of whole tiles, and share the tiles that are left. A bulk kernel has either clusters
 * or stream-K, depending on its shape. */
enum {
    TRF_PACKED_STREAM_K = 0
};

/* Sets the partition for the bulk or wgmma kernel of a shape, with this cut. @return 0 if the device, the batch or the
 * kernel does not allow it, else 1. */
int trf_packed_choose_shape(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                            uint32_t cut, trf_packed_partition *partition);

/* Does the same for a packed FP8 layer. */
int trf_packed8_choose_shape(const trf_packed8_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                             uint32_t cut, trf_packed_partition *partition);

/* Finds the bulk and wgmma kernels and cuts that may be the fastest: those whose estimated time is at most 15 % longer
 * than that of the first one, which is the one that trf_packed_choose takes. They are in the order of these times;
 * there are at most n, and at most TRF_PACKED_MAX_CANDIDATES. @return how many; 0 where only the general kernel
 * runs. */
uint32_t trf_packed_candidates(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                               trf_packed_partition *out, uint32_t n);

/* Sets the partition that should be the fastest. @return as trf_packed_choose_general. */
int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition);

/* Do the same for a packed FP8 layer, whose flags count, too. There is no general kernel for it. @return of
 * trf_packed8_choose: 0 where no other runs, as on all devices that are not of compute capability 9.0; else 1. */
uint32_t trf_packed8_candidates(const trf_packed8_view *view, const trf_device_limits *limits, uint32_t m,
                                trf_packed_partition *out, uint32_t n);
int trf_packed8_choose(const trf_packed8_view *view, const trf_device_limits *limits, uint32_t m,
                       trf_packed_partition *partition);

/* @return the name that tunings and plans have for a kernel: "general", "bulk-256", "wgmma-128" ...; "?" for what is no
 * shape. */
const char *trf_packed_kernel_name(int shape);

/* @return whether there used to be a kernel of that name, which tunings may still contain. */
int trf_packed_is_former_kernel(const char *name);
/* @return the shape of the bulk or wgmma kernel of that name; TRF_PACKED_GENERAL if there is none. */
int trf_packed_find_kernel(const char *name);

/* @return "stream-k", "1" ... "8"; "?" for what is no cut. */
const char *trf_packed_cut_name(uint32_t cut);

#ifdef __cplusplus
}
#endif

#endif
