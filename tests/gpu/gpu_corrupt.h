/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with corrupt rANS streams, which validation cannot detect. */
#ifndef GPU_CORRUPT_H
#define GPU_CORRUPT_H

#include "gpu_layers.h"

/* A layer whose checksums are right, but of which one slab does not decode. */
typedef struct gpu_corrupt_layer {
    gpu_layer layer;
    uint64_t tile;
    trf_tile_shape shape;
    uint32_t first_row, rows, first_col, cols; /* of the slab, in the layer */
} gpu_corrupt_layer;

/* Makes a corrupt copy of a layer, which stays as it is. Release the copy with gpu_layer_free. */
gpu_corrupt_layer gpu_corrupt(test_rng *rng, const gpu_layer *intact, uint64_t tile);

#endif
