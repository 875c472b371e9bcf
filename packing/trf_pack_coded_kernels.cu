/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that pack coded layers, and their launch; trf_pack_coded_slabs.cuh says how they work. */
#include "trf_kernel_smem.cuh"
#include "trf_pack_coded_slabs.cuh"

namespace {

constexpr uint32_t kMostWarps = 16, kFewestWarps = 4;
constexpr uint32_t kMostMergeBlocks = 1u << 16; /* the most blocks of a grid; warps go on in steps of the grid's size */

template <int kClassBits, bool kZeroing>
__global__ void __launch_bounds__(kMostWarps *TRF_LANES, 1)
    pack_coded_slabs(const __grid_constant__ trf_pack_coded_args args) {
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint2 constants[2];
    trf_pack_coded_slabs<trf_codec_config<TRF_CODEC_BF16, kClassBits>, kZeroing>(args, shared_memory, constants);
}

template <bool kZeroing>
__global__ void __launch_bounds__(kMergeThreads) merge_lines(const __grid_constant__ trf_pack_coded_args args) {
    trf_merge_records_of_lines<kZeroing>(args.to);
}

typedef void (*pack_coded_kernel)(trf_pack_coded_args);

pack_coded_kernel kernel_of(uint32_t class_bits, uint32_t zeroing) {
    if (class_bits == 2)
        return zeroing ? pack_coded_slabs<2, true> : pack_coded_slabs<2, false>;
    return zeroing ? pack_coded_slabs<4, true> : pack_coded_slabs<4, false>;
}

/* Chooses as many warps as there is room for. @return 0 if there is room for too few. */
uint32_t choose_warps(const trf_device_view *view, const trf_layer_traits *traits, int shared_bytes,
                      trf_smem_layout *smem) {
    for (uint32_t warps = kMostWarps; warps >= kFewestWarps; warps--) {
        *smem =
            trf_smem_layout_of(view->raw_bits, traits->max_rans_bytes, warps, 1, TRF_TABLE_LOG, 0, 0, TRF_RING_STEPS);
        if ((int)smem->total + TRF_STATIC_SMEM_BYTES <= shared_bytes)
            return warps;
    }
    return 0;
}

} // namespace

int trf_can_pack_coded(const trf_device_view *view, const trf_layer_traits *traits) {
    uint32_t multiprocessors;
    int shared_bytes;
    trf_smem_layout smem;
    if (view->codec != TRF_CODEC_BF16 || traits->irregular_weights || view->rows % TRF_PACKED_TILE_ROWS ||
        view->row_offsets || !trf_has_default_p(view, traits->max_frequency))
        return 0;
    if (trf_find_multiprocessors(&multiprocessors, &shared_bytes) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return choose_warps(view, traits, shared_bytes, &smem) != 0;
}

uint64_t trf_pack_coded_scratch_bytes(uint64_t rows, uint64_t cols) {
    return trf_count_tile_halves(rows, cols) * (1 + kTileHalfRecords) * sizeof(uint32_t);
}

int trf_launch_pack_coded(const trf_device_view *view, const trf_layer_traits *traits, const trf_packed_view *packed,
                          uint32_t first_row, const trf_pack_coded_memory *memory, trf_stream stream) {
    uint32_t multiprocessors;
    int shared_bytes;
    trf_smem_layout smem;
    cudaFuncAttributes attributes = {};
    const pack_coded_kernel kernel = kernel_of(view->class_bits, packed->zeroing);
    cudaError_t error = trf_find_multiprocessors(&multiprocessors, &shared_bytes);
    if (error == cudaSuccess)
        error = trf_allow_all_shared((const void *)kernel, &attributes);
    if (error != cudaSuccess)
        return error;
    const uint32_t warps = choose_warps(view, traits, shared_bytes, &smem);
    if (warps == 0 || first_row % TRF_PACKED_TILE_ROWS || (uint64_t)first_row + view->rows > packed->rows ||
        packed->cols != view->cols || packed->row_offsets)
        return cudaErrorInvalidValue;
    const trf_pack_coded_args args = trf_pack_coded_args_of(view, smem, packed, first_row, memory);
    kernel<<<multiprocessors, warps * TRF_LANES, smem.total, stream>>>(args);
    error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    const uint64_t lines = (uint64_t)args.to.num_bands * packed->lines_per_band,
                   blocks = (lines + kMergeWarps - 1) / kMergeWarps;
    const auto merge = packed->zeroing ? merge_lines<true> : merge_lines<false>;
    merge<<<(uint32_t)(blocks < kMostMergeBlocks ? blocks : kMostMergeBlocks), kMergeThreads, 0, stream>>>(args);
    return cudaGetLastError();
}
