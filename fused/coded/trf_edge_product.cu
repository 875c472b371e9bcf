/* SPDX-License-Identifier: Apache-2.0 */
/* The edges' part of a product (trf_edge_band.cuh). */
#include "trf_edge_band.cuh"
#include "trf_fused_launch.h"

namespace {

template <bool kBf16, uint32_t kWarps>
__global__ void __launch_bounds__(kWarps *TRF_LANES)
    edge_product(const __grid_constant__ trf_device_view view, const __grid_constant__ x_rows x, uint32_t m,
                 uint32_t step, float *edge_sums) {
    edges_of_band<kBf16, kWarps>(view, x, m, step, blockIdx.x, edge_sums);
}

template <uint32_t kWarps>
void launch(const trf_device_view *view, const x_rows &x, uint32_t m, bool bf16, float *edge_sums, trf_stream stream) {
    const uint32_t step = step_of<kWarps>(m);
    if (bf16)
        edge_product<true, kWarps><<<view->num_bands, kWarps * TRF_LANES, 0, stream>>>(*view, x, m, step, edge_sums);
    else
        edge_product<false, kWarps><<<view->num_bands, kWarps * TRF_LANES, 0, stream>>>(*view, x, m, step, edge_sums);
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
