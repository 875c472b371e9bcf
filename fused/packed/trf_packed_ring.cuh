/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels share that have bulk copies fill stages in shared memory: the ring of stages, and sums of accumulator
 * tiles. */
#ifndef TRF_PACKED_RING_CUH
#define TRF_PACKED_RING_CUH

#include "trf_add4.cuh"
#include "trf_packed_stage_sizes.h"
#include "trf_ptx_sm90.cuh"

#if TRF_HAS_SM_90A

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
    __device__ __forceinline__ trf_packed_ring previous() const {
        return index ? trf_packed_ring{shared, index - 1, phase}
                     : trf_packed_ring{shared, Config::kStages - 1, phase ^ 1};
    }
};

/* compute-sanitizer's racecheck does not see that a warp's meeting orders its lanes' loads in front of one lane's
 * arrival, nor that a fence of the thread that copies does. In a build for it each lane arrives, behind a fence of its
 * own, which takes wgmma kernels 1 to 4 % longer. */
#if TRF_FOR_RACECHECK
enum {
    TRF_PACKED_ARRIVALS_A_WARP = TRF_LANES
};
#else
enum {
    TRF_PACKED_ARRIVALS_A_WARP = 1
};
#endif

/* Named barriers of PTX, by their numbers; those that stages and sums wait at are mbarriers in shared memory. */
enum {
    /* A bulk kernel's consumers meet here: before they put sums into shared memory, and before they read each
     * other's. */
    TRF_PACKED_SUMS_BARRIER_ID = 1,
    TRF_PACKED_CONSUMERS_BARRIER_ID, /* the ring is set up: for consumers ... */
    TRF_PACKED_WEIGHTS_BARRIER_ID,   /* ... for the producer of weights ... */
    TRF_PACKED_X_BARRIER_ID,         /* ... and for that of x */
    TRF_PACKED_BAND_BARRIER_ID       /* of a wgmma kernel's first warpgroup; those of others follow */
};

/* Sets the ring up, as a warp that has nothing else to do, and lets the others go, each sort at a barrier of its own:
 * nobody waits for more than the ring, and producers find out meanwhile what they copy first (a block's first copies
 * left 0.5 microseconds later when one of them did all of this). A stage is full when the producers of weights and of x
 * have both said what they bring, and that is there. */
template <class Config> static __device__ __forceinline__ void trf_packed_set_ring_up(uint32_t shared, uint32_t lane) {
    if (lane == 0) {
        for (trf_packed_ring<Config> ring = {shared, 0, 0}; ring.phase == 0; ring.next()) {
            trf_mbarrier_init(ring.full(), 2);
            trf_mbarrier_init(ring.empty(), TRF_PACKED_ARRIVALS_A_WARP * Config::kWarps);
        }
        trf_mbarrier_publish();
        trf_fence_async_proxy();
    }
    __syncwarp();
    trf_named_barrier_arrive(TRF_PACKED_WEIGHTS_BARRIER_ID, 2);
    trf_named_barrier_arrive(TRF_PACKED_X_BARRIER_ID, 2);
    trf_named_barrier_arrive(TRF_PACKED_CONSUMERS_BARRIER_ID, Config::kWarps + 1);
}

/* Waits for a stage that consumers give back, and orders what they read of it in front of what the thread copies there:
 * they read by the generic proxy, and copies write by the asynchronous one. */
template <class Config>
static __device__ __forceinline__ void trf_packed_take_stage(const trf_packed_ring<Config> &ring) {
    trf_mbarrier_wait(ring.empty(), ring.phase);
    trf_fence_async_proxy();
}

/* A warp of consumers, all of whose lanes are done with a stage, gives it back. empty: its barrier. */
static __device__ __forceinline__ void trf_packed_give_stage_back(uint32_t empty, uint32_t lane) {
#if TRF_FOR_RACECHECK
    (void)lane;
    trf_fence_async_proxy();
    trf_mbarrier_arrive(empty);
#else
    __syncwarp();
    if (lane == 0)
        trf_mbarrier_arrive(empty);
#endif
}

#endif

#endif
