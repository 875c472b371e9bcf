/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of FP8 codes, its scales, its weights, and what packing makes of it. Everything here ends the program on
 * failure. */
#ifndef PACKED8_LAYER_H
#define PACKED8_LAYER_H

#include "common/test_weights.h"
#include "trf_pack8.h"

typedef struct packed8_layer {
    uint32_t rows, cols;
    uint32_t block_rows, block_cols;
    uint8_t *codes;       /* [rows][cols] */
    uint16_t *weights;    /* [rows][cols] */
    float *scales;        /* [block rows][block columns] */
    float *second_scales; /* likewise, of rows 8 to 15 of each 16; NULL: the layer is not in turns */
    size_t num_scales;
    trf_packed8_head head;
    uint8_t *packed; /* exactly head.common.buffer_bytes, 256-byte aligned; NULL if not packed */
} packed8_layer;

/* What kinds of scales there are. */
enum {
    SCALES_F32,
    SCALES_BF16, /* one constant is enough */
    SCALE_KINDS
};

/* Makes a layer of random codes, none a NaN, with random scales around 2^-8, and the weights that they make. */
packed8_layer packed8_layer_make(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t block_rows, uint32_t block_cols,
                                 int scale_kind);
void packed8_layer_free(packed8_layer *layer);

/* Makes the layer one in turns, with random second scales, and computes the weights again. */
void packed8_layer_take_turns(packed8_layer *layer, test_rng *rng, int scale_kind);

/* Computes the weights again, by definition. */
void packed8_layer_define_weights(packed8_layer *layer);

/* with_weights: packing is given the weights, too. */
trf_pack8_input packed8_layer_input(const packed8_layer *layer, int with_weights);

/* Packs the layer. The result replaces an earlier one. @return what trf_pack8_head says. */
trf_status packed8_layer_pack(packed8_layer *layer, int with_weights, trf_error *err);

/* Ends the program if the packed layer is not valid or does not unpack to the weights bit for bit. */
void packed8_layer_check(const packed8_layer *layer);

enum {
    PACKED8_CLASSES = 1006 /* runs of neighbouring mantissas of scales that make the same eight mantissas of codes */
};

/* Fills in the first and the last mantissa of each class. */
void packed8_find_classes(uint32_t ends[2 * PACKED8_CLASSES]);

#endif
