/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels share whose stages in shared memory are filled by bulk copies: the ring of stages, and sums of
 * accumulator tiles. */
#ifndef TRF_PACKED_RING_CUH
#define TRF_PACKED_RING_CUH

#include "trf_add4.cuh"
#include "trf_packed_stage_sizes.h"
#include "trf_ptx_sm90.cuh"

#if TRF_HAS_SM_90A

/* The ring of stages as one of its users sees it. Config: kStages stages of kStageBytes each; kBarriersAt: where the
 * pairs of barriers lie. `full` counts bytes, and `empty` counts the warps that are done with a stage. */
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

/* compute-sanitizer's racecheck does not see that a __syncwarp orders the loads of all lanes before the arrival of one
 * lane, nor that a fence of the copying thread does. In a build for racecheck each lane arrives, after a fence of its
 * own; wgmma kernels take 1 to 4 % longer then. */
#if TRF_FOR_RACECHECK
enum {
    TRF_PACKED_ARRIVALS_A_WARP = TRF_LANES
};
#else
enum {
    TRF_PACKED_ARRIVALS_A_WARP = 1
};
#endif

/* For a thread that has used the ring's memory for something else, before its block meets: racecheck does not see that
 * the fence of the copying thread, which comes after that, orders the first copies behind it. */
static __device__ __forceinline__ void trf_packed_leave_ring_memory() {
#if TRF_FOR_RACECHECK
    trf_fence_async_proxy();
#endif
}

/* The numbers of the named barriers of PTX. The barriers of stages and of sums are mbarriers in shared memory. */
enum {
    /* For a bulk kernel's consumers, before they put sums into shared memory, and before they read each other's. */
    TRF_PACKED_SUMS_BARRIER_ID = 1,
    TRF_PACKED_CONSUMERS_BARRIER_ID, /* the ring is set up: for consumers, ... */
    TRF_PACKED_WEIGHTS_BARRIER_ID,   /* ... for the producer of weights, ... */
    TRF_PACKED_X_BARRIER_ID,         /* ... and for that of x */
    /* for a wgmma kernel's first warpgroup; the other warpgroups have the numbers after it */
    TRF_PACKED_BAND_BARRIER_ID
};

/* Sets the ring up. It is called by a warp that has nothing else to do, and lets the others go, each kind at a barrier
 * of its own. So nobody waits for more than the ring, and producers find out meanwhile what they copy first (a block's
 * first copies left 0.5 microseconds later when a producer did all of this). A stage is full when the producers of
 * weights and of x have both announced their bytes, and these have arrived. */
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

/* Waits for a stage that consumers give back, and orders their reads of it before the copies that the thread then
 * starts. They read through the generic proxy, and copies write through the asynchronous one. */
template <class Config>
static __device__ __forceinline__ void trf_packed_take_stage(const trf_packed_ring<Config> &ring) {
    trf_mbarrier_wait(ring.empty(), ring.phase);
    trf_fence_async_proxy();
}

/* A consumer warp gives a stage back when all of its lanes are done with it. empty: the stage's barrier. */
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
