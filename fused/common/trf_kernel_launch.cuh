/* SPDX-License-Identifier: Apache-2.0 */
/* What the launchers of kernels share: attributes of a launch, and the launch itself. */
#ifndef TRF_KERNEL_LAUNCH_CUH
#define TRF_KERNEL_LAUNCH_CUH

#include "trf_kernel_smem.cuh"

#include <stdint.h>

/* ---- attributes of a launch; config->attrs has room for them ---- */

/* Lets the kernel start before the preceding one ends. */
static inline void trf_launch_allow_early(cudaLaunchConfig_t *config) {
    cudaLaunchAttribute *attribute = &config->attrs[config->numAttrs++];
    attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute->val.programmaticStreamSerializationAllowed = 1;
}

static inline void trf_launch_set_cluster(cudaLaunchConfig_t *config, uint32_t blocks) {
    cudaLaunchAttribute *attribute = &config->attrs[config->numAttrs++];
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = blocks;
    attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
}

/* What a launch takes besides the kernel's arguments. */
struct trf_launch_config {
    uint32_t blocks, threads, shared_bytes;
    uint32_t cluster_size; /* blocks of a cluster */
    cudaStream_t stream;
    bool waits = false; /* for the preceding kernel to end */
};

/* Sets *early to whether the kernel may start before the preceding one ends, and the following kernel before this one
 * ends. They may not if launch.waits is set, or if the driver has compiled the code from PTX for an architecture below
 * 9.0, which does not wait for its predecessor. */
template <class Args>
static cudaError_t trf_launch_kernel(void (*kernel)(Args), const Args &args, const trf_launch_config &launch,
                                     bool *early) {
    cudaFuncAttributes attributes = {};
    cudaError_t status = trf_allow_all_shared((const void *)kernel, &attributes);
    if (status != cudaSuccess)
        return status;
    cudaLaunchAttribute launch_attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(launch.blocks);
    config.blockDim = dim3(launch.threads);
    config.dynamicSmemBytes = launch.shared_bytes;
    config.stream = launch.stream;
    config.attrs = launch_attributes;
    *early = !launch.waits && attributes.ptxVersion >= 90;
    if (*early)
        trf_launch_allow_early(&config);
    if (launch.cluster_size > 1)
        trf_launch_set_cluster(&config, launch.cluster_size);
    return cudaLaunchKernelEx(&config, kernel, args);
}

/* Launches the second kernel of a product. early: whether it may start before the preceding kernel ends. */
template <class Args>
static cudaError_t trf_launch_finish(void (*kernel)(Args), const Args &args, dim3 blocks, uint32_t threads, bool early,
                                     cudaStream_t stream) {
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.stream = stream;
    config.attrs = &attribute;
    if (early)
        trf_launch_allow_early(&config);
    return cudaLaunchKernelEx(&config, kernel, args);
}

#endif
