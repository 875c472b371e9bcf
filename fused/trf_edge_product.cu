/* SPDX-License-Identifier: Apache-2.0 */
/* The edges' part of a product: edge_sums[m][rows] = x . W^T over the weights outside regular slabs; and the copy of x
 * that regular slabs want.
 *
 * A block takes a band of 32 rows. Round by round, each of its warps decodes one segment (1024 weights) of its own
 * edges to shared memory; warp w owns the columns of tiles w, w + kWarps, ... Then the segments are multiplied: a lane
 * holds one row of a segment, or half a row of a segment of 64 columns, in registers as F32. With m >= kWarps each warp
 * goes through all segments for its own rows of x; with fewer rows of x the segments are shared out as well, and
 * partial sums are added at the end, slice by slice. Which warp adds what, and in which order, depends on the layer and
 * on m alone, so the same input gives the same bits.
 *
 * Scales are applied to sums over 8 columns, which always lie in one scale group. A corrupt slab makes its band's
 * rows NaN.
 *
 * Shared memory: kWarps * (2176 + 24 + 128) + 32 bytes: 9.3 KB with 4 warps, 37.3 KB with 16. Limit: latency, of the
 * longest chain of states in a band and of one block's way through it; so a layer whose last band has edges in every
 * column of tiles gets 16 warps. */
#include "trf_edge_product.h"
#include "trf_edge_warp.cuh"
#include "trf_fused_launch.h"
#include "trf_group_launch.h"

namespace {

constexpr uint32_t kPadThreads = 256, kMaxGridY = 65535;

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

/* Decodes the warp's next segment. @return its place, with no columns if there is none left. col is then the
 * layer's. */
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

/* Adds a decoded segment's products to sum[k], for the lane's row and rows first + step * k of x. */
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

/* A block's work. step: rows of x at a time, a power of two up to kWarps. */
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

    float sum[kPerWarp] = {}; /* of row `lane` of the band, for rows first + step * k of x */
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
            __syncthreads(); /* before segments are decoded over */
        }
        corrupt = __syncthreads_or(walk.corrupt);
    }

    slice_sum[warp][lane] = sum[0];
    __syncthreads();
    for (uint32_t s = 1; s < slices && slice == 0; s++) /* then kPerWarp rows of x are not needed, one is enough */
        sum[0] += slice_sum[first + step * s][lane];
    const uint32_t row = band * TRF_SLAB_ROWS + lane;
#pragma unroll
    for (uint32_t k = 0; k < kPerWarp; k++) {
        const uint32_t index = first + step * k;
        if (slice == 0 && index < m && row < view.rows)
            edge_sums[(uint64_t)index * view.rows + row] = corrupt ? __int_as_float(0x7FC00000) : sum[k];
    }
}

/* Rows of x at a time. */
template <uint32_t kWarps> __host__ __device__ uint32_t step_of(uint32_t m) {
    uint32_t step = 1;
    while (step < m && step < kWarps)
        step *= 2;
    return step;
}

template <bool kBf16, uint32_t kWarps>
__global__ void __launch_bounds__(kWarps *TRF_LANES)
    edge_product(const __grid_constant__ trf_device_view view, const __grid_constant__ x_rows x, uint32_t m,
                 uint32_t step, float *edge_sums) {
    edges_of_band<kBf16, kWarps>(view, x, m, step, blockIdx.x, edge_sums);
}

/* A block for a band of an expert; those of experts without tokens or edges have nothing to do. */
template <bool kBf16, uint32_t kWarps>
__global__ void __launch_bounds__(kWarps *TRF_LANES)
    expert_edge_product(const trf_expert *experts, const uint32_t *offsets, uint32_t max_tokens,
                        const __grid_constant__ x_rows x, float *edge_sums) {
    const trf_expert *const expert = experts + blockIdx.y;
    const trf_expert_tokens tokens = trf_expert_tokens_of(offsets[blockIdx.y], offsets[blockIdx.y + 1], max_tokens);
    if (!tokens.count || !expert->has_edges)
        return;
    __shared__ trf_device_view view;
    for (uint32_t i = threadIdx.x; i < sizeof view / 4; i += blockDim.x)
        reinterpret_cast<uint32_t *>(&view)[i] = reinterpret_cast<const uint32_t *>(&expert->view)[i];
    __syncthreads();
    for (uint32_t done = 0; done < tokens.count; done += TRF_FUSED_MAX_M) {
        const uint32_t m = min(tokens.count - done, (uint32_t)TRF_FUSED_MAX_M);
        const uint64_t row = tokens.first + (uint64_t)done;
        const x_rows rows = {x.at + row * x.stride, x.stride, x.aligned};
        edges_of_band<kBf16, kWarps>(view, rows, m, step_of<kWarps>(m), blockIdx.x, edge_sums + row * view.rows);
        __syncthreads(); /* sums of slices have been read */
    }
}

template <uint32_t kWarps>
void launch(const trf_device_view *view, const x_rows &x, uint32_t m, bool bf16, float *edge_sums, trf_stream stream) {
    const uint32_t step = step_of<kWarps>(m);
    if (bf16)
        edge_product<true, kWarps><<<view->num_bands, kWarps * TRF_LANES, 0, stream>>>(*view, x, m, step, edge_sums);
    else
        edge_product<false, kWarps><<<view->num_bands, kWarps * TRF_LANES, 0, stream>>>(*view, x, m, step, edge_sums);
}

__global__ void __launch_bounds__(kPadThreads)
    pad_x(const uint16_t *x, uint32_t m, uint32_t cols, uint16_t *padded, uint64_t stride) {
    const uint64_t col = (uint64_t)blockIdx.x * kPadThreads + threadIdx.x;
    if (col < stride)
        for (uint32_t row = blockIdx.y; row < m; row += gridDim.y)
            padded[row * stride + col] = col < cols ? x[(uint64_t)row * cols + col] : 0;
}

/* Rows are counted on the device. */
__global__ void __launch_bounds__(kPadThreads) pad_tokens(const uint16_t *x, const uint32_t *end, uint32_t max_tokens,
                                                          uint32_t cols, uint16_t *padded, uint64_t stride) {
    const uint64_t col = (uint64_t)blockIdx.x * kPadThreads + threadIdx.x;
    const uint32_t rows = min(*end, max_tokens);
    if (col < stride)
        for (uint32_t row = blockIdx.y; row < rows; row += gridDim.y)
            padded[row * stride + col] = col < cols ? x[(uint64_t)row * cols + col] : 0;
}

template <uint32_t kWarps>
void launch_experts(const trf_experts_call *call, const x_rows &x, float *edge_sums, trf_stream stream) {
    for (uint32_t first = 0; first < call->count; first += kMaxGridY) {
        const dim3 grid(call->view->num_bands, min(call->count - first, kMaxGridY));
        if (call->x_dtype == TRF_DTYPE_BF16)
            expert_edge_product<true, kWarps><<<grid, kWarps * TRF_LANES, 0, stream>>>(
                call->experts_dev + first, call->offsets_dev + first, call->max_tokens, x, edge_sums);
        else
            expert_edge_product<false, kWarps><<<grid, kWarps * TRF_LANES, 0, stream>>>(
                call->experts_dev + first, call->offsets_dev + first, call->max_tokens, x, edge_sums);
    }
}

x_rows rows_of(const void *x, uint64_t stride) {
    return {static_cast<const uint16_t *>(x), stride,
            reinterpret_cast<uintptr_t>(x) % 16 == 0 && stride % TRF_EDGE_VECTOR_COLS == 0};
}

} // namespace

int trf_launch_edge_product(const trf_device_view *view, uint32_t m, trf_dtype x_dtype, const void *x,
                            uint64_t x_stride, float *edge_sums, trf_stream stream) {
    if (m < 1 || m > TRF_FUSED_MAX_M || (x_dtype != TRF_DTYPE_BF16 && x_dtype != TRF_DTYPE_F16))
        return cudaErrorInvalidValue;
    const x_rows rows = rows_of(x, x_stride);
    if (view->rows % TRF_SLAB_ROWS)
        launch<16>(view, rows, m, x_dtype == TRF_DTYPE_BF16, edge_sums, stream);
    else
        launch<4>(view, rows, m, x_dtype == TRF_DTYPE_BF16, edge_sums, stream);
    return cudaGetLastError();
}

int trf_launch_pad_x(const void *x, uint32_t m, uint32_t cols, void *padded, uint64_t stride, trf_stream stream) {
    const uint32_t blocks = (uint32_t)((stride + kPadThreads - 1) / kPadThreads);
    pad_x<<<dim3(blocks, min(m, kMaxGridY)), kPadThreads, 0, stream>>>(static_cast<const uint16_t *>(x), m, cols,
                                                                       static_cast<uint16_t *>(padded), stride);
    return cudaGetLastError();
}

int trf_launch_expert_edge_product(const trf_experts_call *call, const void *x, uint64_t x_stride, float *edge_sums,
                                   trf_stream stream) {
    if (call->view->rows % TRF_SLAB_ROWS)
        launch_experts<16>(call, rows_of(x, x_stride), edge_sums, stream);
    else
        launch_experts<4>(call, rows_of(x, x_stride), edge_sums, stream);
    return cudaGetLastError();
}

int trf_launch_pad_tokens(const void *x, const uint32_t *end_dev, uint32_t max_tokens, uint32_t cols, void *padded,
                          uint64_t stride, trf_stream stream) {
    const uint32_t blocks = (uint32_t)((stride + kPadThreads - 1) / kPadThreads);
    pad_tokens<<<dim3(blocks, min(max_tokens, kMaxGridY)), kPadThreads, 0, stream>>>(
        static_cast<const uint16_t *>(x), end_dev, max_tokens, cols, static_cast<uint16_t *>(padded), stride);
    return cudaGetLastError();
}
