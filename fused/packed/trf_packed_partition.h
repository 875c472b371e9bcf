/* SPDX-License-Identifier: Apache-2.0 */
/* How a product of a packed layer is cut over a device (trf_packed_product.cuh has a picture). Plain C: nothing here
 * touches a device. */
#ifndef TRF_PACKED_PARTITION_H
#define TRF_PACKED_PARTITION_H

#include "trf_device_limits.h"
#include "trf_packed.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_PACKED_BLOCK_WARPS = 8,
    TRF_PACKED_MAX_X_TILES = 8 /* of a block: 64 rows of x */
};

typedef struct trf_packed_partition {
    uint32_t x_tiles;         /* of a block: 1, 2, 4 or 8 */
    uint32_t x_blocks;        /* that have the same weights, and other rows of x */
    uint32_t parts;           /* split-K: into which a band's packed tiles are cut */
    uint64_t blocks;          /* bands * parts * x_blocks */
    uint64_t workspace_bytes; /* of partial sums: F32 [parts][m][padded rows]; 0 if there is one part */
} trf_packed_partition;

/* @return 0 where a product of so many rows of x is too large for a grid or for memory, else 1. */
int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition);

#ifdef __cplusplus
}
#endif

#endif
