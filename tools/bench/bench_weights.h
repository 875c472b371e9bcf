/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic weights, and how they become a blob. */
#ifndef BENCH_WEIGHTS_H
#define BENCH_WEIGHTS_H

#include "cli_options.h"

/* Fills n weights of sigma 1: of the standard normal distribution, or of Student's t with 5 degrees of freedom, whose
 * standard deviation is 1.29. They are always the same. */
void bench_draw(float *weights, uint64_t n, int student_t);

/* weights: n of sigma 1. Multiplies them by sigma and rounds them to dtype, as a checkpoint of that type would hold
 * them. FP8 weights are scaled so that the largest one takes the type's largest value; I8 weights are scaled likewise,
 * row by row. target: n elements of dtype. */
void bench_make_source(const float *weights, cli_shape shape, double sigma, trf_dtype dtype, void *target);

/* The same for BF16 that was FP8 E4M3, with an F32 scale for each 128x128, which takes the largest of their magnitudes
 * to 448. target: n BF16. */
void bench_make_scaled_fp8(const float *weights, cli_shape shape, double sigma, uint16_t *target);

typedef struct bench_blob {
    void *bytes; /* released with trf_free */
    uint64_t size;
    trf_layer_report report;
} bench_blob;

/* Encodes a matrix. blob: zeros, or an earlier one, which is released. @return 0, or -1 after a message. */
int bench_encode(const void *weights, trf_dtype dtype, cli_shape shape, const trf_encode_options *options,
                 bench_blob *blob);

#endif
