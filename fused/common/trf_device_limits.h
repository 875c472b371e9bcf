/* SPDX-License-Identifier: Apache-2.0 */
/* What planning needs to know about a device. C and CUDA. */
#ifndef TRF_DEVICE_LIMITS_H
#define TRF_DEVICE_LIMITS_H

#include "trf_layer_traits.h"
#include "trf_smem_layout.h"

enum {
    TRF_CLUSTER_SIZES = 4, /* that kernels of coded layers have: 1, 2, 4 and 8 blocks */
    TRF_MAX_CLUSTER = 8
};

typedef struct trf_device_limits {
    int multiprocessors;
    int shared_bytes; /* as many as a block may opt in to */
    int capability;   /* 80, 86, 89, 90 ... */
    /* clusters_of[n]: how many clusters of n blocks, n from 1 on, run at once with one block a multiprocessor; 0 if
     * such clusters cannot be launched. */
    uint32_t clusters_of[TRF_MAX_CLUSTER + 1];
    uint32_t missing_kernels; /* Bits of trf_kernel_set: kernels that are missing in the code which this device runs. */
    uint32_t memory_gb_per_second;
} trf_device_limits;

/* Kernels that not every architecture has code for. A device may run a build for other architectures by way of PTX. */
typedef enum trf_kernel_set {
    TRF_KERNELS_LARGE_SMEM = 1, /* those that need 160 KiB of shared memory */
    TRF_KERNELS_SM_90A = 2      /* wide, bulk and wgmma kernels */
} trf_kernel_set;

/* Whether kernels that need much shared memory run. */
static inline int trf_has_large_smem(const trf_device_limits *limits) {
    return limits->shared_bytes >= TRF_LARGE_SMEM_BYTES && !(limits->missing_kernels & TRF_KERNELS_LARGE_SMEM);
}

/* Whether kernels run that are written for compute capability 9.0 alone. */
static inline int trf_has_sm_90a(const trf_device_limits *limits) {
    return limits->capability == 90 && !(limits->missing_kernels & TRF_KERNELS_SM_90A);
}

static inline int trf_smem_fits(uint32_t dynamic_bytes, const trf_device_limits *limits) {
    return dynamic_bytes + TRF_STATIC_SMEM_BYTES <= (uint32_t)limits->shared_bytes;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Fills clusters_of and missing_kernels. The caller has set the other fields, and the device is the current one.
 * @return a cudaError_t. */
int trf_find_device_limits(trf_device_limits *limits);

#ifdef __cplusplus
}
#endif

#endif
