/* Epilogues of fused products.
 *
 * Kernels have no registers to spare where their sums are ready, and another group of units may follow. So with an epilogue the sums go to the workspace, as they would go to
 * an F32 y, and behind its last group a cluster shares out its rows among its threads: they read the sums back, apply the epilogue and write y. Where the
 * cut straddles, the second kernel does so. An element's operands are read, and the element is written after that, by one thread alone: they may be y. */
#ifndef TRF_FUSED_EPILOGUE_CUH
#define TRF_FUSED_EPILOGUE_CUH

#include "trf_fused_product.cuh"

/* Out of line: activations are long, and each kernel has this from several places. */
static __device__ __noinline__ void trf_store_with(const trf_fused_args &a, uint64_t at, float bias, float multiplier,
                                                   float residual, float sum) {
    const trf_operands operands = {bias, multiplier, residual};
    trf_store_rounded(a.with.y, a.with.y_dtype, at, trf_apply_epilogue(a.with.epilogue.activation, &operands, sum));
}

static __device__ __forceinline__ void trf_store_with(const trf_fused_args &a, uint64_t at,
                                                      const trf_operands &operands, float sum) {
    trf_store_with(a, at, operands.bias, operands.multiplier, operands.residual, sum);
}

/* Rows [first, end) of y, the sums of which are in the workspace, shared out among `threads`. Each loads a few elements at once. */
static __device__ __forceinline__ void trf_finish_rows_with(const trf_fused_args &a, uint32_t first, uint32_t end,
                                                            uint32_t thread, uint32_t threads) {
    constexpr int kEach = 4;
    const float *const sums = (const float *)a.y;
    const uint32_t rows = end - first, step_n = threads / rows, step_row = threads % rows;
    uint32_t n = thread / rows, row = thread % rows;
    while (n < a.m) {
        uint64_t at[kEach];
        float sum[kEach];
        trf_operands operands[kEach];
        bool there[kEach];
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            there[i] = n < a.m;
            at[i] = (uint64_t)n * a.view.rows + first + row;
            if (there[i]) {
                sum[i] = sums[at[i]];
                operands[i] = trf_operands_of(&a.with.epilogue, a.with.y_dtype, at[i], first + row);
            }
            n += step_n;
            row += step_row;
            if (row >= rows) {
                row -= rows;
                n++;
            }
        }
#pragma unroll
        for (int i = 0; i < kEach; i++)
            if (there[i])
                trf_store_with(a, at[i], operands[i], sum[i]);
    }
}

/* Behind a block's last group: the cluster's rows [first, end), if there are any, and those behind the last whole band. All threads of the cluster call it. */
static __device__ __noinline__ void trf_finish_with(const trf_fused_args &a, uint32_t first, uint32_t end) {
    if (!a.straddles && first < end) {
        trf_cluster_arrive(a.cluster);
        trf_cluster_wait(a.cluster); /* all sums are there */
        trf_finish_rows_with(a, first, end, blockIdx.x % a.cluster * blockDim.x + threadIdx.x, a.cluster * blockDim.x);
    }
    trf_each_tail_place(a, [&](uint32_t n, uint32_t row) {
        const uint64_t at = (uint64_t)n * a.view.rows + row;
        trf_store_with(a, at, trf_operands_of(&a.with.epilogue, a.with.y_dtype, at, row), trf_add_edges(a, at, 0.0f));
    });
}

/* A lane's four elements of a piece, in the second kernel. */
static __device__ __forceinline__ void trf_finish_piece_with(const trf_fused_args &a, uint32_t lane, uint32_t first_row,
                                                             uint32_t b, uint32_t t) {
    const float *const sums = (const float *)a.y;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t n = trf_n_of_sum(lane % 4, t, i), row = trf_row_of_sum(lane, first_row, b, i);
        const uint64_t at = (uint64_t)n * a.view.rows + row;
        if (n < a.m && row < a.whole_rows)
            trf_store_with(a, at, trf_operands_of(&a.with.epilogue, a.with.y_dtype, at, row), sums[at]);
    }
}

#endif
