/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the weights of a source tensor into numbers. */
#ifndef TRF_WEIGHTS_H
#define TRF_WEIGHTS_H

#include "transfuse.h"

/* Widens `count` values of a dtype. The result is exact. */
void trf_weights_to_f32(trf_dtype dtype, const void *values, size_t count, float *out);

#endif
