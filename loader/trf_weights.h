/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a source tensor as numbers. */
#ifndef TRF_WEIGHTS_H
#define TRF_WEIGHTS_H

#include "transfuse.h"

/* Widens `count` values of a dtype. Exact. */
void trf_weights_to_f32(trf_dtype dtype, const void *values, size_t count, float *out);

#endif
