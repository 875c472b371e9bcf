/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed layers as the kernels compute them (trf_packed_general.cuh). Emulated blocks (warp_emulation.h)
 * run them one after the other. */
#ifndef WARP_PACKED_PRODUCT_H
#define WARP_PACKED_PRODUCT_H

#include "trf_packed_partition.h"
#include "trf_product.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct warp_packed_product {
    const trf_packed_view *view;           /* all in host memory */
    const trf_packed_partition *partition; /* for the general kernel; the others do not read it */
    uint32_t m;
    const uint16_t *x; /* BF16 [m][cols] */
    int two_at_once;   /* x is loaded two values at a time: 4-byte aligned, and of an even number of columns */
    void *workspace;   /* for the general kernel the partition's; for the others, what begins at its handover_offset */
    trf_epilogue epilogue;
    uint32_t order; /* of threads; any number */
} warp_packed_product;

void warp_multiply_packed(const warp_packed_product *product);

/* The same by a bulk kernel (trf_packed_bulk.cuh). shape: trf_packed_bulk_shape; x_tiles: 1, 2, 4 or 8, for all of m.
 * blocks: all blocks for a stream-K shape, else those of a cluster, 1 or 2. product->workspace:
 * trf_packed_handover_bytes. */
void warp_multiply_packed_bulk(const warp_packed_product *product, int shape, uint32_t x_tiles, uint32_t blocks);

/* The same for a packed FP8 layer. product->view: the part of a trf_packed8_view; flags: the layer's. */
void warp_multiply_packed8_bulk(const warp_packed_product *product, uint32_t flags, int shape, uint32_t x_tiles,
                                uint32_t blocks);

/* Several products in one launch of such a kernel. shape: one with clusters; x_tiles: 1, 2 or 4, for all of each m.
 * Workspaces and partitions of products are not used. */
void warp_multiply_packed_group(const warp_packed_product *products, uint32_t count, int shape, uint32_t x_tiles,
                                uint32_t cluster_size);

/* The same for packed FP8 layers, whose flags these are, all of them joined. */
void warp_multiply_packed8_group(const warp_packed_product *products, uint32_t count, uint32_t flags, int shape,
                                 uint32_t x_tiles, uint32_t cluster_size);

/* One product by a wgmma kernel (trf_packed_wgmma.cuh). partition: the wgmma kernel's, which replaces
 * product->partition. */
void warp_multiply_packed_wgmma(const warp_packed_product *product, const trf_packed_partition *partition);

/* The same for a packed FP8 layer. product->view: the part of a trf_packed8_view. */
void warp_multiply_packed8_wgmma(const warp_packed_product *product, const trf_packed_partition *partition);

#ifdef __cplusplus
}

struct trf_packed_handover;
static const uint64_t WARP_LAUNCH_ID = 0x9E3779B97F4A7C15;

/* Expects that the blocks of a product have taken over all sums that were handed to them, so that the next run may have
 * the same launch id. */
void warp_expect_taken_over(const trf_packed_handover &handover, uint32_t blocks);
#endif

#endif
