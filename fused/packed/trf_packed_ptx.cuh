/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels of packed layers use of sm_90a beside what wide ones do. Addresses are 32-bit (shared window). */
#ifndef TRF_PACKED_PTX_CUH
#define TRF_PACKED_PTX_CUH

#include "trf_wide_ptx.cuh"

#if TRF_HAS_SM_90A

/* ---- copies of bytes in a row ---- */

/* Of what is read once: it is the first to leave the L2 cache. */
static __device__ __forceinline__ uint64_t trf_policy_read_once() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    return policy;
}

/* Of what other blocks read again. */
static __device__ __forceinline__ uint64_t trf_policy_read_again() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
    return policy;
}

/* Of what all blocks read: it is the last to leave. */
static __device__ __forceinline__ uint64_t trf_policy_keep() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}

/* bytes: a multiple of 16, as `from` and `to` are. They count at the barrier of this block. */
static __device__ __forceinline__ void trf_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier,
                                                     uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* The same by a policy. */
static __device__ __forceinline__ void trf_tma_load_box(uint32_t to, const void *map, uint32_t col, uint32_t row,
                                                        uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(col), "r"(row), "r"(barrier), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ void trf_prefetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---- what blocks hand to each other through memory ---- */

/* What the calling thread has written, or has seen written by a meeting of its warp, is there for whoever sees the
 * value. */
static __device__ __forceinline__ void trf_publish(uint64_t *flag, uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
/* By all lanes: a loop in which lanes part makes the compiler take nothing around it for the same in all of them. */
static __device__ __forceinline__ void trf_await(const uint64_t *flag, uint64_t value) {
    asm volatile("{ .reg .pred other; .reg .b64 found;\n"
                 "again_%=: ld.acquire.gpu.global.u64 found, [%0];\n"
                 "setp.ne.u64 other, found, %1;\n"
                 "@other bra again_%=; }" ::"l"(flag),
                 "l"(value)
                 : "memory");
}

/* From the L2 cache: what another block may have written. */
static __device__ __forceinline__ float4 trf_ldg128f_of_others(const float4 *at) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

/* ---- fragments ---- */

/* Four matrices of 8x8 halves; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ uint4 trf_ldmatrix4(uint32_t at) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

/* Stores four such matrices, transposed; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void trf_stmatrix4_transposed(uint32_t at, uint4 v) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

/* ---- registers: all warps of a warpgroup call it; there is nothing to wait for if the block has so many. 0: a warp
 * keeps what it has, which is a microsecond less at a block's start ---- */

template <int kRegisters> static __device__ __forceinline__ void trf_take_registers() {
    if constexpr (kRegisters > 0)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> static __device__ __forceinline__ void trf_give_registers() {
    if constexpr (kRegisters > 0)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/* ---- warps of a block ---- */

/* A value that the compiler has to keep: it makes the address of shared memory anew wherever it is used, in loops too
 * (7 % of a product by 32 rows of x). */
static __device__ __forceinline__ uint32_t trf_keep_in_register(uint32_t v) {
    asm volatile("" : "+r"(v));
    return v;
}

/* The warp has come to the barrier, of so many warps, and does not wait for the others. */
static __device__ __forceinline__ void trf_named_barrier_arrive(uint32_t barrier, uint32_t warps) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}

/* ---- blocks of a cluster ---- */

/* trf_cluster_arrive that orders no memory but what trf_mbarrier_publish has: that would be a fence of the device. */
static __device__ __forceinline__ void trf_cluster_arrive_relaxed(uint32_t blocks) {
    if (blocks > 1) {
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
}

static __device__ __forceinline__ void trf_st_async128f(uint32_t at, uint32_t barrier, uint32_t rank, float4 v) {
    trf_st_async128(at, barrier, rank,
                    make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)));
}

static __device__ __forceinline__ void trf_sts128f(uint32_t at, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* Loads of what other threads have written behind a barrier: not moved in front of that. */
static __device__ __forceinline__ float trf_lds32f_of_others(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ uint4 trf_lds128_of_others(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
static __device__ __forceinline__ float4 trf_lds128f_of_others(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

#endif

#endif
