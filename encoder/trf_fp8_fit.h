/* SPDX-License-Identifier: Apache-2.0 */
/* The scale with which the most weights of a scale region are E4M3 codes. Whether a weight is one depends on its
 * magnitude alone, so counts of the 2^15 magnitudes say all of it. */
#ifndef TRF_FP8_FIT_H
#define TRF_FP8_FIT_H

#include <stdint.h>

enum {
    TRF_BF16_EXPONENTS = 256,
    TRF_BF16_MANTISSAS = 128
};

/* Counts of the magnitudes of BF16 weights, all 0 in the beginning. */
typedef struct trf_magnitude_counts {
    uint32_t table[2][TRF_BF16_EXPONENTS][TRF_BF16_MANTISSAS]; /* two, so that runs of one number wait less */
} trf_magnitude_counts;

/* The same in one table, of a whole scale region. */
typedef struct trf_magnitude_sums {
    uint64_t count[TRF_BF16_EXPONENTS][TRF_BF16_MANTISSAS];
    uint32_t first, end; /* no other exponents have counts */
    uint64_t weights;
} trf_magnitude_sums;

/* Exponents of which there may be counts: `first` to end - 1. */
typedef struct trf_exponent_range {
    uint32_t first, end;
} trf_exponent_range;

/* Counts `count` weights. range: grows by their exponents; {TRF_BF16_EXPONENTS, 0} in the beginning. */
void trf_count_magnitudes(const uint16_t *weights, uint32_t count, trf_magnitude_counts *counts,
                          trf_exponent_range *range);

/* Adds counts to sums, sets them to 0, and empties the range. */
void trf_move_magnitudes(trf_magnitude_counts *counts, trf_exponent_range *range, trf_magnitude_sums *sums);

/* Sets sums to 0. */
void trf_clear_magnitudes(trf_magnitude_sums *sums);

/* A scale, and how many weights are not codes times it. */
typedef struct trf_fp8_fit {
    float scale;
    uint64_t misfits;
    uint64_t numbers; /* weights that are neither zeros nor misfits */
} trf_fp8_fit;

/* Finds the scale with the fewest misfits; of equal ones the least, which has the largest codes. A scale region of
 * zeros gets 1. @return 0 if every scale has more than `most` misfits. */
int trf_fit_fp8(const trf_magnitude_sums *sums, uint64_t most, trf_fp8_fit *fit);

#endif
