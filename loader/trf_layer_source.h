/* A layer on its way to a device: a head in host memory, and tiles that are read chunk by chunk, from a file or from
 * memory. */
#ifndef TRF_LAYER_SOURCE_H
#define TRF_LAYER_SOURCE_H

#include "trf_layer.h"
#include "trf_shard_range.h"

/* Reads tiles first to first + count - 1, checked, which lie side by side in the layer's blob. scratch: for them,
 * 128-byte aligned. *tiles: where they are then, in the same order and as close: in the scratch, or in memory that the
 * reader has anyway. Thread-safe. Errors: those of tiles, of files. */
typedef trf_status trf_read_tiles_fn(void *reader, uint64_t first, uint64_t count, uint8_t *scratch,
                                     const uint8_t **tiles, trf_error *err);

typedef struct trf_layer_source {
    const trf_blob_view *
        /* of the layer's head; view->head is extension.data_offset bytes. No tile is larger than TRF_MAX_TILE_BYTES */
        view;
    trf_shard_range shard;
    trf_read_tiles_fn *read;
    void *reader;
    int threads;              /* that read, as trf_thread_count takes it */
    trf_progress_fn progress; /* or NULL; called by the caller's thread */
    void *progress_context;
    const char *tensor;
    /* The whole layer, where it is in memory, validated, and otherwise NULL; owned: opened for the device's layer
     * alone, which may keep it (then *layer is NULL afterwards). */
    trf_layer **layer;
    int owned;
} trf_layer_source;

/* A trf_read_tiles_fn; reader: a trf_layer in memory, validated. */
trf_read_tiles_fn trf_read_tiles_of_layer;

/* The source that a layer in memory is. layer: as in trf_layer_source. */
trf_layer_source trf_source_of_layer(trf_layer **layer, int owned);

#endif
