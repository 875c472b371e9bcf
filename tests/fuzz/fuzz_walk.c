/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a layer blob, and compares what the kernels' walk (tests/warp) makes of its regular slabs with the
 * reference decoder. Tiles that the validator refuses count as having no slabs. Checksums are corrected first. Scaled
 * FP8 is also multiplied by, which uses scale pairs; its sums are not looked at. */
#include "fuzz_layer.h"
#include "fuzz_mutate_blob.h"
#include "trf_product_request.h"
#include "warp/warp_coded_product.h"
#include "warp/warp_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Expects each weight of the walked slabs exactly once. A good tile must have good slabs with its elements; but the
 * slab beside such a one may be bad. */
static void compare(const warp_walk *walk, const fuzz_layer *layer) {
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

static void walk_all(const fuzz_layer *layer, uint32_t order) {
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

/* Multiplies by the kernels that take a layer of scaled FP8. */
static void multiply_all(const fuzz_layer *layer, uint32_t order) {
    const trf_device_view *view = &layer->view;
    if (!trf_is_scaled_fp8(view->codec, view->source_dtype) || trf_regular_panels(view) == 0 ||
        view->rows < TRF_SLAB_ROWS || trf_fragment_refusal(view, &layer->traits, TRF_DTYPE_BF16))
        return;
    enum {
        ROWS_OF_X = 8
    };
    warp_coded_product product = {.view = view,
                                  .max_rans_bytes = layer->traits.max_rans_bytes,
                                  .use_row_offsets = (layer->traits.predictor_modes & TRF_PREDICT_ROW) != 0,
                                  .x_stride = (view->cols + 63) / 64 * 64,
                                  .y = malloc(sizeof(float) * ROWS_OF_X * view->rows),
                                  .warps = 1 + order % 3,
                                  .order = order};
    void *x = NULL;
    if (product.y && posix_memalign(&x, 16, sizeof(uint16_t) * ROWS_OF_X * product.x_stride) == 0) {
        memset(x, 0x3F, sizeof(uint16_t) * ROWS_OF_X * product.x_stride);
        product.x = x;
        for (uint32_t kind = 0; kind < 3; kind++) { /* one slab, two, general */
            product.two_slabs = kind == 1;
            product.general = kind == 2;
            if (product.general || (trf_has_default_p(view, layer->traits.max_frequency) && !product.use_row_offsets))
                warp_multiply_coded(&product);
        }
    }
    free(x);
    free(product.y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_layer layer;
    if (fuzz_layer_make(&layer, data, size)) {
        walk_all(&layer, (uint32_t)size);
        multiply_all(&layer, (uint32_t)size);
        fuzz_layer_free(&layer);
    }
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    return fuzz_mutate_blob_input(data, size, max_size, seed);
}
