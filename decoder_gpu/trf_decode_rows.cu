/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes rows of a layer by number: the look-up of an embedding.
 *
 * A warp takes one row and eight panels, with four lanes for each panel (trf_row_reader.h); warps go on in steps of the
 * grid's size. A row is a quarter or a half of a lane's weights, so the walk decodes up to four times the weights that
 * are kept; but nothing else of the row's band is read or decoded.
 *
 * Shared memory: the slots of the decode table, 16 KiB. The limit is latency: a lane's chain of states, with a table
 * look-up in each; for small batches also the first access to the raw bits, which are therefore prefetched. */
#include "trf_decode_rows.h"
#include "trf_edge_warp.cuh"
#include "trf_row_reader.h"

namespace {

constexpr uint32_t kWarps = 4;
constexpr uint32_t kSlabs = TRF_LANES / TRF_ROW_LANES; /* that a warp takes at a time */
/* the most blocks of a multiprocessor; if there is more to do, warps take several rows */
constexpr uint32_t kBlocksEach = 8;

/* Prefetches the raw bits of a row's four lanes in full chunks, where they lie side by side in vectors of four words a
 * lane. */
__device__ __forceinline__ void prefetch_raw(const trf_device_view &view, const trf_row_crossing &crossing,
                                             uint32_t quartet_lane) {
    const uint32_t row = crossing.row % TRF_SLAB_ROWS, lane = TRF_ROW_LANES * (row % 8), each = view.raw_bits / 2;
    const trf_slab_shape shape = trf_slab_shape_from(&crossing.tile, crossing.row - row, crossing.col);
    const uint32_t vectors = trf_lane_weights(shape) / TRF_CHUNK_WEIGHTS * each;
    for (uint32_t g = quartet_lane; g < vectors; g += TRF_ROW_LANES)
        trf_prefetch_l2(view.buffer + crossing.raw + trf_chunk_offset(view.raw_bits, g / each) +
                        trf_plane_word_offset(4 * each, lane, 4 * (g % each)));
}

/* Decodes one lane's part of a row. All lanes of the warp call it. It is inlined, so that it can use what the kernel
 * knows about the view. */
__device__ __forceinline__ void decode_row(const trf_device_view &view, const uint32_t *decode_table,
                                           const int16_t *class_value, int64_t id, const trf_shard_range &shard,
                                           uint32_t panel, uint32_t lane, const trf_row_target &target) {
    const uint32_t quartet_lane = lane % TRF_ROW_LANES;
    const bool is_there = panel < view.num_panels;
    trf_row_crossing crossing = {};
    bool good = true;
    if (is_there && (id < 0 || id >= shard.rows)) {
        trf_row_fill(&view, panel, quartet_lane, &target);
    } else if (is_there) {
        crossing = trf_row_crossing_at(&view, shard.row + (uint32_t)id, panel);
        if (crossing.coded_cols && trf_row_is_wanted(&crossing, &target))
            prefetch_raw(view, crossing, quartet_lane);
        good = trf_row_decode(&view, decode_table, class_value, &crossing, quartet_lane, &target);
    }
    const uint32_t bad = __ballot_sync(kAllLanes, !good) >> (lane - quartet_lane) & 0xF;
    if (bad) {
        trf_row_spoil_lane(&view, &crossing, quartet_lane, &target);
        if (quartet_lane == 0)
            trf_note_fault(view, crossing.index);
    }
}

/* Codec and class bits are known at compile time, and with them all planes of float codecs; this saves half of the
 * instructions. */
template <uint32_t kCodec, uint32_t kClassBits>
__global__ void __launch_bounds__(kWarps *TRF_LANES)
    decode_rows(const __grid_constant__ trf_device_view view_arg, const __grid_constant__ trf_shard_range shard,
                const __grid_constant__ trf_row_lookup request) {
    trf_device_view view = view_arg;
    view.codec = kCodec;
    view.class_bits = kClassBits;
    if (kCodec != TRF_CODEC_INT)
        view.raw_bits = trf_float_raw_bits(kCodec, kClassBits);
    __shared__ uint32_t decode_table[TRF_MAX_SLOTS];
    __shared__ int16_t class_value[16];
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    for (uint32_t s = threadIdx.x; s < 1u << view.probability_bits; s += blockDim.x)
        decode_table[s] = view.decode_table[s];
    if (threadIdx.x < 16) /* not from the copy, which has to stay in registers */
        class_value[threadIdx.x] = view_arg.class_value[threadIdx.x];
    __syncthreads();

    const uint32_t warps_per_row = (view.num_panels + kSlabs - 1) / kSlabs;
    const uint64_t work = (uint64_t)request.count * warps_per_row;
    trf_row_target target;
    target.col = shard.col;
    target.cols = shard.cols;
    target.as = request.as;
    target.weight_bytes = trf_decoded_weight_bytes(&view, request.as);
    for (uint64_t w = (uint64_t)blockIdx.x * kWarps + warp; w < work; w += (uint64_t)gridDim.x * kWarps) {
        const uint64_t index = w / warps_per_row;
        const uint32_t panel = (uint32_t)(w % warps_per_row) * kSlabs + lane / TRF_ROW_LANES;
        target.to = (uint8_t *)request.rows + index * shard.cols * target.weight_bytes;
        target.aligned = (uintptr_t)target.to % (4 * target.weight_bytes) == 0;
        decode_row(view, decode_table, class_value, trf_row_id(request.ids, request.id_bytes, index), shard, panel,
                   lane, target);
    }
}

using rows_kernel = void (*)(trf_device_view, trf_shard_range, trf_row_lookup);

template <uint32_t kCodec> rows_kernel kernel_of(uint32_t class_bits) {
    return class_bits == 2 ? decode_rows<kCodec, 2> : decode_rows<kCodec, 4>;
}

rows_kernel kernel_for(const trf_device_view *view) {
    switch (view->codec) {
    case TRF_CODEC_BF16:
        return kernel_of<TRF_CODEC_BF16>(view->class_bits);
    case TRF_CODEC_FP16:
        return kernel_of<TRF_CODEC_FP16>(view->class_bits);
    case TRF_CODEC_E4M3:
        return kernel_of<TRF_CODEC_E4M3>(view->class_bits);
    case TRF_CODEC_E5M2:
        return kernel_of<TRF_CODEC_E5M2>(view->class_bits);
    default:
        return kernel_of<TRF_CODEC_INT>(view->class_bits);
    }
}

/* Returns TRF_DECODE_ELEMENTS where that gives the same 16-bit values; deciding this once here is cheaper than at each
 * weight. */
trf_decode_as simplest(const trf_device_view *view, trf_decode_as as) {
    const uint32_t dtype = trf_decoded_dtype(view, as);
    const bool same = dtype == TRF_DTYPE_NONE || (dtype == TRF_DTYPE_BF16 && view->codec == TRF_CODEC_BF16) ||
                      (dtype == TRF_DTYPE_F16 && view->codec == TRF_CODEC_FP16);
    return same && trf_decoded_weight_bytes(view, as) == 2 ? TRF_DECODE_ELEMENTS : as;
}

} // namespace

int trf_launch_decode_rows(const trf_device_view *view, const trf_shard_range *shard, const trf_row_lookup *request,
                           trf_stream stream) {
    int device, multiprocessors;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess)
        return error;
    const uint64_t warps_per_row = (view->num_panels + kSlabs - 1) / kSlabs;
    const uint64_t wanted = (request->count * warps_per_row + kWarps - 1) / kWarps;
    const uint64_t most = (uint64_t)multiprocessors * kBlocksEach;
    trf_row_lookup simple = *request;
    simple.as = simplest(view, request->as);
    kernel_for(view)<<<(uint32_t)(wanted < most ? wanted : most), kWarps * TRF_LANES, 0, stream>>>(*view, *shard,
                                                                                                   simple);
    return cudaGetLastError();
}
