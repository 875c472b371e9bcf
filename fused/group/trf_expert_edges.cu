/* SPDX-License-Identifier: Apache-2.0 */
/* The edges' part of products of experts (trf_edge_band.cuh). */
#include "trf_edge_band.cuh"
#include "trf_group_launch.h"

namespace {

constexpr uint32_t kMaxGridY = 65535;

/* Each block takes a band of an expert. Blocks of experts without tokens or edges have nothing to do. */
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
        __syncthreads(); /* all threads have read the sums of slices */
    }
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

} // namespace

int trf_launch_expert_edge_product(const trf_experts_call *call, const void *x, uint64_t x_stride, float *edge_sums,
                                   trf_stream stream) {
    if (call->view->rows % TRF_SLAB_ROWS)
        launch_experts<16>(call, rows_of(x, x_stride), edge_sums, stream);
    else
        launch_experts<4>(call, rows_of(x, x_stride), edge_sums, stream);
    return cudaGetLastError();
}
