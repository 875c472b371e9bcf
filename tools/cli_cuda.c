/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_cuda.h"

#include "cli_messages.h"

int cli_cuda_check(cudaError_t error, const char *doing) {
    if (error == cudaSuccess)
        return 0;
    cli_fail(TRF_ERR_CUDA, "%s: %s", doing, cudaGetErrorString(error));
    return -1;
}

void *cli_cuda_alloc(uint64_t bytes) {
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes ? bytes : 1);
    if (error == cudaSuccess)
        return memory;
    char size[16];
    cli_fail(error == cudaErrorMemoryAllocation ? TRF_ERR_MEMORY : TRF_ERR_CUDA, "device memory of %s: %s",
             cli_size_text(bytes, size), cudaGetErrorString(error));
    return NULL;
}
