/* SPDX-License-Identifier: Apache-2.0 */
/* A weight-only product of plain 8-bit codes, on tensor cores.
 *
 * A block computes 16 rows of W for all rows of x; its 8 warps take turns along K, in steps of 64 columns, and their
 * sums are added in order at the end. In a step a lane (g = lane / 4, t = lane % 4) loads 16 neighbouring codes of each
 * of the rows g and g + 8, which are the A fragments of four mma.m16n8k16. K is permuted so that the lane's own 4 codes
 * of each row are those of one fragment, and 4 neighbouring values of x are those of the B fragment. 32 KiB of codes of
 * a block are under way before the first one is used. Shared memory: 4 KiB for each accumulator of 8 rows of x, for the
 * sums. */
#include "bench_kernels.h"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

static constexpr int kWarps = 8, kRows = 16, kStepCols = 64, kStepsAhead = 4;

struct raw8_codes {
    uint4 low, high; /* of the rows g and g + 8 */
};

static __device__ __forceinline__ uint32_t bits_of(__half2 value) { return *reinterpret_cast<uint32_t *>(&value); }

static __device__ __forceinline__ uint32_t fp8_pair(uint32_t codes) {
    __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xFFFF), __NV_E4M3);
    return bits_of(__half2(raw));
}

/* Widens four codes to two pairs of F16. */
template <int kDtype> static __device__ __forceinline__ void widen(uint32_t codes, uint32_t &first, uint32_t &second) {
    if constexpr (kDtype == TRF_DTYPE_I8) {
        const __half2 offset = __half2half2(__ushort_as_half(0x6480)); /* 1024 + 128 */
        uint32_t biased = codes ^ 0x80808080;
        uint32_t a = __byte_perm(biased, 0x64646464, 0x4140), b = __byte_perm(biased, 0x64646464, 0x4342);
        first = bits_of(__hsub2(*reinterpret_cast<__half2 *>(&a), offset));
        second = bits_of(__hsub2(*reinterpret_cast<__half2 *>(&b), offset));
    } else if constexpr (kDtype == TRF_DTYPE_F8_E5M2) { /* the upper bytes of halves */
        first = __byte_perm(codes, 0, 0x1404);
        second = __byte_perm(codes, 0, 0x3424);
    } else {
        first = fp8_pair(codes);
        second = fp8_pair(codes >> 16);
    }
}

/* c += A . B, m16n8k16. */
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Loads 16 bytes that are read only once. */
static __device__ __forceinline__ uint4 load_codes(const uint8_t *codes, bool inside) {
    return inside ? __ldcs(reinterpret_cast<const uint4 *>(codes)) : make_uint4(0, 0, 0, 0);
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Multiplies the 64 columns of one step by all rows of x. x: at the lane's first column; n: rows of x from there, 8 for
 * each accumulator tile. */
template <int kDtype, int kAccumulators>
static __device__ __forceinline__ void multiply_step(const raw8_codes &codes, const __half *x, size_t x_stride,
                                                     bool inside, int m, int g, float (&sums)[kAccumulators][4]) {
    uint32_t a[4][4]; /* [mma][register] */
#pragma unroll
    for (int j = 0; j < 4; j++) {
        widen<kDtype>(word_of(codes.low, j), a[j][0], a[j][2]);
        widen<kDtype>(word_of(codes.high, j), a[j][1], a[j][3]);
    }
#pragma unroll
    for (int accumulator = 0; accumulator < kAccumulators; accumulator++) {
        int n = 8 * accumulator + g;
        uint4 b[2] = {};
        if (inside && n < m) {
            const uint4 *from = reinterpret_cast<const uint4 *>(x + n * x_stride);
            b[0] = __ldg(from);
            b[1] = __ldg(from + 1);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            mma(sums[accumulator], a[j], word_of(b[j / 2], j % 2 * 2), word_of(b[j / 2], j % 2 * 2 + 1));
    }
}

/* Adds the warps' sums in order, and writes y. */
template <int kAccumulators>
static __device__ void write_sums(const bench_raw8 &p, const float (*shared)[kAccumulators][4][32],
                                  uint32_t first_row) {
    for (int i = threadIdx.x; i < kAccumulators * 4 * 32; i += kWarps * 32) {
        int lane = i % 32, e = i / 32 % 4, accumulator = i / 128;
        uint32_t row = first_row + lane / 4 + 8 * (e / 2), n = 8 * accumulator + 2 * (lane % 4) + e % 2;
        if (row >= p.rows || n >= p.m)
            continue;
        float sum = 0;
        for (int warp = 0; warp < kWarps; warp++)
            sum += shared[warp][accumulator][e][lane];
        sum *= p.scales ? p.scales[row] : 1;
        size_t at = static_cast<size_t>(n) * p.rows + row;
        if (p.y_is_f32)
            static_cast<float *>(p.y)[at] = sum;
        else
            static_cast<__half *>(p.y)[at] = __float2half_rn(sum);
    }
}

template <int kDtype, int kAccumulators>
static __global__ void __launch_bounds__(kWarps * 32) raw8_kernel(const bench_raw8 p, const uint8_t *codes) {
    __shared__ float shared[kWarps][kAccumulators][4][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t first_row = blockIdx.x * kRows, row = first_row + g;
    const uint8_t *low = codes + static_cast<size_t>(row) * p.cols, *high = low + static_cast<size_t>(8) * p.cols;
    const __half *x = static_cast<const __half *>(p.x);
    float sums[kAccumulators][4] = {};

    for (uint32_t base = warp * kStepCols; base < p.cols; base += kStepsAhead * kWarps * kStepCols) {
        raw8_codes ahead[kStepsAhead];
#pragma unroll
        for (int s = 0; s < kStepsAhead; s++) {
            uint32_t col = base + s * kWarps * kStepCols + 16 * t;
            ahead[s].low = load_codes(low + col, col < p.cols && row < p.rows);
            ahead[s].high = load_codes(high + col, col < p.cols && row + 8 < p.rows);
        }
#pragma unroll
        for (int s = 0; s < kStepsAhead; s++) {
            uint32_t step = base + s * kWarps * kStepCols, col = step + 16 * t;
            if (step < p.cols)
                multiply_step<kDtype, kAccumulators>(ahead[s], x + col, p.cols, col < p.cols, p.m, g, sums);
        }
    }
#pragma unroll
    for (int accumulator = 0; accumulator < kAccumulators; accumulator++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            shared[warp][accumulator][e][lane] = sums[accumulator][e];
    __syncthreads();
    write_sums<kAccumulators>(p, shared, first_row);
}

template <int kDtype> static void launch(const bench_raw8 &p, const uint8_t *codes, cudaStream_t stream) {
    const uint32_t blocks = (p.rows + kRows - 1) / kRows;
    if (p.m <= 8)
        raw8_kernel<kDtype, 1><<<blocks, kWarps * 32, 0, stream>>>(p, codes);
    else if (p.m <= 16)
        raw8_kernel<kDtype, 2><<<blocks, kWarps * 32, 0, stream>>>(p, codes);
    else if (p.m <= 32)
        raw8_kernel<kDtype, 4><<<blocks, kWarps * 32, 0, stream>>>(p, codes);
    else
        raw8_kernel<kDtype, 8><<<blocks, kWarps * 32, 0, stream>>>(p, codes);
}

cudaError_t bench_raw8_launch(const bench_raw8 *product, const void *codes, cudaStream_t stream) {
    const uint8_t *bytes = static_cast<const uint8_t *>(codes);
    if (product->m < 1 || product->m > BENCH_RAW8_MAX_M || product->cols % BENCH_RAW8_COLS)
        return cudaErrorInvalidValue;
    switch (product->dtype) {
    case TRF_DTYPE_I8:
        launch<TRF_DTYPE_I8>(*product, bytes, stream);
        break;
    case TRF_DTYPE_F8_E4M3:
        launch<TRF_DTYPE_F8_E4M3>(*product, bytes, stream);
        break;
    case TRF_DTYPE_F8_E5M2:
        launch<TRF_DTYPE_F8_E5M2>(*product, bytes, stream);
        break;
    default:
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
