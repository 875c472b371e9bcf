/* Timing products on a GPU, as trf_device_kind has it. */
#ifndef TRF_TIME_H
#define TRF_TIME_H

#include "trf_context.h"

#ifdef __cplusplus
extern "C" {
#endif

trf_status trf_cuda_time(const trf_timed_product *product, uint32_t runs, double *microseconds, trf_error *err);

#ifdef __cplusplus
}
#endif

#endif
