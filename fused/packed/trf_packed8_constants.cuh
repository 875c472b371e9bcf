/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of a packed FP8 tile in a warp, and the fragments that they make of its slabs. */
#ifndef TRF_PACKED8_CONSTANTS_CUH
#define TRF_PACKED8_CONSTANTS_CUH

#include "trf_packed8_form.h"
#include "trf_ptx.cuh"

/* kHasLow: the second constant is used. A layer whose flags say that it is zero does without. */
template <bool kHasLow> struct trf_packed8_constants {
    static constexpr uint32_t kSlabBytes = TRF_PACKED8_SLAB_BYTES;
    typedef uint4 words; /* of a lane: w0 and w1 of step 0, and of step 1 */
    uint32_t high, low;

    /* at: shared address of the slab. */
    static __device__ __forceinline__ words load(uint32_t at, uint32_t lane) { return trf_lds128(at + 16 * lane); }

    __device__ __forceinline__ void take(uint32_t pair) {
        high = trf_packed8_high(pair);
        low = kHasLow ? trf_packed8_low(pair) : 0;
    }

    __device__ __forceinline__ void form_slab(uint32_t (&a)[2][4], const words &from) const {
        if constexpr (kHasLow) {
            trf_form_packed8(a[0], from.x, from.y, high, low);
            trf_form_packed8(a[1], from.z, from.w, high, low);
        } else {
            trf_form_packed8_by_one(a[0], from.x, from.y, high);
            trf_form_packed8_by_one(a[1], from.z, from.w, high);
        }
    }
};

#endif
