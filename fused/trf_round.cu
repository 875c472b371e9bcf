/* F32 sums to 16-bit y, where cuBLASLt does not write y's type: one value a thread and turn, limited by memory, seldom used. */
#include "trf_two_step.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static constexpr uint32_t kThreads = 256;
static constexpr uint64_t kMaxBlocks = 1 << 16;

static __device__ __forceinline__ void trf_round_one(float value, __nv_bfloat16 *to) {
    *to = __float2bfloat16_rn(value);
}
static __device__ __forceinline__ void trf_round_one(float value, __half *to) { *to = __float2half_rn(value); }

template <class Type>
static __global__ void __launch_bounds__(kThreads)
    trf_round(const float *__restrict__ values, uint64_t count, Type *__restrict__ rounded) {
    for (uint64_t i = (uint64_t)blockIdx.x * kThreads + threadIdx.x; i < count; i += (uint64_t)gridDim.x * kThreads)
        trf_round_one(values[i], rounded + i);
}

int trf_launch_round(const float *values, uint64_t count, trf_dtype dtype, void *rounded, trf_stream stream) {
    const uint64_t needed = (count + kThreads - 1) / kThreads;
    const uint32_t blocks = (uint32_t)(needed < kMaxBlocks ? needed : kMaxBlocks);
    if (dtype == TRF_DTYPE_BF16)
        trf_round<<<blocks, kThreads, 0, stream>>>(values, count, (__nv_bfloat16 *)rounded);
    else
        trf_round<<<blocks, kThreads, 0, stream>>>(values, count, (__half *)rounded);
    return (int)cudaGetLastError();
}
