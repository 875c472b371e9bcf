/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes the regular slabs of all experts of a tensor to memory in one launch, since one launch for each expert would
 * leave most of a GPU idle. It is for the 16-bit float codecs, with their default p.
 *
 * trf_decode_slabs.cuh has the picture of how a layer's slabs are decoded. Here a block does one expert after the
 * other, since its decode table is for one expert. So that the warps of a block end together, an expert is cut into
 * pieces, which have one slab for each warp, and blocks have equal shares of the pieces. Example: on an H200, which has
 * 132 multiprocessors, 128 experts of 768 x 2048 in bf16 quads have 24 bands of 8 slabs each, and the 12 warps of a
 * block gather:
 *
 *     expert 0, 192 slabs     | piece 0 | 1 | ... | 15 |     12 slabs each
 *     expert 1                | 16 | 17 | ...      | 31 |
 *     ...                                                    2,048 pieces: 15 or 16 for each block
 *     block 0: pieces 0 to 14, of expert 0; block 1: 15, of expert 0, and 16 to 30, of expert 1; ...
 *
 * Between two experts the block has two barriers, builds a table and waits for the bytes of the first slabs.
 *
 * Shared memory: as in trf_decode_slabs.cuh, and the expert's view. Registers: at most 128 a thread with 16 warps. */
#include "trf_decode_launch.h"
#include "trf_decode_slabs.cuh"
#include "trf_kernel_smem.cuh"

namespace {

struct expert_write_args {
    trf_write_call call;
    const trf_expert *experts; /* [count] */
    uint8_t *weights;
    uint64_t weights_stride; /* bytes */
    uint32_t count, pieces;  /* pieces: of each expert */
};

/* Loads an expert's view, once the block is done with the one before. */
__device__ __forceinline__ void enter_expert(const trf_expert *experts, uint32_t expert, trf_device_view &view) {
    static_assert(sizeof view % 4 == 0 && sizeof view / 4 <= 8 * TRF_LANES, "a word for each thread at most");
    __syncthreads();
    if (threadIdx.x < sizeof view / 4)
        reinterpret_cast<uint32_t *>(&view)[threadIdx.x] =
            __ldg(reinterpret_cast<const uint32_t *>(&experts[expert].view) + threadIdx.x);
    __syncthreads();
}

template <class Codec>
__global__ void __launch_bounds__(TRF_MAX_WRITE_WARPS *TRF_LANES, 1)
    decode_experts(const __grid_constant__ expert_write_args a) {
    extern __shared__ __align__(1024) uint8_t shared_memory[];
    __shared__ trf_device_view view;
    __shared__ uint2 constants[2];
    const uint32_t warps = blockDim.x / TRF_LANES, warp = threadIdx.x / TRF_LANES;
    const uint64_t all = (uint64_t)a.count * a.pieces, end = all * (blockIdx.x + 1) / gridDim.x;
    uint64_t piece = all * blockIdx.x / gridDim.x;
#pragma unroll 1
    while (piece < end) {
        const trf_expert_part part = trf_expert_part_of(a.call.num_slabs, a.pieces, piece, end);
        enter_expert(a.experts, part.expert, view);
        trf_write_slabs<Codec, 2, kDefaultP<Codec>>(view, a.call, a.weights + part.expert * a.weights_stride,
                                                    {part.slab, part.num_slabs, warp, warps}, shared_memory, constants);
        piece += part.pieces;
    }
}

using expert_kernel = void (*)(expert_write_args);

template <uint32_t kCodec> expert_kernel pick(uint32_t class_bits) {
    return class_bits == 2 ? decode_experts<trf_codec_config<kCodec, 2>> : decode_experts<trf_codec_config<kCodec, 4>>;
}

} // namespace

int trf_launch_decode_experts(const trf_expert_decoding *experts, const trf_expert_decode_choice *chosen,
                              trf_stream stream) {
    const trf_device_view *view = experts->view;
    const expert_kernel kernel =
        view->codec == TRF_CODEC_BF16 ? pick<TRF_CODEC_BF16>(view->class_bits) : pick<TRF_CODEC_FP16>(view->class_bits);
    const expert_write_args args = {trf_write_call_of(view, experts->as, &chosen->kernel),
                                    experts->experts_dev,
                                    (uint8_t *)experts->weights,
                                    experts->weights_stride,
                                    experts->count,
                                    chosen->pieces};
    cudaFuncAttributes attributes = {};
    cudaError_t error = trf_allow_all_shared((const void *)kernel, &attributes);
    if (error != cudaSuccess)
        return error;
    kernel<<<chosen->blocks, chosen->kernel.warps * TRF_LANES, args.call.smem.total, stream>>>(args);
    return cudaGetLastError();
}
