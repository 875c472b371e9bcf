/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 weights that are FP8 E4M3 codes times scales, and others that are not. What they are is computed in binary64,
 * not by the library's own forming of weights. */
#ifndef FP8_MATRICES_H
#define FP8_MATRICES_H

#include "common/test_weights.h"

double fp8_code_value(uint32_t code);

/* code * scale, which is exact in binary64, rounded to F32 and then to BF16. */
uint16_t fp8_scaled(uint32_t code, float scale);

typedef struct fp8_matrix {
    uint32_t rows, cols;
    uint16_t *weights; /* [rows][cols], malloc'd */
} fp8_matrix;

fp8_matrix fp8_new_matrix(uint32_t rows, uint32_t cols);

/* Normally distributed codes times scales of regions of so many rows and columns. */
fp8_matrix fp8_dequantized(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t region_rows, uint32_t region_cols);

/* Puts bits of all kinds in place of one weight of `among`. */
void fp8_spoil(test_rng *rng, fp8_matrix *m, uint32_t among);

/* Matrices that are not FP8 with scales of a tensor, of rows or of 128x128. */
enum {
    FP8_OTHER_NORMAL,
    FP8_OTHER_STUDENT,
    FP8_OTHER_INT8,
    FP8_OTHER_NVFP4,
    FP8_OTHER_FINE_TUNED,
    FP8_OTHER_GROUPS, /* FP8 with scales of 1 x 128 */
    FP8_OTHER_INT4,
    FP8_OTHER_ZEROS,
    FP8_OTHER_CONSTANTS, /* two of them */
    FP8_OTHER_KINDS
};

fp8_matrix fp8_other_matrix(test_rng *rng, int kind);

#endif
