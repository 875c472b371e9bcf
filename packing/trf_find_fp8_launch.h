/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out on the device whether dense BF16 weights are FP8 E4M3 codes times a scale for each scale block of 128x128,
 * so that they can be packed as FP8. It is the search of encoder/trf_find_fp8.h for a layer that lies on the device
 * already. C and CUDA. */
#ifndef TRF_FIND_FP8_LAUNCH_H
#define TRF_FIND_FP8_LAUNCH_H

#include "trf_mantissa_sets.h"
#include "trf_pack_launch.h"
#include "trf_packed8.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_FOUND_FP8_BLOCK = 128,       /* rows and columns of a scale block */
    TRF_FOUND_MISFITS_IN_1000 = 4,   /* of a scale block's weights, at most */
    TRF_FOUND_SAMPLE_FITS_IN_10 = 9, /* of the weights that are looked at first, at least */
    TRF_FOUND_LEAST_NUMBERS = 256,   /* weights of a layer other than zeros that are codes: fewer prove nothing */
    TRF_FOUND_LEAST_SAMPLE = 288,    /* weights other than zeros, of those that are looked at first, to be trusted */

    TRF_FIND_MANTISSAS = 128,      /* of BF16 */
    TRF_FIND_EXPONENTS = 256,      /* exponent fields of BF16 */
    TRF_FIND_LARGEST_NORMAL = 254, /* the largest exponent field of numbers */
    TRF_FIND_TOP_MANTISSA = 6,     /* of 448, the largest code */
    TRF_FIND_TOP_EXPONENT = 8,
};

/* What the search needs to know of a set of mantissas (trf_mantissa_sets.h). */
typedef struct trf_find_fp8_set {
    uint8_t mantissa[TRF_E4M3_MANTISSAS];
    uint8_t carry[TRF_E4M3_MANTISSAS];
    uint32_t pair;           /* trf_packed8_find_pair of the set's scale in [1, 2) */
    uint32_t scale_mantissa; /* the mantissa field of that scale */
} trf_find_fp8_set;

/* @return all TRF_MANTISSA_SETS of them, on the host. The first call makes them, in a few milliseconds. Thread-safe. */
const trf_find_fp8_set *trf_find_fp8_sets(void);

/* The outcome, in device memory. All its bytes are zero before the launch. */
typedef struct trf_found_fp8 {
    /* Where a scale block's sample was trusted, the first counts nothing, and the second the sample alone. */
    uint64_t misfits; /* weights that are not codes times their block's scale */
    uint64_t numbers; /* codes other than zeros */
    uint32_t
        refused; /* 1: a block has no scale, so the weights are not FP8, and nothing else that was written counts */
    uint32_t has_low; /* 1: a pair has a second constant that is not zero */
} trf_found_fp8;

/* Whether the weights of a search that was read back are FP8: none was refused, and there are enough codes other than
 * zeros to prove something. */
static inline int trf_found_fp8_is_fp8(const trf_found_fp8 *found) {
    return !found->refused && found->numbers >= TRF_FOUND_LEAST_NUMBERS;
}

/* The exponents of the least and of the largest code of mantissa k. Below -6 codes are denormal and have fewer bits;
 * 480 is a NaN. */
TRF_HD int trf_find_least_code(uint32_t k) { return k == 0 ? -9 : k == 4 ? -8 : k % 4 == 2 ? -7 : -6; }
TRF_HD int trf_find_largest_code(uint32_t k) { return k == 7 ? 7 : 8; }

/* How many scale blocks the rows have, those that are cut off included. */
static inline uint64_t trf_found_fp8_blocks(uint64_t rows, uint64_t cols) {
    return (rows + TRF_FOUND_FP8_BLOCK - 1) / TRF_FOUND_FP8_BLOCK *
           ((cols + TRF_FOUND_FP8_BLOCK - 1) / TRF_FOUND_FP8_BLOCK);
}

/* The scales of the blocks, in device memory: [trf_found_fp8_blocks] each, row-major. */
typedef struct trf_found_scales {
    float *scales;   /* 2^-100 <= scale < 2^7; that of a block of zeros is 1 */
    uint32_t *pairs; /* their constants: trf_packed8_find_pair */
} trf_found_scales;

/* Enqueues the search. checks_all: 1: all weights are compared with what their block's scale makes of codes. 0: a
 * sample of an eighth of a block is trusted where it says enough and its scale reaches the block's largest weight; that
 * takes a fraction of the time, and packing finds out what does not fit. rows: dense rows in device memory, from the
 * layer's first row on. sets_dev: device, a copy of trf_find_fp8_sets(). multiprocessors: the device's. The result is
 * that of trf_find_block_scales, which does the same on the CPU, where no block is refused. @return a cudaError_t. */
int trf_launch_find_fp8(const trf_rows_to_pack *rows, const trf_find_fp8_set *sets_dev, const trf_found_scales *to_dev,
                        trf_found_fp8 *found_dev, int checks_all, uint32_t multiprocessors, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
