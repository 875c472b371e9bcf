/* SPDX-License-Identifier: Apache-2.0 */
/* A plain product of experts: dense BF16 weights, counts of tokens that only the device knows. It shows what memory
 * speed allows without any decoding.
 *
 * A block computes 16 rows of W of one active expert for its tokens, 8 at a time; its 8 warps take turns along K in
 * steps of 32 columns, and their sums are added in order at the end. In a step a lane (g = lane / 4, t = lane % 4)
 * loads 8 neighbouring weights of each of the rows g and g + 8, which are the A fragments of two mma.m16n8k16. K is
 * permuted so that 8 neighbouring values of x are their B fragments. At most 64 KiB of weights of a block are under
 * way. Shared memory: 4 KiB of sums. */
#include "bench_kernels.h"

#include <cuda_bf16.h>

static constexpr int kWarps = 8, kRows = 16, kStepCols = 32, kStepsAhead = 8, kTokens = 8;

static __device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Finds the block's expert, which is the n-th one that has tokens. @return false if there are not so many. All threads
 * call it. */
static __device__ __forceinline__ bool find_expert(const bench_experts &p, uint32_t n, uint32_t *expert) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t first = 0; first < p.count; first += 32) {
        const uint32_t e = first + lane, has = e < p.count && p.offsets[e + 1] > p.offsets[e];
        uint32_t active = __ballot_sync(0xFFFFFFFFu, has);
        const uint32_t here = (uint32_t)__popc(active);
        if (n < here) {
            for (; n; n--)
                active &= active - 1;
            *expert = first + (uint32_t)__ffs((int)active) - 1;
            return true;
        }
        n -= here;
    }
    return false;
}

static __global__ void __launch_bounds__(32 * kWarps) multiply_experts(const __grid_constant__ bench_experts p) {
    __shared__ float sums[kWarps][32][4];
    uint32_t expert;
    if (!find_expert(p, blockIdx.y, &expert))
        return;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
                   end = p.offsets[expert + 1];
    const uint16_t *const w = (const uint16_t *)p.weights[expert] + (size_t)(blockIdx.x * kRows + g) * p.cols + 8 * t;
    for (uint32_t token = p.offsets[expert]; token < end; token += kTokens) {
        const uint32_t m = min(end - token, (uint32_t)kTokens);
        const uint16_t *const x = (const uint16_t *)p.x + (size_t)(token + min(g, m - 1)) * p.cols + 8 * t;
        float c[4] = {};
        for (uint32_t col = warp * kStepCols; col < p.cols; col += kWarps * kStepCols * kStepsAhead) {
            uint4 low[kStepsAhead], high[kStepsAhead];
#pragma unroll
            for (int i = 0; i < kStepsAhead; i++) {
                const uint32_t at = col + i * kWarps * kStepCols;
                low[i] = high[i] = make_uint4(0, 0, 0, 0);
                if (at < p.cols) {
                    low[i] = __ldcs((const uint4 *)(w + at));
                    high[i] = __ldcs((const uint4 *)(w + at + 8 * (size_t)p.cols));
                }
            }
#pragma unroll
            for (int i = 0; i < kStepsAhead; i++) {
                const uint32_t at = col + i * kWarps * kStepCols;
                if (at < p.cols) {
                    const uint4 b = __ldg((const uint4 *)(x + at));
                    mma(c, low[i].x, high[i].x, low[i].y, high[i].y, b.x, b.y);
                    mma(c, low[i].z, high[i].z, low[i].w, high[i].w, b.z, b.w);
                }
            }
        }
        for (int i = 0; i < 4; i++)
            sums[warp][lane][i] = c[i];
        __syncthreads();
        if (threadIdx.x < 128) { /* a thread for each of 16 rows by 8 tokens */
            const uint32_t from = threadIdx.x / 4, i = threadIdx.x % 4, n = 2 * (from % 4) + i % 2,
                           row = blockIdx.x * kRows + from / 4 + 8 * (i / 2);
            float sum = 0;
            for (int k = 0; k < kWarps; k++)
                sum += sums[k][from][i];
            if (n < m)
                ((__nv_bfloat16 *)p.y)[(size_t)(token + n) * p.rows + row] = __float2bfloat16_rn(sum);
        }
        __syncthreads();
    }
}

cudaError_t bench_experts_launch(const bench_experts *product, uint32_t max_active, cudaStream_t stream) {
    multiply_experts<<<dim3(product->rows / kRows, max_active), 32 * kWarps, 0, stream>>>(*product);
    return cudaGetLastError();
}
