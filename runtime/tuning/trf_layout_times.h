/* SPDX-License-Identifier: Apache-2.0 */
/* The expected time of a layer's product by layout and batch, from what was measured. */
#ifndef TRF_LAYOUT_TIMES_H
#define TRF_LAYOUT_TIMES_H

#include "transfuse/layouts.h"

enum {
    TRF_TIMED_LAYOUTS = TRF_LAYOUTS + 1, /* CODED, PLAIN, PACKED and PACKED8, by their values */
    TRF_TIMED_BATCHES = 13
};

/* Microseconds of a shape's product. */
typedef struct trf_shape_times {
    uint32_t rows, cols;
    double microseconds[TRF_TIMED_LAYOUTS][TRF_TIMED_BATCHES];
} trf_shape_times;

/* What a product takes by its size alone: overhead + weights * rate, in microseconds. */
typedef struct trf_size_line {
    double overhead, rate;
} trf_size_line;

typedef struct trf_card_times {
    const char *card;
    const trf_shape_times *shapes;
    uint32_t num_shapes;
    const trf_size_line (*lines)[TRF_TIMED_BATCHES]; /* [TRF_TIMED_LAYOUTS] */
    double expert_factors[TRF_TIMED_LAYOUTS];        /* what experts take, compared with one matrix of their rows */
} trf_card_times;

/* @return the times of the card with that name, or with a name that it is a part of; else, and for NULL, the H200's.
 * *is_own: whether it is that card's, or name is NULL. */
const trf_card_times *trf_card_times_for(const char *name, int *is_own);

/* @return the microseconds of a step with m rows of x: what one layer, or the experts of one, take in a layout, of
 * TRF_LAYOUTS. It is 0 of a table that is looked up. tuning may be NULL. */
double trf_layout_microseconds(const trf_card_times *card, const trf_tuning *tuning, const trf_layout_layer *layer,
                               trf_layout layout, uint32_t m);

#endif
