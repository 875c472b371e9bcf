/* SPDX-License-Identifier: Apache-2.0 */
/* x of batches above 8: a pipeline in shared memory for the warps that walk the same columns. It has two stages of 128
 * or 256 columns, and moves on with its warps: while they read one stage, they copy the other. */
#ifndef TRF_FUSED_X_PIPELINE_CUH
#define TRF_FUSED_X_PIPELINE_CUH

#include "trf_warp_product.cuh"

/* What never changes in a pipeline. It is kept in shared memory, since the loop over slabs has no registers to
 * spare. */
struct trf_x_pipeline_params {
    uint32_t address;    /* shared address of [2] stages */
    uint32_t first_warp; /* of the block */
    uint32_t barrier_id; /* the named barrier of the pipeline's warps */
    /* These count fills of x_stage_cols columns each. first: where the warps' columns begin in every wave. cycle: how
     * many fills these columns are; after so many, the next wave begins again with the first. ahead: where in the cycle
     * the first wave begins (stream-K; else 0). Fill i holds the columns of x from (first + (ahead + i) % cycle) *
     * x_stage_cols on. */
    uint32_t first, ahead, cycle;
    uint32_t total; /* fills in all */
};

/* All warps of the pipeline call each function with equal arguments, but not at the same time. */
template <int kXTiles> struct trf_x_pipeline {
    const trf_x_pipeline_params &params;
    uint32_t filled; /* fills that are, or have been, in shared memory */
    /* The thread has waited for its copies since the last barrier, or will do so in a step of its walk before it comes
     * to the next barrier. */
    bool copies_waited_for;

    __device__ __forceinline__ explicit trf_x_pipeline(const trf_x_pipeline_params &params_)
        : params(params_), filled(0), copies_waited_for(false) {}

    __device__ __forceinline__ uint32_t stage(const trf_fused_partition_args &partition, uint32_t fill) const {
        return params.address + fill % 2 * trf_x_stage_bytes(partition.x_stage_cols, kXTiles);
    }

    /* Starts the copy of fill `filled`, as part of the thread's next cp.async group. A lane copies 8 columns: of every
     * one of the warp's rows or, if stages have 128 columns, of every second one. */
    __device__ __forceinline__ void copy(const trf_product_args &a, const trf_fused_partition_args &partition) const {
        const uint32_t warp = threadIdx.x / 32 - params.first_warp, lane = threadIdx.x % 32;
        const uint32_t log_rows = partition.x_stage_cols == 128 ? 1 : 0;
        const uint32_t stage_col = lane & (32u >> log_rows) - 1,
                       col = (params.first + (params.ahead + filled) % params.cycle) * partition.x_stage_cols +
                             8 * stage_col;
        if (col >= a.view.cols)
            return;
        const uint8_t *const from = (const uint8_t *)a.x + 2 * col;
        const uint32_t to =
            stage(partition, filled) + stage_col / 4 * (kXTiles * TRF_X_TILE_BYTES) + 16 * (stage_col % 4);
#pragma unroll 1
        for (uint32_t row = (warp << log_rows) + (lane >> (5 - log_rows)); row < 8 * kXTiles;
             row += partition.wave_units << log_rows)
            /* rows beyond the batch repeat its last one; their sums are not used */
            trf_cp_async16(to + 64 * row, from + 2 * (min(row, a.m - 1) * a.x_stride));
    }

    /* Waits until the fills below `end` are there, and starts the copy of the next one. At the barrier all warps have
     * read the stage before, and have written this one. */
    __device__ __forceinline__ void need(const trf_product_args &a, const trf_fused_partition_args &partition,
                                         uint32_t end) {
#pragma unroll 1
        for (; filled < end; copies_waited_for = false) {
            if (!copies_waited_for) {
                trf_cp_async_commit();
                trf_cp_async_wait<0>();
            }
            trf_named_barrier_sync(params.barrier_id, partition.wave_units);
            if (++filled < params.total)
                copy(a, partition);
        }
    }
};

#endif
