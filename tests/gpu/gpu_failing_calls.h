/* SPDX-License-Identifier: Apache-2.0 */
/* Counts CUDA calls of the library, and lets one fail when a test says so. In the targets that tests/gpu/CMakeLists.txt
 * names, the linker sends them here. */
#ifndef GPU_FAILING_CALLS_H
#define GPU_FAILING_CALLS_H

#include <cuda_runtime_api.h>

/* Counts from here on; the fail_at-th call (from 1; 0: none) fails with cudaErrorMemoryAllocation. */
void gpu_count_calls(long fail_at);
long gpu_calls_made(void);
int gpu_call_has_failed(void);

/* @return cudaSuccess, or that error if it is this call's turn to fail. */
cudaError_t gpu_next_call(void);

#define GPU_WRAP(name, parameters, arguments)                                                                          \
    cudaError_t __real_##name parameters;                                                                              \
    cudaError_t __wrap_##name parameters;                                                                              \
    cudaError_t __wrap_##name parameters {                                                                             \
        cudaError_t error = gpu_next_call();                                                                           \
        return error ? error : __real_##name arguments;                                                                \
    }

#endif
