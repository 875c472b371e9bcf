/* x of batches above 8: a window of it in shared memory for the warps that walk the same columns. It holds two pieces of 128 or 256 columns, and moves
 * on with its warps: while they read one piece, they copy the other. */
#ifndef TRF_FUSED_WINDOW_CUH
#define TRF_FUSED_WINDOW_CUH

#include "trf_fused_product.cuh"

/* Bytes of a piece of x: [pairs of steps][8 * tiles rows][64 bytes]. cols: 128 or 256. */
static __host__ __device__ constexpr uint32_t trf_window_piece_bytes(uint32_t cols, int tiles) {
    return cols / 32 * tiles * kWindowTileBytes;
}

/* A window: what never changes. In shared memory, since the loop over slabs has no registers to spare. */
struct trf_window_way {
    uint32_t place;      /* shared address of [2] pieces */
    uint32_t first_warp; /* of the block */
    uint32_t barrier;    /* that the warps meet at */
    uint32_t first, ahead,
        cycle;      /* piece i on the way holds x's columns from (first + (ahead + i) % cycle) * a.window_cols on */
    uint32_t total; /* pieces on the way */
};

/* All warps of the window call each function with equal arguments, at their own pace. */
template <int kTiles> struct trf_x_window {
    const trf_window_way &way;
    uint32_t ready; /* pieces that are in shared memory, or were */
    bool stepped;   /* whether the thread has waited for copies since it last came to the barrier */

    __device__ __forceinline__ explicit trf_x_window(const trf_window_way &way_)
        : way(way_), ready(0), stepped(false) {}

    __device__ __forceinline__ uint32_t piece(const trf_fused_args &a, uint32_t index) const {
        return way.place + index % 2 * trf_window_piece_bytes(a.window_cols, kTiles);
    }

    /* Starts the copy of the ready-th piece. Part of the thread's next group of copies. */
    __device__ __forceinline__ void copy(const trf_fused_args &a) const {
        const uint32_t warp = threadIdx.x / 32 - way.first_warp,
                       lane = threadIdx.x %
                              32; /* a lane copies 8 columns, of one row or, of narrow pieces, every second */
        const uint32_t log_rows = a.window_cols == 128 ? 1 : 0;
        const uint32_t piece_col = lane & (32u >> log_rows) - 1,
                       col = (way.first + (way.ahead + ready) % way.cycle) * a.window_cols + 8 * piece_col;
        if (col >= a.view.cols)
            return;
        const uint8_t *const from = (const uint8_t *)a.x + 2 * col;
        const uint32_t to = piece(a, ready) + piece_col / 4 * (kTiles * kWindowTileBytes) + 16 * (piece_col % 4);
#pragma unroll 1
        for (uint32_t row = (warp << log_rows) + (lane >> (5 - log_rows)); row < 8 * kTiles; row += a.group << log_rows)
            /* rows beyond the batch repeat its last; their sums are not used */
            trf_copy16(to + 64 * row, from + 2 * (min(row, a.m - 1) * a.x_stride));
    }

    /* Waits until the pieces below `end` are there, and starts the copy of the next. */
    __device__ __forceinline__ void need(const trf_fused_args &a, uint32_t end) {
#pragma unroll 1
        for (; ready < end; stepped = false) {
            if (!stepped) {
                trf_copy_commit();
                trf_copy_wait<0>();
            }
            trf_meet(way.barrier, a.group); /* the piece before is read, this one written, by all */
            if (++ready < way.total)
                copy(a);
        }
    }
};

#endif
