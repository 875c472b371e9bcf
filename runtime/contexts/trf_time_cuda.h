/* SPDX-License-Identifier: Apache-2.0 */
/* Times products on a GPU: the member `time` of trf_device_ops. */
#ifndef TRF_TIME_CUDA_H
#define TRF_TIME_CUDA_H

#include "trf_context.h"

#ifdef __cplusplus
extern "C" {
#endif

trf_status trf_cuda_time(const trf_timed_product *product, uint32_t repeats, double *microseconds, trf_error *err);

#ifdef __cplusplus
}
#endif

#endif
