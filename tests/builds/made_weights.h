/* SPDX-License-Identifier: Apache-2.0 */
/* Weights made by integer arithmetic and exact conversions alone, so that every machine and compiler makes the same. */
#ifndef MADE_WEIGHTS_H
#define MADE_WEIGHTS_H

#include "transfuse.h"

typedef enum made_kind {
    MADE_TRAINED,    /* lower exponents are rarer, a few weights are odd: Inf and NaN among them */
    MADE_ROWS,       /* the same with exponents that depend on the row */
    MADE_COLS,       /* on the row and the column */
    MADE_PATTERNS,   /* all bit patterns */
    MADE_ZEROS,      /* zeros */
    MADE_BELL,       /* finite, bell-shaped; I8: codes -127 ... 127 */
    MADE_OUTLIERS,   /* the same with outliers, and rows of zeros */
    MADE_FP8_TENSOR, /* BF16: E4M3 numbers times one scale, */
    MADE_FP8_ROWS,   /* one for each row, */
    MADE_FP8_BLOCKS, /* one for each block of 128 x 128 */
    MADE_KINDS
} made_kind;

/* Fills a row-major matrix of rows x cols weights. Equal arguments give equal bytes. */
void made_fill(void *weights, trf_dtype dtype, made_kind kind, uint32_t rows, uint32_t cols, uint32_t seed);

#endif
