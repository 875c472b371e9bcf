/* SPDX-License-Identifier: Apache-2.0 */
/* Makes layers on devices, from blobs in memory and from checkpoints, in the library's memory or the caller's. */
#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer.h"
#include "trf_layer_feed.h"
#include "trf_layout_head.h"
#include "trf_threads.h"
#include "trf_validate.h"

#include <stdlib.h>

/* ---- the caller's memory ---- */

/* Checks one buffer. alignment: the device's. */
static trf_status check_buffer(const char *what, const void *at, uint64_t bytes, uint64_t needed, uint32_t alignment,
                               trf_error *err) {
    if ((uintptr_t)at % alignment)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "memory for a layer's %s is not %u-byte aligned", what,
                        alignment);
    if (bytes < needed)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%llu bytes of memory for a layer's %s of %llu",
                        (unsigned long long)bytes, what, (unsigned long long)needed);
    return TRF_OK;
}

static int overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    const uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    return a_bytes && b_bytes && (first < second ? second - first < a_bytes : first - second < b_bytes);
}

trf_status trf_check_layer_memory(const trf_layer_memory *memory, const trf_layer_size *size,
                                  const trf_given_buffer *given, uint32_t alignment, int in_place, trf_error *err) {
    const uint64_t directory_bytes = memory->directory ? size->directory_bytes : 0;
    if (!memory->buffer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "memory for a layer without a place for its buffer");
    if (!memory->directory && size->directory_bytes && !in_place)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "memory for a layer without a place for its directory");
    trf_status status =
        check_buffer("buffer", memory->buffer, memory->buffer_bytes, size->buffer_bytes, alignment, err);
    if (status == TRF_OK && directory_bytes)
        status = check_buffer("directory", memory->directory, memory->directory_bytes, directory_bytes, alignment, err);
    if (status != TRF_OK)
        return status;
    if (overlap(memory->buffer, size->buffer_bytes, memory->directory, directory_bytes) ||
        overlap(given->at, given->bytes, memory->directory, directory_bytes) ||
        (!in_place && overlap(given->at, given->bytes, memory->buffer, size->buffer_bytes)))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "memory for a layer overlaps itself or the given buffer");
    return TRF_OK;
}

/* Takes the host memory in which a layer is decoded on the CPU: a tile for each thread, and before it is packed all of
 * its weights and their FP8 codes. */
static trf_status take_decoding(trf_layer_feed *feed, trf_layout layout, trf_error *err) {
    const uint64_t weights = (uint64_t)feed->shard.rows * feed->shard.cols, tiles = feed->view->num_tiles,
                   threads = (uint64_t)trf_thread_count(feed->threads),
                   tile = TRF_MAX_TILE_BYTES + 2 * TRF_TILE_SIZE * TRF_TILE_SIZE * sizeof(uint16_t),
                   dense = layout == TRF_LAYOUT_PLAIN ? 0 : 3 * weights + weights / 1024;
    return trf_budget_take(&feed->budget, (threads < tiles ? threads : tiles) * tile + dense, "decoding a layer", err);
}

/* Finds the memory that `fill` is to use. A blob that is on the device and is loaded as it is stays where it lies,
 * unless the caller supplies another place for it. */
static trf_status find_memory(const trf_context *context, const trf_layout_ops *layout, trf_layer_feed *feed,
                              const trf_given_buffer *given, const trf_load_options *options, trf_layer_memory *memory,
                              trf_error *err) {
    trf_layer_size size;
    const int may_stay = given->at && options->buffer_is_on_device && feed->is_whole && !layout->adopt;
    trf_status status = layout->get_size(feed->view, &feed->shard, &size, err);
    if (status == TRF_OK)
        status = trf_layer_feed_check_device(feed, size.buffer_bytes + size.directory_bytes, err);
    if (status == TRF_OK && context->device == TRF_DEVICE_CPU && layout->layout != TRF_LAYOUT_CODED)
        status = take_decoding(feed, layout->layout, err);
    if (status != TRF_OK)
        return status;
    *memory = options->memory;
    if (may_stay && !memory->buffer) {
        memory->buffer = (void *)given->at; /* nobody writes to it */
        memory->buffer_bytes = given->bytes;
    }
    if (!trf_has_memory(memory))
        return TRF_OK;
    return trf_check_layer_memory(memory, &size, given, context->ops->alignment,
                                  may_stay && memory->buffer == given->at, err);
}

/* ---- making layers ---- */

trf_status trf_begin_device_layer(trf_context *context, const trf_layout_ops *layout, trf_device_layer **layer,
                                  trf_error *err) {
    trf_device_layer *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a layer");
    made->context = context;
    made->device = context->device;
    made->layout = layout;
    *layer = made;
    return TRF_OK;
}

void trf_set_device_layer_info(const trf_blob_view *view, const trf_shard_range *shard, trf_device_layer *layer) {
    trf_blob_get_info(view, &layer->info);
    layer->header = view->header;
    layer->shard = *shard;
    layer->info.rows = shard->rows;
    layer->info.cols = shard->cols;
    trf_forget_scaled_fp8(layer);
}

void trf_forget_scaled_fp8(trf_device_layer *layer) {
    if (layer->layout->layout == TRF_LAYOUT_CODED || !trf_is_scaled_fp8(layer->info.codec, layer->info.dtype))
        return;
    layer->header = trf_layout_bf16_header(layer->header.rows, layer->header.cols);
    layer->info = trf_layout_coded_info(&layer->header, layer->info.rows, layer->info.cols);
}

/* Makes a layer of what a feed loads, and closes the feed. */
static trf_status make_device_layer(trf_context *context, trf_layer_feed *feed, const trf_given_buffer *given,
                                    const trf_load_options *options, trf_device_layer **layer, trf_error *err) {
    trf_layer_memory memory;
    trf_device_layer *made = NULL;
    const trf_layout_ops *layout;
    trf_status status = trf_find_layout(context, options->layout, &layout, err);
    if (status == TRF_OK)
        status = find_memory(context, layout, feed, given, options, &memory, err);
    if (status == TRF_OK)
        status = trf_begin_device_layer(context, layout, &made, err);
    if (status == TRF_OK) {
        trf_set_device_layer_info(feed->view, &feed->shard, made);
        made->is_to_be_bf16 = options->packed_bf16;
        status = layout->fill(made, feed, &memory, err);
    }
    if (status == TRF_OK)
        *layer = made;
    else {
        free(made);
        trf_layer_feed_fail(feed, status, err);
    }
    trf_layer_feed_close(feed);
    return status;
}

/* Computes the memory that a feed's layer takes, and closes the feed. */
static trf_status get_size_of_feed(const trf_context *context, const trf_load_options *options, trf_layer_feed *feed,
                                   trf_layer_size *size, trf_error *err) {
    trf_layer_size found;
    const trf_layout_ops *layout;
    trf_status status = trf_find_layout(context, options->layout, &layout, err);
    if (status == TRF_OK)
        status = layout->get_size(feed->view, &feed->shard, &found, err);
    if (status == TRF_OK)
        *size = found;
    else
        trf_layer_feed_fail(feed, status, err);
    trf_layer_feed_close(feed);
    return status;
}

/* ---- buffers in the device's memory that are a layer already ---- */

static trf_status check_alignment(const trf_given_buffer *buffer, uint32_t alignment, trf_error *err) {
    if ((uintptr_t)buffer->at % alignment)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the buffer is not %u-byte aligned", alignment);
    return TRF_OK;
}

/* *layout is the options' layout if the given buffer is on the device and has a layout's head; else NULL. The head says
 * which of the two layouts it has that PACKED may become. Blobs are not examined here: opening them does that. */
static trf_status look_for_head(const trf_context *context, const trf_given_buffer *given,
                                const trf_load_options *options, const trf_layout_ops **layout, trf_error *err) {
    trf_layout_head_common head = {0};
    const trf_layout_ops *wanted;
    *layout = NULL;
    trf_status status = trf_find_layout(context, options->layout, &wanted, err);
    if (status != TRF_OK || !options->buffer_is_on_device || !wanted->adopt || given->bytes < sizeof head)
        return status;
    status = check_alignment(given, context->ops->alignment, err);
    if (status == TRF_OK)
        status = context->ops->download(context, &head, given->at, sizeof head, err);
    if (status == TRF_OK && trf_is_layout_head(&head)) {
        *layout = wanted;
        if (wanted->layout == TRF_LAYOUT_PACKED && head.layout == TRF_LAYOUT_PACKED8)
            status = trf_find_layout(context, TRF_LAYOUT_PACKED8, layout, err);
    }
    return status;
}

/* Checks that the options ask for nothing but the buffer as it is, where it lies. */
static trf_status check_adoption(const trf_device_layer *made, const trf_given_buffer *given,
                                 const trf_load_options *options, trf_error *err) {
    const trf_layer_info *info = &made->info;
    if (options->memory.buffer && options->memory.buffer != given->at)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a %s layer's buffer is used where it lies",
                        trf_layout_name(options->layout));
    if (options->memory.buffer && options->memory.buffer_bytes < made->view.buffer_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%llu bytes of memory for a layer's buffer of %llu",
                        (unsigned long long)options->memory.buffer_bytes, (unsigned long long)made->view.buffer_bytes);
    if (made->layout->layout == TRF_LAYOUT_PACKED8 && options->layout == TRF_LAYOUT_PACKED && options->packed_bf16)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "the buffer is of layout 'packed8', and is not made packed BF16 (packed_bf16)");
    if (options->first_row || options->first_col || options->num_row_ranges ||
        (options->num_rows && options->num_rows != info->rows) ||
        (options->num_cols && options->num_cols != info->cols))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a %s layer's buffer is used whole",
                        trf_layout_name(options->layout));
    return TRF_OK;
}

/* Checks that the limits allow a buffer that becomes a layer where it lies. */
static trf_status check_given(const trf_load_options *options, uint64_t bytes, trf_error *err) {
    trf_limits limits;
    trf_status status = trf_take_limits(options->limits, &limits, err);
    if (status != TRF_OK || !limits.max_device_bytes || bytes <= limits.max_device_bytes)
        return status;
    return trf_fail(err, TRF_ERR_LIMIT, TRF_NO_OFFSET, "max_device_bytes is %llu, and the buffer has %llu bytes",
                    (unsigned long long)limits.max_device_bytes, (unsigned long long)bytes);
}

static trf_status adopt_layer(trf_context *context, const trf_layout_ops *layout, const trf_given_buffer *given,
                              const trf_load_options *options, trf_device_layer **layer, trf_error *err) {
    trf_device_layer *made = NULL;
    trf_status status = trf_begin_device_layer(context, layout, &made, err);
    if (status != TRF_OK)
        return status;
    status = layout->adopt(made, given->at, given->bytes, err);
    if (status == TRF_OK)
        status = check_adoption(made, given, options, err);
    if (status == TRF_OK)
        *layer = made;
    else
        free(made);
    return status;
}

/* Does what trf_device_layer_get_size does. */
static trf_status get_size_of_buffer(const trf_context *context, const trf_layout_ops *layout,
                                     const trf_given_buffer *given, const trf_load_options *options,
                                     trf_layer_size *size, trf_error *err) {
    trf_device_layer *layer = NULL;
    trf_status status = adopt_layer((trf_context *)context, layout, given, options, &layer, err); /* the layer is not
                                                                                                   * kept */
    if (status != TRF_OK)
        return status;
    *size = (trf_layer_size){.buffer_bytes = layer->view.buffer_bytes};
    free(layer);
    return TRF_OK;
}

/* ---- the public functions ---- */

static trf_status open_blob(const trf_context *context, const trf_given_buffer *given, const trf_load_options *options,
                            trf_layer_feed *feed, trf_error *err) {
    trf_status status =
        check_alignment(given, options->buffer_is_on_device ? context->ops->alignment : TRF_ALIGNMENT, err);
    if (status != TRF_OK)
        return status;
    if (options->buffer_is_on_device)
        return context->ops->open_device_blob(context, given->at, given->bytes, options, feed, err);
    return trf_layer_feed_open_memory(given->at, given->bytes, options, feed, err);
}

trf_status trf_device_layer_get_size(const trf_context *context, const void *buffer, uint64_t buffer_bytes,
                                     const trf_load_options *options, trf_layer_size *size, trf_error *err) {
    trf_load_options taken;
    trf_layer_feed feed;
    const trf_given_buffer given = {buffer, buffer_bytes};
    const trf_layout_ops *adopts = NULL;
    if (!context || !buffer || !size)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer's size needs a context and a buffer");
    trf_status status = trf_take_load_options(options, &taken, err);
    if (status == TRF_OK)
        status = look_for_head(context, &given, &taken, &adopts, err);
    if (status == TRF_OK && adopts)
        return get_size_of_buffer(context, adopts, &given, &taken, size, err);
    if (status == TRF_OK)
        status = open_blob(context, &given, &taken, &feed, err);
    return status == TRF_OK ? get_size_of_feed(context, &taken, &feed, size, err) : status;
}

trf_status trf_device_layer_get_load_size(const trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                                          const trf_load_options *options, trf_layer_size *size, trf_error *err) {
    trf_load_options taken;
    trf_layer_feed feed;
    if (!context || !checkpoint || !tensor || !size)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "a layer's size needs a context, a checkpoint and a name");
    trf_status status = trf_take_load_options(options, &taken, err);
    if (status == TRF_OK)
        status = trf_layer_feed_open_tensor(checkpoint, tensor, &taken, &feed, err);
    return status == TRF_OK ? get_size_of_feed(context, &taken, &feed, size, err) : status;
}

trf_status trf_device_layer_create(trf_context *context, const void *buffer, uint64_t buffer_bytes,
                                   const trf_load_options *options, trf_device_layer **layer, trf_error *err) {
    trf_load_options taken;
    trf_layer_feed feed;
    const trf_given_buffer given = {buffer, buffer_bytes};
    const trf_layout_ops *adopts = NULL;
    if (!context || !buffer || !layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer on a device needs a context and a buffer");
    trf_status status = trf_take_load_options(options, &taken, err);
    if (status == TRF_OK)
        status = look_for_head(context, &given, &taken, &adopts, err);
    if (status == TRF_OK && adopts)
        status = check_given(&taken, buffer_bytes, err);
    if (status == TRF_OK && adopts)
        return adopt_layer(context, adopts, &given, &taken, layer, err);
    if (status == TRF_OK)
        status = open_blob(context, &given, &taken, &feed, err);
    return status == TRF_OK ? make_device_layer(context, &feed, &given, &taken, layer, err) : status;
}

trf_status trf_device_layer_load(trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                                 const trf_load_options *options, trf_device_layer **layer, trf_error *err) {
    static const trf_given_buffer none;
    trf_load_options taken;
    trf_layer_feed feed;
    if (!context || !checkpoint || !tensor || !layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "loading a layer needs a context, a checkpoint and a name");
    trf_status status = trf_take_load_options(options, &taken, err);
    if (status == TRF_OK)
        status = trf_layer_feed_open_tensor(checkpoint, tensor, &taken, &feed, err);
    return status == TRF_OK ? make_device_layer(context, &feed, &none, &taken, layer, err) : status;
}
