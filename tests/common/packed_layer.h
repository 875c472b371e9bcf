/* SPDX-License-Identifier: Apache-2.0 */
/* A dense layer and what packing makes of it. Everything here ends the program on failure. */
#ifndef PACKED_LAYER_H
#define PACKED_LAYER_H

#include "trf_pack.h"

typedef struct packed_layer {
    uint32_t rows, cols;
    uint16_t *weights;   /* [rows][cols] */
    int8_t *row_offsets; /* [rows] or NULL */
    trf_packed_head head;
    uint8_t *packed; /* exactly head.common.buffer_bytes, 256-byte aligned; NULL if not packed */
} packed_layer;

/* Makes a layer. The caller fills in the weights; row offsets are zeros. */
packed_layer packed_layer_make(uint32_t rows, uint32_t cols, int with_row_offsets);
void packed_layer_free(packed_layer *layer);

trf_pack_input packed_layer_input(const packed_layer *layer);

/* Packs the layer with the window that suits it, or with this one. The result replaces an earlier one. @return what
 * trf_pack_head says. */
trf_status packed_layer_pack(packed_layer *layer, const trf_packed_window *window, trf_error *err);

/* Whether the packed layer is valid and unpacks to the weights bit for bit: as a whole, by rows, and one by one. */
int packed_layer_is_right(const packed_layer *layer);

/* Reads everything in a layer whose head is valid, whatever else is wrong with it. */
void packed_layer_read_all(const void *packed);

#endif
