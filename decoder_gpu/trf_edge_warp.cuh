/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding edges by a warp: what trf_edges.h does, with the lanes at work together. All lanes of the warp call each
 * function. */
#ifndef TRF_EDGE_WARP_CUH
#define TRF_EDGE_WARP_CUH

#include "trf_edges.h"
#include "trf_fault.cuh"
#include "trf_prefetch.cuh"
#include "trf_warp.cuh"

/* Prefetches `bytes` bytes: each lane every 32nd cache line. */
static __device__ __forceinline__ void trf_warp_prefetch_l2(const uint8_t *from, uint32_t bytes, uint32_t lane) {
    for (uint32_t at = 128 * lane; at < bytes; at += 128 * TRF_LANES)
        trf_prefetch_l2(from + at);
}

/* Does what trf_edge_open does. When it returns, the slab's bytes are on their way to the L2 cache, since a lane then
 * reads them a few at a time. */
static __device__ __forceinline__ bool trf_warp_edge_open(trf_edge &edge, const trf_device_view &view, uint32_t band,
                                                          uint32_t tile_col, uint32_t edge_id, uint32_t lane) {
    if (!trf_edge_open(&edge, &view, band, tile_col, edge_id, lane))
        return false;
    if (trf_edge_is_slab(edge_id) && edge.intact) {
        trf_warp_prefetch_l2(edge.slab.rans_streams, edge.slab.words + 2 * edge.slab.num_words, lane);
        trf_warp_prefetch_l2(edge.slab.raw, trf_raw_bytes(view.raw_bits, edge.slab.weights), lane);
    }
    return true;
}

/* Decodes a segment of an edge to shared memory, exceptions included. to: [TRF_EDGE_SEGMENT_ELEMENTS], the warp's
 * own. */
static __device__ __forceinline__ void trf_warp_decode_segment(trf_edge &edge, const trf_device_view &view,
                                                               const int16_t *class_value, uint32_t segment,
                                                               uint32_t lane, uint16_t *to) {
    __syncwarp(); /* all lanes have read the segment before */
    trf_edge_decode_segment(&view, class_value, &edge, segment, lane, to);
    __syncwarp();
    trf_edge_put_exceptions(&edge, segment, lane, to);
    __syncwarp();
}

/* Whether the edge is what was encoded; to be called when all of its segments are decoded. If it is not, notes its tile
 * as the fault. */
static __device__ __forceinline__ bool trf_warp_edge_verdict(const trf_edge &edge, const trf_device_view &view,
                                                             uint32_t lane) {
    const uint32_t partner_taken = __shfl_xor_sync(kAllLanes, edge.reader.taken, TRF_LANE_PAIRS);
    const bool good = __all_sync(kAllLanes, trf_edge_verdict(&view, &edge, lane, partner_taken));
    if (!good && lane == 0)
        trf_note_fault(view, edge.index);
    return good;
}

#endif
