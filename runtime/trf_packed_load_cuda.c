/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers on a GPU, loaded or made of ones that are there. A part of a coded layer (trf_transcode_cuda.h) is
 * decoded to dense rows, and the packed bands that are whole by then are packed from there:
 *
 *   dense    64 rows  |  a part's rows
 *              [left] |  [part ....................]      left: rows of the band that the part before began
 *
 * What is left over is copied in front of the next part, so that a band's rows lie one behind the other. A shard's
 * bands begin with its first row, wherever that is in its part.
 *
 * A layer that is on the device, of whole bands and regular slabs, is packed straight from its slabs, if no tile has to
 * be stored. */
#include "trf_cuda_call.h"
#include "trf_decode_launch.h"
#include "trf_device_cuda.h"
#include "trf_nvtx.h"
#include "trf_pack_launch.h"
#include "trf_packed_layer.h"
#include "trf_packed_layer_cuda.h"
#include "trf_packed_sample.h"
#include "trf_packed_sample_cuda.h"
#include "trf_plain_layer.h"
#include "trf_staging_cuda.h"
#include "trf_transcode_cuda.h"
#include "trf_transcode_launch.h"

#include <cuda_runtime_api.h>

enum {
    PART_BYTES = 64 << 20 /* dense, of a layer that is on the device */
};

typedef struct trf_packed_target {
    const trf_shard_range *shard; /* of all parts' rows and columns */
    uint32_t cols;                /* of a part */
    trf_packed_head head;         /* as if all stored tiles that there is room for were there */
    trf_packed_view view;         /* of that */
    uint16_t *dense;              /* [64 rows and those of a part][cols] */
    trf_pack_state *state;
    uint32_t packed; /* the shard's rows that are packed already */
    uint32_t left;   /* rows in front of the next part that are not */
} trf_packed_target;

/* Packs what is whole of `count` rows of the shard from `rows` on, and keeps the rest in front of `part`. */
static int pack_rows(trf_packed_target *target, const uint16_t *rows, uint32_t count, uint16_t *part,
                     trf_stream stream) {
    const trf_shard_range *shard = target->shard;
    const uint64_t cols = target->cols;
    const int is_last = target->packed + count == shard->rows;
    const uint32_t now = is_last ? count : count / TRF_PACKED_TILE_ROWS * TRF_PACKED_TILE_ROWS;
    const trf_pack_rows range = {rows + shard->col, cols, target->packed, now, shard->cols};
    int error = now ? trf_launch_pack(&target->view, &range, target->state, stream) : 0;
    target->packed += now;
    target->left = count - now;
    if (!error && target->left)
        error = cudaMemcpyAsync(part - target->left * cols, rows + now * cols, 2 * target->left * cols,
                                cudaMemcpyDeviceToDevice, stream);
    return error;
}

/* A trf_take_part_fn. */
static trf_status pack_part(void *context, const trf_coded_part *coded, trf_stream stream, trf_error *err) {
    trf_packed_target *target = context;
    if (!coded) /* behind the last one */
        return TRF_OK;
    const trf_shard_range *shard = target->shard;
    const uint64_t cols = target->cols;
    uint16_t *const part = target->dense + TRF_PACKED_TILE_ROWS * cols;
    const uint32_t end = coded->first_row + coded->view.rows, shard_end = shard->row + shard->rows;
    const uint32_t skipped = coded->first_row < shard->row ? shard->row - coded->first_row : 0; /* left is 0 then */
    const uint32_t rows = (end < shard_end ? end : shard_end) - coded->first_row;
    int error = trf_launch_decode_layer(&coded->view, &coded->traits, TRF_DECODE_ELEMENTS, part, stream);
    if (!error && rows > skipped)
        error =
            pack_rows(target, part + skipped * cols - target->left * cols, rows - skipped + target->left, part, stream);
    return trf_check_cuda(error, "packing a part of a layer", err);
}

/* ---- before and behind ---- */

/* Lays out a layer with room for as many stored tiles as it may have. */
static trf_status lay_out(trf_packed_target *target, const trf_packed_shape *shape, trf_packed_window window,
                          uint8_t *buffer, trf_error *err) {
    trf_status status = trf_packed_size_most(shape, &target->head, err);
    if (status != TRF_OK)
        return status;
    trf_packed_head_set_window(&target->head, window);
    target->view = trf_packed_view_of(&target->head, buffer);
    return TRF_OK;
}

/* part_rows: of the largest part; 0: there are none. */
static trf_status allocate(trf_packed_target *target, uint32_t part_rows, trf_error *err) {
    const uint64_t rows = (uint64_t)TRF_PACKED_TILE_ROWS + part_rows;
    trf_status status = trf_cuda_allocate_here(sizeof *target->state, (void **)&target->state, err);
    if (status == TRF_OK && part_rows)
        status = trf_cuda_allocate_here(sizeof *target->dense * rows * target->cols, (void **)&target->dense, err);
    return status;
}

static void release(trf_packed_target *target) {
    cudaFree(target->dense);
    cudaFree(target->state);
}

/* Queues all but the head and what is packed: row offsets, the zeros behind them and behind the lines, and a state.
 * row_offsets: of the shard's rows, on the host, where they stay, or on the device. */
static trf_status write_rest(const trf_packed_target *target, uint8_t *buffer, const int8_t *row_offsets,
                             cudaStream_t stream, trf_error *err) {
    const trf_packed_head *head = &target->head;
    const uint64_t lines_end = head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES,
                   offsets_bytes = head->lines_offset - sizeof *head;
    cudaError_t error = cudaMemsetAsync(target->state, 0, sizeof *target->state, stream);
    if (!error && head->tiles_offset > lines_end)
        error = cudaMemsetAsync(buffer + lines_end, 0, head->tiles_offset - lines_end, stream);
    if (!error && offsets_bytes)
        error = cudaMemsetAsync(buffer + sizeof *head, 0, offsets_bytes, stream);
    if (!error && offsets_bytes)
        error = cudaMemcpyAsync(buffer + head->row_offsets_offset, row_offsets, head->rows, cudaMemcpyDefault, stream);
    return trf_check_cuda(error, "packing a layer", err);
}

/* What packing came to: the layer's head, or why it cannot be packed. */
static trf_status judge_state(trf_packed_target *target, trf_pack_state state, trf_error *err) {
    trf_packed_head *head = &target->head;
    const int has_row_offsets = head->row_offsets_offset != 0;
    uint32_t row, col;
    trf_status status = TRF_OK;
    if (trf_pack_inexact(&state, target->view.lines_per_band, &row, &col))
        status = trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                          "the weight in row %u, column %u is no BF16 in the scale of the exponents from %u on", row,
                          col, head->base);
    else if (state.num_stored > head->num_stored)
        status =
            trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                     "packed, %llu of %llu tiles would have to be stored: more than %d bits a weight",
                     (unsigned long long)state.num_stored, (unsigned long long)head->num_tiles, TRF_PACKED_MAX_BITS);
    if (status != TRF_OK)
        return trf_packed_fail(status, err);
    head->num_records = state.num_records;
    return trf_size_packed(head->rows, head->cols, has_row_offsets, state.num_stored, head, err);
}

/* Completes a buffer of which all is packed. The head comes last: a buffer that has one is whole. */
static trf_status complete(trf_device_layer *made, trf_packed_target *target, trf_pack_state state, uint8_t *buffer,
                           trf_error *err) {
    trf_status status = judge_state(target, state, err);
    if (status != TRF_OK)
        return status;
    trf_packed_head_set_source(&target->head, &made->header, &made->info);
    status = trf_check_cuda(cudaMemcpy(buffer, &target->head, sizeof target->head, cudaMemcpyHostToDevice),
                            "packing a layer", err);
    if (status == TRF_OK)
        trf_packed_set_buffer(made, &target->head, buffer);
    return status;
}

static trf_status finish(trf_device_layer *made, trf_packed_target *target, uint8_t *buffer, trf_error *err) {
    trf_pack_state state;
    trf_status status = trf_cuda_copy_back(made->context->copier, &state, target->state, sizeof state, err);
    return status == TRF_OK ? complete(made, target, state, buffer, err) : status;
}

/* ---- loading ---- */

/* buffer: as large as trf_packed_get_size says. */
static trf_status fill_buffer(trf_device_layer *made, trf_layer_feed *feed, uint8_t *buffer, trf_error *err) {
    const trf_context *context = made->context;
    const trf_packed_shape shape = trf_packed_shape_of_shard(feed->view, &feed->shard);
    const int8_t *offsets = feed->view->row_offsets;
    trf_packed_target target = {.shard = &feed->shard, .cols = feed->view->header.cols};
    trf_packed_window window;
    trf_status status = trf_packed_sample_window(feed, &window, err);
    if (status == TRF_OK)
        status = lay_out(&target, &shape, window, buffer, err);
    if (status == TRF_OK)
        status = allocate(&target, trf_most_part_rows(feed->view), err);
    if (status == TRF_OK)
        status = write_rest(&target, buffer, offsets ? offsets + feed->shard.row : NULL,
                            trf_cuda_copier_work_stream(context->copier), err);
    if (status == TRF_OK)
        status = trf_cuda_transcode(context, feed, pack_part, &target, err);
    if (status == TRF_OK)
        status = finish(made, &target, buffer, err);
    release(&target);
    return status;
}

/* Moves a layer from memory that has room for more to as much as it takes; where there is none, it stays. */
static void fit_memory(trf_device_layer *made, uint64_t room) {
    void *fitted;
    const uint64_t bytes = made->view.blob_bytes;
    made->memory_bytes = room;
    if (bytes == room || trf_cuda_allocate_here(bytes, &fitted, NULL) != TRF_OK)
        return;
    trf_packed_head head;
    if (cudaMemcpy(fitted, made->memory, bytes, cudaMemcpyDeviceToDevice) != cudaSuccess ||
        cudaMemcpy(&head, fitted, sizeof head, cudaMemcpyDeviceToHost) != cudaSuccess) {
        cudaFree(fitted);
        return;
    }
    cudaFree(made->memory);
    made->memory = fitted;
    trf_packed_set_buffer(made, &head, fitted);
}

/* ---- converting ---- */

/* All rows of a plain layer. */
static trf_status pack_plain(const trf_device_layer *source, const trf_packed_target *target, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(source->context->copier);
    const trf_pack_rows rows = {trf_plain_weights(source), source->info.cols, 0, source->info.rows, source->info.cols};
    int error = trf_launch_pack(&target->view, &rows, target->state, stream);
    if (!error)
        error = cudaStreamSynchronize(stream);
    return trf_check_cuda(error, "packing a layer", err);
}

/* As many as give all multiprocessors several slabs for each warp. */
static uint32_t part_tile_rows(const trf_device_view *view) {
    const uint64_t row_bytes = sizeof(uint16_t) * TRF_TILE_SIZE * view->cols,
                   fit = PART_BYTES / row_bytes < 1 ? 1 : PART_BYTES / row_bytes;
    return fit < view->num_tile_rows ? (uint32_t)fit : view->num_tile_rows;
}

/* As fill_buffer, by way of dense rows. */
static trf_status convert_dense(trf_device_layer *made, const trf_device_layer *source, trf_packed_window window,
                                uint8_t *buffer, trf_error *err) {
    const int is_plain = source->layout->layout == TRF_LAYOUT_PLAIN;
    const trf_packed_shape shape = trf_packed_shape_of_layer(source);
    const int8_t *offsets = source->view.row_offsets;
    const uint32_t tile_rows = is_plain ? 0 : part_tile_rows(&source->view);
    trf_packed_target target = {.shard = &source->shard, .cols = source->view.cols};
    trf_status status = lay_out(&target, &shape, window, buffer, err);
    if (status == TRF_OK)
        status = allocate(&target, tile_rows * TRF_TILE_SIZE, err);
    if (status == TRF_OK)
        status = write_rest(&target, buffer, offsets ? offsets + source->shard.row : NULL,
                            trf_cuda_copier_work_stream(made->context->copier), err);
    if (status == TRF_OK)
        status = is_plain ? pack_plain(source, &target, err)
                          : trf_cuda_transcode_layer(source, tile_rows, pack_part, &target, err);
    if (status == TRF_OK)
        status = finish(made, &target, buffer, err);
    release(&target);
    return status;
}

/* ---- memory, of loads and conversions ---- */

/* What a buffer is filled from: a feed, or a layer with the window that it is packed with. */
typedef struct trf_packed_source {
    trf_layer_feed *feed;
    const trf_device_layer *layer;
    trf_packed_window window;
} trf_packed_source;

/* room: bytes of the largest layer that it may become. */
static trf_status make_packed(trf_device_layer *made, const trf_packed_source *source, const trf_layer_memory *memory,
                              uint64_t room, trf_error *err) {
    uint8_t *buffer = memory->blob;
    trf_status status = TRF_OK;
    if (!buffer) {
        status = trf_cuda_allocate_here(room, &made->memory, err);
        buffer = made->memory;
    }
    if (status == TRF_OK)
        status = source->feed ? fill_buffer(made, source->feed, buffer, err)
                              : convert_dense(made, source->layer, source->window, buffer, err);
    if (status != TRF_OK)
        cudaFree(made->memory);
    else if (made->memory)
        fit_memory(made, room);
    return status;
}

trf_status trf_cuda_fill_packed_layer(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                                      trf_error *err) {
    const trf_packed_source source = {.feed = feed};
    trf_layer_size size;
    trf_device_scope scope;
    trf_status status = trf_packed_get_size(feed->view, &feed->shard, &size, err);
    if (status == TRF_OK)
        status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("load");
    status = make_packed(made, &source, memory, size.blob_bytes, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

/* ---- straight from the slabs ---- */

/* What is on the device beside the two layers: scratch of the kernels, which the caller's memory has room for, since it
 * is there for stored tiles. */
typedef struct trf_direct {
    trf_packed_target target; /* without room for stored tiles */
    uint8_t *buffer, *scratch;
    void *own_scratch, *state; /* to be released */
} trf_direct;

static trf_status begin_direct(trf_direct *direct, trf_device_layer *made, const trf_layer_memory *memory,
                               trf_error *err) {
    trf_packed_target *target = &direct->target;
    const uint64_t bytes = target->head.common.buffer_bytes, scratch_bytes = trf_transcode_scratch_bytes(&target->view);
    trf_status status = trf_cuda_allocate_here(sizeof *target->state, &direct->state, err);
    direct->buffer = memory->blob;
    if (status == TRF_OK && !direct->buffer) {
        status = trf_cuda_allocate_here(bytes, &made->memory, err);
        direct->buffer = made->memory;
    } else if (status == TRF_OK && memory->blob_bytes - bytes >= scratch_bytes) {
        direct->scratch = direct->buffer + bytes;
    }
    if (status == TRF_OK && !direct->scratch) {
        status = trf_cuda_allocate_here(scratch_bytes, &direct->own_scratch, err);
        direct->scratch = direct->own_scratch;
    }
    target->state = direct->state;
    target->view = trf_packed_view_of(&target->head, direct->buffer);
    return status;
}

/* Queues it, and waits. */
static trf_status run_direct(const trf_direct *direct, const trf_device_layer *source, trf_pack_state *state,
                             trf_error *err) {
    const trf_packed_target *target = &direct->target;
    const cudaStream_t stream = trf_cuda_copier_work_stream(source->context->copier);
    const trf_transcode_memory memory = {direct->scratch, target->state};
    trf_status status = write_rest(target, direct->buffer, NULL, stream, err);
    if (status != TRF_OK)
        return status;
    int error = trf_launch_transcode(&source->view, &source->traits, &target->view, &memory, stream);
    if (!error)
        error = cudaMemcpyAsync(state, target->state, sizeof *state, cudaMemcpyDeviceToHost, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is released */
    status = trf_check_cuda(error ? error : waited, "packing a layer", err);
    return status == TRF_OK ? trf_cuda_check_layer(source, err) : status;
}

/* Packs straight from the slabs, if no tile has to be stored. *done: whether that was so. */
static trf_status convert_directly(trf_device_layer *made, const trf_device_layer *source, trf_packed_window window,
                                   const trf_layer_memory *memory, int *done, trf_error *err) {
    trf_direct direct = {.target = {.shard = &source->shard, .cols = source->view.cols}};
    trf_packed_head *head = &direct.target.head;
    trf_pack_state state = {0};
    trf_status status = trf_size_packed(source->info.rows, source->info.cols, 0, 0, head, err);
    if (status != TRF_OK)
        return trf_packed_fail(status, err);
    trf_packed_head_set_window(head, window);
    direct.target.view = trf_packed_view_of(head, NULL);
    status = begin_direct(&direct, made, memory, err);
    if (status == TRF_OK)
        status = run_direct(&direct, source, &state, err);
    *done = status != TRF_OK || state.num_stored == 0;
    if (status == TRF_OK && *done)
        status = complete(made, &direct.target, state, direct.buffer, err);
    cudaFree(direct.own_scratch);
    cudaFree(direct.state);
    if (status != TRF_OK || !*done) {
        cudaFree(made->memory);
        made->memory = NULL;
    }
    return status;
}

static int is_direct(const trf_device_layer *source) {
    return source->layout->layout == TRF_LAYOUT_CODED && !trf_shard_cuts_rows(source) && !trf_shard_cuts_cols(source) &&
           trf_can_transcode(&source->view, &source->traits);
}

static trf_status convert(trf_device_layer *made, const trf_device_layer *layer, const trf_layer_memory *memory,
                          uint64_t room, trf_error *err) {
    trf_packed_source source = {.layer = layer};
    int done = 0;
    trf_status status = trf_cuda_sample_window(layer, &source.window, err);
    if (status == TRF_OK && is_direct(layer))
        status = convert_directly(made, layer, source.window, memory, &done, err);
    return status == TRF_OK && !done ? make_packed(made, &source, memory, room, err) : status;
}

trf_status trf_cuda_convert_to_packed(trf_device_layer *made, const trf_device_layer *source,
                                      const trf_layer_memory *memory, trf_error *err) {
    trf_layer_size size;
    trf_device_scope scope;
    trf_status status = trf_packed_get_converted_size(source, &size, err);
    if (status == TRF_OK)
        status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("convert");
    status = convert(made, source, memory, size.blob_bytes, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}
