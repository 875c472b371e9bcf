/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that compute checksums, and their launches; trf_sum_data.cuh and trf_check_tiles.cuh say how they work.
 * Registers are bounded so that enough thread blocks are resident to keep memory busy. */
#include "trf_check_tiles.cuh"
#include "trf_integrity_launch.h"
#include "trf_sum_data.cuh"

namespace {

constexpr int kSumBlocksEach = 6, kCheckBlocksEach = 3; /* of a multiprocessor */
constexpr uint64_t kMostBlocks = 1u << 30;

__global__ void __launch_bounds__(kSumThreads, kSumBlocksEach)
    sum_data(const __grid_constant__ trf_sum_data_args args) {
    __shared__ trf_sum_data_shared shared;
    trf_sum_data(args, shared);
}

__global__ void __launch_bounds__(kCheckThreads, kCheckBlocksEach)
    check_blob(const __grid_constant__ trf_check_blob_args args) {
    __shared__ trf_check_shared shared;
    trf_check_blob(args, shared);
}

} // namespace

int trf_launch_sum_data(const void *data_dev, uint64_t bytes, trf_data_checksum *to_dev, uint32_t multiprocessors,
                        trf_stream stream) {
    const uint64_t pages = trf_count_data_pages(bytes), most = (uint64_t)kSumBlocksEach * multiprocessors;
    const trf_sum_data_args args = {(const uint8_t *)data_dev, bytes, to_dev};
    if (pages == 0)
        return cudaSuccess;
    sum_data<<<(uint32_t)(pages < most ? pages : most), kSumThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

int trf_launch_check_blob(const trf_blob_to_check *blob, uint64_t *wrong_dev, trf_stream stream) {
    const trf_check_blob_args args = trf_check_blob_args_of(blob, wrong_dev);
    const uint64_t parts = blob->num_tiles + 1;
    check_blob<<<(uint32_t)(parts < kMostBlocks ? parts : kMostBlocks), kCheckThreads, 0, stream>>>(args);
    return cudaGetLastError();
}
