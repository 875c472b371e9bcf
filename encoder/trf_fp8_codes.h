/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled FP8 on its way into a blob: the scales of a layer, and the codes of its weights (FORMAT.md section 3). */
#ifndef TRF_FP8_CODES_H
#define TRF_FP8_CODES_H

#include "transfuse.h"

#include <stddef.h>
#include <stdint.h>

/* The code of a weight that no code and its scale give, which is an exception: a NaN's. */
enum {
    TRF_FP8_NO_CODE = 0x7F
};

/* The scales of a layer, as its scale table has them. */
typedef struct trf_fp8_scales {
    trf_granularity granularity; /* TENSOR, CHANNEL or SCALE_BLOCK */
    uint32_t scale_group_size;   /* of SCALE_BLOCK, else 0 */
    uint32_t scale_cols;         /* scales in a row of the table */
    uint64_t count;
    float *values; /* [count], malloc'd */
} trf_fp8_scales;

/* Replaces BF16 weights, rows x cols of them from (row, col) of the layer, by codes. weights: row-major, `stride` from
 * row to row. */
void trf_find_fp8_codes(const trf_fp8_scales *scales, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                        uint16_t *weights, size_t stride);

/* Replaces `count` neighbouring weights with one scale by their codes. */
typedef void trf_fp8_codes_fn(uint16_t *weights, uint32_t count, float scale);

trf_fp8_codes_fn trf_fp8_codes_portable;
#ifdef TRF_HAVE_X86_SIMD
trf_fp8_codes_fn trf_fp8_codes_avx2;
trf_fp8_codes_fn trf_fp8_codes_avx512;
#endif

#endif
