/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes layers and rows on the CPU. */
#include "trf_decoded_bits.h"
#include "trf_device_cpu.h"
#include "trf_layer_feed.h"
#include "trf_row_reader.h"
#include "trf_slab_directory.h"
#include "trf_threads.h"

#include <stdlib.h>

typedef struct trf_cpu_decoding {
    const trf_device_layer *layer;
    trf_decode_as as;
    void *weights;
    trf_decode_tile_fn *decode;
    uint16_t (*elements)[TRF_TILE_SIZE * TRF_TILE_SIZE]; /* for each worker */
} trf_cpu_decoding;

static trf_status cpu_decode_tile(void *context, uint64_t tile, int worker, trf_error *err) {
    const trf_cpu_decoding *work = context;
    const trf_layer *host = work->layer->host;
    const trf_device_view *view = &work->layer->view;
    const trf_tile_shape shape = trf_tile_shape_of(&host->view.header, tile, host->view.tiles[tile].coding);
    uint16_t *elements = work->elements[worker];
    trf_status status =
        work->decode(&host->view, &host->table, tile, trf_layer_tile(host, tile), elements, TRF_TILE_SIZE, err);
    if (status != TRF_OK)
        return status;
    const uint32_t bytes = trf_decoded_weight_bytes(view, work->as);
    for (uint32_t r = 0; r < shape.rows; r++)
        for (uint32_t c = 0; c < shape.cols; c++) {
            const uint32_t row = shape.row + r, col = shape.col + c;
            trf_store_decoded_bits(work->weights, bytes, (uint64_t)row * view->cols + col,
                                   trf_decoded_bits(view, work->as, elements[r * TRF_TILE_SIZE + c], row, col));
        }
    return TRF_OK;
}

trf_status trf_cpu_decode(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                          trf_error *err) {
    (void)stream;
    trf_error failure = {0};
    if (as == TRF_DECODE_SOURCE) {
        const uint64_t bytes = (uint64_t)layer->info.rows * layer->info.cols * trf_dtype_bytes(layer->info.dtype);
        return trf_cpu_note_fault(
            layer, trf_layer_decode(layer->host, weights, bytes, layer->context->threads, &failure), &failure, err);
    }
    const uint64_t tiles = layer->host->view.num_tiles;
    const int most = trf_thread_count(layer->context->threads), workers = (uint64_t)most > tiles ? (int)tiles : most;
    trf_cpu_decoding work = {layer, as, weights, trf_decode_tile_best(), NULL};
    work.elements = malloc((size_t)workers * sizeof *work.elements);
    if (!work.elements)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate buffers for %d workers", workers);
    trf_status status = trf_parallel_for(workers, tiles, cpu_decode_tile, &work, &failure);
    free(work.elements);
    return trf_cpu_note_fault(layer, status, &failure, err);
}

/* ---- rows ---- */

enum {
    ROW_WORKER_WEIGHTS = 1 << 16 /* a thread's start takes about as long as decoding these */
};

typedef struct trf_cpu_row_work {
    const trf_device_layer *layer;
    const trf_row_request *request;
} trf_cpu_row_work;

/* Does what trf_row_crossing_at does, with the tile's own slab table instead of the slab directory. */
static trf_row_crossing find_row_segment(const trf_device_layer *layer, uint32_t row, uint32_t panel) {
    const trf_layer *host = layer->host;
    const trf_header *header = &host->view.header;
    const uint64_t tile =
        (uint64_t)(row / TRF_TILE_SIZE) * header->num_tile_cols + panel / (TRF_TILE_SIZE / header->slab_cols);
    const trf_tile_meta *meta = &host->view.tiles[tile];
    const trf_tile_shape shape = trf_tile_shape_of(header, tile, meta->coding);
    const uint8_t *bytes = trf_layer_tile(host, tile);
    trf_row_crossing crossing = trf_row_crossing_of(&layer->view, shape, row, panel);
    if (crossing.coded_cols) {
        const uint32_t slab = crossing.row / TRF_SLAB_ROWS * shape.slabs_across + crossing.col / header->slab_cols;
        const trf_slab_location location = trf_locate_slab(&shape, bytes, slab, header->raw_bits);
        crossing.raw = meta->data_offset + location.raw;
        crossing.rans_streams = meta->data_offset + location.rans_streams;
        crossing.rans_bytes = location.end - location.rans_streams;
    }
    crossing.stored = meta->data_offset;
    if (crossing.coded_cols < crossing.cols && shape.num_slabs)
        crossing.stored += trf_locate_slab(&shape, bytes, shape.num_slabs - 1, header->raw_bits).end;
    return crossing;
}

/* A trf_parallel_fn; index: the position of a row id. */
static trf_status cpu_decode_row(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_cpu_row_work *work = context;
    const trf_device_layer *layer = work->layer;
    const trf_device_view *view = &layer->view;
    const int64_t id = trf_row_id(work->request->row_ids, work->request->id_bytes, index);
    trf_row_target target = {.col = layer->shard.col, .cols = layer->shard.cols, .as = work->request->as};
    (void)worker;
    target.weight_bytes = trf_decoded_weight_bytes(view, target.as);
    target.to = (uint8_t *)work->request->rows + index * target.cols * target.weight_bytes;
    target.aligned = (uintptr_t)target.to % (4 * target.weight_bytes) == 0;
    for (uint32_t panel = 0; panel < view->num_panels; panel++) {
        if (id < 0 || id >= layer->shard.rows) {
            for (uint32_t quarter = 0; quarter < TRF_ROW_LANES; quarter++)
                trf_row_fill(view, panel, quarter, &target);
            continue;
        }
        const trf_row_crossing crossing = find_row_segment(layer, layer->shard.row + (uint32_t)id, panel);
        for (uint32_t quarter = 0; quarter < TRF_ROW_LANES; quarter++)
            if (!trf_row_decode(view, view->decode_table, view->class_value, &crossing, quarter, &target))
                return trf_fail(err, TRF_ERR_RANS, layer->host->view.tiles[crossing.index].data_offset,
                                "tile %llu: a lane's stream does not end where it must",
                                (unsigned long long)crossing.index);
    }
    return TRF_OK;
}

trf_status trf_cpu_decode_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                               trf_error *err) {
    (void)stream;
    trf_error failure = {0};
    trf_cpu_row_work work = {layer, request};
    const uint64_t most = 1 + (uint64_t)request->count * layer->shard.cols / ROW_WORKER_WEIGHTS;
    const int threads = trf_thread_count(layer->context->threads);
    trf_status status = trf_parallel_for((uint64_t)threads < most ? threads : (int)most, request->count, cpu_decode_row,
                                         &work, &failure);
    return trf_cpu_note_fault(layer, status, &failure, err);
}
