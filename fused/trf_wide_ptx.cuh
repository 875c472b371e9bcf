/* What wide kernels use of sm_90a: barriers in shared memory, the tensor memory accelerator, products of warpgroups. Addresses are 32-bit (shared window). */
#ifndef TRF_WIDE_PTX_CUH
#define TRF_WIDE_PTX_CUH

#include "trf_ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TRF_WARPGROUPS 1
#else
#define TRF_WARPGROUPS 0
#endif

#if TRF_WARPGROUPS

/* ---- barriers: 64 bits of shared memory each ---- */

static __device__ __forceinline__ void trf_barrier_init(uint32_t at, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

/* Barriers that one thread has set up are there for all of the cluster's threads, once they have met. */
static __device__ __forceinline__ void trf_barrier_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arriving and waiting order memory of the block only: for a cluster each would be a fence of the whole device (1.5 us a stage were measured). */
static __device__ __forceinline__ void trf_barrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* At the barrier with this address in the cluster's block `rank`. */
static __device__ __forceinline__ void trf_barrier_arrive_at(uint32_t at, uint32_t rank) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(at),
                 "r"(rank)
                 : "memory");
}

/* Arrives, and has the barrier wait for so many bytes of copies, too. */
static __device__ __forceinline__ void trf_barrier_expect(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/* The same without arriving. */
static __device__ __forceinline__ void trf_barrier_expect_more(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/* Waits until the barrier's phase of this parity is over. */
static __device__ __forceinline__ void trf_barrier_wait(uint32_t at, uint32_t parity) {
    asm volatile("{ .reg .pred done;\n"
                 "again_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again_%=; }" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* What the thread has written to shared memory is seen by products of warpgroups that are ordered behind it. Of all memory it would be a fence of the device. */
static __device__ __forceinline__ void trf_fence_for_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Stores to the shared address `at` of the cluster's block `rank`, and counts the 16 bytes at the barrier there once they have arrived. */
static __device__ __forceinline__ void trf_send128(uint32_t at, uint32_t barrier, uint32_t rank, uint4 v) {
    asm volatile(
        "{ .reg .b32 there, bar; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 bar, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%3, %4, %5, %6}, [bar]; }" ::"r"(
            at),
        "r"(barrier), "r"(rank), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}

/* What the thread has stored in other blocks of the cluster is there before what it does next. Slow. */
static __device__ __forceinline__ void trf_fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

static __device__ __forceinline__ void trf_sts8_at(uint32_t at, uint32_t rank, uint32_t v) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.u8 [there], %2; }" ::"r"(at),
                 "r"(rank), "r"(v)
                 : "memory");
}

static __device__ __forceinline__ void trf_sts32f(uint32_t at, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}

static __device__ __forceinline__ float trf_lds32f(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

/* ---- copies of boxes ---- */

static __device__ __forceinline__ void trf_copy_box(uint32_t to, const void *map, uint32_t col, uint32_t row,
                                                    uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(to),
                 "l"(map), "r"(col), "r"(row), "r"(barrier)
                 : "memory");
}

/* ---- products of a warpgroup ---- */

/* An operand in shared memory, rows of 64 bytes under the swizzle of 64: atoms of 8 rows, one behind the other. at: a multiple of 512, plus 32 for the second
 * 16 columns. */
static __device__ __forceinline__ uint64_t trf_operand(uint32_t at) {
    return (uint64_t)(at >> 4 & 0x3FFF) | 1ull << 16 | (uint64_t)(512 >> 4) << 32 | 2ull << 62;
}

static __device__ __forceinline__ void trf_products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void trf_products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending> static __device__ __forceinline__ void trf_products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/* Behind the wait: the compiler may not read sums before it. */
template <int kBlocks, int kSums> static __device__ __forceinline__ void trf_products_done(float (&d)[kBlocks][kSums]) {
#pragma unroll
    for (int b = 0; b < kBlocks; b++)
#pragma unroll
        for (int i = 0; i < kSums; i++)
            asm volatile("" : "+f"(d[b][i])::"memory");
}

#define TRF_F8(d, i)                                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define TRF_WGMMA_64(types)                                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." types                                                   \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "   \
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"                    \
                 : TRF_F8(d, 0), TRF_F8(d, 8), TRF_F8(d, 16), TRF_F8(d, 24)                                            \
                 : "l"(a), "l"(b))
#define TRF_WGMMA_128(types)                                                                                           \
    asm volatile(                                                                                                      \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." types                                                           \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "            \
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, "         \
        "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, "         \
        "%61, %62, %63}, %64, %65, 1, 1, 1, 0, 0;"                                                                     \
        : TRF_F8(d, 0), TRF_F8(d, 8), TRF_F8(d, 16), TRF_F8(d, 24), TRF_F8(d, 32), TRF_F8(d, 40), TRF_F8(d, 48),       \
          TRF_F8(d, 56)                                                                                                \
        : "l"(a), "l"(b))

/* d[64][kColumns] += A[64][16] * B[kColumns][16]^T. Element (16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2) is the lane's d[i]. */
static __device__ __forceinline__ void trf_wgmma(trf_bf16_type, float (&d)[32], uint64_t a, uint64_t b) {
    TRF_WGMMA_64("bf16.bf16");
}
static __device__ __forceinline__ void trf_wgmma(trf_f16_type, float (&d)[32], uint64_t a, uint64_t b) {
    TRF_WGMMA_64("f16.f16");
}
static __device__ __forceinline__ void trf_wgmma(trf_bf16_type, float (&d)[64], uint64_t a, uint64_t b) {
    TRF_WGMMA_128("bf16.bf16");
}
static __device__ __forceinline__ void trf_wgmma(trf_f16_type, float (&d)[64], uint64_t a, uint64_t b) {
    TRF_WGMMA_128("f16.f16");
}

#endif

#endif
