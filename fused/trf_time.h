/* Timing products on a GPU, as trf_device_kind has it. */
#ifndef TRF_TIME_H
#define TRF_TIME_H

#include "trf_context.h"

#ifdef __cplusplus
extern "C" {
#endif

trf_status trf_cuda_time(const trf_timed_product *product, uint32_t runs, double *microseconds, trf_error *err);

/* Reads `bytes`, a multiple of 16, of zeros in device memory, so that the L2 cache holds nothing else that is older. @return a cudaError_t. */
int trf_launch_evict(void *zeros, uint64_t bytes, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
