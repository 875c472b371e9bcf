/* SPDX-License-Identifier: Apache-2.0 */
/* The PTX that the kernels use, each instruction under a name. Shared-memory addresses are 32-bit (shared window). */
#ifndef TRF_PTX_CUH
#define TRF_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TRF_DEPENDENT_LAUNCH 1
#define TRF_CLUSTERS 1
#else
#define TRF_DEPENDENT_LAUNCH 0
#define TRF_CLUSTERS 0
#endif

/* Whether this code's devices have 160 KiB of shared memory a block. Kernels that need so much have no code for the
 * others, which saves half of their build. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
#define TRF_LARGE_SHARED 0
#else
#define TRF_LARGE_SHARED 1
#endif

static __device__ __forceinline__ uint32_t trf_shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- shared memory ---- */

static __device__ __forceinline__ uint32_t trf_lds16(uint32_t at) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint32_t trf_lds32(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint2 trf_lds64(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint4 trf_lds128(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

static __device__ __forceinline__ float4 trf_lds128f(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

static __device__ __forceinline__ void trf_sts128(uint32_t at, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* ---- global memory ---- */

/* Loads what no kernel writes, at this point in the code. */
static __device__ __forceinline__ uint32_t trf_ldg32(const uint32_t *at) {
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
}

/* Loads what the preceding kernel may have written. Compilers move loads of constant memory (__ldg) before
 * trf_wait_for_predecessor; this load stays after it. */
static __device__ __forceinline__ uint4 trf_ldg128(const void *at) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

/* ---- global to shared ---- */

static __device__ __forceinline__ void trf_cp_async16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Writes zeros in place of what is not `here`; then nothing is read. */
static __device__ __forceinline__ void trf_cp_async16_or_zeros(bool here, uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(here ? 16 : 0) : "memory");
}

/* Like trf_cp_async16, but only if `here`; by way of the L1 cache if `by_l1`, for data that other warps copy, too. Both
 * become predicates: there is no branch. */
static __device__ __forceinline__ void trf_cp_async16_if(bool here, bool by_l1, uint32_t to, const void *from) {
    asm volatile("{\n\t.reg .pred direct, cached;\n\t"
                 "setp.ne.u32 direct, %2, 0;\n\t"
                 "setp.ne.u32 cached, %3, 0;\n\t"
                 "@direct cp.async.cg.shared.global [%0], [%1], 16;\n\t"
                 "@cached cp.async.ca.shared.global [%0], [%1], 16;\n\t}" ::"r"(to),
                 "l"(from), "r"((uint32_t)(here && !by_l1)), "r"((uint32_t)(here && by_l1))
                 : "memory");
}

static __device__ __forceinline__ void trf_cp_async8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void trf_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending> static __device__ __forceinline__ void trf_cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/* ---- warps of a block ---- */

/* Waits for the others of `warps` warps of the block. All lanes of these warps call it, perhaps from different places
 * in the code, so it is not .aligned. barrier: 1 to 15, for these warps only; __syncthreads uses 0. A single warp needs
 * no barrier. That is tested in a form for which the compiler finds registers; with others, kernels of 4 x tiles
 * spill. */
static __device__ __forceinline__ void trf_named_barrier_sync(uint32_t barrier, uint32_t warps) {
    __syncwarp();
    if (threadIdx.x % 32 < 32 * (warps - 1))
        asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}

/* ---- blocks of a cluster ----
 *
 * blocks: number of blocks of the cluster. With one block no cluster is needed: arriving does nothing then, and waiting
 * is __syncthreads. */

/* What the thread wrote before is visible to all threads that have waited. All threads of the cluster's blocks arrive
 * and then wait, alternately. */
static __device__ __forceinline__ void trf_cluster_arrive(uint32_t blocks) {
#if TRF_CLUSTERS
    if (blocks > 1) {
        __syncwarp();
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    }
#endif
}

static __device__ __forceinline__ void trf_cluster_wait(uint32_t blocks) {
    __syncwarp();
#if TRF_CLUSTERS
    if (blocks > 1) {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}

/* Stores to the shared address `at` of the cluster's block `rank`. */
static __device__ __forceinline__ void trf_cluster_store(uint32_t at, uint32_t rank, float4 v) {
#if TRF_CLUSTERS
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5}; }" ::"r"(at),
                 "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
#else
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
#endif
}

/* ---- dependent launches: a kernel may start before the preceding one is done, and runs up to trf_wait_for_predecessor
 * ---- */

static __device__ __forceinline__ void trf_allow_successor() {
#if TRF_DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void trf_wait_for_predecessor() {
#if TRF_DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- bits ---- */

/* Returns mask ? a : b, bit by bit. */
static __device__ __forceinline__ uint32_t trf_select(uint32_t mask, uint32_t a, uint32_t b) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(d) : "r"(mask), "r"(a), "r"(b));
    return d;
}

/* (a & mask) | b. */
static __device__ __forceinline__ uint32_t trf_and_or(uint32_t a, uint32_t mask, uint32_t b) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(b));
    return d;
}

/* Returns the bytes of (b, a) that the four low nibbles of pick name. Each of these is below 8; the bits above them do
 * not matter. */
static __device__ __forceinline__ uint32_t trf_permute(uint32_t a, uint32_t b, uint32_t pick) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(pick));
    return d;
}

static __device__ __forceinline__ uint32_t trf_rotate_left(uint32_t a, int n) {
    return (n & 31) ? __funnelshift_l(a, a, n & 31) : a;
}

/* ---- tensor core ---- */

struct trf_bf16_type {};
struct trf_f16_type {};

/* Computes d[4] += A[4] * (b0, b1): m16n8k16, F32 accumulators. */
static __device__ __forceinline__ void trf_mma(trf_bf16_type, float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void trf_mma(trf_f16_type, float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- number formats ---- */

/* Converts two F16 to two BF16; exact for FP8 values and for integers within +-256. */
static __device__ __forceinline__ uint32_t trf_f16x2_to_bf16x2(uint32_t v) {
    float2 f = __half22float2(*reinterpret_cast<const __half2 *>(&v));
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(f.y), "f"(f.x));
    return d;
}

/* Converts two FP8 values in the low 16 bits to two F16; exact, specials included. */
template <bool kE5M2> static __device__ __forceinline__ uint32_t trf_fp8x2_to_f16x2(uint32_t v) {
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(v & 0xFFFF), kE5M2 ? __NV_E5M2 : __NV_E4M3);
    return (uint32_t)h.x | (uint32_t)h.y << 16;
}

#endif
