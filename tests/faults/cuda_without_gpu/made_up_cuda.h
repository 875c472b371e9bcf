/* SPDX-License-Identifier: Apache-2.0 */
/* What made-up kernels need of the made-up runtime. */
#ifndef MADE_UP_CUDA_H
#define MADE_UP_CUDA_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

/* Gives a stream work that reads or writes device memory: run(a copy of the arguments), some time. */
cudaError_t made_up_cuda_enqueue(cudaStream_t stream, void (*run)(void *arguments), const void *arguments,
                                 size_t bytes);

#endif
