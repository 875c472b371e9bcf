/* SPDX-License-Identifier: Apache-2.0 */
/* Runs trf_walk_slabs, as the kernels instantiate it, in an emulated block (warp_emulation.h) that stores what it
 * decodes. */
#ifndef WARP_WALK_H
#define WARP_WALK_H

#include "trf_device_view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The walks that kernels have. They differ in slabs at a time, ring and table; each has the codec configs that it is
 * made for. */
typedef enum warp_walk_variant {
    WARP_WALK_WRITE,          /* decoding to memory, by trf_write_sink itself; the others have a sink only for tests */
    WARP_WALK_WRITE_GENERAL,  /* the same for unusual p, L and frequencies */
    WARP_WALK_ONE_SLAB,       /* products with one slab a warp */
    WARP_WALK_GENERAL,        /* the same for unusual p, L and frequencies */
    WARP_WALK_TWO_SLABS,      /* products with two slabs a warp */
    WARP_WALK_TWO_SLABS_COPY, /* the same, and copies x meanwhile */
    WARP_WALK_WIDE,           /* products of large batches: the short ring */
    WARP_WALK_VARIANTS
} warp_walk_variant;

/* The outcome of a slab. Two slabs that are walked at a time have the same. */
enum {
    WARP_SLAB_PASSED_BY,
    WARP_SLAB_BAD,
    WARP_SLAB_GOOD
};

typedef struct warp_walk {
    const trf_device_view *view; /* all in host memory; the directory may be nonsense */
    uint32_t max_rans_bytes, max_frequency;
    warp_walk_variant variant;
    /* Selects the codec config that only products have: E4M3 that is written as F16, int whose raw bits are known when
     * it is compiled. */
    int product_config;
    uint32_t warps;
    uint32_t table_log; /* for unusual p: p + 4 to 16 */
    uint32_t order;     /* of threads; any number */
    /* Filled. */
    uint16_t *elements; /* [rows][cols], 16-byte aligned */
    uint8_t *seen;      /* [rows][cols]: how often each weight was stored */
    uint8_t *slabs;     /* [num_bands][num_panels]: WARP_SLAB_... */
} warp_walk;

/* Walks all regular slabs. @return 0 if no kernel of this variant takes the layer. */
int warp_walk_layer(const warp_walk *walk);

#ifdef __cplusplus
}
#endif

#endif
