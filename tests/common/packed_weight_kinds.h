/* SPDX-License-Identifier: Apache-2.0 */
/* Dense layers with all that packing meets, for tests of what packs on a device; and dense rows at any alignment. */
#ifndef PACKED_WEIGHT_KINDS_H
#define PACKED_WEIGHT_KINDS_H

#include "packed_layer.h"
#include "test_weights.h"

typedef enum packed_weight_kind {
    PACKED_WEIGHTS_NORMAL,
    PACKED_WEIGHTS_OUTLIERS,    /* normal, and one weight in 4,000 is special: Inf, NaN, denormal, large, tiny, zero */
    PACKED_WEIGHTS_PATTERNS,    /* of the window, and all bit patterns in turn among them, one weight in 3,500 */
    PACKED_WEIGHTS_STORED,      /* of the window, and one tile in 20 has random bits, from the 20th on */
    PACKED_WEIGHTS_ZEROS,       /* normal, half of them zeros of either sign: zeroing */
    PACKED_WEIGHTS_ZEROS_MIXED, /* normal, a tenth of them zeros (zeroing), with outliers and stored tiles */
    PACKED_WEIGHTS_ROWS,        /* normal, but rows are of very different size; row offsets say so */
    PACKED_WEIGHTS_ROWS_MIXED,  /* as ROWS, with the same */
    PACKED_WEIGHT_KINDS
} packed_weight_kind;

/* Makes a layer of weights that reference and device both pack. window: the one for it. */
packed_layer packed_layer_of_kind(test_rng *rng, uint32_t rows, uint32_t cols, packed_weight_kind kind,
                                  trf_packed_window *window);

/* Dense rows in memory of exactly their size: what packing reads, or unpacking writes. */
typedef struct dense_rows {
    void *memory;
    void *at;        /* of the first row: `shift` weights behind memory's begin, which is 64-byte aligned */
    uint64_t stride; /* in weights */
    size_t shift, bytes;
    uint32_t rows, cols, weight_bytes;
} dense_rows;

/* All bytes are 0xC3. shift: weights; more: weights between a row's end and the next one. */
dense_rows dense_rows_make(uint32_t rows, uint32_t cols, uint32_t weight_bytes, size_t shift, size_t more);
dense_rows dense_rows_copy(const uint16_t *weights, uint32_t rows, uint32_t cols, size_t shift, size_t more);
void dense_rows_free(dense_rows *dense);

/* Whether a row's weights are these, as BF16 or F32; NULL: NaNs all of them. */
int dense_row_is(const dense_rows *dense, uint32_t row, const uint16_t *weights);

/* Whether what lies before, between and behind the rows is still 0xC3. */
int dense_rows_gaps_untouched(const dense_rows *dense);

#endif
