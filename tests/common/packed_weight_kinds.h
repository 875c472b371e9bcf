/* SPDX-License-Identifier: Apache-2.0 */
/* Dense layers with everything that packing meets, for tests of packing on a device; and dense rows at any
 * alignment. */
#ifndef PACKED_WEIGHT_KINDS_H
#define PACKED_WEIGHT_KINDS_H

#include "packed_layer.h"
#include "test_weights.h"

typedef enum packed_weight_kind {
    PACKED_WEIGHTS_NORMAL,
    PACKED_WEIGHTS_OUTLIERS,    /* normal, and one weight in 4,000 is special: Inf, NaN, denormal, large, tiny, zero */
    PACKED_WEIGHTS_PATTERNS,    /* within the window, but one weight in 3,500 takes all bit patterns in turn */
    PACKED_WEIGHTS_STORED,      /* within the window, but one tile in 20, from the 20th on, has random bits */
    PACKED_WEIGHTS_ZEROS,       /* normal, half of them zeros of either sign: zeroing */
    PACKED_WEIGHTS_ZEROS_MIXED, /* normal, a tenth of them zeros (zeroing), with outliers and stored tiles */
    PACKED_WEIGHTS_ROWS,        /* normal, but rows have very different magnitudes; row offsets say so */
    PACKED_WEIGHTS_ROWS_MIXED,  /* as ROWS, with the same */
    PACKED_WEIGHT_KINDS
} packed_weight_kind;

/* Makes a layer whose weights both the reference and a device can pack. *window: the one that suits it. */
packed_layer packed_layer_of_kind(test_rng *rng, uint32_t rows, uint32_t cols, packed_weight_kind kind,
                                  trf_packed_window *window);

/* Dense rows, which packing reads or unpacking writes, in memory of exactly their size. */
typedef struct dense_rows {
    void *memory;
    void *at;        /* the first row: `shift` weights after memory's first byte, which is 64-byte aligned */
    uint64_t stride; /* in weights */
    size_t shift, bytes;
    uint32_t rows, cols, weight_bytes;
} dense_rows;

/* Makes rows all of whose bytes are 0xC3. shift: weights in front of the first row; more: weights between a row's end
 * and the next row. */
dense_rows dense_rows_make(uint32_t rows, uint32_t cols, uint32_t weight_bytes, size_t shift, size_t more);
dense_rows dense_rows_copy(const uint16_t *weights, uint32_t rows, uint32_t cols, size_t shift, size_t more);
void dense_rows_free(dense_rows *dense);

/* Whether a row's weights, BF16 or F32, are these; NULL means that all must be NaNs. */
int dense_row_is(const dense_rows *dense, uint32_t row, const uint16_t *weights);

/* Whether all bytes before, between and after the rows are still 0xC3. */
int dense_rows_gaps_untouched(const dense_rows *dense);

#endif
