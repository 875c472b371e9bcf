/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that pack coded experts, and their launch; trf_pack_coded_experts.cuh says how they work. */
#include "trf_kernel_smem.cuh"
#include "trf_pack_coded_experts.cuh"

namespace {

constexpr uint32_t kMostWarps = 16, kFewestWarps = 4; /* of a block */
constexpr uint32_t kMostMergeBlocks = 1u << 16; /* the most blocks of a grid; warps go on in steps of the grid's size */

template <int kClassBits, bool kTurns>
__global__ void __launch_bounds__(kMostWarps *TRF_LANES, 1)
    pack_experts(const __grid_constant__ trf_pack_experts_args args) {
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ uint2 constants[2 * kTurnsParts];
    trf_pack_coded_experts<trf_codec_config<TRF_CODEC_BF16, kClassBits>, kTurns>(args, shared_memory, constants);
}

__global__ void __launch_bounds__(kMergeThreads) merge_experts(const __grid_constant__ trf_pack_experts_args args) {
    trf_merge_records_of_experts(args);
}

typedef void (*pack_kernel)(trf_pack_experts_args);

pack_kernel kernel_of(uint32_t class_bits, bool turns) {
    if (class_bits == 2)
        return turns ? pack_experts<2, true> : pack_experts<2, false>;
    return turns ? pack_experts<4, true> : pack_experts<4, false>;
}

/* Chooses as many warps as there is room for. @return false if there is room for too few. */
bool choose_block(const trf_device_view *view, uint32_t max_rans_bytes, bool turns, int shared_bytes,
                  trf_pack_experts_block *block) {
    const uint32_t parts = turns ? kTurnsParts : 1;
    for (uint32_t warps = kMostWarps; warps >= kFewestWarps; warps -= parts) {
        *block = trf_pack_experts_block_of(view->raw_bits, max_rans_bytes, warps / parts, turns);
        if ((int)block->shared_bytes + TRF_STATIC_SMEM_BYTES <= shared_bytes)
            return true;
    }
    return false;
}

} // namespace

const char *trf_pack_coded_experts_refusal(const trf_device_view *view, const trf_layer_traits *traits,
                                           trf_pack_rows rows) {
    const uint32_t wanted_rows =
        rows == TRF_PACK_ROWS_OF_TWO ? (uint32_t)TRF_SLAB_ROWS : (uint32_t)TRF_PACKED_TILE_ROWS;
    uint32_t multiprocessors;
    int shared_bytes;
    trf_pack_experts_block block;
    if (view->codec != TRF_CODEC_BF16)
        return "its codec is not bf16";
    if (view->rows % wanted_rows)
        return rows == TRF_PACK_ROWS_OF_TWO ? "its rows are no multiple of 32" : "its rows are no multiple of 64";
    if (traits->irregular_weights)
        return "it has stored tiles, or columns beside whole slabs";
    if (view->row_offsets)
        return "it has row offsets";
    if (!trf_has_default_p(view, traits->max_frequency))
        return "its probability bits are not the default ones";
    if (trf_find_multiprocessors(&multiprocessors, &shared_bytes) != cudaSuccess) {
        cudaGetLastError();
        return "the device does not say how much shared memory it has";
    }
    return choose_block(view, traits->max_rans_bytes, rows != TRF_PACK_ROWS_AS_THEY_ARE, shared_bytes, &block)
               ? NULL
               : "its rANS streams do not fit this device's shared memory";
}

uint64_t trf_pack_coded_experts_bytes(uint32_t count, uint32_t rows, uint32_t cols) {
    return trf_pack_experts_bytes(count, rows, cols);
}

trf_packed_view trf_pack_coded_experts_first(uint32_t count, uint32_t rows, uint32_t cols, const uint8_t *memory) {
    return trf_pack_experts_first(count, rows, cols, memory);
}

int trf_launch_pack_coded_experts(const trf_experts_to_pack *experts, trf_stream stream) {
    const bool turns = experts->rows != TRF_PACK_ROWS_AS_THEY_ARE;
    const pack_kernel kernel = kernel_of(experts->view->class_bits, turns);
    uint32_t multiprocessors;
    int shared_bytes;
    trf_pack_experts_block block;
    cudaFuncAttributes attributes = {};
    cudaError_t error = trf_find_multiprocessors(&multiprocessors, &shared_bytes);
    if (error == cudaSuccess)
        error = trf_allow_all_shared((const void *)kernel, &attributes);
    if (error != cudaSuccess)
        return error;
    if (experts->count < 1 || experts->count > TRF_PACK_EXPERTS_MAX ||
        !choose_block(experts->view, experts->max_rans_bytes, turns, shared_bytes, &block))
        return cudaErrorInvalidValue;
    const trf_pack_experts_args args = trf_pack_experts_args_of(experts, block);
    const uint64_t pieces = (uint64_t)args.count * args.pieces;
    kernel<<<(uint32_t)(pieces < multiprocessors ? pieces : multiprocessors),
             block.warps *(turns ? kTurnsParts : 1) * TRF_LANES, block.shared_bytes, stream>>>(args);
    error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    const uint64_t lines = (uint64_t)args.count * args.packed.bands * args.packed.lines_per_band,
                   blocks = (lines + kMergeWarps - 1) / kMergeWarps;
    merge_experts<<<(uint32_t)(blocks < kMostMergeBlocks ? blocks : kMostMergeBlocks), kMergeThreads, 0, stream>>>(
        args);
    return cudaGetLastError();
}
