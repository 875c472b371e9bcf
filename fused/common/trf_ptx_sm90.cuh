/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels use of sm_90a: barriers in shared memory, the tensor memory accelerator (TMA), clusters, products of
 * warpgroups. trf_ptx.cuh has what older devices can do, too. Addresses have 32 bits and are in the shared window. */
#ifndef TRF_PTX_SM90_CUH
#define TRF_PTX_SM90_CUH

#include "trf_ptx.cuh"

/* Whether this is compiled for sm_90a, which has the barriers, copies and wgmma that are used below. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TRF_HAS_SM_90A 1
#else
#define TRF_HAS_SM_90A 0
#endif

#if TRF_HAS_SM_90A

/* ---- barriers: 64 bits of shared memory each ---- */

static __device__ __forceinline__ void trf_mbarrier_init(uint32_t at, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

/* Makes the barriers that one thread has initialized visible to all threads of the cluster, after the cluster's next
 * barrier. */
static __device__ __forceinline__ void trf_mbarrier_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arriving and waiting order memory within the block only. For a cluster each of them would be a fence of the whole
 * device, which took 1.5 us a stage when measured. */
static __device__ __forceinline__ void trf_mbarrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* Arrives at the barrier that has this address in the cluster's block `rank`. */
static __device__ __forceinline__ void trf_mbarrier_arrive_cluster(uint32_t at, uint32_t rank) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(at),
                 "r"(rank)
                 : "memory");
}

/* Arrives, and has the barrier wait for so many bytes of copies as well. */
static __device__ __forceinline__ void trf_mbarrier_arrive_expect_tx(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/* Waits until the barrier's phase of this parity is over. */
static __device__ __forceinline__ void trf_mbarrier_wait(uint32_t at, uint32_t parity) {
    asm volatile("{ .reg .pred done;\n"
                 "again_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again_%=; }" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* Orders shared memory accesses of the thread, and those that it has synchronized with, before the accesses that later
 * wgmma instructions and TMA copies make there. A fence of all memory, in place of shared memory, would be one of the
 * whole device. */
static __device__ __forceinline__ void trf_fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Stores 16 bytes to the shared address `at` of the cluster's block `rank`. The barrier there counts them once they
 * have arrived. */
static __device__ __forceinline__ void trf_st_async128(uint32_t at, uint32_t barrier, uint32_t rank, uint4 v) {
    asm volatile(
        "{ .reg .b32 there, bar; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 bar, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%3, %4, %5, %6}, [bar]; }" ::"r"(
            at),
        "r"(barrier), "r"(rank), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}

/* Makes what the thread has stored in other blocks of the cluster visible before what it does next. Slow. */
static __device__ __forceinline__ void trf_fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

static __device__ __forceinline__ void trf_sts8_cluster(uint32_t at, uint32_t rank, uint32_t v) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.u8 [there], %2; }" ::"r"(at),
                 "r"(rank), "r"(v)
                 : "memory");
}

/* ---- copies of boxes ---- */

static __device__ __forceinline__ void trf_tma_load_box(uint32_t to, const void *map, uint32_t col, uint32_t row,
                                                        uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(to),
                 "l"(map), "r"(col), "r"(row), "r"(barrier)
                 : "memory");
}

/* The same, with an L2 cache policy. */
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

/* ---- copies of bytes in a row ---- */

/* For data that is read once: it is the first to leave the L2 cache. */
static __device__ __forceinline__ uint64_t trf_policy_read_once() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    return policy;
}

/* For data that other blocks read again. */
static __device__ __forceinline__ uint64_t trf_policy_read_again() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
    return policy;
}

/* For data that all blocks read: it is the last to leave the L2 cache. */
static __device__ __forceinline__ uint64_t trf_policy_keep() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}

/* Copies from global to shared memory. `bytes`, `from` and `to` are multiples of 16. The bytes count at this block's
 * `barrier`. */
static __device__ __forceinline__ void trf_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier,
                                                     uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* ---- blocks of a cluster ---- */

/* Like trf_cluster_arrive, but orders no memory except what trf_mbarrier_publish does; anything more would be a fence
 * of the device. */
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

/* Loads of what other threads have written before a barrier. The compiler does not move them before that barrier. */
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

/* ---- what blocks hand to each other through memory ---- */

/* Sets the flag. Whoever sees its value also sees what the calling thread has written, and what the thread's warp had
 * written before the warp's last synchronization. */
static __device__ __forceinline__ void trf_publish(uint64_t *flag, uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
/* Waits until the flag has the value. All lanes call it: if only some of them looped, the compiler could no longer take
 * anything nearby to be the same in all lanes. */
static __device__ __forceinline__ void trf_await(const uint64_t *flag, uint64_t value) {
    asm volatile("{ .reg .pred other; .reg .b64 found;\n"
                 "again_%=: ld.acquire.gpu.global.u64 found, [%0];\n"
                 "setp.ne.u64 other, found, %1;\n"
                 "@other bra again_%=; }" ::"l"(flag),
                 "l"(value)
                 : "memory");
}

/* Store and load two words for, and of, another block. Nothing else is ordered by it, not even one word by the other.
 */
static __device__ __forceinline__ void trf_store_relaxed(ulonglong2 *at, ulonglong2 v) {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(v.x), "l"(v.y) : "memory");
}
static __device__ __forceinline__ ulonglong2 trf_load_relaxed(const ulonglong2 *at) {
    ulonglong2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(at) : "memory");
    return v;
}

/* Loads from the L2 cache what another block may have written. */
static __device__ __forceinline__ float4 trf_ldg128f_of_others(const float4 *at) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

/* ---- fragments ---- */

/* Loads four matrices of 8x8 16-bit values; lane l gives the address of row l % 8 of matrix l / 8. */
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

/* ---- registers. All warps of a warpgroup call these. Nobody waits if the block has enough registers. With 0 a warp
 * keeps what it has, which makes the start of a block a microsecond shorter ---- */

template <int kRegisters> static __device__ __forceinline__ void trf_take_registers() {
    if constexpr (kRegisters > 0)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> static __device__ __forceinline__ void trf_give_registers() {
    if constexpr (kRegisters > 0)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/* ---- warps of a block ---- */

/* Makes the compiler keep a value in a register. Otherwise it recomputes addresses of shared memory wherever they are
 * used, in loops too, which cost 7 % of a product by 32 rows of x. */
static __device__ __forceinline__ uint32_t trf_keep_in_register(uint32_t v) {
    asm volatile("" : "+r"(v));
    return v;
}

/* Arrives at a named barrier that `warps` warps take part in, and does not wait for the others. */
static __device__ __forceinline__ void trf_named_barrier_arrive(uint32_t barrier, uint32_t warps) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}

/* ---- products of a warpgroup ---- */

/* Describes an operand in shared memory: rows of 64 bytes under the swizzle of 64 bytes, in atoms of 8 rows that follow
 * one another. at: a multiple of 512, plus 32 for the second 16 columns. */
static __device__ __forceinline__ uint64_t trf_wgmma_descriptor(uint32_t at) {
    return (uint64_t)(at >> 4 & 0x3FFF) | 1ull << 16 | (uint64_t)(512 >> 4) << 32 | 2ull << 62;
}

static __device__ __forceinline__ void trf_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void trf_wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending> static __device__ __forceinline__ void trf_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/* To be called after the wait, so that the compiler does not read sums before it. */
template <int kWgmmaRows64, int kSums>
static __device__ __forceinline__ void trf_wgmma_settle_sums(float (&d)[kWgmmaRows64][kSums]) {
#pragma unroll
    for (int b = 0; b < kWgmmaRows64; b++)
#pragma unroll
        for (int i = 0; i < kSums; i++)
            asm volatile("" : "+f"(d[b][i])::"memory");
}

template <int kSums> static __device__ __forceinline__ void trf_wgmma_settle_sums(float (&d)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Text for asm statements: a thread's sums as the first operands, and the numbers by which instructions name these. */
#define TRF_EIGHT_SUMS(i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define TRF_SUM_OPERANDS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define TRF_SUM_OPERANDS_8 TRF_EIGHT_SUMS(0)
#define TRF_SUM_OPERANDS_16 TRF_EIGHT_SUMS(0), TRF_EIGHT_SUMS(8)
#define TRF_SUM_OPERANDS_24 TRF_EIGHT_SUMS(0), TRF_EIGHT_SUMS(8), TRF_EIGHT_SUMS(16)
#define TRF_SUM_OPERANDS_32 TRF_SUM_OPERANDS_24, TRF_EIGHT_SUMS(24)
#define TRF_SUM_OPERANDS_40 TRF_SUM_OPERANDS_32, TRF_EIGHT_SUMS(32)
#define TRF_SUM_OPERANDS_48 TRF_SUM_OPERANDS_40, TRF_EIGHT_SUMS(40)
#define TRF_SUM_OPERANDS_56 TRF_SUM_OPERANDS_48, TRF_EIGHT_SUMS(48)
#define TRF_SUM_OPERANDS_64 TRF_SUM_OPERANDS_56, TRF_EIGHT_SUMS(56)
#define TRF_SUM_OPERANDS_72 TRF_SUM_OPERANDS_64, TRF_EIGHT_SUMS(64)
#define TRF_SUM_OPERANDS_80 TRF_SUM_OPERANDS_72, TRF_EIGHT_SUMS(72)
#define TRF_SUM_OPERANDS_88 TRF_SUM_OPERANDS_80, TRF_EIGHT_SUMS(80)
#define TRF_SUM_OPERANDS_96 TRF_SUM_OPERANDS_88, TRF_EIGHT_SUMS(88)
#define TRF_SUM_OPERANDS_104 TRF_SUM_OPERANDS_96, TRF_EIGHT_SUMS(96)
#define TRF_SUM_OPERANDS_112 TRF_SUM_OPERANDS_104, TRF_EIGHT_SUMS(104)
#define TRF_SUM_OPERANDS_120 TRF_SUM_OPERANDS_112, TRF_EIGHT_SUMS(112)
#define TRF_SUM_OPERANDS_128 TRF_SUM_OPERANDS_120, TRF_EIGHT_SUMS(120)
#define TRF_SUM_NUMBERS_4 "%0, %1, %2, %3"
#define TRF_SUM_NUMBERS_8 TRF_SUM_NUMBERS_4 ", %4, %5, %6, %7"
#define TRF_SUM_NUMBERS_16 TRF_SUM_NUMBERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TRF_SUM_NUMBERS_24                                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define TRF_SUM_NUMBERS_32 TRF_SUM_NUMBERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TRF_SUM_NUMBERS_40 TRF_SUM_NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TRF_SUM_NUMBERS_48 TRF_SUM_NUMBERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TRF_SUM_NUMBERS_56 TRF_SUM_NUMBERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TRF_SUM_NUMBERS_64 TRF_SUM_NUMBERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TRF_SUM_NUMBERS_72 TRF_SUM_NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TRF_SUM_NUMBERS_80 TRF_SUM_NUMBERS_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TRF_SUM_NUMBERS_88 TRF_SUM_NUMBERS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TRF_SUM_NUMBERS_96 TRF_SUM_NUMBERS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TRF_SUM_NUMBERS_104 TRF_SUM_NUMBERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TRF_SUM_NUMBERS_112 TRF_SUM_NUMBERS_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TRF_SUM_NUMBERS_120 TRF_SUM_NUMBERS_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TRF_SUM_NUMBERS_128 TRF_SUM_NUMBERS_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
/* All arguments are text: the rows of B, the number of sums of a thread, and the numbers of the operands that follow
 * these. */
#define TRF_WGMMA(types, rows, sums, at_a, at_b)                                                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" rows "k16.f32." types " {" TRF_SUM_NUMBERS_##sums                 \
                 "}, %" at_a ", %" at_b ", 1, 1, 1, 0, 0;"                                                             \
                 : TRF_SUM_OPERANDS_##sums                                                                             \
                 : "l"(a), "l"(b))
#define TRF_WGMMA_OF_ROWS(types)                                                                                       \
    do {                                                                                                               \
        if constexpr (kRows == 48)                                                                                     \
            TRF_WGMMA(types, "48", 24, "24", "25");                                                                    \
        else if constexpr (kRows == 64)                                                                                \
            TRF_WGMMA(types, "64", 32, "32", "33");                                                                    \
        else if constexpr (kRows == 80)                                                                                \
            TRF_WGMMA(types, "80", 40, "40", "41");                                                                    \
        else if constexpr (kRows == 96)                                                                                \
            TRF_WGMMA(types, "96", 48, "48", "49");                                                                    \
        else if constexpr (kRows == 112)                                                                               \
            TRF_WGMMA(types, "112", 56, "56", "57");                                                                   \
        else                                                                                                           \
            TRF_WGMMA(types, "128", 64, "64", "65");                                                                   \
    } while (0)

/* Computes d[64][kRows] += A[64][16] * B[kRows][16]^T. The lane's d[i] is element (16 * warp + lane / 4 + 8 * (i / 2 %
 * 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2). d may be longer than needed. */
template <int kRows, int kSums>
static __device__ __forceinline__ void trf_wgmma(trf_bf16_type, float (&d)[kSums], uint64_t a, uint64_t b) {
    static_assert(kRows / 2 <= kSums, "a thread has a half of its warp's rows of sums");
    TRF_WGMMA_OF_ROWS("bf16.bf16");
}
template <int kRows, int kSums>
static __device__ __forceinline__ void trf_wgmma(trf_f16_type, float (&d)[kSums], uint64_t a, uint64_t b) {
    static_assert(kRows / 2 <= kSums, "a thread has a half of its warp's rows of sums");
    TRF_WGMMA_OF_ROWS("f16.f16");
}

/* All arguments are text: the rows of B, the number of sums of a thread, and the numbers of the operands that follow
 * these. */
#define TRF_WGMMA_RS(rows, sums, a0, a1, a2, a3, at_b)                                                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" rows "k16.f32.bf16.bf16 {" TRF_SUM_NUMBERS_##sums                 \
                 "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" at_b ", 1, 1, 1, 0;"                                     \
                 : TRF_SUM_OPERANDS_##sums                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/* Computes d[64][kRows] += A[64][16] * B[kRows][16]^T. Warp w of the warpgroup has rows 16 * w to 16 * w + 15: of A as
 * the fragment of an mma.m16n8k16, and of d as an mma's sums for each 8 rows of B, d[4 * t] to d[4 * t + 3]. Until the
 * wait, neither a nor what b describes may change, and d may not be read. */
template <int kRows>
static __device__ __forceinline__ void trf_wgmma_of_registers(float (&d)[kRows / 2], const uint32_t (&a)[4],
                                                              uint64_t b) {
    if constexpr (kRows == 8)
        TRF_WGMMA_RS("8", 4, "4", "5", "6", "7", "8");
    else if constexpr (kRows == 16)
        TRF_WGMMA_RS("16", 8, "8", "9", "10", "11", "12");
    else if constexpr (kRows == 32)
        TRF_WGMMA_RS("32", 16, "16", "17", "18", "19", "20");
    else if constexpr (kRows == 64)
        TRF_WGMMA_RS("64", 32, "32", "33", "34", "35", "36");
    else if constexpr (kRows == 80)
        TRF_WGMMA_RS("80", 40, "40", "41", "42", "43", "44");
    else if constexpr (kRows == 96)
        TRF_WGMMA_RS("96", 48, "48", "49", "50", "51", "52");
    else if constexpr (kRows == 112)
        TRF_WGMMA_RS("112", 56, "56", "57", "58", "59", "60");
    else if constexpr (kRows == 128)
        TRF_WGMMA_RS("128", 64, "64", "65", "66", "67", "68");
    else if constexpr (kRows == 144)
        TRF_WGMMA_RS("144", 72, "72", "73", "74", "75", "76");
    else if constexpr (kRows == 160)
        TRF_WGMMA_RS("160", 80, "80", "81", "82", "83", "84");
    else if constexpr (kRows == 176)
        TRF_WGMMA_RS("176", 88, "88", "89", "90", "91", "92");
    else if constexpr (kRows == 192)
        TRF_WGMMA_RS("192", 96, "96", "97", "98", "99", "100");
    else if constexpr (kRows == 208)
        TRF_WGMMA_RS("208", 104, "104", "105", "106", "107", "108");
    else if constexpr (kRows == 224)
        TRF_WGMMA_RS("224", 112, "112", "113", "114", "115", "116");
    else if constexpr (kRows == 240)
        TRF_WGMMA_RS("240", 120, "120", "121", "122", "123", "124");
    else
        TRF_WGMMA_RS("256", 128, "128", "129", "130", "131", "132");
}

#endif

#endif
