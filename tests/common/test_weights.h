/* SPDX-License-Identifier: Apache-2.0 */
/* Deterministic random numbers and weights for tests. */
#ifndef TEST_WEIGHTS_H
#define TEST_WEIGHTS_H

#include "transfuse.h"

/* Seed it with any number; equal seeds give equal weights on every machine with the same libm. */
typedef struct test_rng {
    uint64_t state;
} test_rng;

uint64_t test_random(test_rng *rng);

/* 0 ... bound - 1; bound > 0. */
uint32_t test_below(test_rng *rng, uint32_t bound);

/* In the open interval (0, 1). */
double test_uniform(test_rng *rng);
double test_normal(test_rng *rng);

/* Student's t with `freedom` degrees of freedom; few of them give heavy tails. */
double test_student(test_rng *rng, double freedom);

/* Writes `value`, rounded to the dtype, as element `index` of weights (I8: to the nearest code, saturated). */
void test_put_weight(void *weights, trf_dtype dtype, size_t index, double value);

/* Fill count weights. sigma: the normal distribution's; scale: that of Student's t. */
void test_fill_normal(test_rng *rng, void *weights, trf_dtype dtype, size_t count, double sigma);
void test_fill_student(test_rng *rng, void *weights, trf_dtype dtype, size_t count, double freedom, double sigma);

/* Fills in every bit pattern of the dtype in turn (F32: spread over all exponents), with zeros, denormals, infinities
 * and NaNs. */
void test_fill_patterns(void *weights, trf_dtype dtype, size_t count);

#endif
