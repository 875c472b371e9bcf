/* SPDX-License-Identifier: Apache-2.0 */
/* What wide kernels use of sm_90a: barriers in shared memory, the tensor memory accelerator, products of warpgroups.
 * Addresses are 32-bit (shared window). */
#ifndef TRF_WIDE_PTX_CUH
#define TRF_WIDE_PTX_CUH

#include "trf_ptx.cuh"

/* Whether this is compiled for sm_90a, whose barriers, copies and wgmma what follows uses. */
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

/* Barriers that one thread has set up are there for all of the cluster's threads, once they have met. */
static __device__ __forceinline__ void trf_mbarrier_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arriving and waiting order memory of the block only: for a cluster each would be a fence of the whole device (1.5 us
 * a stage were measured). */
static __device__ __forceinline__ void trf_mbarrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* At the barrier with this address in the cluster's block `rank`. */
static __device__ __forceinline__ void trf_mbarrier_arrive_cluster(uint32_t at, uint32_t rank) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(at),
                 "r"(rank)
                 : "memory");
}

/* Arrives, and has the barrier wait for so many bytes of copies, too. */
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

/* What the thread has read and written in shared memory, or was ordered behind, comes in front of what products of
 * warpgroups and copies by TMA do there that are ordered behind it. Of all memory it would be a fence of the device. */
static __device__ __forceinline__ void trf_fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Stores to the shared address `at` of the cluster's block `rank`, and counts the 16 bytes at the barrier there once
 * they have arrived. */
static __device__ __forceinline__ void trf_st_async128(uint32_t at, uint32_t barrier, uint32_t rank, uint4 v) {
    asm volatile(
        "{ .reg .b32 there, bar; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 bar, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%3, %4, %5, %6}, [bar]; }" ::"r"(
            at),
        "r"(barrier), "r"(rank), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}

/* What the thread has stored in other blocks of the cluster is there before what it does next. Slow. */
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

/* ---- products of a warpgroup ---- */

/* An operand in shared memory, rows of 64 bytes under the swizzle of 64: atoms of 8 rows, one behind the other. at: a
 * multiple of 512, plus 32 for the second 16 columns. */
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

/* Behind the wait: the compiler may not read sums before it. */
template <int kWgmmaRows64, int kSums>
static __device__ __forceinline__ void trf_wgmma_settle_sums(float (&d)[kWgmmaRows64][kSums]) {
#pragma unroll
    for (int b = 0; b < kWgmmaRows64; b++)
#pragma unroll
        for (int i = 0; i < kSums; i++)
            asm volatile("" : "+f"(d[b][i])::"memory");
}

/* Text of asm: a thread's sums as its first operands, and the numbers by which instructions name these. */
#define TRF_SUM_OPERANDS_8(i)                                                                                          \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define TRF_SUM_OPERANDS_24 TRF_SUM_OPERANDS_8(0), TRF_SUM_OPERANDS_8(8), TRF_SUM_OPERANDS_8(16)
#define TRF_SUM_OPERANDS_32 TRF_SUM_OPERANDS_24, TRF_SUM_OPERANDS_8(24)
#define TRF_SUM_OPERANDS_40 TRF_SUM_OPERANDS_32, TRF_SUM_OPERANDS_8(32)
#define TRF_SUM_OPERANDS_48 TRF_SUM_OPERANDS_40, TRF_SUM_OPERANDS_8(40)
#define TRF_SUM_OPERANDS_56 TRF_SUM_OPERANDS_48, TRF_SUM_OPERANDS_8(48)
#define TRF_SUM_OPERANDS_64 TRF_SUM_OPERANDS_56, TRF_SUM_OPERANDS_8(56)
#define TRF_SUM_NUMBERS_24                                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define TRF_SUM_NUMBERS_32 TRF_SUM_NUMBERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TRF_SUM_NUMBERS_40 TRF_SUM_NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TRF_SUM_NUMBERS_48 TRF_SUM_NUMBERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TRF_SUM_NUMBERS_56 TRF_SUM_NUMBERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TRF_SUM_NUMBERS_64 TRF_SUM_NUMBERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
/* rows of B, sums of a thread, and the operands behind them: text. */
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

/* d[64][kRows] += A[64][16] * B[kRows][16]^T. Element (16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane
 * % 4) + i % 2) is the lane's d[i]; there may be more. */
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

#endif

#endif
