/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA runtime as the library meets it in test_gpu_failing_calls: each of its calls, launches of kernels and
 * cuBLASLt included, can fail. The linker sends the library's calls here, by the list in gpu_failing_runtime.c. */
#ifndef GPU_FAILING_RUNTIME_H
#define GPU_FAILING_RUNTIME_H

#include <cuda_runtime_api.h>

/* Counts calls from here on. The fail_at-th (from 1; 0: none) fails with `error`, and with fails_on all later ones do,
 * too. What releases something never fails. What waits has waited when it fails. */
void gpu_runtime_begin(long fail_at, int fails_on, cudaError_t error);

/* Lets nothing fail any more. @return the name of the first call that failed, a static string; NULL if none did. */
const char *gpu_runtime_end(void);

/* How many calls that can fail there were since gpu_runtime_begin. */
long gpu_runtime_calls(void);

/* How many allocations, locked memories, streams, events and graphs of the library there are. */
long gpu_runtime_objects(void);

/* @return which call has left an error in this thread that cudaGetLastError would still tell, and the next launch be
 * taken to have failed; NULL if none has. */
const char *gpu_runtime_error_left(void);

#endif
