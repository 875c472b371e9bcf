/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a layer blob, and compares what the kernels' walk (tests/warp) makes of its regular slabs with the
 * reference decoder. Tiles that the validator refuses count as having no slabs. Checksums are corrected first. */
#include "fuzz_mutate_blob.h"
#include "trf_decode.h"
#include "trf_slab_directory.h"
#include "warp/warp_walk.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    MOST_WEIGHTS = 1 << 20 /* the header of a short input could say more */
};

/* A layer as kernels see it, and what the reference decoder makes of it. */
typedef struct fuzzed_layer {
    trf_device_view view;
    trf_layer_traits traits;
    trf_device_fault fault;
    trf_device_slab *slabs;
    uint16_t *elements; /* [rows][cols] */
    uint8_t *good;      /* [tiles]: decoded, edges included */
} fuzzed_layer;

static void describe(fuzzed_layer *layer, const trf_blob_view *view, const uint8_t *blob) {
    static trf_decode_table table;
    const size_t cols = view->header.cols;
    trf_decode_table_init(&table, view);
    layer->view = trf_device_view_of(view, blob);
    layer->view.decode_table = table.slots;
    layer->view.slabs = layer->slabs;
    layer->view.fault = &layer->fault;
    trf_describe_head(view, &layer->traits);
    for (uint64_t t = 0; t < view->num_tiles; t++) {
        const trf_tile_shape shape = trf_tile_shape_of(&view->header, t, view->tiles[t].coding);
        const uint8_t *bytes = blob + view->tiles[t].data_offset;
        if (trf_blob_check_tile(view, t, bytes, NULL) != TRF_OK)
            continue;
        trf_describe_tile(view, t, bytes, layer->slabs, &layer->traits);
        layer->good[t] =
            trf_decode_tile_ref(view, &table, t, bytes, layer->elements + (size_t)shape.row * cols + shape.col, cols,
                                NULL) == TRF_OK;
    }
}

/* Expects each weight of the walked slabs exactly once. A good tile must have good slabs with its elements; but the
 * slab beside such a one may be bad. */
static void compare(const warp_walk *walk, const fuzzed_layer *layer) {
    const trf_device_view *view = walk->view;
    for (uint32_t row = 0; row < view->rows; row++)
        for (uint32_t col = 0; col < view->cols; col++) {
            const size_t at = (size_t)row * view->cols + col;
            const uint64_t tile = row / TRF_TILE_SIZE * (uint64_t)view->num_tile_cols + col / TRF_TILE_SIZE;
            const uint8_t slab = walk->slabs[row / TRF_SLAB_ROWS * (size_t)view->num_panels + col / view->slab_cols];
            if (walk->seen[at] != (slab != WARP_SLAB_PASSED_BY && col / 16 * 16 + 16 <= view->cols))
                abort();
            if (walk->seen[at] && layer->good[tile] &&
                (slab != WARP_SLAB_GOOD || walk->elements[at] != layer->elements[at]))
                abort();
        }
}

static void walk_all(const fuzzed_layer *layer, uint32_t order) {
    const trf_device_view *view = &layer->view;
    const size_t weights = (size_t)view->rows * view->cols, num_slabs = (size_t)view->num_bands * view->num_panels;
    warp_walk walk = {.view = view,
                      .max_rans_bytes = layer->traits.max_rans_bytes,
                      .max_frequency = layer->traits.max_frequency,
                      .warps = 1 + order % 3,
                      .table_log = 16,
                      .order = order,
                      .elements = malloc(weights * sizeof *walk.elements),
                      .seen = malloc(weights),
                      .slabs = malloc(num_slabs)};
    for (uint32_t at = 0; walk.elements && walk.seen && walk.slabs && at < 2 * WARP_WALK_VARIANTS; at++) {
        walk.variant = (warp_walk_variant)(at / 2);
        walk.product_config = at % 2;
        memset(walk.seen, 0, weights);
        memset(walk.slabs, WARP_SLAB_PASSED_BY, num_slabs);
        if (warp_walk_layer(&walk))
            compare(&walk, layer);
    }
    free(walk.elements);
    free(walk.seen);
    free(walk.slabs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    trf_blob_view view;
    void *blob;
    if (posix_memalign(&blob, TRF_TILE_ALIGNMENT, size ? size : 1))
        return 0;
    memcpy(blob, data, size);
    fuzz_mend_checksums(blob, size);
    if (trf_blob_open(blob, size, size, &view, NULL) == TRF_OK &&
        (uint64_t)view.header.rows * view.header.cols <= MOST_WEIGHTS) {
        fuzzed_layer layer = {.slabs = calloc(trf_count_device_slabs(&view.header), sizeof *layer.slabs),
                              .elements = calloc((size_t)view.header.rows * view.header.cols, sizeof *layer.elements),
                              .good = calloc(view.num_tiles, 1)};
        if (layer.slabs && layer.elements && layer.good) {
            describe(&layer, &view, blob);
            walk_all(&layer, (uint32_t)size);
        }
        free(layer.slabs);
        free(layer.elements);
        free(layer.good);
    }
    free(blob);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    return fuzz_mutate_blob_input(data, size, max_size, seed);
}
