#include "trf_layer_source.h"

#include <string.h>

trf_status trf_read_tiles_of_layer(void *reader, uint64_t first, uint64_t count, uint8_t *to, trf_error *err) {
    const trf_layer *layer = reader;
    const trf_tile_meta *last = &layer->view.tiles[first + count - 1];
    (void)err;
    memcpy(to, trf_layer_tile(layer, first),
           last->data_offset + last->data_size - layer->view.tiles[first].data_offset);
    return TRF_OK;
}

trf_layer_source trf_source_of_layer(trf_layer **layer, int owned) {
    const trf_blob_view *view = &(*layer)->view;
    return (trf_layer_source){
        .view = view,
        .cut = {0, view->header.rows, 0, view->header.cols},
        .read = trf_read_tiles_of_layer,
        .reader = *layer,
        .layer = layer,
        .owned = owned,
    };
}
