/* SPDX-License-Identifier: Apache-2.0 */
/* Bringing global memory to the L2 cache before it is read. The PTX has a header of its own so that the emulation of
 * edges (tests/warp/warp_edge.cpp) can put a read of one byte in its place. */
#ifndef TRF_PREFETCH_CUH
#define TRF_PREFETCH_CUH

static __device__ __forceinline__ void trf_prefetch_l2(const void *at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

#endif
