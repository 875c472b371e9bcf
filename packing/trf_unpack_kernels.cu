/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that unpack, and their launches; trf_unpack_line.cuh and trf_unpack_rows.cuh say how they work. */
#include "trf_pack_launch.h"
#include "trf_unpack_line.cuh"
#include "trf_unpack_rows.cuh"

namespace {

constexpr uint32_t kMostBlocks = 1u << 30; /* the most blocks of a grid; blocks go on in steps of the grid's size */
constexpr uint32_t kMostGridRows = 65535;  /* likewise of its y */

template <bool kZeroing>
__global__ void __launch_bounds__(kUnpackThreads, 2) unpack_lines(const __grid_constant__ trf_unpack_args args) {
    trf_unpack_lines<kZeroing>(args);
}

template <bool kZeroing, bool kHasOctets>
__global__ void __launch_bounds__(kByIdThreads) unpack_ids(const __grid_constant__ trf_unpack_rows_args args) {
    trf_unpack_rows_by_id<kZeroing, kHasOctets>(args);
}

uint32_t blocks_of(uint64_t wanted) { return (uint32_t)(wanted < kMostBlocks ? wanted : kMostBlocks); }

} // namespace

int trf_launch_unpack(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows,
                      const trf_unpack_target *target, trf_stream stream) {
    if (num_rows > view->rows || first_row > view->rows - num_rows)
        return cudaErrorInvalidValue;
    if (num_rows == 0)
        return cudaSuccess;
    const trf_unpack_args args = trf_unpack_args_of(view, first_row, num_rows, target);
    const auto kernel = view->zeroing ? unpack_lines<true> : unpack_lines<false>;
    kernel<<<blocks_of(args.num_lines), kUnpackThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

int trf_launch_unpack_rows(const trf_packed_view *view, const trf_packed_lookup *lookup,
                           const trf_unpack_target *target, trf_stream stream) {
    if (lookup->count == 0)
        return cudaSuccess;
    const trf_unpack_rows_args args = trf_unpack_rows_args_of(view, lookup, target);
    const auto kernel = view->zeroing ? (args.has_octets ? unpack_ids<true, true> : unpack_ids<true, false>)
                                      : (args.has_octets ? unpack_ids<false, true> : unpack_ids<false, false>);
    const dim3 blocks(args.row_blocks, lookup->count < kMostGridRows ? lookup->count : kMostGridRows);
    kernel<<<blocks, kByIdThreads, 0, stream>>>(args);
    return cudaGetLastError();
}
