/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion between F32 and the smaller types, for synthetic weights and plain products. Slow and simple. */
#ifndef CLI_FLOAT_H
#define CLI_FLOAT_H

#include "transfuse.h"

/* Rounds to nearest even; values beyond the range become the largest finite value. value: finite. dtype: F16, BF16,
 * F8_*. */
uint32_t cli_float_to_bits(float value, trf_dtype dtype);

/* dtype: any of two bytes or fewer. */
float cli_bits_to_float(uint32_t bits, trf_dtype dtype);

/* @return the largest finite value of the type. */
float cli_dtype_max(trf_dtype dtype);

/* Widens n elements. @return 0, or -1 for no memory. */
int cli_widen(const void *source, trf_dtype dtype, uint64_t n, float *target);

#endif
