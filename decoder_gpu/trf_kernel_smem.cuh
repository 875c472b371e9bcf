/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory that a kernel can have. */
#ifndef TRF_KERNEL_SMEM_CUH
#define TRF_KERNEL_SMEM_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Allows a kernel all dynamic shared memory that there is. The amount is always the same, so that threads that launch
 * the kernel with different needs do not undo each other's setting. attributes: becomes the kernel's attributes. */
static inline cudaError_t trf_allow_all_shared(const void *kernel, cudaFuncAttributes *attributes) {
    int device = 0, most = 0;
    cudaError_t status = cudaFuncGetAttributes(attributes, kernel);
    if (status == cudaSuccess)
        status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    most -= (int)attributes->sharedSizeBytes;
    if (status == cudaSuccess && attributes->maxDynamicSharedSizeBytes != most)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    return status;
}

/* Finds how many multiprocessors the current device has, and how much shared memory a block may ask for. */
static inline cudaError_t trf_find_multiprocessors(uint32_t *multiprocessors, int *shared_bytes) {
    int device, count = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    *multiprocessors = (uint32_t)count;
    return error;
}

#endif
