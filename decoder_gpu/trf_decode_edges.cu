/* SPDX-License-Identifier: Apache-2.0 */
/* Writes every edge weight of a layer to memory; or, in the same slow and general way, every weight of its regular
 * slabs.
 *
 * A block takes a band of 32 rows and shares the band's columns of tiles with the other blocks in y. A warp takes a
 * column of tiles at a time and decodes its edges, in segments of 1024 weights, to shared memory, from which rows are
 * written coalesced. Where a tile has no edges, which is nearly everywhere, the warp goes on after two loads.
 *
 * Shared memory: kWarps * TRF_EDGE_SEGMENT_ELEMENTS * 2 = 17,408 bytes, and 32. The limit is latency: a warp decodes
 * the chain of states of one slab. */
#include "trf_decode_launch.h"
#include "trf_decoded_bits.h"
#include "trf_edge_warp.cuh"

namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kEnoughBlocks = 4096; /* more blocks than that only take longer to find nothing */

/* Writes a decoded segment. */
__device__ void write_segment(const trf_device_view &view, trf_decode_as as, const trf_edge &edge,
                              const trf_edge_segment &segment, const uint16_t *decoded, uint32_t lane, void *weights) {
    const uint32_t bytes = trf_decoded_weight_bytes(&view, as);
    for (uint32_t r = segment.row0; r < segment.row1; r++)
        for (uint32_t c = lane; c < segment.cols; c += TRF_LANES) {
            const uint32_t row = edge.tile.row + edge.band_row + r, col = edge.tile.col + segment.col + c;
            const uint32_t bits = trf_decoded_bits(&view, as, decoded[r * segment.pitch + c], row, col);
            trf_store_decoded_bits(weights, bytes, (uint64_t)row * view.cols + col, bits);
        }
}

/* Writes NaNs, or zero codes, in place of an edge. */
__device__ void write_corrupt(const trf_device_view &view, trf_decode_as as, const trf_edge &edge, uint32_t lane,
                              void *weights) {
    const uint32_t bytes = trf_decoded_weight_bytes(&view, as), bits = trf_decoded_corrupt_bits(&view, as);
    for (uint32_t r = edge.region.row0; r < edge.region.row1; r++)
        for (uint32_t c = edge.region.col0 + lane; c < edge.region.col1; c += TRF_LANES) {
            const uint32_t row = edge.tile.row + edge.band_row + r, col = edge.tile.col + c;
            trf_store_decoded_bits(weights, bytes, (uint64_t)row * view.cols + col, bits);
        }
}

/* Decodes the edges with numbers first to end - 1 of all bands. */
__global__ void __launch_bounds__(kWarps *TRF_LANES)
    decode_edges(const __grid_constant__ trf_device_view view, trf_decode_as as, void *weights, uint32_t first,
                 uint32_t end) {
    __shared__ uint16_t decoded[kWarps][TRF_EDGE_SEGMENT_ELEMENTS];
    __shared__ int16_t class_value[16];
    const uint32_t band = blockIdx.x, warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    if (threadIdx.x < 16)
        class_value[threadIdx.x] = view.class_value[threadIdx.x];
    __syncthreads();

    for (uint32_t j = blockIdx.y * kWarps + warp; j < view.num_tile_cols; j += kWarps * gridDim.y) {
        if (!trf_band_has_edges_in(&view, band, j, first, end))
            continue;
#pragma unroll 1
        for (uint32_t edge_id = first; edge_id < end; edge_id++) {
            trf_edge edge = {};
            if (!trf_warp_edge_open(edge, view, band, j, edge_id, lane))
                continue;
            const uint32_t segments = trf_edge_segments(&edge);
#pragma unroll 1
            for (uint32_t segment = 0; segment < segments; segment++) {
                trf_warp_decode_segment(edge, view, class_value, segment, lane, decoded[warp]);
                write_segment(view, as, edge, trf_edge_segment_at(&edge, segment), decoded[warp], lane, weights);
            }
            if (!trf_warp_edge_verdict(edge, view, lane)) {
                __syncwarp(); /* all lanes have written */
                write_corrupt(view, as, edge, lane, weights);
            }
        }
    }
}

int launch(const trf_device_view *view, trf_decode_as as, void *weights, uint32_t first, uint32_t end,
           trf_stream stream) {
    const uint32_t blocks_needed = (view->num_tile_cols + kWarps - 1) / kWarps;
    const uint32_t blocks_wanted = (kEnoughBlocks + view->num_bands - 1) / view->num_bands;
    decode_edges<<<dim3(view->num_bands, blocks_needed < blocks_wanted ? blocks_needed : blocks_wanted),
                   kWarps * TRF_LANES, 0, stream>>>(*view, as, weights, first, end);
    return cudaGetLastError();
}

} // namespace

int trf_launch_decode_edges(const trf_device_view *view, trf_decode_as as, void *weights, trf_stream stream) {
    return launch(view, as, weights, 0, TRF_EDGE_COUNT, stream);
}

int trf_launch_decode_slabs_as_edges(const trf_device_view *view, trf_decode_as as, void *weights, trf_stream stream) {
    return launch(view, as, weights, TRF_REGULAR_AS_EDGE, TRF_REGULAR_AS_EDGE_END, stream);
}
