/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of a packed FP8 tile in a warp, and the fragments that they make of its slabs. */
#ifndef TRF_PACKED8_CONSTANTS_CUH
#define TRF_PACKED8_CONSTANTS_CUH

#include "trf_packed8_form.h"
#include "trf_ptx.cuh"

/* kHasLow: the second constant is used. A layer whose flags say that it is zero does without. kInTurns: rows 8 to 15
 * have constants of their own (TRF_PACKED8_IN_TURNS). */
template <bool kHasLow, bool kInTurns = false> struct trf_packed8_constants {
    static_assert(kHasLow || !kInTurns, "layers in turns have one kind of kernels");
    static constexpr uint32_t kSlabBytes = TRF_PACKED8_SLAB_BYTES;
    typedef uint4 words; /* of a lane: w0 and w1 of step 0, and of step 1 */
    uint32_t high, low;
    uint32_t up_high, up_low; /* those of rows 8 to 15 */

    /* at: shared address of the slab. */
    static __device__ __forceinline__ words load(uint32_t at, uint32_t lane) { return trf_lds128(at + 16 * lane); }

    __device__ __forceinline__ void take(uint32_t pair) {
        high = trf_packed8_high(pair);
        low = kHasLow ? trf_packed8_low(pair) : 0;
    }

    __device__ __forceinline__ void take_second(uint32_t pair) {
        up_high = trf_packed8_high(pair);
        up_low = trf_packed8_low(pair);
    }

    __device__ __forceinline__ void form_slab(uint32_t (&a)[2][4], const words &from) const {
        if constexpr (kInTurns) {
            const uint32_t highs[2] = {high, up_high}, lows[2] = {low, up_low};
            trf_form_packed8_in_turns(a[0], from.x, from.y, highs, lows);
            trf_form_packed8_in_turns(a[1], from.z, from.w, highs, lows);
        } else if constexpr (kHasLow) {
            trf_form_packed8(a[0], from.x, from.y, high, low);
            trf_form_packed8(a[1], from.z, from.w, high, low);
        } else {
            trf_form_packed8_by_one(a[0], from.x, from.y, high);
            trf_form_packed8_by_one(a[1], from.z, from.w, high);
        }
    }
};

#endif
