/* SPDX-License-Identifier: Apache-2.0 */
/* What F32 scales make of the eight mantissas of E4M3. Of the 2^23 mantissas that a scale may have, long runs give the
 * same BF16 mantissas; there are 1,006 such runs. */
#ifndef TRF_MANTISSA_SETS_H
#define TRF_MANTISSA_SETS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_MANTISSA_SETS = 1006,
    TRF_E4M3_MANTISSAS = 8
};

/* A scale s in [1, 2), and what it makes of 1 + m/8: a BF16 number with this mantissa, below 2 or (carry) from 2 on. */
typedef struct trf_mantissa_set {
    uint8_t mantissa[TRF_E4M3_MANTISSAS];
    uint8_t carry[TRF_E4M3_MANTISSAS];
    uint32_t scale_mantissa; /* the mantissa field of s, the roundest one of its run */
} trf_mantissa_set;

/* @return all of them, by ascending scale. The first call computes them, in less than a millisecond. Thread-safe. */
const trf_mantissa_set *trf_mantissa_sets(void);

#ifdef __cplusplus
}
#endif

#endif
