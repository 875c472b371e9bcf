/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that looks for the scales of dense weights, and its launch; trf_find_fp8_blocks.cuh says how it works. */
#include "trf_find_fp8_blocks.cuh"

namespace {

constexpr int kResidentBlocks = 8; /* of a multiprocessor, so that some load while others count */

__global__ void __launch_bounds__(kFindThreads, kResidentBlocks)
    find_scales(const __grid_constant__ trf_find_fp8_args args) {
    __shared__ trf_find_fp8_shared shared;
    trf_find_scales(args, shared);
}

} // namespace

int trf_launch_find_fp8(const trf_rows_to_pack *rows, const trf_find_fp8_set *sets_dev, const trf_found_scales *to_dev,
                        trf_found_fp8 *found_dev, int checks_all, uint32_t multiprocessors, trf_stream stream) {
    const trf_find_fp8_args args = trf_find_fp8_args_of(rows, sets_dev, to_dev, found_dev, checks_all);
    if (args.blocks == 0)
        return cudaSuccess;
    /* No thread block has to start only to see that the search has ended: they go on in steps of the grid's size. */
    const uint64_t most = (uint64_t)kResidentBlocks * multiprocessors;
    find_scales<<<(uint32_t)(args.blocks < most ? args.blocks : most), kFindThreads, 0, stream>>>(args);
    return cudaGetLastError();
}
