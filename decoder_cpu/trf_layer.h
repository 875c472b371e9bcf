/* SPDX-License-Identifier: Apache-2.0 */
/* The struct behind the handle trf_layer (transfuse.h), for the files that work on it. */
#ifndef TRF_LAYER_H
#define TRF_LAYER_H

#include "trf_decode.h"

struct trf_layer {
    trf_blob_view view;
    trf_decode_table table;
    const uint8_t *blob;
    void *mapping; /* of a file, or NULL; if memory is NULL, too, the blob is the caller's */
    size_t mapping_bytes;
    void *memory; /* malloc'd, holds the blob; or NULL */
};

/* What an opened blob says of itself. */
void trf_blob_get_info(const trf_blob_view *view, trf_layer_info *info);

static inline const uint8_t *trf_layer_tile(const trf_layer *layer, uint64_t tile) {
    return layer->blob + layer->view.tiles[tile].data_offset;
}

#endif
