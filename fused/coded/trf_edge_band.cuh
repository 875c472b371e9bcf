/* SPDX-License-Identifier: Apache-2.0 */
/* The edges' part of a product: edge_sums[m][rows] = x . W^T over the weights outside regular slabs.
 *
 * A block takes a band of 32 rows. In each round, each of its warps decodes one segment (1024 weights) of its own edges
 * to shared memory; warp w has the columns of tiles w, w + kWarps, ... Then the segments are multiplied: a lane holds
 * one row of a segment, or half a row of a segment of 64 columns, in registers as F32. With m >= kWarps each warp goes
 * through all segments for its own rows of x. With fewer rows of x the segments are shared out as well, in slices, and
 * the partial sums of slices are added at the end, one after the other. Which warp adds what, and in which order,
 * depends on the layer and on m alone, so the same input gives the same bits.
 *
 * Scales are applied to sums over 8 columns, which always lie in one scale group. A corrupt slab makes its band's rows
 * NaN.
 *
 * Shared memory: kWarps * (2176 + 24 + 128) + 32 bytes: 9.3 KB with 4 warps, 37.3 KB with 16. The limit is the latency
 * of the longest chain of states in a band, and of one block's way through it; so a layer whose last band has edges in
 * every column of tiles gets 16 warps. */
#ifndef TRF_EDGE_BAND_CUH
#define TRF_EDGE_BAND_CUH

#include "trf_edge_product.h"
#include "trf_edge_warp.cuh"

namespace {

/* x as the kernel reads it. */
struct x_rows {
    const uint16_t *at;
    uint64_t stride;
    bool aligned; /* 16-byte loads are possible */
};

/* A warp's way through its edges. */
struct edge_walk {
    trf_edge edge;
    uint32_t tile_col, edge_id; /* to open next */
    uint32_t segment, segments; /* of `edge` */
    bool corrupt;
};

/* Decodes the warp's next segment. @return its place, where col is a column of the layer; it has no columns if no
 * segment is left. */
template <uint32_t kWarps>
__device__ trf_edge_segment decode_next(edge_walk &walk, const trf_device_view &view, const int16_t *class_value,
                                        uint32_t band, uint32_t lane, uint16_t *decoded) {
    while (walk.segment == walk.segments) {
        if (walk.tile_col >= view.num_tile_cols)
            return trf_edge_segment{};
        const bool found = trf_warp_edge_open(walk.edge, view, band, walk.tile_col, walk.edge_id, lane);
        walk.segment = 0;
        walk.segments = found ? trf_edge_segments(&walk.edge) : 0;
        if (++walk.edge_id == TRF_EDGE_COUNT) {
            walk.edge_id = 0;
            walk.tile_col += kWarps;
        }
    }
    trf_warp_decode_segment(walk.edge, view, class_value, walk.segment, lane, decoded);
    trf_edge_segment segment = trf_edge_segment_at(&walk.edge, walk.segment);
    segment.col += walk.edge.tile.col;
    if (++walk.segment == walk.segments)
        walk.corrupt |= !trf_warp_edge_verdict(walk.edge, view, lane);
    return segment;
}

/* ---- the product ---- */

/* Adds a decoded segment's products to sum[k]: the lane's row of it by row first + step * k of x. */
template <bool kBf16, uint32_t kPerWarp>
__device__ __forceinline__ void
add_segment(float (&sum)[kPerWarp], const trf_device_view &view, const trf_edge_segment &segment, uint32_t band,
            uint32_t lane, const uint16_t *decoded, const x_rows &x, uint32_t m, uint32_t first, uint32_t step) {
    trf_edge_weights w;
    trf_edge_weights_load(&w, &view, &segment, band * TRF_SLAB_ROWS, 0, lane, decoded);
#pragma unroll
    for (uint32_t k = 0; k < kPerWarp; k++) {
        const uint32_t index = first + step * k;
        if (index >= m)
            break;
        float product = trf_edge_weights_multiply(&w, x.at + index * x.stride, kBf16, x.aligned);
        if (trf_edge_segment_has_halves(&segment)) {
            const float other = __shfl_down_sync(kAllLanes, product, TRF_FRAGMENT_SIZE);
            product = lane < TRF_FRAGMENT_SIZE ? product + other : 0.0f;
        }
        sum[k] += product;
    }
}

/* Whether the band has edges at all. All threads of the block call it. */
__device__ bool find_edges(const trf_device_view &view, uint32_t band) {
    int found = 0;
    for (uint32_t j = threadIdx.x; j < view.num_tile_cols; j += blockDim.x)
        found |= trf_band_has_edges(&view, band, j);
    return __syncthreads_or(found);
}

/* What a block does. step: rows of x at a time, a power of two up to kWarps. */
template <bool kBf16, uint32_t kWarps>
__device__ __forceinline__ void edges_of_band(const trf_device_view &view, const x_rows &x, uint32_t m, uint32_t step,
                                              uint32_t band, float *edge_sums) {
    constexpr uint32_t kPerWarp = TRF_FUSED_MAX_M / kWarps;
    __shared__ alignas(4) uint16_t decoded[kWarps][TRF_EDGE_SEGMENT_ELEMENTS];
    __shared__ trf_edge_segment segments[kWarps];
    __shared__ float slice_sum[kWarps][TRF_LANES];
    __shared__ int16_t class_value[16];
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const uint32_t first = warp % step, slice = warp / step, slices = kWarps / step; /* of x's rows; of the segments */
    if (threadIdx.x < 16)
        class_value[threadIdx.x] = view.class_value[threadIdx.x];

    float sum[kPerWarp] = {}; /* of the lane's row of the band and row first + step * k of x */
    bool corrupt = false;
    if (find_edges(view, band)) { /* also orders class_value */
        edge_walk walk = {};
        walk.tile_col = warp;
        while (true) {
            const trf_edge_segment decoded_now =
                decode_next<kWarps>(walk, view, class_value, band, lane, decoded[warp]);
            if (lane == 0)
                segments[warp] = decoded_now;
            if (!__syncthreads_or(decoded_now.cols != 0))
                break;
            for (uint32_t p = slice; p < kWarps; p += slices)
                if (segments[p].cols)
                    add_segment<kBf16>(sum, view, segments[p], band, lane, decoded[p], x, m, first, step);
            __syncthreads(); /* all have read the segments before the next round overwrites them */
        }
        corrupt = __syncthreads_or(walk.corrupt);
    }

    slice_sum[warp][lane] = sum[0];
    __syncthreads();
    for (uint32_t s = 1; s < slices && slice == 0; s++) /* with several slices a warp has one row of x at most */
        sum[0] += slice_sum[first + step * s][lane];
    const uint32_t row = band * TRF_SLAB_ROWS + lane;
#pragma unroll
    for (uint32_t k = 0; k < kPerWarp; k++) {
        const uint32_t index = first + step * k;
        if (slice == 0 && index < m && row < view.rows)
            edge_sums[(uint64_t)index * view.rows + row] = corrupt ? __int_as_float(0x7FC00000) : sum[k];
    }
}

/* How many rows of x the warps take at a time. */
template <uint32_t kWarps> __host__ __device__ uint32_t step_of(uint32_t m) {
    uint32_t step = 1;
    while (step < m && step < kWarps)
        step *= 2;
    return step;
}

x_rows rows_of(const void *x, uint64_t stride) {
    return {static_cast<const uint16_t *>(x), stride,
            reinterpret_cast<uintptr_t>(x) % 16 == 0 && stride % TRF_EDGE_VECTOR_COLS == 0};
}

} // namespace

#endif
