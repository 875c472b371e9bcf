/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 weights of layers that other layouts than the coded one are tried with. */
#ifndef WEIGHT_KINDS_H
#define WEIGHT_KINDS_H

#include <stdint.h>

typedef enum weight_kind {
    NORMAL,
    ZEROS,       /* half of them */
    OUTLIERS,    /* NaNs with payloads, Inf, denormals, zeros and large ones, of each a few */
    SCALED_ROWS, /* of very different size: the encoder takes row offsets */
    SCALED_COLS, /* likewise of columns, within what a window takes */
    EXACT,       /* small multiples of a power of two, so that sums are exact in any order */
    WILD,        /* two windows' worth of exponents: cannot be packed */
    BURSTS       /* so many outliers in some places that packed tiles are stored */
} weight_kind;

/* [rows][cols], to be freed by free(); the same ones each time. */
uint16_t *weight_kind_make(weight_kind kind, uint32_t rows, uint32_t cols);

#endif
