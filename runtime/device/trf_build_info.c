/* SPDX-License-Identifier: Apache-2.0 */
/* What this build contains. cmake/TransfuseCuda.cmake defines the macros for this file alone. */
#include "transfuse/device_memory.h"

#ifdef TRF_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

void trf_get_build_info(trf_build_info *info) {
#ifdef TRF_HAVE_CUDA
    *info = (trf_build_info){.device_code = TRF_DEVICE_CODE, .cuda_version = CUDART_VERSION};
#else
    *info = (trf_build_info){.device_code = "", .cuda_version = 0};
#endif
}
