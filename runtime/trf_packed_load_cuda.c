/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers on a GPU, loaded or made of ones that are there. A coded layer goes in parts (trf_packed_maker_cuda.c
 * says which way); one that is on the device, of whole bands and regular slabs, in one launch, if no tile has to be
 * stored. */
#include "trf_cuda_call.h"
#include "trf_device_cuda.h"
#include "trf_nvtx.h"
#include "trf_packed_layer_cuda.h"
#include "trf_packed_maker_cuda.h"
#include "trf_packed_sample_cuda.h"
#include "trf_plain_layer.h"
#include "trf_staging_cuda.h"

#include <cuda_runtime_api.h>

enum {
    PART_BYTES = 64 << 20, /* dense, of a layer that is on the device */
    REGULAR_COLS = 64      /* of which those of regular slabs are multiples */
};

/* ---- loading ---- */

/* Whether all parts of what is loaded are packed straight from their slabs, as far as its head tells. */
static int may_be_direct(const trf_layer_feed *feed) {
    const trf_header *header = &feed->view->header;
    return !feed->view->row_offsets && feed->shard.rows == header->rows && feed->shard.cols == header->cols &&
           header->rows % TRF_PACKED_TILE_ROWS == 0 && header->cols % REGULAR_COLS == 0;
}

/* What is loaded, and what a load needs beside its maker. */
typedef struct trf_packed_load {
    trf_packed_maker *maker;
    trf_layer_feed *feed;
    const trf_layer_memory *memory;
} trf_packed_load;

/* As trf_part_taker has them. */
static trf_status begin(void *context, const trf_load_scratch *scratch, uint8_t *memory, trf_error *err) {
    const trf_packed_load *load = context;
    return trf_packed_maker_use(load->maker, scratch, memory, trf_most_part_rows(load->feed->view), err);
}

static trf_status take_part(void *context, const trf_coded_part *part, trf_stream stream, trf_error *err) {
    const trf_packed_load *load = context;
    return trf_packed_maker_take_part(load->maker, part, stream, err);
}

static void end(void *context) {
    const trf_packed_load *load = context;
    trf_packed_maker_read_results(load->maker);
}

static trf_status look(const trf_packed_load *load, uint64_t number, trf_error *err) {
    trf_staging *const staging = load->maker->made->context->staging;
    uint8_t *bytes = trf_staging_take_scratch(staging), *elements = trf_staging_take_scratch(staging);
    trf_status status = TRF_OK;
    if (bytes && elements)
        trf_packed_sample_look(load->maker->sample, number, bytes, (uint16_t *)elements);
    else
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %d bytes to look at a tile",
                          2 * TRF_STAGING_SCRATCH_BYTES);
    trf_staging_give_scratch(staging, bytes);
    trf_staging_give_scratch(staging, elements);
    return status;
}

/* The layer's memory, for which others need not wait, and the tiles of the sample. */
static trf_status prepare(void *context, uint64_t number, trf_error *err) {
    const trf_packed_load *load = context;
    const trf_layer_feed *feed = load->feed;
    const int8_t *offsets = feed->view->row_offsets;
    if (number > 0)
        return look(load, number - 1, err);
    return trf_packed_maker_begin(load->maker, load->memory, !may_be_direct(feed),
                                  offsets ? offsets + feed->shard.row : NULL, err);
}

static trf_status run_load(trf_packed_load *load, trf_error *err) {
    trf_packed_maker *maker = load->maker;
    trf_status status = trf_packed_sample_create(load->feed, &maker->sample, err);
    if (status != TRF_OK)
        return status;
    const trf_part_taker taker = {.take = take_part,
                                  .context = load,
                                  .begin = begin,
                                  .memory_bytes =
                                      trf_packed_maker_memory_bytes(maker, trf_most_part_rows(load->feed->view)),
                                  .preparations = 1 + trf_packed_sample_tiles(maker->sample),
                                  .prepare = prepare,
                                  .end = end};
    status = trf_cuda_transcode(maker->made->context, load->feed, &taker, err);
    return status == TRF_OK ? trf_packed_maker_complete(maker, err) : status;
}

trf_status trf_cuda_fill_packed_layer(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                                      trf_error *err) {
    trf_packed_maker maker = {.made = made,
                              .shard = &feed->shard,
                              .cols = feed->view->header.cols,
                              .request = trf_pack_request_of_shard(feed->view, &feed->shard)};
    trf_packed_load load = {&maker, feed, memory};
    trf_device_scope scope;
    trf_status status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("load");
    status = run_load(&load, err);
    trf_packed_maker_release(&maker, status);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

/* ---- converting ---- */

static trf_packed_maker maker_of(trf_device_layer *made, const trf_device_layer *from, trf_packed_window window) {
    return (trf_packed_maker){.made = made,
                              .shard = &from->shard,
                              .cols = from->view.cols,
                              .request = trf_pack_request_of_layer(from),
                              .window = window};
}

/* All rows of dense weights. */
static trf_status pack_rows(const trf_rows_to_pack *rows, trf_packed_maker *maker, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(maker->made->context->copier);
    trf_status status = trf_packed_maker_take_scratch(maker, 0, err);
    if (status != TRF_OK)
        return status;
    int error = trf_launch_pack(&maker->view, rows, &maker->device_results->state, stream);
    if (!error)
        error = trf_packed_maker_fetch(maker, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is released */
    return trf_check_cuda(error ? error : waited, "packing a layer", err);
}

/* As many as give all multiprocessors several slabs for each warp. */
static uint32_t part_tile_rows(const trf_device_view *view) {
    const uint64_t row_bytes = sizeof(uint16_t) * TRF_TILE_SIZE * view->cols,
                   fit = PART_BYTES / row_bytes < 1 ? 1 : PART_BYTES / row_bytes;
    return fit < view->num_tile_rows ? (uint32_t)fit : view->num_tile_rows;
}

static trf_status pack_parts(const trf_device_layer *from, trf_packed_maker *maker, trf_error *err) {
    const uint32_t tile_rows = part_tile_rows(&from->view);
    trf_status status = trf_packed_maker_take_scratch(maker, tile_rows * TRF_TILE_SIZE, err);
    return status == TRF_OK ? trf_cuda_transcode_layer(from, tile_rows, trf_packed_maker_take_part, maker, err)
                            : status;
}

/* Completes the layer whose rows have been packed, if they have, and releases the maker. @return what it came to. */
static trf_status finish(trf_packed_maker *maker, trf_status status, trf_error *err) {
    if (status == TRF_OK) {
        trf_packed_maker_read_results(maker);
        status = trf_packed_maker_complete(maker, err);
    }
    trf_packed_maker_release(maker, status);
    return status;
}

/* From dense weights, with room for stored tiles. */
static trf_status pack_with_room(trf_device_layer *made, const trf_rows_to_pack *rows, trf_packed_window window,
                                 const trf_pack_options *options, trf_error *err) {
    trf_packed_maker maker = {.made = made,
                              .cols = rows->cols,
                              .request = {made->info.codec, rows->num_rows, rows->cols, 0},
                              .window = window,
                              .stored_room = options->stored_room,
                              .like = options->like ? &options->like->packed : NULL};
    trf_status status = trf_packed_maker_begin(&maker, &options->memory, 1, NULL, err);
    if (status == TRF_OK)
        status = pack_rows(rows, &maker, err);
    return finish(&maker, status, err);
}

/* From a coded layer, in parts, with room for stored tiles. */
static trf_status convert_with_room(trf_device_layer *made, const trf_device_layer *from, trf_packed_window window,
                                    const trf_layer_memory *memory, trf_error *err) {
    const int8_t *offsets = from->view.row_offsets;
    trf_packed_maker maker = maker_of(made, from, window);
    trf_status status = trf_packed_maker_begin(&maker, memory, 1, offsets ? offsets + from->shard.row : NULL, err);
    if (status == TRF_OK)
        status = pack_parts(from, &maker, err);
    return finish(&maker, status, err);
}

/* ---- in one launch ---- */

/* Queues it, and waits. */
static trf_status run_launch(const trf_packed_maker *maker, const trf_device_layer *from, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(from->context->copier);
    const trf_pack_coded_memory memory = {maker->kernel_scratch, &maker->device_results->counts,
                                          &maker->device_results->state};
    int error = trf_launch_pack_coded(&from->view, &from->traits, &maker->view, 0, &memory, stream);
    if (!error)
        error = trf_packed_maker_fetch(maker, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is released */
    trf_status status = trf_check_cuda(error ? error : waited, "packing a layer", err);
    return status == TRF_OK ? trf_cuda_check_layer(from, err) : status;
}

/* The kernels' scratch memory is the caller's where that has room for stored tiles, of which there are none then. */
static trf_status find_scratch(trf_packed_maker *maker, const trf_layer_memory *memory, trf_error *err) {
    const uint32_t rows = maker->request.rows;
    const uint64_t used = maker->head.stored_offset;
    const int has_space =
        memory->buffer && memory->buffer_bytes - used >= trf_pack_coded_scratch_bytes(rows, maker->cols);
    trf_status status = trf_packed_maker_take_scratch(maker, has_space ? 0 : rows, err);
    if (has_space)
        maker->kernel_scratch = maker->buffer + used;
    return status;
}

/* *done: whether the layer is packed: if no tile has to be stored. */
static trf_status convert_at_once(trf_device_layer *made, const trf_device_layer *from, trf_packed_window window,
                                  const trf_layer_memory *memory, int *done, trf_error *err) {
    trf_packed_maker maker = maker_of(made, from, window);
    trf_status status = trf_packed_maker_begin(&maker, memory, 0, NULL, err);
    if (status == TRF_OK)
        status = find_scratch(&maker, memory, err);
    if (status == TRF_OK)
        status = run_launch(&maker, from, err);
    *done = status != TRF_OK || maker.results->counts.num_left == 0;
    if (status == TRF_OK && *done) {
        maker.num_records = maker.results->counts.num_records;
        trf_packed_maker_read_results(&maker);
        status = trf_packed_maker_complete(&maker, err);
    }
    trf_packed_maker_release(&maker, *done ? status : TRF_ERR_UNSUPPORTED);
    return status;
}

static int is_direct(const trf_device_layer *from) {
    return from->layout->layout == TRF_LAYOUT_CODED && !trf_shard_cuts_rows(from) && !trf_shard_cuts_cols(from) &&
           trf_can_pack_coded(&from->view, &from->traits);
}

static trf_status convert(trf_device_layer *made, const trf_device_layer *layer, const trf_layer_memory *memory,
                          trf_error *err) {
    const uint32_t rows = layer->info.rows, cols = layer->info.cols;
    trf_packed_window window;
    int done = 0;
    trf_status status = trf_cuda_sample_window(layer, &window, err);
    if (status == TRF_OK && layer->layout->layout == TRF_LAYOUT_PLAIN) {
        const trf_rows_to_pack all = {trf_plain_weights(layer), cols, 0, rows, cols};
        const trf_pack_options options = {.memory = *memory};
        return pack_with_room(made, &all, window, &options, err);
    }
    if (status == TRF_OK && is_direct(layer))
        status = convert_at_once(made, layer, window, memory, &done, err);
    return status == TRF_OK && !done ? convert_with_room(made, layer, window, memory, err) : status;
}

trf_status trf_cuda_convert_to_packed(trf_device_layer *made, const trf_device_layer *from,
                                      const trf_layer_memory *memory, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("convert");
    status = convert(made, from, memory, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

/* ---- dense weights of the caller's ---- */

trf_status trf_cuda_pack(trf_device_layer *made, const trf_device_matrix *matrix, const trf_pack_options *options,
                         trf_error *err) {
    const trf_rows_to_pack rows = {matrix->weights, matrix->ld, 0, matrix->rows, matrix->cols};
    trf_packed_window window;
    trf_device_scope scope;
    trf_status status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("pack");
    /* For a window that is known, too: it has packing wait for what writes the weights. */
    status = trf_cuda_sample_rows(made->context, &rows, options->stream, &window, err);
    if (options->like)
        window = trf_packed_window_of_view(&options->like->packed);
    if (status == TRF_OK)
        status = pack_with_room(made, &rows, window, options, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}
