/* x of batches above 8: a pipeline of two stages in shared memory for the warps that walk the same columns. It holds
 * two stages of 128 or 256 columns, and moves on with its warps: while they read one stage, they copy the other. */
#ifndef TRF_FUSED_X_PIPELINE_CUH
#define TRF_FUSED_X_PIPELINE_CUH

#include "trf_warp_product.cuh"

/* Bytes of a stage of x: [pairs of steps][8 * tiles rows][64 bytes]. cols: 128 or 256. */
static __host__ __device__ constexpr uint32_t trf_x_stage_bytes(uint32_t cols, int x_tiles) {
    return cols / 32 * x_tiles * kXTileBytes;
}

/* A pipeline: what never changes. In shared memory, since the loop over slabs has no registers to spare. */
struct trf_x_pipeline_params {
    uint32_t place;      /* shared address of [2] stages */
    uint32_t first_warp; /* of the block */
    uint32_t barrier;    /* that the warps meet at */
    uint32_t first, ahead,
        cycle;      /* stage i on the way holds x's columns from (first + (ahead + i) % cycle) * a.x_stage_cols on */
    uint32_t total; /* stages in all */
};

/* All warps of the pipeline call each function with equal arguments, at their own pace. */
template <int kXTiles> struct trf_x_pipeline {
    const trf_x_pipeline_params &params;
    uint32_t ready; /* stages that are in shared memory, or were */
    bool stepped;   /* whether the thread has waited for copies since it last came to the barrier */

    __device__ __forceinline__ explicit trf_x_pipeline(const trf_x_pipeline_params &params_)
        : params(params_), ready(0), stepped(false) {}

    __device__ __forceinline__ uint32_t stage(const trf_fused_args &a, uint32_t index) const {
        return params.place + index % 2 * trf_x_stage_bytes(a.x_stage_cols, kXTiles);
    }

    /* Starts the copy of the ready-th stage. Part of the thread's next group of copies. */
    __device__ __forceinline__ void copy(const trf_fused_args &a) const {
        const uint32_t warp = threadIdx.x / 32 - params.first_warp,
                       lane = threadIdx.x %
                              32; /* a lane copies 8 columns, of one row or, of narrow stages, every second */
        const uint32_t log_rows = a.x_stage_cols == 128 ? 1 : 0;
        const uint32_t stage_col = lane & (32u >> log_rows) - 1,
                       col = (params.first + (params.ahead + ready) % params.cycle) * a.x_stage_cols + 8 * stage_col;
        if (col >= a.view.cols)
            return;
        const uint8_t *const from = (const uint8_t *)a.x + 2 * col;
        const uint32_t to = stage(a, ready) + stage_col / 4 * (kXTiles * kXTileBytes) + 16 * (stage_col % 4);
#pragma unroll 1
        for (uint32_t row = (warp << log_rows) + (lane >> (5 - log_rows)); row < 8 * kXTiles;
             row += a.wave_units << log_rows)
            /* rows beyond the batch repeat its last; their sums are not used */
            trf_cp_async16(to + 64 * row, from + 2 * (min(row, a.m - 1) * a.x_stride));
    }

    /* Waits until the stages below `end` are there, and starts the copy of the next. */
    __device__ __forceinline__ void need(const trf_fused_args &a, uint32_t end) {
#pragma unroll 1
        for (; ready < end; stepped = false) {
            if (!stepped) {
                trf_cp_async_commit();
                trf_cp_async_wait<0>();
            }
            trf_named_barrier_sync(params.barrier,
                                   a.wave_units); /* the stage before is read, this one written, by all */
            if (++ready < params.total)
                copy(a);
        }
    }
};

#endif
