/* SPDX-License-Identifier: Apache-2.0 */
/* Makes one packed FP8 layer of several whose rows follow each other. Lines and packed tiles lie band by band, and know
 * nothing of the bands beside them (format/PACKED.md), so joining copies bytes. */
#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_packed8_layer.h"

#include <stdlib.h>

/* Layers that are to be joined. */
typedef struct trf_join {
    const trf_device_layer *const *layers;
    uint32_t count;
    trf_packed8_head head; /* of the joined layer */
} trf_join;

static trf_status check_layer(const trf_join *join, uint32_t i, trf_error *err) {
    const trf_device_layer *layer = join->layers[i], *first = join->layers[0];
    if (!layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no layer %u to join", i);
    if (layer->layout->layout != TRF_LAYOUT_PACKED8)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "layers that are joined have the layout packed8, and layer %u is %s", i,
                        trf_layout_name(layer->layout->layout));
    if (layer->packed8.flags & TRF_PACKED8_IN_TURNS)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "layer %u has rows of gate and up in turns, and is not joined to others", i);
    if (layer->context != first->context || layer->info.cols != first->info.cols ||
        layer->info.dtype != first->info.dtype)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "layer %u, %ux%u weights of %s, is not joined to %ux%u weights of %s%s", i, layer->info.rows,
                        layer->info.cols, trf_dtype_name(layer->info.dtype), first->info.rows, first->info.cols,
                        trf_dtype_name(first->info.dtype),
                        layer->context == first->context ? "" : " of another context");
    if (i + 1 < join->count && layer->info.rows % TRF_PACKED_TILE_ROWS)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "layer %u has %u rows: layers to which others are joined have a multiple of %d", i,
                        layer->info.rows, TRF_PACKED_TILE_ROWS);
    return TRF_OK;
}

/* Checks the layers, and finds the head's sizes. */
static trf_status begin(trf_join *join, trf_error *err) {
    uint64_t rows = 0;
    if (!join->layers || !join->count)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there are no layers to join");
    for (uint32_t i = 0; i < join->count; i++) {
        trf_status status = check_layer(join, i, err);
        if (status != TRF_OK)
            return status;
        rows += join->layers[i]->info.rows;
    }
    return trf_size_packed8(rows, join->layers[0]->info.cols, &join->head, err);
}

/* Sums up what the layers' heads count. */
static trf_status add_heads(trf_join *join, trf_layer_info *info, trf_error *err) {
    *info = (trf_layer_info){0};
    for (uint32_t i = 0; i < join->count; i++) {
        const trf_device_layer *layer = join->layers[i];
        trf_packed8_head head;
        trf_status status =
            trf_read_layout_head(layer->context, layer->view.buffer, layer->view.buffer_bytes, &head, sizeof head, err);
        if (status != TRF_OK)
            return status;
        join->head.flags |= head.flags;
        join->head.num_records += head.num_records;
        info->stored_tiles += layer->info.stored_tiles;
        info->exceptions += layer->info.exceptions;
    }
    return TRF_OK;
}

/* Fills in the head's other fields. Layers of several blobs have no blob of their own. */
static trf_status finish_head(trf_join *join, trf_error *err) {
    const trf_device_layer *first = join->layers[0];
    trf_header coded = trf_layout_bf16_header(join->head.rows, join->head.cols);
    coded.codec = first->header.codec;
    coded.source_dtype = first->header.source_dtype;
    trf_layer_info sums;
    trf_status status = add_heads(join, &sums, err);
    if (status == TRF_OK)
        trf_packed8_head_set_coded(&join->head, &coded, &sums);
    return status;
}

static trf_status copy_section(const trf_context *context, uint8_t *to, const void *from, uint64_t band_bytes,
                               uint64_t bands, trf_error *err) {
    const trf_row_copy copy = {to, band_bytes, from, band_bytes, band_bytes, bands};
    return context->ops->copy_rows(context, &copy, NULL, err);
}

/* Writes the layer's buffer. The copies are complete when it succeeds: uploading the head waits for them. They follow
 * all work that was queued before finish_head, which waited for the device. */
static trf_status write_buffer(const trf_join *join, uint8_t *at, trf_error *err) {
    const trf_context *context = join->layers[0]->context;
    uint8_t *lines = at + join->head.lines_offset, *tiles = at + join->head.tiles_offset;
    const uint64_t lines_end = join->head.lines_offset + join->head.num_lines * TRF_PACKED_LINE_BYTES,
                   padding = join->head.tiles_offset - lines_end;
    trf_status status = TRF_OK;
    if (padding)
        status = copy_section(context, at + lines_end, NULL, padding, 1, err);
    for (uint32_t i = 0; i < join->count && status == TRF_OK; i++) {
        const trf_packed_view *from = &join->layers[i]->packed8.packed;
        const uint64_t line_bytes = (uint64_t)from->lines_per_band * TRF_PACKED_LINE_BYTES,
                       tile_bytes = (uint64_t)from->tiles_per_band * TRF_PACKED8_TILE_BYTES;
        status = copy_section(context, lines, from->lines, line_bytes, from->bands, err);
        if (status == TRF_OK)
            status = copy_section(context, tiles, from->tiles, tile_bytes, from->bands, err);
        lines += line_bytes * from->bands;
        tiles += tile_bytes * from->bands;
    }
    if (status == TRF_OK)
        status = context->ops->upload(context, at, &join->head, sizeof join->head, err);
    return status == TRF_OK ? context->ops->add_data_checksum(context, at, join->head.common.buffer_bytes, err)
                            : status;
}

/* Finds the joined layer's memory: the caller's, or new memory, which *owned is then. */
static trf_status find_memory(const trf_join *join, const trf_layer_memory *given, uint8_t **at, void **owned,
                              trf_error *err) {
    const trf_context *context = join->layers[0]->context;
    const trf_layer_size size = {.buffer_bytes = join->head.common.buffer_bytes};
    trf_status status = TRF_OK;
    *owned = NULL;
    *at = given->buffer;
    if (!trf_has_memory(given)) {
        status = context->ops->allocate(context, size.buffer_bytes, owned, err);
        *at = *owned;
        return status;
    }
    for (uint32_t i = 0; i < join->count && status == TRF_OK; i++) {
        const trf_given_buffer from = {join->layers[i]->view.buffer, join->layers[i]->view.buffer_bytes};
        status = trf_check_layer_memory(given, &size, &from, context->ops->alignment, 0, err);
    }
    return status;
}

trf_status trf_device_layer_get_joined_size(const trf_device_layer *const *layers, uint32_t count, trf_layer_size *size,
                                            trf_error *err) {
    trf_join join = {.layers = layers, .count = count};
    if (!size)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no place for the size of a layer");
    trf_status status = begin(&join, err);
    if (status == TRF_OK)
        *size = (trf_layer_size){.buffer_bytes = join.head.common.buffer_bytes};
    return status;
}

trf_status trf_device_layer_join(const trf_device_layer *const *layers, uint32_t count, const trf_layer_memory *memory,
                                 trf_device_layer **joined, trf_error *err) {
    const trf_layer_memory given = memory ? *memory : (trf_layer_memory){0};
    trf_join join = {.layers = layers, .count = count};
    trf_device_layer *made = NULL;
    uint8_t *at;
    void *owned = NULL;
    if (!joined)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no place for the joined layer");
    trf_status status = begin(&join, err);
    if (status == TRF_OK)
        status = trf_begin_device_layer(layers[0]->context, layers[0]->layout, &made, err);
    if (status == TRF_OK)
        status = find_memory(&join, &given, &at, &owned, err);
    if (status == TRF_OK)
        status = finish_head(&join, err);
    if (status == TRF_OK)
        status = write_buffer(&join, at, err);
    if (status == TRF_OK)
        status = trf_packed8_head_get_info(&join.head, &made->info, err);
    if (status == TRF_OK)
        status = trf_packed8_set_buffer(made, &join.head, at, err);
    if (status != TRF_OK) {
        if (owned)
            layers[0]->context->ops->release(layers[0]->context, owned);
        else if (made) /* copies to the caller's memory may be queued */
            layers[0]->layout->check(layers[0], NULL);
        free(made);
        return status;
    }
    made->header = join.head.coded_header;
    made->memory = owned;
    *joined = made;
    return TRF_OK;
}
