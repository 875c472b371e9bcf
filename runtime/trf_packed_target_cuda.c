/* SPDX-License-Identifier: Apache-2.0 */
/* Each part of a coded layer that can be is packed straight from its slabs. Others are decoded to dense rows, and the
 * packed bands that are whole by then are packed from there:
 *
 *   dense    64 rows  |  a part's rows
 *              [left] |  [part ....................]      left: rows of the band that the part before began
 *
 * What is left over is copied in front of the next part, so that a band's rows lie one behind the other. A shard's
 * bands begin with its first row, wherever that is in its part.
 *
 *   part                        packed from
 *   ------------------------    -------------------------------------------------------------------
 *   trf_can_pack_coded           its slabs, if it is all in the shard and no rows are left over; and
 *   ... and lines are left      dense rows after all, when the part behind is there (trf_pack_coded_counts)
 *   any other                   dense rows
 *
 * What the slabs' kernels could not do is looked at a part late, so that nobody waits for them. */
#include "trf_packed_target_cuda.h"

#include "trf_cuda_call.h"
#include "trf_decode_launch.h"
#include "trf_device_cuda.h"
#include "trf_staging_cuda.h"

#include <cuda_runtime_api.h>

/* ---- the buffer ---- */

/* Lays the layer out in its buffer, with room for so many stored tiles. */
static trf_status lay_out(trf_packed_target *target, uint64_t room, trf_error *err) {
    const trf_pack_request *request = &target->request;
    trf_status status =
        trf_size_packed(request->rows, request->cols, request->has_row_offsets, room, &target->head, err);
    if (status != TRF_OK)
        return trf_packed_fail(status, err);
    trf_packed_head_set_window(&target->head, target->window);
    target->view = trf_packed_view_of(&target->head, target->buffer);
    return TRF_OK;
}

/* row_offsets: as trf_packed_target_begin has them. */
static trf_status write_rest(const trf_packed_target *target, const int8_t *row_offsets, cudaStream_t stream,
                             trf_error *err) {
    const trf_packed_head *head = &target->head;
    uint8_t *const buffer = target->buffer;
    const uint64_t lines_end = head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES,
                   offsets_bytes = head->lines_offset - sizeof *head;
    cudaError_t error = cudaSuccess;
    if (head->tiles_offset > lines_end)
        error = cudaMemsetAsync(buffer + lines_end, 0, head->tiles_offset - lines_end, stream);
    if (!error && offsets_bytes)
        error = cudaMemsetAsync(buffer + sizeof *head, 0, offsets_bytes, stream);
    if (!error && offsets_bytes)
        error = cudaMemcpyAsync(buffer + head->row_offsets_offset, row_offsets, head->rows, cudaMemcpyDefault, stream);
    return trf_check_cuda(error, "packing a layer", err);
}

trf_status trf_packed_target_begin(trf_packed_target *target, const trf_layer_memory *memory, int has_room,
                                   const int8_t *row_offsets, trf_error *err) {
    trf_device_layer *made = target->made;
    trf_packed_head most;
    trf_status status = trf_packed_size_most(&target->request, &most, err);
    if (status == TRF_OK)
        status = lay_out(target, has_room || memory->buffer ? most.num_stored : 0, err);
    target->buffer = memory->buffer;
    if (status == TRF_OK && !target->buffer) {
        made->memory_bytes = target->head.common.buffer_bytes;
        status = trf_cuda_allocate_here(made->memory_bytes, &made->memory, err);
        target->buffer = made->memory;
    }
    if (status != TRF_OK)
        return status;
    target->view = trf_packed_view_of(&target->head, target->buffer);
    return write_rest(target, row_offsets, trf_cuda_copier_work_stream(made->context->copier), err);
}

/* Replaces the layer's memory. bytes: of what is in there, but for the head; all that was queued is done when it
 * returns. */
static trf_status move_buffer(trf_packed_target *target, uint64_t bytes, uint64_t room_bytes, cudaStream_t stream,
                              trf_error *err) {
    void *larger;
    trf_status status = trf_cuda_allocate_here(room_bytes, &larger, err);
    if (status != TRF_OK)
        return status;
    cudaError_t error = cudaMemcpyAsync((uint8_t *)larger + sizeof target->head, target->buffer + sizeof target->head,
                                        bytes - sizeof target->head, cudaMemcpyDeviceToDevice, stream);
    const cudaError_t waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is released */
    status = trf_check_cuda(error ? error : waited, "packing a layer", err);
    if (status != TRF_OK) {
        cudaFree(larger);
        return status;
    }
    cudaFree(target->made->memory);
    target->made->memory = target->buffer = larger;
    target->made->memory_bytes = room_bytes;
    return TRF_OK;
}

/* Stored tiles, which come last in a buffer, may be needed now. */
static trf_status make_room(trf_packed_target *target, cudaStream_t stream, trf_error *err) {
    trf_packed_head most;
    trf_status status = trf_packed_size_most(&target->request, &most, err);
    if (status != TRF_OK || target->head.num_stored == most.num_stored)
        return status;
    status = move_buffer(target, target->head.common.buffer_bytes, most.common.buffer_bytes, stream, err);
    return status == TRF_OK ? lay_out(target, most.num_stored, err) : status;
}

/* ---- memory beside it ---- */

uint64_t trf_packed_target_memory_bytes(const trf_packed_target *target, uint32_t rows) {
    return trf_device_align(sizeof *target->device_results) + trf_pack_coded_scratch_bytes(rows, target->cols);
}

trf_status trf_packed_target_use(trf_packed_target *target, const trf_load_scratch *scratch, uint8_t *memory,
                                 uint32_t part_rows, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(target->made->context->copier);
    target->device_results = (trf_pack_results *)memory;
    target->kernel_scratch = memory + trf_device_align(sizeof *target->device_results);
    target->results = (const trf_pack_results *)scratch->results;
    target->coded_packed = scratch->taker_event;
    target->part_rows = part_rows;
    return trf_check_cuda(cudaMemsetAsync(target->device_results, 0, sizeof *target->device_results, stream),
                          "packing a layer", err);
}

trf_status trf_packed_target_take_scratch(trf_packed_target *target, uint32_t part_rows, trf_error *err) {
    trf_load_scratch **own = &target->own_scratch;
    trf_status status = trf_load_scratch_take(target->made->context->load_scratches,
                                              trf_packed_target_memory_bytes(target, part_rows), own, err);
    return status == TRF_OK ? trf_packed_target_use(target, *own, (*own)->memory, part_rows, err) : status;
}

int trf_packed_target_fetch(const trf_packed_target *target, trf_stream stream) {
    return cudaMemcpyAsync((void *)target->results, target->device_results, sizeof *target->device_results,
                           cudaMemcpyDeviceToHost, stream);
}

void trf_packed_target_release(trf_packed_target *target, trf_status status) {
    if (status != TRF_OK) /* what is queued may write to the caller's memory, too */
        cudaStreamSynchronize(trf_cuda_copier_work_stream(target->made->context->copier));
    trf_packed_sample_destroy(target->sample);
    trf_load_scratch_give_back(target->made->context->load_scratches, target->own_scratch);
    if (target->dense)
        cudaFree(target->dense);
    if (status != TRF_OK) {
        cudaFree(target->made->memory);
        target->made->memory = NULL;
    }
}

/* ---- parts, from dense rows ---- */

/* Packs what is whole of `count` rows of the shard from `rows` on, and keeps the rest in front of `part`. */
static int pack_rows(trf_packed_target *target, const uint16_t *rows, uint32_t count, uint16_t *part,
                     trf_stream stream) {
    const trf_shard_range *shard = target->shard;
    const uint64_t cols = target->cols;
    const int is_last = target->packed + count == shard->rows;
    const uint32_t now = is_last ? count : count / TRF_PACKED_TILE_ROWS * TRF_PACKED_TILE_ROWS;
    const trf_pack_source range = {rows + shard->col, cols, target->packed, now, shard->cols};
    int error = now ? trf_launch_pack(&target->view, &range, &target->device_results->state, stream) : 0;
    target->packed += now;
    target->left = count - now;
    if (!error && target->left)
        error = cudaMemcpyAsync(part - target->left * cols, rows + now * cols, 2 * target->left * cols,
                                cudaMemcpyDeviceToDevice, stream);
    return error;
}

static trf_status pack_dense(trf_packed_target *target, const trf_coded_part *coded, trf_stream stream,
                             trf_error *err) {
    const trf_shard_range *shard = target->shard;
    const uint64_t cols = target->cols, dense_rows = (uint64_t)TRF_PACKED_TILE_ROWS + target->part_rows;
    const uint32_t end = coded->first_row + coded->view.rows, shard_end = shard->row + shard->rows;
    const uint32_t skipped = coded->first_row < shard->row ? shard->row - coded->first_row : 0; /* left is 0 then */
    const uint32_t rows = (end < shard_end ? end : shard_end) - coded->first_row;
    trf_status status = make_room(target, stream, err);
    if (status == TRF_OK && !target->dense)
        status = trf_cuda_allocate_here(sizeof *target->dense * dense_rows * cols, (void **)&target->dense, err);
    if (status != TRF_OK)
        return status;
    uint16_t *const part = target->dense + TRF_PACKED_TILE_ROWS * cols;
    int error = trf_launch_decode_layer(&coded->view, &coded->traits, TRF_DECODE_ELEMENTS, part, stream);
    if (!error && rows > skipped)
        error =
            pack_rows(target, part + skipped * cols - target->left * cols, rows - skipped + target->left, part, stream);
    if (!error)
        error = trf_packed_target_fetch(target, stream);
    return trf_check_cuda(error, "packing a part of a layer", err);
}

/* ---- parts, from their slabs ---- */

/* Whether a part is all of some packed bands. */
static int is_direct(const trf_packed_target *target, const trf_coded_part *part) {
    const trf_shard_range *shard = target->shard;
    return target->left == 0 && shard->col == 0 && shard->cols == target->cols && part->first_row >= shard->row &&
           part->first_row + part->view.rows <= shard->row + shard->rows &&
           trf_can_pack_coded(&part->view, &part->traits);
}

static trf_status pack_directly(trf_packed_target *target, const trf_coded_part *part, trf_stream stream,
                                trf_error *err) {
    trf_pack_results *const results = target->device_results;
    const trf_pack_coded_memory memory = {target->kernel_scratch, &results->counts, &results->state};
    int error = cudaMemsetAsync(&results->counts, 0, sizeof results->counts, stream);
    if (!error)
        error = trf_launch_pack_coded(&part->view, &part->traits, &target->view, target->packed, &memory, stream);
    if (!error)
        error = trf_packed_target_fetch(target, stream);
    if (!error)
        error = cudaEventRecord(target->coded_packed, stream);
    target->open = *part;
    target->packed += part->view.rows;
    return trf_check_cuda(error, "packing a part of a layer", err);
}

/* Looks at what has become of the open part, which is packed again if lines are left. */
static trf_status settle(trf_packed_target *target, trf_stream stream, trf_error *err) {
    const trf_coded_part part = target->open;
    if (part.view.rows == 0)
        return TRF_OK;
    target->open.view.rows = 0;
    trf_status status = trf_check_cuda(cudaEventSynchronize(target->coded_packed), "packing a part of a layer", err);
    if (status != TRF_OK)
        return status;
    const trf_pack_coded_counts counts = target->results->counts;
    if (counts.num_left == 0) {
        target->num_records += counts.num_records;
        return TRF_OK;
    }
    target->packed -= part.view.rows;
    status = pack_dense(target, &part, stream, err);
    const cudaError_t error = cudaStreamSynchronize(stream); /* the part is gone when the next one has been taken */
    return status == TRF_OK ? trf_check_cuda(error, "packing a part of a layer", err) : status;
}

static trf_status find_window(trf_packed_target *target, trf_error *err) {
    if (!target->sample)
        return TRF_OK;
    trf_status status = trf_packed_sample_choose(target->sample, &target->window, err);
    trf_packed_sample_destroy(target->sample);
    target->sample = NULL;
    return status == TRF_OK ? lay_out(target, target->head.num_stored, err) : status;
}

trf_status trf_packed_target_take_part(void *context, const trf_coded_part *part, trf_stream stream, trf_error *err) {
    trf_packed_target *target = context;
    trf_status status = settle(target, stream, err);
    if (status == TRF_OK)
        status = find_window(target, err);
    if (status != TRF_OK || !part)
        return status;
    return is_direct(target, part) ? pack_directly(target, part, stream, err) : pack_dense(target, part, stream, err);
}

/* ---- the end ---- */

/* What packing came to: the layer's head, or why it cannot be packed. */
static trf_status judge_state(trf_packed_target *target, trf_error *err) {
    const trf_pack_state state = target->state;
    trf_packed_head *head = &target->head;
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
    status = lay_out(target, state.num_stored, err);
    head->num_records = state.num_records;
    return status;
}

/* Leaves the library's memory no more room than the layer takes; where there is no memory to move it to, it stays.
 * @return how many bytes the layer has. */
static uint64_t fit_memory(trf_packed_target *target) {
    trf_device_layer *made = target->made;
    const uint64_t bytes = target->head.common.buffer_bytes;
    if (!made->memory)
        return bytes;
    if (made->memory_bytes != bytes)
        move_buffer(target, bytes, bytes, trf_cuda_copier_work_stream(made->context->copier), NULL);
    return made->memory_bytes;
}

void trf_packed_target_read_results(void *context) {
    trf_packed_target *target = context;
    target->state = target->results->state;
    target->state.num_records += target->num_records;
}

trf_status trf_packed_target_complete(trf_packed_target *target, trf_error *err) {
    trf_device_layer *made = target->made;
    trf_packed_head *head = &target->head;
    trf_status status = judge_state(target, err);
    if (status != TRF_OK)
        return status;
    const uint64_t memory_bytes = fit_memory(target);
    trf_packed_head_set_coded(head, &made->header, &made->info);
    status =
        trf_check_cuda(cudaMemcpy(target->buffer, head, sizeof *head, cudaMemcpyHostToDevice), "packing a layer", err);
    if (status != TRF_OK)
        return status;
    trf_packed_set_buffer(made, head, target->buffer);
    made->memory_bytes = memory_bytes;
    return TRF_OK;
}
