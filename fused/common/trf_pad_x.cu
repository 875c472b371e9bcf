/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_pad_x.h"

namespace {

constexpr uint32_t kPadThreads = 256, kMaxGridY = 65535;

__global__ void __launch_bounds__(kPadThreads)
    pad_x(const uint16_t *x, uint32_t m, uint32_t cols, uint16_t *padded, uint64_t stride) {
    const uint64_t col = (uint64_t)blockIdx.x * kPadThreads + threadIdx.x;
    if (col < stride)
        for (uint32_t row = blockIdx.y; row < m; row += gridDim.y)
            padded[row * stride + col] = col < cols ? x[(uint64_t)row * cols + col] : 0;
}

/* The same, with the number of rows in device memory. */
__global__ void __launch_bounds__(kPadThreads) pad_tokens(const uint16_t *x, const uint32_t *end, uint32_t max_tokens,
                                                          uint32_t cols, uint16_t *padded, uint64_t stride) {
    const uint64_t col = (uint64_t)blockIdx.x * kPadThreads + threadIdx.x;
    const uint32_t rows = min(*end, max_tokens);
    if (col < stride)
        for (uint32_t row = blockIdx.y; row < rows; row += gridDim.y)
            padded[row * stride + col] = col < cols ? x[(uint64_t)row * cols + col] : 0;
}

} // namespace

int trf_launch_pad_x(const void *x, uint32_t m, uint32_t cols, void *padded, uint64_t stride, trf_stream stream) {
    const uint32_t blocks = (uint32_t)((stride + kPadThreads - 1) / kPadThreads);
    pad_x<<<dim3(blocks, min(m, kMaxGridY)), kPadThreads, 0, stream>>>(static_cast<const uint16_t *>(x), m, cols,
                                                                       static_cast<uint16_t *>(padded), stride);
    return cudaGetLastError();
}

int trf_launch_pad_tokens(const void *x, const uint32_t *end_dev, uint32_t max_tokens, uint32_t cols, void *padded,
                          uint64_t stride, trf_stream stream) {
    const uint32_t blocks = (uint32_t)((stride + kPadThreads - 1) / kPadThreads);
    pad_tokens<<<dim3(blocks, min(max_tokens, kMaxGridY)), kPadThreads, 0, stream>>>(
        static_cast<const uint16_t *>(x), end_dev, max_tokens, cols, static_cast<uint16_t *>(padded), stride);
    return cudaGetLastError();
}
