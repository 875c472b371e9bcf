/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU without a device layer: one product by a layer in host memory, in F32, and how many threads a context of the
 * CPU uses. Programs that run on either device need neither: TRF_DEVICE_CPU stands behind the calls of transfuse.h.
 * Conventions: transfuse.h. */
#ifndef TRANSFUSE_CPU_H
#define TRANSFUSE_CPU_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes y[m][rows] = x[m][cols] . W^T, decoding tile by tile, so that the matrix is never held whole. x and y are
 * F32 in host memory, row-major. Results do not depend on threads (0 is all cores). Errors: TRF_ERR_RANS, and then
 * what y holds is unspecified. */
TRF_API trf_status trf_layer_matmul_cpu(const trf_layer *layer, const float *x, uint32_t m, float *y, int threads,
                                        trf_error *err);

/* Sets how many threads later calls on a context of the CPU have, and plans that are made from here on. 0, the default,
 * is one for each core. No other thread may use the context meanwhile. */
TRF_API void trf_context_set_threads(trf_context *context, int threads);

#ifdef __cplusplus
}
#endif
#endif
