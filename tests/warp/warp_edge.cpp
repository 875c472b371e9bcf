/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_emulation.h"

/* In place of decoder_gpu/trf_prefetch.cuh: a prefetch may not lie outside of what is there, which the address
 * sanitizer sees by a read. */
#define TRF_PREFETCH_CUH
static inline void trf_prefetch_l2(const void *at) { (void)*(const volatile uint8_t *)at; }

#include "trf_edge_warp.cuh"
#include "warp_edge.h"

static constexpr uint32_t kWarps = 2;

struct warp_edge_args {
    const trf_device_view *view;
    uint32_t first, end;
    uint16_t *elements;
    uint8_t *seen;
    bool good;
};

static void store_segment(const warp_edge_args &a, const trf_edge &edge, uint32_t segment, uint32_t lane,
                          const uint16_t *decoded) {
    const trf_edge_segment at = trf_edge_segment_at(&edge, segment);
    for (uint32_t row = at.row0; row < at.row1; row++)
        for (uint32_t col = lane; col < at.cols; col += TRF_LANES) {
            const uint64_t to =
                (uint64_t)(edge.tile.row + edge.band_row + row) * a.view->cols + edge.tile.col + at.col + col;
            a.elements[to] = decoded[row * at.pitch + col];
            a.seen[to]++;
        }
}

/* A warp takes every second band. */
static void decode_edges(void *args) {
    warp_edge_args &a = *(warp_edge_args *)args;
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    uint16_t *const decoded = (uint16_t *)warp_shared_memory() + warp * TRF_EDGE_SEGMENT_ELEMENTS;
    for (uint32_t band = warp; band < a.view->num_bands; band += kWarps)
        for (uint32_t j = 0; j < a.view->num_tile_cols; j++)
            for (uint32_t edge_id = a.first; edge_id < a.end; edge_id++) {
                trf_edge edge = {};
                if (!trf_warp_edge_open(edge, *a.view, band, j, edge_id, lane))
                    continue;
                for (uint32_t segment = 0; segment < trf_edge_segments(&edge); segment++) {
                    trf_warp_decode_segment(edge, *a.view, a.view->class_value, segment, lane, decoded);
                    store_segment(a, edge, segment, lane, decoded);
                }
                if (!trf_warp_edge_verdict(edge, *a.view, lane))
                    a.good = false;
            }
}

int warp_decode_edges(const trf_device_view *view, uint32_t first, uint32_t end, uint32_t order, uint16_t *elements,
                      uint8_t *seen) {
    warp_edge_args args = {view, first, end, elements, seen, true};
    warp_run_block({kWarps, kWarps * TRF_EDGE_SEGMENT_ELEMENTS * (uint32_t)sizeof(uint16_t), order}, decode_edges,
                   &args);
    return args.good;
}
