/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that unpack, and their launches; trf_unpack_line.cuh and trf_unpack_rows.cuh say how they work. */
#include "trf_unpack8_launch.h"
#include "trf_unpack_line.cuh"
#include "trf_unpack_rows.cuh"

namespace {

constexpr uint32_t kMostBlocks = 1u << 30; /* the most blocks of a grid; blocks go on in steps of the grid's size */
constexpr uint32_t kMostGridRows = 65535;  /* likewise of its y */

template <class Weights>
__global__ void __launch_bounds__(kUnpackThreads, 2) unpack_lines(const __grid_constant__ trf_unpack_args args) {
    trf_unpack_lines<Weights>(args);
}

template <class Weights, bool kHasOctets>
__global__ void __launch_bounds__(kByIdThreads) unpack_ids(const __grid_constant__ trf_unpack_rows_args args) {
    trf_unpack_rows_by_id<Weights, kHasOctets>(args);
}

uint32_t blocks_of(uint64_t wanted) { return (uint32_t)(wanted < kMostBlocks ? wanted : kMostBlocks); }

/* view: for FP8, trf_packed8_view's part. */
template <class Weights>
int launch_lines(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows, const trf_unpack_target *target,
                 trf_stream stream) {
    if (num_rows > view->rows || first_row > view->rows - num_rows)
        return cudaErrorInvalidValue;
    if (num_rows == 0)
        return cudaSuccess;
    const trf_unpack_args args = trf_unpack_args_of(view, first_row, num_rows, target);
    unpack_lines<Weights><<<blocks_of(args.num_lines), kUnpackThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

template <class Weights>
int launch_ids(const trf_packed_view *view, const trf_packed_lookup *lookup, const trf_unpack_target *target,
               trf_stream stream) {
    if (lookup->count == 0)
        return cudaSuccess;
    const trf_unpack_rows_args args = trf_unpack_rows_args_of(view, lookup, target);
    const auto kernel = args.has_octets ? unpack_ids<Weights, true> : unpack_ids<Weights, false>;
    const dim3 blocks(args.row_blocks, lookup->count < kMostGridRows ? lookup->count : kMostGridRows);
    kernel<<<blocks, kByIdThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

} // namespace

int trf_launch_unpack(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows,
                      const trf_unpack_target *target, trf_stream stream) {
    return (view->zeroing ? launch_lines<trf_unpack_bf16<true>>
                          : launch_lines<trf_unpack_bf16<false>>)(view, first_row, num_rows, target, stream);
}

int trf_launch_unpack_rows(const trf_packed_view *view, const trf_packed_lookup *lookup,
                           const trf_unpack_target *target, trf_stream stream) {
    return (view->zeroing ? launch_ids<trf_unpack_row_bf16<true>>
                          : launch_ids<trf_unpack_row_bf16<false>>)(view, lookup, target, stream);
}

int trf_launch_unpack8(const trf_packed8_view *view, uint32_t first_row, uint32_t num_rows,
                       const trf_unpack_target *target, trf_stream stream) {
    return (view->flags & TRF_PACKED8_IN_TURNS
                ? launch_lines<trf_unpack_fp8<true>>
                : launch_lines<trf_unpack_fp8<false>>)(&view->packed, first_row, num_rows, target, stream);
}

int trf_launch_unpack8_rows(const trf_packed8_view *view, const trf_packed_lookup *lookup,
                            const trf_unpack_target *target, trf_stream stream) {
    return (view->flags & TRF_PACKED8_IN_TURNS
                ? launch_ids<trf_unpack_row_fp8<true>>
                : launch_ids<trf_unpack_row_fp8<false>>)(&view->packed, lookup, target, stream);
}
