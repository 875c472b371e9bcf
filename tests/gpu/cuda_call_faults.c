/* SPDX-License-Identifier: Apache-2.0 */
/* The library once more, preloaded before Python (LD_PRELOAD), so that the torch ops call this one, in which calls of
 * CUDA fail when tests/faults/memory_campaign.py says so. */
#include "gpu_failing_runtime.h"

/* Lets the call with this number, from 1 on, find no memory, or with `on` it and all later ones fail for a reason that
 * is not known. 0: none. @return 1, as memory_faults_begin. */
int cuda_call_faults_begin(long at, int on);
int cuda_call_faults_begin(long at, int on) {
    gpu_runtime_begin(at, on, on ? cudaErrorUnknown : cudaErrorMemoryAllocation);
    return 1;
}

/* Lets nothing fail any more. @return how many calls there were. */
long cuda_call_faults_end(void);
long cuda_call_faults_end(void) {
    gpu_runtime_end();
    return gpu_runtime_calls();
}
