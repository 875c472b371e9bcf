/* SPDX-License-Identifier: Apache-2.0 */
/* Draws weights on the device, for modes whose weights would take the host too long: hashes of their places
 * (splitmix64) become normal numbers by Box and Muller's transform, two of each hash. */
#include "bench_kernels.h"

#include <cuda_bf16.h>

static __device__ __forceinline__ uint64_t hash(uint64_t z) {
    z *= 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static __global__ void draw_kernel(__nv_bfloat16 *to, uint64_t count, float sigma, uint64_t seed) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t pair = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; 2 * pair < count; pair += stride) {
        const uint64_t bits = hash((seed << 40) + pair + 1);
        const float uniform = ((float)(uint32_t)(bits >> 32) + 1.0f) * 0x1p-32f,
                    radius = sigma * sqrtf(-2.0f * logf(fminf(uniform, 1.0f)));
        float sine, cosine;
        sincospif((float)(uint32_t)bits * 0x1p-31f, &sine, &cosine);
        to[2 * pair] = __float2bfloat16_rn(radius * cosine);
        if (2 * pair + 1 < count)
            to[2 * pair + 1] = __float2bfloat16_rn(radius * sine);
    }
}

cudaError_t bench_draw_launch(void *to, uint64_t count, float sigma, uint64_t seed, cudaStream_t stream) {
    draw_kernel<<<2112, 256, 0, stream>>>((__nv_bfloat16 *)to, count, sigma, seed);
    return cudaGetLastError();
}
