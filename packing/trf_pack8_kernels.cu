/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that pack FP8 layers, and their launches; trf_pack8_line.cuh says how they work. */
#include "trf_pack8_line.cuh"

namespace {

constexpr uint32_t kMostBlocks = 1u << 30; /* the most blocks of a grid; blocks go on in steps of the grid's size */

__global__ void __launch_bounds__(kPairThreads) find_pairs(const __grid_constant__ trf_pack8_args args) {
    trf_find_pairs(args);
}

template <bool kInTurns>
__global__ void __launch_bounds__(kPackThreads, 2) pack8_lines(const __grid_constant__ trf_pack8_args args) {
    __shared__ trf_pack8_shared shared;
    trf_pack8_lines<kInTurns>(args, shared);
}

__global__ void __launch_bounds__(kValueThreads) unpack8_values(const __grid_constant__ trf_unpack8_values_args args) {
    trf_unpack8_values(args);
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
    const auto kernel = trf_pack8_in_turns(*view) ? pack8_lines<true> : pack8_lines<false>;
    kernel<<<blocks_for(args.num_lines, 1), kPackThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

int trf_launch_unpack8_values(const trf_packed8_view *view, const trf_device_view *kind, trf_decode_as as,
                              const trf_packed_lookup *lookup, void *to, trf_stream stream) {
    if (!lookup->ids && lookup->count > view->packed.rows)
        return cudaErrorInvalidValue;
    if (lookup->count == 0)
        return cudaSuccess;
    const trf_unpack8_values_args args = {*view, *kind, *lookup, as, to};
    const uint64_t threads = (uint64_t)view->packed.tiles_per_band * TRF_PACKED_STEPS * kLanesOfRow * lookup->count;
    unpack8_values<<<blocks_for(threads, kValueThreads), kValueThreads, 0, stream>>>(args);
    return cudaGetLastError();
}
