/* SPDX-License-Identifier: Apache-2.0 */
/* What the lanes of a warp do together. All 32 lanes call each function. */
#ifndef TRF_WARP_CUH
#define TRF_WARP_CUH

#include "trf_blob.h"

static constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

static __device__ __forceinline__ uint64_t trf_shuffle_xor64(uint64_t value, uint32_t lane_mask) {
    const uint32_t low = __shfl_xor_sync(kAllLanes, (uint32_t)value, lane_mask),
                   high = __shfl_xor_sync(kAllLanes, (uint32_t)(value >> 32), lane_mask);
    return (uint64_t)high << 32 | low;
}

/* Returns the sum of the lanes' values up to and including the lane's own. */
static __device__ __forceinline__ uint32_t trf_warp_scan(uint32_t value, uint32_t lane) {
    for (uint32_t reach = 1; reach < TRF_LANES; reach *= 2) {
        const uint32_t other = __shfl_up_sync(kAllLanes, value, reach);
        value += lane >= reach ? other : 0;
    }
    return value;
}

/* Exchanges words among the four lanes of a quartet, 4r to 4r + 3: lane c gives word w to lane w, where it becomes word
 * c. Doing it twice changes nothing. */
static __device__ __forceinline__ void trf_quartet_transpose(uint32_t word[4], uint32_t lane) {
    const bool odd = lane & 1, upper = lane & 2;
    for (uint32_t i = 0; i < 4; i += 2) {
        const uint32_t got = __shfl_xor_sync(kAllLanes, odd ? word[i] : word[i + 1], 1);
        word[i] = odd ? got : word[i];
        word[i + 1] = odd ? word[i + 1] : got;
    }
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? word[i] : word[i + 2], 2);
        word[i] = upper ? got : word[i];
        word[i + 2] = upper ? word[i + 2] : got;
    }
}

#endif
