/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory for the commands, over the CUDA runtime. Built only with device code. */
#ifndef CLI_CUDA_H
#define CLI_CUDA_H

#include "transfuse.h"

#include <cuda_runtime_api.h>

/* Prints "doing: reason" for a failed call. @return 0 for cudaSuccess, else -1. */
int cli_cuda_check(cudaError_t error, const char *doing);

/* @return device memory, 256-byte aligned, to be released with cudaFree; NULL after a message. */
void *cli_cuda_alloc(uint64_t bytes);

#endif
