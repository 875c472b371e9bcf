/* SPDX-License-Identifier: Apache-2.0 */
/* Loading packed layers to a GPU. A part of a coded layer (trf_transcode_cuda.h) is decoded to dense rows, and the
 * packed bands that are whole by then are packed from there:
 *
 *   dense    64 rows  |  a part's rows
 *              [left] |  [part ....................]      left: rows of the band that the part before began
 *
 * What is left over is copied in front of the next part, so that a band's rows lie one behind the other. A shard's
 * bands begin with its first row, wherever that is in its part. */
#include "trf_cuda_call.h"
#include "trf_decode_launch.h"
#include "trf_device_cuda.h"
#include "trf_nvtx.h"
#include "trf_pack_launch.h"
#include "trf_packed_layer.h"
#include "trf_packed_layer_cuda.h"
#include "trf_packed_sample.h"
#include "trf_staging_cuda.h"
#include "trf_transcode_cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

typedef struct trf_packed_target {
    const trf_layer_feed *feed;
    trf_packed_head head; /* as if all stored tiles that there is room for were there */
    trf_packed_view view; /* of that */
    uint16_t *dense;      /* [64 rows and those of a part][feed's columns] */
    trf_pack_state *state;
    uint32_t packed; /* the shard's rows that are packed already */
    uint32_t left;   /* rows in front of the next part that are not */
} trf_packed_target;

/* Packs what is whole of `count` rows of the shard from `rows` on, and keeps the rest in front of `part`. */
static int pack_rows(trf_packed_target *target, const uint16_t *rows, uint32_t count, uint16_t *part,
                     trf_stream stream) {
    const trf_shard_range *shard = &target->feed->shard;
    const uint64_t cols = target->feed->view->header.cols;
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
    const trf_shard_range *shard = &target->feed->shard;
    const uint64_t cols = coded->view.cols;
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
static trf_status lay_out(trf_packed_target *target, uint8_t *buffer, trf_error *err) {
    const trf_layer_feed *feed = target->feed;
    trf_packed_head *head = &target->head;
    trf_packed_window window;
    trf_status status = trf_packed_size_most(feed->view, &feed->shard, head, err);
    if (status == TRF_OK)
        status = trf_packed_sample_window(feed, &window, err);
    if (status != TRF_OK)
        return status;
    trf_packed_head_set_window(head, window);
    target->view = trf_packed_view_of(head, buffer);
    return TRF_OK;
}

/* Writes all but the head and what is packed: row offsets, the zeros behind them and behind the lines, and a state. */
static trf_status write_rest(const trf_context *context, const trf_packed_target *target, uint8_t *buffer,
                             trf_error *err) {
    const trf_packed_head *head = &target->head;
    const trf_layer_feed *feed = target->feed;
    const uint64_t lines_end = head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES,
                   gap = head->tiles_offset - lines_end, offsets_bytes = head->lines_offset - sizeof *head,
                   zeros_bytes = (offsets_bytes > gap ? offsets_bytes : gap) + sizeof *target->state;
    int8_t *bytes = calloc(1, zeros_bytes);
    if (!bytes)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a layer's row offsets");
    trf_status status = trf_staging_finish(context->staging, target->state, bytes, sizeof *target->state, err);
    if (status == TRF_OK && gap)
        status = trf_staging_finish(context->staging, buffer + lines_end, bytes, gap, err);
    if (status == TRF_OK && offsets_bytes) {
        memcpy(bytes, feed->view->row_offsets + feed->shard.row, feed->shard.rows);
        status = trf_staging_finish(context->staging, buffer + head->row_offsets_offset, bytes, offsets_bytes, err);
    }
    free(bytes);
    return status;
}

/* What packing came to: the layer's head, or why it cannot be packed. */
static trf_status read_state(const trf_context *context, trf_packed_target *target, trf_error *err) {
    trf_packed_head *head = &target->head;
    const int has_row_offsets = head->row_offsets_offset != 0;
    trf_pack_state state;
    uint32_t row, col;
    trf_status status = trf_cuda_copy_back(context->copier, &state, target->state, sizeof state, err);
    if (status != TRF_OK)
        return status;
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

/* ---- the whole ---- */

static trf_status allocate(trf_packed_target *target, trf_error *err) {
    const trf_blob_view *view = target->feed->view;
    const uint64_t rows = (uint64_t)TRF_PACKED_TILE_ROWS + trf_most_part_rows(view);
    trf_status status = trf_cuda_allocate_here(sizeof *target->state, (void **)&target->state, err);
    if (status == TRF_OK)
        status = trf_cuda_allocate_here(sizeof *target->dense * rows * view->header.cols, (void **)&target->dense, err);
    return status;
}

/* buffer: as large as trf_packed_get_size says. The head comes last: a buffer that has one is whole. */
static trf_status fill_buffer(trf_device_layer *made, trf_layer_feed *feed, uint8_t *buffer, trf_error *err) {
    const trf_context *context = made->context;
    trf_packed_target target = {.feed = feed};
    trf_status status = lay_out(&target, buffer, err);
    if (status == TRF_OK)
        status = allocate(&target, err);
    if (status == TRF_OK)
        status = trf_staging_open(context->staging, err);
    if (status == TRF_OK)
        status = write_rest(context, &target, buffer, err);
    if (status == TRF_OK)
        status = trf_cuda_transcode(context, feed, pack_part, &target, err);
    if (status == TRF_OK)
        status = read_state(context, &target, err);
    cudaFree(target.dense);
    cudaFree(target.state);
    if (status != TRF_OK)
        return status;
    trf_packed_head_set_source(&target.head, &feed->view->header, &made->info);
    status = trf_staging_finish(context->staging, buffer, &target.head, sizeof target.head, err);
    if (status == TRF_OK)
        trf_packed_set_buffer(made, &target.head, buffer);
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

trf_status trf_cuda_fill_packed_layer(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                                      trf_error *err) {
    trf_layer_size size;
    uint8_t *buffer = memory->blob;
    trf_device_scope scope;
    trf_status status = trf_packed_get_size(feed->view, &feed->shard, &size, err);
    if (status == TRF_OK)
        status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("load");
    if (!buffer) {
        status = trf_cuda_allocate_here(size.blob_bytes, &made->memory, err);
        buffer = made->memory;
    }
    if (status == TRF_OK)
        status = fill_buffer(made, feed, buffer, err);
    if (status != TRF_OK)
        cudaFree(made->memory);
    else if (made->memory)
        fit_memory(made, size.blob_bytes);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}
