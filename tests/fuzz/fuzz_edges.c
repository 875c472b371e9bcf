/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a layer blob, and decodes its edges as kernels do (trf_edges.h), and its regular slabs as if they
 * were edges. A loop over 32 lanes stands for a warp. Elements of good tiles must be the reference decoder's.
 *
 * The slab directory may be nonsense, too: with an odd size of the input, bytes of it are changed. */
#include "fuzz_layer.h"
#include "fuzz_mutate_blob.h"
#include "trf_edges.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct edge_warp {
    const fuzz_layer *layer;
    trf_edge edges[TRF_LANES];
    uint16_t *decoded; /* [TRF_EDGE_SEGMENT_ELEMENTS] */
    int is_trusted;    /* the slab directory is the layer's */
} edge_warp;

static void check_segment(const edge_warp *w, uint32_t segment) {
    const trf_edge *edge = &w->edges[0];
    const fuzz_layer *layer = w->layer;
    const trf_edge_segment at = trf_edge_segment_at(edge, segment);
    for (uint32_t row = at.row0; row < at.row1; row++)
        for (uint32_t col = 0; col < at.cols; col++) {
            const size_t in_layer =
                (size_t)(edge->tile.row + edge->band_row + row) * layer->view.cols + edge->tile.col + at.col + col;
            if (w->decoded[row * at.pitch + col] != layer->elements[in_layer])
                abort();
        }
}

static void decode_edge(edge_warp *w) {
    const trf_device_view *view = &w->layer->view;
    const int is_good = w->is_trusted && w->layer->good[w->edges[0].index];
    for (uint32_t segment = 0; segment < trf_edge_segments(&w->edges[0]); segment++) {
        for (uint32_t lane = 0; lane < TRF_LANES; lane++)
            trf_edge_decode_segment(view, view->class_value, &w->edges[lane], segment, lane, w->decoded);
        for (uint32_t lane = 0; lane < TRF_LANES; lane++)
            trf_edge_put_exceptions(&w->edges[lane], segment, lane, w->decoded);
        if (is_good)
            check_segment(w, segment);
    }
    int verdict = 1;
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        verdict &= trf_edge_verdict(view, &w->edges[lane], lane, w->edges[lane ^ TRF_LANE_PAIRS].reader.taken);
    if (is_good && !verdict)
        abort();
}

static void decode_edges(edge_warp *w) {
    const trf_device_view *view = &w->layer->view;
    for (uint32_t band = 0; band < view->num_bands; band++)
        for (uint32_t tile_col = 0; tile_col < view->num_tile_cols; tile_col++)
            for (uint32_t edge_id = 0; edge_id < TRF_REGULAR_AS_EDGE_END; edge_id++) {
                uint32_t opened = 0;
                for (uint32_t lane = 0; lane < TRF_LANES; lane++)
                    opened += (uint32_t)trf_edge_open(&w->edges[lane], view, band, tile_col, edge_id, lane);
                if (opened != 0 && opened != TRF_LANES)
                    abort();
                if (opened)
                    decode_edge(w);
            }
}

/* Changes fields of the directory at random, from the input's last bytes. */
static void spoil_directory(fuzz_layer *layer, const uint8_t *data, size_t size) {
    const uint64_t count = trf_count_device_slabs(&layer->blob_view.header);
    for (size_t i = size < 64 ? 0 : size - 64; i + 4 <= size; i += 4)
        ((uint8_t *)layer->slabs)[(data[i] | data[i + 1] << 8) % (count * sizeof *layer->slabs)] ^= data[i + 2];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_layer layer;
    if (!fuzz_layer_make(&layer, data, size))
        return 0;
    edge_warp w = {.layer = &layer, .is_trusted = size % 2 == 0};
    w.decoded = malloc(TRF_EDGE_SEGMENT_ELEMENTS * sizeof *w.decoded);
    if (w.decoded) {
        if (!w.is_trusted)
            spoil_directory(&layer, data, size);
        decode_edges(&w);
    }
    free(w.decoded);
    fuzz_layer_free(&layer);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    return fuzz_mutate_blob_input(data, size, max_size, seed);
}
