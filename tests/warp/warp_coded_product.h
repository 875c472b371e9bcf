/* SPDX-License-Identifier: Apache-2.0 */
/* Products of coded layers of scaled FP8 by the accumulators of fused kernels (trf_warp_product.cuh), each of whose
 * warps has all columns of its units, in an emulated block (warp_emulation.h). */
#ifndef WARP_CODED_PRODUCT_H
#define WARP_CODED_PRODUCT_H

#include "trf_device_view.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct warp_coded_product {
    const trf_device_view *view; /* all in host memory, scale pairs included */
    uint32_t max_rans_bytes;
    int use_row_offsets;
    int two_slabs;     /* a warp walks two slabs at a time */
    int general;       /* any p; with one slab at a time */
    const uint16_t *x; /* BF16 [8][x_stride], 16-byte aligned rows */
    uint32_t x_stride;
    float *y; /* [8][rows]: rows in whole bands are written */
    uint32_t warps, order;
} warp_coded_product;

/* Multiplies by all regular slabs. general, or a layer of default p and frequencies. */
void warp_multiply_coded(const warp_coded_product *product);

#ifdef __cplusplus
}
#endif

#endif
