/* SPDX-License-Identifier: Apache-2.0 */
/* What products of coded layers call beside warp_emulation.h: conversions of floats, and the other functions of
 * trf_ptx.cuh. Include it before their headers. */
#ifndef WARP_HALVES_H
#define WARP_HALVES_H

#include "warp_emulation.h"

#include "trf_number_formats.h"

/* ---- CUDA's words ---- */

static inline float __uint_as_float(uint32_t bits) { return trf_f32_from_bits(bits); }
static inline uint32_t __float_as_uint(float value) { return trf_f32_bits(value); }

struct __half {
    uint16_t bits;
};
struct __half2 {
    __half x, y;
};
static inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
static inline uint16_t __half_as_ushort(__half h) { return h.bits; }
static inline float __half2float(__half h) { return trf_f16_to_f32(h.bits); }
static inline __half __float2half_rn(float value) { return {trf_f32_to_f16(value)}; }
static inline __half __int2half_rn(int value) { return __float2half_rn((float)value); }
static inline __half2 __half2half2(__half h) { return {h, h}; }
static inline __half2 __hadd2(__half2 a, __half2 b) {
    return {__float2half_rn(__half2float(a.x) + __half2float(b.x)),
            __float2half_rn(__half2float(a.y) + __half2float(b.y))};
}

static inline float __shfl_xor_sync(uint32_t mask, float value, uint32_t lane_mask) {
    return __uint_as_float(__shfl_xor_sync(mask, __float_as_uint(value), lane_mask));
}

/* ---- the functions of trf_ptx.cuh ---- */

struct trf_f16_type {};
static inline uint32_t trf_f16x2_to_bf16x2(uint32_t v) {
    const uint32_t low = trf_f32_to_bf16(trf_f16_to_f32((uint16_t)v)),
                   high = trf_f32_to_bf16(trf_f16_to_f32((uint16_t)(v >> 16)));
    return low | high << 16;
}
template <bool kE5M2> static inline uint32_t trf_fp8x2_to_f16x2(uint32_t v) {
    const auto to_f16 = [](uint32_t byte) -> uint32_t {
        return trf_f32_to_f16(kE5M2 ? trf_e5m2_to_f32((uint8_t)byte) : trf_e4m3_to_f32((uint8_t)byte));
    };
    return to_f16(v & 0xFF) | to_f16(v >> 8 & 0xFF) << 16;
}

static inline uint4 trf_ldg128(const void *at) { return __ldg(static_cast<const uint4 *>(at)); }

/* It makes no difference here by which cache a copy comes. */
static inline void trf_cp_async16_if(bool here, bool by_l1, uint32_t to, const void *from) {
    (void)by_l1;
    if (here)
        trf_cp_async16(to, from);
}

#endif
