/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of a blob that a fuzzer made, as kernels see it. Tiles that the validator refuses count as having no slabs.
 * Checksums are corrected first. */
#ifndef FUZZ_LAYER_H
#define FUZZ_LAYER_H

#include "fuzz_checksums.h"
#include "trf_decode.h"
#include "trf_slab_directory.h"
#include "trf_smem_layout.h"

#include <stdlib.h>
#include <string.h>

enum {
    FUZZ_MOST_WEIGHTS = 1 << 20 /* the header of a short input could say more */
};

/* A layer as kernels see it, and what the reference decoder makes of it. */
typedef struct fuzz_layer {
    trf_blob_view blob_view;
    trf_device_view view;
    trf_layer_traits traits;
    trf_device_fault fault;
    trf_device_slab *slabs;
    uint16_t *elements;  /* [rows][cols] */
    uint8_t *good;       /* [tiles]: decoded, edges included */
    uint32_t *constants; /* the decode table, and the scale pairs of scaled FP8 */
    void *blob;
} fuzz_layer;

static inline void fuzz_layer_describe(fuzz_layer *layer) {
    static trf_decode_table table;
    const trf_blob_view *from = &layer->blob_view;
    const uint8_t *blob = layer->blob;
    const size_t cols = from->header.cols, slots = (size_t)1 << from->header.probability_bits;
    trf_decode_table_init(&table, from);
    memcpy(layer->constants, table.slots, slots * sizeof *layer->constants);
    trf_write_scale_pairs(from, layer->constants + slots);
    layer->view = trf_device_view_of(from, blob);
    layer->view.decode_table = layer->constants;
    layer->view.slabs = layer->slabs;
    layer->view.fault = &layer->fault;
    trf_describe_head(from, &layer->traits);
    for (uint64_t t = 0; t < from->num_tiles; t++) {
        const trf_tile_shape shape = trf_tile_shape_of(&from->header, t, from->tiles[t].coding);
        const uint8_t *bytes = blob + from->tiles[t].data_offset;
        if (trf_blob_check_tile(from, t, bytes, NULL) != TRF_OK)
            continue;
        trf_describe_tile(from, t, bytes, layer->slabs, &layer->traits);
        layer->good[t] =
            trf_decode_tile_ref(from, &table, t, bytes, layer->elements + (size_t)shape.row * cols + shape.col, cols,
                                NULL) == TRF_OK;
    }
}

static inline void fuzz_layer_free(fuzz_layer *layer) {
    free(layer->slabs);
    free(layer->elements);
    free(layer->good);
    free(layer->constants);
    free(layer->blob);
}

/* Makes the layer of an input. @return 0 if it is no valid head, or too large; nothing is to be freed then. */
static inline int fuzz_layer_make(fuzz_layer *layer, const uint8_t *data, size_t size) {
    memset(layer, 0, sizeof *layer);
    if (posix_memalign(&layer->blob, TRF_TILE_ALIGNMENT, size ? size : 1))
        return 0;
    memcpy(layer->blob, data, size);
    fuzz_mend_checksums(layer->blob, size);
    const trf_blob_view *from = &layer->blob_view;
    if (trf_blob_open(layer->blob, size, size, &layer->blob_view, NULL) == TRF_OK &&
        (uint64_t)from->header.rows * from->header.cols <= FUZZ_MOST_WEIGHTS) {
        const size_t slots = (size_t)1 << from->header.probability_bits;
        layer->slabs = calloc(trf_count_device_slabs(&from->header), sizeof *layer->slabs);
        layer->elements = calloc((size_t)from->header.rows * from->header.cols, sizeof *layer->elements);
        layer->good = calloc(from->num_tiles, 1);
        layer->constants = calloc(slots + trf_count_scale_pairs(from), sizeof *layer->constants);
        if (layer->slabs && layer->elements && layer->good && layer->constants) {
            fuzz_layer_describe(layer);
            return 1;
        }
    }
    fuzz_layer_free(layer);
    return 0;
}

/* Whether the reference decoder takes all tiles. */
static inline int fuzz_layer_is_good(const fuzz_layer *layer) {
    int good = 1;
    for (uint64_t t = 0; t < layer->blob_view.num_tiles; t++)
        good &= layer->good[t];
    return good;
}

/* Whether kernels that pack coded slabs may take the layer, with all slabs there, since a load refuses tiles that are
 * not valid. row_unit: of what its rows are a multiple. */
static inline int fuzz_layer_can_pack(const fuzz_layer *layer, uint32_t row_unit) {
    const trf_device_view *view = &layer->view;
    for (uint32_t s = 0; s < view->num_bands * view->num_panels; s++)
        if (layer->slabs[s].rans_size_16 == 0)
            return 0;
    return view->codec == TRF_CODEC_BF16 && view->rows % row_unit == 0 && view->cols % 64 == 0 && !view->row_offsets &&
           trf_has_default_p(view, layer->traits.max_frequency) && layer->traits.irregular_weights == 0;
}

#endif
