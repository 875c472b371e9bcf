/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRF_ADD4_CUH
#define TRF_ADD4_CUH

/* Adds up two sets of a lane's four sums of an accumulator tile (trf_acc_tile.h). */
static __device__ __forceinline__ float4 trf_add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

#endif
