/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed FP8 layers whose sums are exact in F32, whatever their order, so that y must have the right bits.
 * Everything here ends the program on failure. */
#ifndef PACKED8_PRODUCT_H
#define PACKED8_PRODUCT_H

#include "common/packed8_layer.h"

/* Kinds of layers, one for each family of kernels. */
enum {
    BY_ONE,       /* one constant is enough */
    BY_TWO,       /* two constants */
    WITH_RECORDS, /* two constants, and records in each line: one of the first weight, whose place is all zeros as in
                   * unused words, and as many as the last line holds */
    PACKED8_KINDS,
    IN_TURNS = PACKED8_KINDS /* WITH_RECORDS, and rows of gate and up in turns, which experts alone have */
};

typedef struct packed8_product {
    packed8_layer layer;
    uint32_t m;
    uint16_t *x;  /* BF16 [m][cols] */
    float *exact; /* [m][rows] */
} packed8_product;

/* Weights are zeros of both signs, or between 1 and 7.5 times 2^-8; x has integers within +-4. */
packed8_product packed8_product_make(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t m, int kind);

/* A layer with random codes and a scale for each 64x128 of them: the ends of all classes in turn, from number
 * first_class on, with exponents in turn. x is zeros. */
packed8_product packed8_product_make_classes(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t m,
                                             uint32_t first_class);
/* Makes x pick single weights: x[n] becomes 1 in column first_col + n, which the layer has, and 0 elsewhere. */
void packed8_product_pick(packed8_product *product, uint32_t first_col);

void packed8_product_free(packed8_product *product);

/* Ends the program if y, [m][stride], does not have the exact sums, rounded once. what: the case at hand. */
void packed8_product_check(const packed8_product *product, const void *y, trf_dtype dtype, uint64_t stride,
                           const char *what);

#endif
