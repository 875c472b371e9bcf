/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_failing_calls.h"

#include <stdatomic.h>

static atomic_long calls_made, call_fails_at;
static atomic_int call_has_failed;

cudaError_t gpu_next_call(void) {
    if (atomic_fetch_add(&calls_made, 1) + 1 != atomic_load(&call_fails_at))
        return cudaSuccess;
    atomic_store(&call_has_failed, 1);
    return cudaErrorMemoryAllocation;
}

void gpu_count_calls(long fail_at) {
    atomic_store(&calls_made, 0);
    atomic_store(&call_has_failed, 0);
    atomic_store(&call_fails_at, fail_at);
}

long gpu_calls_made(void) { return atomic_load(&calls_made); }
int gpu_call_has_failed(void) { return atomic_load(&call_has_failed); }

/* Calls that allocate, wait, or make objects that are kept. */
GPU_WRAP(cudaMalloc, (void **memory, size_t bytes), (memory, bytes))
GPU_WRAP(cudaHostAlloc, (void **memory, size_t bytes, unsigned flags), (memory, bytes, flags))
GPU_WRAP(cudaMemset, (void *memory, int value, size_t bytes), (memory, value, bytes))
GPU_WRAP(cudaMemcpy, (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind), (to, from, bytes, kind))
GPU_WRAP(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags), (stream, flags))
GPU_WRAP(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags))
GPU_WRAP(cudaStreamSynchronize, (cudaStream_t stream), (stream))
GPU_WRAP(cudaDeviceSynchronize, (void), ())
GPU_WRAP(cudaEventSynchronize, (cudaEvent_t event), (event))
