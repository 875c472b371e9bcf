/* SPDX-License-Identifier: Apache-2.0 */
/* A coded BF16 layer as the kernels see it, in host memory, for tests that run them in emulated warps. Everything here
 * ends the program on failure. */
#ifndef CODED_LAYER_H
#define CODED_LAYER_H

#include "host_view.h"
#include "trf_layer.h"

typedef struct coded_layer {
    void *blob;
    trf_layer *layer;
    host_view *host;
    uint32_t max_rans_bytes;
} coded_layer;

/* weights: [rows][cols]. slab_cols: that of trf_encode_options. */
coded_layer coded_layer_encode(const uint16_t *weights, uint32_t rows, uint32_t cols, trf_favor favor,
                               uint32_t slab_cols);
void coded_layer_free(coded_layer *coded);

/* Says what trf_can_pack_coded says of a layer of whole slabs and packed bands. Small ones may have other probability
 * bits than the default ones. */
int coded_layer_is_packable(const coded_layer *coded);

#endif
