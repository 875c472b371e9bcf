/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what a device can do. */
#include "trf_device_limits.h"

#include "trf_kernel_launch.cuh"
#include "trf_ptx.cuh"

/* The amount of static shared memory of probe_compiled_code tells the host what the code that the device runs was
 * compiled for. The kernel never needs to run. */
static constexpr uint32_t kProbeStepBytes = 16;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static constexpr uint32_t kProbeBytes = kProbeStepBytes * (1 + TRF_KERNELS_LARGE_SMEM + TRF_KERNELS_SM_90A);
#elif TRF_LARGE_SHARED
static constexpr uint32_t kProbeBytes = kProbeStepBytes * (1 + TRF_KERNELS_LARGE_SMEM);
#else
static constexpr uint32_t kProbeBytes = kProbeStepBytes;
#endif

static __global__ void probe_compiled_code(uint8_t *to) {
    __shared__ uint8_t marks[kProbeBytes];
    marks[threadIdx.x % kProbeBytes] = (uint8_t)threadIdx.x;
    __syncthreads();
    to[threadIdx.x] = marks[(threadIdx.x + 1) % kProbeBytes];
}

int trf_find_device_limits(trf_device_limits *limits) {
    const void *const kernel = (const void *)probe_compiled_code;
    cudaFuncAttributes attributes = {};
    cudaError_t status = trf_allow_all_shared(kernel, &attributes);
    /* The kilobyte that the system reserves may be included. */
    const uint32_t marks = (uint32_t)attributes.sharedSizeBytes % 1024 / kProbeStepBytes;
    limits->missing_kernels = (TRF_KERNELS_LARGE_SMEM | TRF_KERNELS_SM_90A) & ~(marks - 1);
    limits->clusters_of[1] = (uint32_t)limits->multiprocessors;
    for (uint32_t blocks = 2; blocks <= TRF_MAX_CLUSTER; blocks++) {
        limits->clusters_of[blocks] = 0;
        if (status != cudaSuccess || limits->capability < 90 || attributes.ptxVersion < 90)
            continue;
        cudaLaunchAttribute attribute;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(blocks);
        config.blockDim = dim3(512);
        config.dynamicSmemBytes = (size_t)limits->shared_bytes - TRF_STATIC_SMEM_BYTES;
        config.attrs = &attribute;
        trf_launch_set_cluster(&config, blocks);
        int clusters = 0;
        status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
        limits->clusters_of[blocks] = clusters > 0 ? (uint32_t)clusters : 0;
    }
    return status;
}
