/* F32 sums to y: with an epilogue, or where cuBLASLt does not write y's type. A thread takes a few elements of a row of
 * y, and loads all that it needs of them before it stores any; each element's operands are read and the element is
 * written by one thread, so that they may be y. Limited by memory. */
#include "trf_two_step.h"

static constexpr uint32_t kThreads = 256, kEach = 4;
static constexpr uint32_t kMaxRows = 65535; /* of a grid */

static __global__ void __launch_bounds__(kThreads)
    trf_round_sums(const trf_sums sums, uint32_t y_dtype, void *y, const trf_epilogue epilogue) {
    const uint32_t first = blockIdx.x * kThreads * kEach + threadIdx.x;
    for (uint32_t n = blockIdx.y; n < sums.m; n += gridDim.y) {
        float sum[kEach];
        trf_operands operands[kEach];
#pragma unroll
        for (uint32_t i = 0; i < kEach; i++) {
            const uint32_t row = first + i * kThreads;
            if (row < sums.rows) {
                sum[i] = sums.at[n * sums.stride + row];
                operands[i] = trf_operands_of(&epilogue, y_dtype, (uint64_t)n * sums.rows + row, row);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < kEach; i++) {
            const uint32_t row = first + i * kThreads;
            if (row < sums.rows)
                trf_store_rounded(y, y_dtype, (uint64_t)n * sums.rows + row,
                                  trf_apply_epilogue(epilogue.activation, &operands[i], y_dtype, sum[i]));
        }
    }
}

int trf_launch_round_sums(const trf_sums *sums, trf_dtype y_dtype, void *y, const trf_epilogue *epilogue,
                          trf_stream stream) {
    const dim3 blocks((uint32_t)(((uint64_t)sums->rows + kThreads * kEach - 1) / (kThreads * kEach)),
                      sums->m < kMaxRows ? sums->m : kMaxRows);
    trf_round_sums<<<blocks, kThreads, 0, stream>>>(*sums, y_dtype, y, epilogue ? *epilogue : trf_epilogue{});
    return (int)cudaGetLastError();
}
