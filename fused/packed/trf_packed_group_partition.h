/* SPDX-License-Identifier: Apache-2.0 */
/* How products of several packed layers share a launch of a bulk kernel (trf_packed_bulk.cuh). Plain C: nothing here
 * touches a device.
 *
 * Alone a small layer has tiles for a part of the multiprocessors, or needs clusters whose barriers take long. In a
 * group each product keeps whole tiles of its own, and the tiles of all of them fill the device together. */
#ifndef TRF_PACKED_GROUP_PARTITION_H
#define TRF_PACKED_GROUP_PARTITION_H

#include "trf_packed_partition.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One product of a group. */
typedef struct trf_packed_group_product {
    const trf_packed_view *view;
    uint32_t m;
    const trf_packed_partition *alone; /* of the product in a launch of its own: a bulk or wgmma kernel's */
    const trf_packed8_view *fp8;       /* of a packed FP8 layer, whose part `view` then is; else NULL */
} trf_packed_group_product;

typedef struct trf_packed_group_partition {
    int shape; /* a trf_packed_bulk_shape with clusters */
    uint32_t x_tiles, cluster_size, blocks;
    /* estimated time of the launch, and of launches one after the other that start early */
    double group_ns, alone_ns;
    uint64_t workspace_bytes;
    /* Those of the products, with x_tiles of the group. */
    trf_packed_partition members[TRF_PACKED_GROUP_MAX_LAYERS];
    /* Where in the workspace a product's x is copied to rows of whole 16 bytes, if that is necessary. */
    uint64_t x_offset[TRF_PACKED_GROUP_MAX_LAYERS];
} trf_packed_group_partition;

/* Whether a group may have the product. */
int trf_packed_group_takes(const trf_packed_group_product *product);

/* Whether products can be in one group: BF16 layers that are all zeroing, or all not; or FP8 layers. */
int trf_packed_group_fits(const trf_packed_group_product *product, const trf_packed_group_product *other);

/* Finds the partition of 2 to TRF_PACKED_GROUP_MAX_LAYERS products that take the least time together. All of them are
 * taken and fit each other. @return 1 if it should be faster than launches of their own by more than the estimate may
 * be wrong, else 0. */
int trf_packed_group_choose(const trf_packed_group_product *products, uint32_t count, const trf_device_limits *limits,
                            trf_packed_group_partition *partition);

#ifdef __cplusplus
}
#endif

#endif
