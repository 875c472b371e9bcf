#include "trf_layer_source.h"

trf_status trf_read_tiles_of_layer(void *reader, uint64_t first, uint64_t count, uint8_t *scratch,
                                   const uint8_t **tiles, trf_error *err) {
    (void)count, (void)scratch, (void)err;
    *tiles = trf_layer_tile(reader, first);
    return TRF_OK;
}

trf_layer_source trf_source_of_layer(trf_layer **layer, int owned) {
    const trf_blob_view *view = &(*layer)->view;
    return (trf_layer_source){
        .view = view,
        .shard = {0, view->header.rows, 0, view->header.cols},
        .read = trf_read_tiles_of_layer,
        .reader = *layer,
        .layer = layer,
        .owned = owned,
    };
}
