/* SPDX-License-Identifier: Apache-2.0 */
/* Copies device memory as fast as it allows: one range, or rows by number. Reads it likewise. */
#include "bench_kernels.h"

static __global__ void copy_kernel(uint4 *to, const uint4 *from, uint64_t count) {
    constexpr int kUnroll = 4;
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += kUnroll * stride) {
        uint4 v[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (i + u * stride < count)
                v[u] = __ldcs(from + i + u * stride);
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            if (i + u * stride < count)
                __stcs(to + i + u * stride, v[u]);
    }
}

cudaError_t bench_copy_launch(void *to, const void *from, uint64_t bytes, cudaStream_t stream) {
    copy_kernel<<<2112, 512, 0, stream>>>((uint4 *)to, (const uint4 *)from, bytes / 16);
    return cudaGetLastError();
}

/* The sum of all words keeps the loads; that it is this very number is not to be expected. */
static __global__ void read_kernel(const uint4 *from, uint64_t count, uint32_t *word) {
    constexpr int kUnroll = 8;
    constexpr uint32_t kUnlikely = 0x9E3779B9u;
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    uint32_t sum = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += kUnroll * stride) {
        uint4 v[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            v[u] = i + u * stride < count ? __ldcs(from + i + u * stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < kUnroll; u++)
            sum += v[u].x + v[u].y + v[u].z + v[u].w;
    }
    if (sum == kUnlikely)
        *word = sum;
}

cudaError_t bench_read_launch(const void *from, uint64_t bytes, uint32_t *word, cudaStream_t stream) {
    read_kernel<<<1056, 512, 0, stream>>>((const uint4 *)from, bytes / 16, word);
    return cudaGetLastError();
}

/* A block for each row. */
template <typename Chunk>
static __global__ void copy_rows(Chunk *to, const Chunk *from, uint64_t row_chunks, const int64_t *ids) {
    const Chunk *row = from + (uint64_t)ids[blockIdx.x] * row_chunks;
    for (uint64_t i = threadIdx.x; i < row_chunks; i += blockDim.x)
        to[blockIdx.x * row_chunks + i] = row[i];
}

cudaError_t bench_copy_rows_launch(void *to, const void *from, uint64_t row_bytes, const int64_t *ids, uint32_t count,
                                   cudaStream_t stream) {
    if (row_bytes % sizeof(uint4) == 0)
        copy_rows<<<count, 256, 0, stream>>>((uint4 *)to, (const uint4 *)from, row_bytes / sizeof(uint4), ids);
    else
        copy_rows<<<count, 256, 0, stream>>>((uint16_t *)to, (const uint16_t *)from, row_bytes / 2, ids);
    return cudaGetLastError();
}
