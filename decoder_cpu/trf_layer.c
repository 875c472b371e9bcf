/* SPDX-License-Identifier: Apache-2.0 */
/* One layer on the host: from memory or a mapped .trf file, and back to a matrix. */
#include "trf_layer.h"

#include "trf_scale.h"
#include "trf_threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

trf_status trf_layer_from_memory(const void *blob, uint64_t blob_bytes, trf_layer **layer, trf_error *err) {
    if (!layer || (!blob && blob_bytes))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer needs a blob, and a place for it");
    trf_layer *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a layer");
    trf_status status = trf_blob_validate(blob, blob_bytes, &made->view, err);
    if (status != TRF_OK) {
        free(made);
        return status;
    }
    made->blob = blob;
    trf_decode_table_init(&made->table, &made->view);
    *layer = made;
    return TRF_OK;
}

/* Maps a whole regular file; an empty one leaves *mapping and *bytes as they are. */
static trf_status map_file(const char *path, void **mapping, size_t *bytes, trf_error *err) {
    struct stat info;
    /* O_NONBLOCK: opening a FIFO that nobody writes to must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return trf_fail(err, errno == ENOENT || errno == ENOTDIR ? TRF_ERR_NOT_FOUND : TRF_ERR_IO, TRF_NO_OFFSET,
                        "%s: cannot open: %s", path, strerror(errno));
    trf_status status = TRF_OK;
    if (fstat(fd, &info) != 0)
        status = trf_fail(err, TRF_ERR_IO, TRF_NO_OFFSET, "%s: cannot stat: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = trf_fail(err, TRF_ERR_IO, TRF_NO_OFFSET, "%s: not a regular file", path);
    else if (info.st_size > 0) {
        *mapping = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        *bytes = (size_t)info.st_size;
        if (*mapping == MAP_FAILED)
            status = trf_fail(err, TRF_ERR_IO, TRF_NO_OFFSET, "%s: cannot map: %s", path, strerror(errno));
    }
    close(fd);
    return status;
}

trf_status trf_layer_open(const char *path, trf_layer **layer, trf_error *err) {
    void *mapping = NULL;
    size_t bytes = 0;
    if (!path || !layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "opening a layer needs a path, and a place for it");
    trf_status status = map_file(path, &mapping, &bytes, err);
    if (status != TRF_OK)
        return trf_sanitize_error(status, err);
    status = trf_layer_from_memory(mapping, bytes, layer, err);
    if (status != TRF_OK) {
        if (mapping)
            munmap(mapping, bytes);
        if (err && err->offset != TRF_NO_OFFSET)
            trf_prefix_error(err, status, "byte %llu", (unsigned long long)err->offset);
        return trf_sanitize_error(trf_prefix_error(err, status, "%s", path), err);
    }
    (*layer)->mapping = mapping;
    (*layer)->mapping_bytes = bytes;
    return TRF_OK;
}

void trf_layer_free(trf_layer *layer) {
    if (!layer)
        return;
    if (layer->mapping)
        munmap(layer->mapping, layer->mapping_bytes);
    free(layer->memory);
    free(layer);
}

void trf_blob_get_info(const trf_blob_view *view, trf_layer_info *info) {
    const trf_header *header = &view->header;
    *info = (trf_layer_info){
        .rows = header->rows,
        .cols = header->cols,
        .dtype = (trf_dtype)header->source_dtype,
        .codec = (trf_codec)header->codec,
        .class_bits = header->class_bits,
        .raw_bits = header->raw_bits,
        .probability_bits = header->probability_bits,
        .state_bits = header->state_bits,
        .slab_cols = header->slab_cols,
        .granularity = (trf_granularity)view->extension.granularity,
        .scale_group_size = view->extension.scale_group_size,
        .predictor_modes = header->predictor_modes,
        .blob_bytes = header->blob_bytes,
        .tiles = view->num_tiles,
        .exceptions = view->extension.exception_count,
    };
    for (uint64_t t = 0; t < view->num_tiles; t++)
        info->stored_tiles += view->tiles[t].coding == TRF_TILE_STORED;
}

void trf_layer_get_info(const trf_layer *layer, trf_layer_info *info) { trf_blob_get_info(&layer->view, info); }

/* ---- decoding ---- */

typedef struct trf_decode_loop {
    const trf_layer *layer;
    uint8_t *weights;
    trf_decode_tile_fn *decode;
    uint16_t *elements; /* a tile for each worker, or NULL: tiles are decoded in place */
} trf_decode_loop;

static trf_status decode_layer_tile(void *context, uint64_t tile, int worker, trf_error *err) {
    const trf_decode_loop *loop = context;
    const trf_layer *layer = loop->layer;
    const size_t cols = layer->view.header.cols;
    trf_tile_shape shape = trf_tile_shape_of(&layer->view.header, tile, layer->view.tiles[tile].coding);
    uint8_t *to =
        loop->weights + (shape.row * cols + shape.col) * trf_dtype_bytes((trf_dtype)layer->view.header.source_dtype);
    const uint8_t *tile_bytes = trf_layer_tile(layer, tile);
    if (!loop->elements)
        return loop->decode(&layer->view, &layer->table, tile, tile_bytes, (uint16_t *)to, cols, err);
    uint16_t *elements = loop->elements + (size_t)worker * TRF_TILE_SIZE * TRF_TILE_SIZE;
    trf_status status = loop->decode(&layer->view, &layer->table, tile, tile_bytes, elements, TRF_TILE_SIZE, err);
    if (status == TRF_OK)
        trf_elements_to_dtype(&layer->view, tile, elements, TRF_TILE_SIZE, to, cols);
    return status;
}

trf_status trf_layer_decode(const trf_layer *layer, void *weights, uint64_t weights_bytes, int threads,
                            trf_error *err) {
    if (!layer || !weights)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "decoding needs a layer, and memory for its weights");
    const trf_header *header = &layer->view.header;
    const size_t value_bytes = trf_dtype_bytes((trf_dtype)header->source_dtype);
    const uint64_t due = (uint64_t)header->rows * header->cols;
    if (weights_bytes / value_bytes != due || weights_bytes % value_bytes)
        return trf_fail(err, TRF_ERR_SHAPE, TRF_NO_OFFSET, "a buffer of %llu bytes for %ux%u weights of %s",
                        (unsigned long long)weights_bytes, header->rows, header->cols,
                        trf_dtype_name((trf_dtype)header->source_dtype));
    trf_decode_loop loop = {layer, weights, trf_decode_tile_best(), NULL};
    const int elements_are_values =
        value_bytes == 2 && !trf_elements_have_scales(&layer->view) && (uintptr_t)weights % 2 == 0;
    int workers = trf_thread_count(threads);
    if ((uint64_t)workers > layer->view.num_tiles)
        workers = (int)layer->view.num_tiles;
    if (!elements_are_values) {
        loop.elements = malloc((size_t)workers * TRF_TILE_SIZE * TRF_TILE_SIZE * sizeof *loop.elements);
        if (!loop.elements)
            return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate buffers for %d workers", workers);
    }
    trf_status status = trf_parallel_for(workers, layer->view.num_tiles, decode_layer_tile, &loop, err);
    free(loop.elements);
    return status;
}
