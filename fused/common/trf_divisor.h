/* SPDX-License-Identifier: Apache-2.0 */
/* Division by a number that the host knows when it launches a kernel: a multiplication and a shift, after Granlund and
 * Montgomery, "Division by Invariant Integers using Multiplication" (1994). C and CUDA. */
#ifndef TRF_DIVISOR_H
#define TRF_DIVISOR_H

#include "trf_blob.h"

typedef struct trf_divisor {
    uint32_t by; /* 1 to 2^31 */
    uint32_t factor, shift;
} trf_divisor;

static inline trf_divisor trf_divisor_of(uint32_t by) {
    trf_divisor divisor = {by, 0, 31};
    while ((uint64_t)1 << (divisor.shift - 31) < by)
        divisor.shift++;
    divisor.factor = (uint32_t)((((uint64_t)1 << divisor.shift) + by - 1) / by);
    return divisor;
}

/* Returns n / by, for n below 2^31. */
TRF_HD uint32_t trf_quotient(uint32_t n, trf_divisor divisor) {
    return (uint32_t)((uint64_t)n * divisor.factor >> divisor.shift);
}
/* Returns n % by, given quotient = n / by. */
TRF_HD uint32_t trf_rest(uint32_t n, uint32_t quotient, trf_divisor divisor) { return n - quotient * divisor.by; }

#endif
