/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that pack dense rows, and their launches; trf_pack_line.cuh and trf_window_histogram.cuh say how they
 * work. */
#include "trf_pack_line.cuh"
#include "trf_window_histogram.cuh"

namespace {

constexpr uint32_t kMostBlocks = 1u << 30; /* the most blocks of a grid; blocks go on in steps of the grid's size */
/* the most blocks of a multiprocessor; if there is more to do, blocks take more rows */
constexpr uint32_t kHistogramBlocksEach = 4;

template <bool kZeroing>
__global__ void __launch_bounds__(kPackThreads, 2) pack_lines(const __grid_constant__ trf_pack_args args) {
    __shared__ trf_pack_shared shared;
    trf_pack_lines<kZeroing>(args, shared);
}

__global__ void __launch_bounds__(kNumberingThreads) number_stored_tiles(const __grid_constant__ trf_pack_args args) {
    __shared__ trf_numbering_shared shared;
    trf_number_stored_tiles(args, shared);
}

__global__ void __launch_bounds__(kStoredTileThreads) make_stored_tiles(const __grid_constant__ trf_pack_args args) {
    trf_make_stored_tiles(args);
}

__global__ void __launch_bounds__(kHistogramThreads) count_exponents(const __grid_constant__ trf_histogram_args args) {
    __shared__ trf_histogram_shared shared;
    trf_count_exponents(args, shared);
}

} // namespace

int trf_launch_window_histogram(const trf_rows_to_pack *rows, const int8_t *row_offsets,
                                trf_window_histogram *histogram_dev, trf_stream stream) {
    const trf_histogram_args args = trf_histogram_args_of(rows, row_offsets, histogram_dev);
    const uint64_t parts = (rows->cols + kCols - 1) / kCols;
    const uint64_t wanted = (rows->num_rows * parts + kHistogramWarps - 1) / kHistogramWarps;
    int device, multiprocessors;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess || wanted == 0)
        return error;
    const uint64_t most = (uint64_t)multiprocessors * kHistogramBlocksEach;
    count_exponents<<<(uint32_t)(wanted < most ? wanted : most), kHistogramThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

int trf_launch_pack(const trf_packed_view *view, const trf_rows_to_pack *rows, trf_pack_state *state_dev,
                    trf_stream stream) {
    const uint64_t end = (uint64_t)rows->first_row + rows->num_rows;
    if (rows->cols != view->cols || end > view->rows || rows->first_row % TRF_PACKED_TILE_ROWS != 0 ||
        (end % TRF_PACKED_TILE_ROWS != 0 && end != view->rows))
        return cudaErrorInvalidValue;
    if (rows->num_rows == 0)
        return cudaSuccess;
    const trf_pack_args args = trf_pack_args_of(view, rows, state_dev);
    const uint32_t blocks = (uint32_t)(args.num_lines < kMostBlocks ? args.num_lines : kMostBlocks);
    const auto kernel = view->zeroing ? pack_lines<true> : pack_lines<false>;
    kernel<<<blocks, kPackThreads, 0, stream>>>(args);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    number_stored_tiles<<<1, kNumberingThreads, 0, stream>>>(args);
    error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    make_stored_tiles<<<blocks, kStoredTileThreads, 0, stream>>>(args);
    return cudaGetLastError();
}
