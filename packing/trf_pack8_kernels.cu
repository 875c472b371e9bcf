/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that pack FP8 layers, and their launches; trf_pack8_line.cuh says how they work. */
#include "trf_pack8_line.cuh"

namespace {

constexpr uint32_t kMostBlocks = 1u << 30; /* the most blocks of a grid; blocks go on in steps of the grid's size */

__global__ void __launch_bounds__(kPairThreads) find_pairs(const __grid_constant__ trf_pack8_args args) {
    trf_find_pairs(args);
}

__global__ void __launch_bounds__(kPackThreads, 2) pack8_lines(const __grid_constant__ trf_pack8_args args) {
    __shared__ trf_pack8_shared shared;
    trf_pack8_lines(args, shared);
}

__global__ void __launch_bounds__(kPackThreads) unpack8_codes(const __grid_constant__ trf_unpack8_codes_args args) {
    trf_unpack8_codes(args);
}

uint32_t blocks_for(uint64_t work, uint64_t each) {
    const uint64_t blocks = (work + each - 1) / each;
    return (uint32_t)(blocks < kMostBlocks ? blocks : kMostBlocks);
}

} // namespace

int trf_launch_pack8_pairs(const trf_packed8_view *view, const trf_pack8_scales *scales, trf_pack8_state *state_dev,
                           trf_stream stream) {
    const trf_pack8_args args = trf_pairs_args_of(view, scales, state_dev);
    find_pairs<<<blocks_for(args.num_lines * TRF_PACKED8_PAIRS, kPairThreads), kPairThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

int trf_launch_pack8(const trf_packed8_view *view, const trf_pack8_scales *scales, const trf_rows_to_pack *rows,
                     trf_pack8_state *state_dev, trf_stream stream) {
    const uint64_t end = (uint64_t)rows->first_row + rows->num_rows;
    if (rows->cols != view->packed.cols || end > view->packed.rows || rows->first_row % TRF_PACKED_TILE_ROWS != 0 ||
        (end % TRF_PACKED_TILE_ROWS != 0 && end != view->packed.rows))
        return cudaErrorInvalidValue;
    if (rows->num_rows == 0)
        return cudaSuccess;
    const trf_pack8_args args = trf_pack8_args_of(view, scales, rows, state_dev);
    pack8_lines<<<blocks_for(args.num_lines, 1), kPackThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

int trf_launch_unpack8_codes(const trf_packed8_view *view, uint32_t first_row, uint32_t num_rows, uint8_t *codes,
                             uint64_t stride, trf_stream stream) {
    if ((uint64_t)first_row + num_rows > view->packed.rows)
        return cudaErrorInvalidValue;
    if (num_rows == 0)
        return cudaSuccess;
    const trf_unpack8_codes_args args = {*view, first_row, num_rows, codes, stride};
    const uint64_t slabs = ((uint64_t)num_rows / TRF_PACKED_SLAB_ROWS + 2) * view->packed.tiles_per_band;
    unpack8_codes<<<blocks_for(slabs, kPackWarps), kPackThreads, 0, stream>>>(args);
    return cudaGetLastError();
}
