/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 weights of layers for tests of the layouts other than the coded one. */
#ifndef WEIGHT_KINDS_H
#define WEIGHT_KINDS_H

#include <stdint.h>

typedef enum weight_kind {
    NORMAL,
    ZEROS,       /* half of them */
    OUTLIERS,    /* a few each of NaNs with payloads, Inf, denormals, zeros and large weights */
    SCALED_ROWS, /* rows have very different magnitudes: the encoder takes row offsets */
    SCALED_COLS, /* likewise columns, within what a window takes */
    EXACT,       /* small multiples of a power of two, so that sums are exact in any order */
    WILD,        /* exponents of two windows: cannot be packed */
    BURSTS       /* so many outliers in some places that packed tiles are stored */
} weight_kind;

/* @return weights [rows][cols], to be released with free; they are the same each time. */
uint16_t *weight_kind_make(weight_kind kind, uint32_t rows, uint32_t cols);

#endif
