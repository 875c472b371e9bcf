/* What the launchers of fused kernels share: attributes of a launch, and what slabs cost. */
#ifndef TRF_KERNEL_LAUNCH_CUH
#define TRF_KERNEL_LAUNCH_CUH

#include "trf_fused_instances.cuh"
#include "trf_fused_launch.h"
#include "trf_kernel_limits.cuh"

static inline uint64_t align_256(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

static inline uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

static inline bool is_scaled(const trf_device_view *view) {
    return view->granularity == TRF_GRANULARITY_SCALE_GROUP || view->granularity == TRF_GRANULARITY_BLOCK;
}

/* Whether kernels that want much shared memory run. */
static inline bool has_large_shared(const trf_device_limits *limits) {
    return limits->shared_bytes >= kLargeSharedBytes && !(limits->missing_kernels & TRF_KERNELS_LARGE_SMEM);
}

/* ---- attributes of a launch; config->attrs has room for them ---- */

/* The kernel may start before the one in front of it ends. */
static inline void allow_early(cudaLaunchConfig_t *config) {
    cudaLaunchAttribute *attribute = &config->attrs[config->numAttrs++];
    attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute->val.programmaticStreamSerializationAllowed = 1;
}

static inline void form_clusters(cudaLaunchConfig_t *config, uint32_t blocks) {
    cudaLaunchAttribute *attribute = &config->attrs[config->numAttrs++];
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = blocks;
    attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
}

/* What a launch takes beside its arguments. */
struct kernel_launch {
    uint32_t blocks, threads, shared_bytes;
    uint32_t cluster; /* blocks of a cluster */
    cudaStream_t stream;
};

/* early: whether the kernel may start before the one in front of it ends, and one behind it, likewise: not where the
 * driver has made its code from older PTX, which does not wait for its predecessor. */
template <class Args>
static cudaError_t launch_kernel(void (*kernel)(Args), const Args &args, const kernel_launch &l, bool *early) {
    cudaFuncAttributes attributes = {};
    cudaError_t status = trf_allow_all_shared((const void *)kernel, &attributes);
    if (status != cudaSuccess)
        return status;
    cudaLaunchAttribute launch_attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(l.blocks);
    config.blockDim = dim3(l.threads);
    config.dynamicSmemBytes = l.shared_bytes;
    config.stream = l.stream;
    config.attrs = launch_attributes;
    *early = attributes.ptxVersion >= 90;
    if (*early)
        allow_early(&config);
    if (l.cluster > 1)
        form_clusters(&config, l.cluster);
    return cudaLaunchKernelEx(&config, kernel, args);
}

/* Microseconds that a slab of 256 columns takes of a multiprocessor whose warps are all at work, from measurements on
 * an H200 (docs/performance.md). */
static inline double slab_microseconds(const trf_device_view *view, int geometry, uint32_t x_tiles, uint32_t slabs,
                                       uint32_t m) {
    const double more_rows = m <= 8 ? m - 1.0 : 7.0, longer = view->class_bits == 4           ? 1.2
                                                              : view->codec == TRF_CODEC_FP16 ? 1.25
                                                                                              : 1.0;
    if (geometry == TRF_GEOMETRY_GENERAL)
        return x_tiles == 1 ? 1.0 : 1.5;
    if (slabs == 2)
        return longer * (x_tiles == 1 ? 0.340 + 0.0020 * more_rows : 0.30 + 0.04 * x_tiles);
    return longer * (x_tiles == 1 ? 0.365 + 0.0040 * more_rows : x_tiles == 2 ? 0.41 : x_tiles == 4 ? 0.47 : 0.82);
}

#endif
