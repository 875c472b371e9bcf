/* SPDX-License-Identifier: Apache-2.0 */
/* Brings F32 sums to y, with an epilogue or where cuBLASLt does not write y's type. A thread takes a few elements of a
 * row of y, and loads all that it needs for them before it stores any. The thread that writes an element is also the
 * only one that reads the element's operands, so that operands may be y itself. The limit is memory bandwidth. */
#include "trf_round_sums.h"

#include "trf_epilogue.h"

static constexpr uint32_t kThreads = 256, kEach = 4;
static constexpr uint32_t kMaxRows = 65535; /* that a grid may have in y */

static __global__ void __launch_bounds__(kThreads) trf_round_sums(const trf_sums sums, const trf_epilogue epilogue) {
    const uint32_t first = blockIdx.x * kThreads * kEach + threadIdx.x, dtype = epilogue.y_dtype;
    for (uint32_t n = blockIdx.y; n < sums.m; n += gridDim.y) {
        float sum[kEach];
        trf_epilogue_inputs inputs[kEach];
#pragma unroll
        for (uint32_t i = 0; i < kEach; i++) {
            const uint32_t row = first + i * kThreads;
            if (row < sums.rows) {
                sum[i] = sums.at[n * sums.stride + row];
                inputs[i] = trf_epilogue_inputs_of(&epilogue, n, row);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < kEach; i++) {
            const uint32_t row = first + i * kThreads;
            if (row < sums.rows)
                trf_write_rounded(epilogue.y, dtype, n * epilogue.y_stride + row,
                                  trf_apply_epilogue(epilogue.activation, &inputs[i], dtype, sum[i]));
        }
    }
}

int trf_launch_round_sums(const trf_sums *sums, const trf_epilogue *epilogue, trf_stream stream) {
    const dim3 blocks((uint32_t)(((uint64_t)sums->rows + kThreads * kEach - 1) / (kThreads * kEach)),
                      sums->m < kMaxRows ? sums->m : kMaxRows);
    trf_round_sums<<<blocks, kThreads, 0, stream>>>(*sums, *epilogue);
    return (int)cudaGetLastError();
}
