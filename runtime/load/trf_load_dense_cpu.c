/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_load_dense_cpu.h"

#include "trf_decode.h"
#include "trf_threads.h"

#include <stdlib.h>
#include <string.h>

enum {
    SPAN_BYTES = 64 << 20, /* bytes of tiles that are decoded between two calls of progress */
    ALIGNMENT = 128
};

/* The memory of one worker. */
typedef struct trf_dense_scratch {
    _Alignas(ALIGNMENT) uint8_t tile[TRF_MAX_TILE_BYTES];
    uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE];
} trf_dense_scratch;

typedef struct trf_dense_load {
    const trf_layer_feed *feed;
    trf_decode_table table;
    uint16_t *weights;          /* [shard.rows][shard.cols] */
    trf_dense_scratch *scratch; /* [workers] */
    uint64_t first;             /* the first tile of the current span */
} trf_dense_load;

/* Sets [*begin, *end) to those of `count` rows or columns from `first` on that are among the `wanted` ones from `from`
 * on. */
static void clip(uint32_t first, uint32_t count, uint32_t from, uint32_t wanted, uint32_t *begin, uint32_t *end) {
    *begin = first < from ? from : first;
    *end = first + count < from + wanted ? first + count : from + wanted;
}

/* Copies the shard's share of a tile to its place. */
static void place_elements(const trf_dense_load *load, const trf_tile_shape *tile, const uint16_t *elements) {
    const trf_shard_range *shard = &load->feed->shard;
    uint32_t row, row_end, col, col_end;
    clip(tile->row, tile->rows, shard->row, shard->rows, &row, &row_end);
    clip(tile->col, tile->cols, shard->col, shard->cols, &col, &col_end);
    for (; row < row_end && col < col_end; row++)
        memcpy(load->weights + (size_t)(row - shard->row) * shard->cols + (col - shard->col),
               elements + (size_t)(row - tile->row) * TRF_TILE_SIZE + (col - tile->col),
               (col_end - col) * sizeof *elements);
}

/* A trf_parallel_fn; index: counted from the span's first tile. */
static trf_status load_tile(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_dense_load *load = context;
    const trf_layer_feed *feed = load->feed;
    const uint64_t tile = load->first + index;
    const trf_tile_shape shape = trf_tile_shape_of(&feed->view->header, tile, feed->view->tiles[tile].coding);
    trf_dense_scratch *scratch = &load->scratch[worker];
    const uint8_t *bytes;
    trf_status status = feed->read(feed->read_context, tile, 1, scratch->tile, &bytes, err);
    if (status != TRF_OK)
        return status;
    if (trf_decode_tile_best()(feed->view, &load->table, tile, bytes, scratch->elements, TRF_TILE_SIZE, NULL) != TRF_OK)
        return trf_layer_feed_fail_tile(feed, tile, err);
    place_elements(load, &shape, scratch->elements);
    return TRF_OK;
}

static trf_status load_tiles(trf_dense_load *load, int workers, trf_error *err) {
    const trf_layer_feed *feed = load->feed;
    const trf_blob_view *view = feed->view;
    uint64_t done = 0;
    trf_status status = trf_layer_feed_progress(feed, done, err);
    for (uint64_t end; load->first < view->num_tiles && status == TRF_OK; load->first = end) {
        uint64_t bytes = view->tiles[load->first].data_size;
        for (end = load->first + 1; end < view->num_tiles && bytes < SPAN_BYTES; end++)
            bytes += view->tiles[end].data_size;
        status = trf_parallel_for(workers, end - load->first, load_tile, load, err);
        done += bytes;
        if (status == TRF_OK)
            status = trf_layer_feed_progress(feed, done, err);
    }
    return status;
}

trf_status trf_cpu_load_dense(const trf_layer_feed *feed, uint16_t *weights, trf_error *err) {
    const int most = trf_thread_count(feed->threads);
    const int workers = feed->view->num_tiles < (uint64_t)most ? (int)feed->view->num_tiles : most;
    trf_dense_load *load = calloc(1, sizeof *load);
    trf_dense_scratch *scratch = aligned_alloc(ALIGNMENT, (size_t)workers * sizeof *scratch);
    trf_status status;
    if (load && scratch) {
        load->feed = feed;
        load->weights = weights;
        load->scratch = scratch;
        trf_decode_table_init(&load->table, feed->view);
        status = load_tiles(load, workers, err);
    } else {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate buffers for %d workers", workers);
    }
    free(scratch);
    free(load);
    return status;
}

/* ---- a layer that has been loaded ---- */

trf_status trf_cpu_decode_dense(const trf_device_layer *layer, uint16_t *weights, trf_error *err) {
    const uint32_t rows = layer->info.rows;
    if (!trf_shard_cuts_rows(layer) && !trf_shard_cuts_cols(layer))
        return layer->layout->decode(layer, TRF_DECODE_ELEMENTS, weights, NULL, err);
    int64_t *ids = malloc(rows * sizeof *ids);
    if (!ids)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate the numbers of %u rows", rows);
    for (uint32_t row = 0; row < rows; row++)
        ids[row] = row;
    const trf_row_request request = {.row_ids = ids,
                                     .id_bytes = sizeof *ids,
                                     .count = rows,
                                     .as = TRF_DECODE_ELEMENTS,
                                     .rows = weights,
                                     .rows_bytes = sizeof *weights * rows * layer->info.cols};
    trf_status status = layer->layout->decode_rows(layer, &request, NULL, err);
    free(ids);
    return status;
}
