/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels share that have bulk copies fill stages in shared memory: the ring of stages, and sums of items. */
#ifndef TRF_PACKED_RING_CUH
#define TRF_PACKED_RING_CUH

#include "trf_packed_bulk_sizes.h"
#include "trf_packed_ptx.cuh"

#if TRF_WARPGROUPS

/* The ring of stages as one of its users sees it. Config: kStages of kStageBytes each; kBarriersAt: where the pairs of
 * barriers lie, of which `full` counts bytes and `empty` the warps that are done with a stage. */
template <class Config> struct trf_packed_ring {
    uint32_t shared; /* address */
    uint32_t index, phase;

    __device__ __forceinline__ uint32_t stage() const { return shared + index * Config::kStageBytes; }
    __device__ __forceinline__ uint32_t full() const { return shared + Config::kBarriersAt + 16 * index; }
    __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
    __device__ __forceinline__ void next() {
        if (++index == Config::kStages) {
            index = 0;
            phase ^= 1;
        }
    }
};

/* Barriers of warps, by number. */
enum {
    TRF_PACKED_SUMS_BARRIER = 1, /* of those that multiply, in front of what they make of shared memory's stages */
    TRF_PACKED_START_BARRIER
};

/* All warps of a block meet once: the ring is set up. It is no __syncthreads, as each kind of warp calls it elsewhere.
 */
template <class Config> static __device__ __forceinline__ void trf_packed_meet_at_start() {
    trf_named_barrier_sync(TRF_PACKED_START_BARRIER, Config::kWarps + TRF_PACKED_BULK_PRODUCER_WARPS);
}

/* By one thread, in front of trf_packed_meet_at_start. warps: that are done with each stage. A stage is full when the
 * producers of weights and of x have both said what they bring, and that is there. */
template <class Config> static __device__ __forceinline__ void trf_packed_ring_set_up(uint32_t shared, uint32_t warps) {
    for (trf_packed_ring<Config> ring = {shared, 0, 0}; ring.phase == 0; ring.next()) {
        trf_mbarrier_init(ring.full(), 2);
        trf_mbarrier_init(ring.empty(), warps);
    }
    trf_mbarrier_publish();
    trf_fence_async_proxy();
}

static __device__ __forceinline__ float4 trf_add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

#endif

#endif
