/* SPDX-License-Identifier: Apache-2.0 */
/* Each part of a coded layer is packed straight from its slabs if it can be. Other parts are decoded to dense rows, and
 * the packed bands that are complete by then are packed from there (trf_dense_bands_cuda.h):
 *
 *   part                        packed from
 *   ------------------------    -------------------------------------------------------------------
 *   trf_can_pack_coded           its slabs, if it is all in the shard and no rows are left over; and
 *   ... and lines are left      dense rows after all, when the next part is there (trf_pack_coded_counts)
 *   any other                   dense rows
 *
 * The host looks one part later at what the kernels for slabs could not pack, so that it does not wait for them. */
#include "trf_packed_maker_cuda.h"

#include "trf_cuda_call.h"
#include "trf_device_cuda.h"
#include "trf_staging_cuda.h"
#include "trf_verify_layer_cuda.h"

#include <cuda_runtime_api.h>

/* A trf_pack_bands_fn. */
static int pack_bands(void *context, const trf_rows_to_pack *rows, trf_stream stream) {
    const trf_packed_maker *maker = context;
    return trf_launch_pack(&maker->view, rows, &maker->device_results->state, stream);
}

/* ---- the buffer ---- */

/* Lays the layer out in its buffer, with room for so many stored tiles. */
static trf_status lay_out(trf_packed_maker *maker, uint64_t room, trf_error *err) {
    const trf_pack_request *request = &maker->request;
    trf_status status =
        trf_size_packed(request->rows, request->cols, request->has_row_offsets, room, &maker->head, err);
    if (status != TRF_OK)
        return trf_packed_fail(status, err);
    trf_packed_head_set_window(&maker->head, maker->window);
    maker->view = trf_packed_view_of(&maker->head, maker->buffer);
    return TRF_OK;
}

/* row_offsets: those of trf_packed_maker_begin. */
static trf_status write_rest(const trf_packed_maker *maker, const int8_t *row_offsets, cudaStream_t stream,
                             trf_error *err) {
    const trf_packed_head *head = &maker->head;
    uint8_t *const buffer = maker->buffer;
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

trf_status trf_packed_maker_begin(trf_packed_maker *maker, const trf_layer_memory *memory, int has_room,
                                  const int8_t *row_offsets, trf_error *err) {
    trf_device_layer *made = maker->made;
    trf_packed_head most;
    trf_status status = trf_packed_size_most(&maker->request, &most, err);
    if (status == TRF_OK)
        status = lay_out(maker, has_room || memory->buffer ? most.num_stored : 0, err);
    maker->buffer = memory->buffer;
    if (status == TRF_OK && !maker->buffer) {
        made->memory_bytes = maker->head.common.buffer_bytes;
        status = trf_cuda_allocate_here(made->memory_bytes, &made->memory, err);
        maker->buffer = made->memory;
    }
    if (status != TRF_OK)
        return status;
    maker->view = trf_packed_view_of(&maker->head, maker->buffer);
    maker->bands.as = TRF_DECODE_ELEMENTS;
    maker->bands.pack = pack_bands;
    maker->bands.context = maker;
    return write_rest(maker, row_offsets, trf_cuda_copier_work_stream(made->context->copier), err);
}

trf_status trf_packed_maker_set_window(trf_packed_maker *maker, trf_packed_window window, trf_error *err) {
    maker->window = window;
    return lay_out(maker, maker->head.num_stored, err);
}

/* Replaces the layer's memory by room_bytes, and copies the first `bytes` bytes except the head. All queued work is
 * done when it returns. */
static trf_status move_buffer(trf_packed_maker *maker, uint64_t bytes, uint64_t room_bytes, cudaStream_t stream,
                              trf_error *err) {
    void *larger;
    trf_status status = trf_cuda_allocate_here(room_bytes, &larger, err);
    if (status != TRF_OK)
        return status;
    cudaError_t error = cudaMemcpyAsync((uint8_t *)larger + sizeof maker->head, maker->buffer + sizeof maker->head,
                                        bytes - sizeof maker->head, cudaMemcpyDeviceToDevice, stream);
    const cudaError_t waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is released */
    status = trf_check_cuda(error ? error : waited, "packing a layer", err);
    if (status != TRF_OK) {
        cudaFree(larger);
        return status;
    }
    cudaFree(maker->made->memory);
    maker->made->memory = maker->buffer = larger;
    maker->made->memory_bytes = room_bytes;
    return TRF_OK;
}

/* Makes room for stored tiles, which come last in a buffer and may be needed from now on. */
static trf_status make_room(trf_packed_maker *maker, cudaStream_t stream, trf_error *err) {
    trf_packed_head most;
    trf_status status = trf_packed_size_most(&maker->request, &most, err);
    if (status != TRF_OK || maker->head.num_stored == most.num_stored)
        return status;
    status = move_buffer(maker, maker->head.common.buffer_bytes, most.common.buffer_bytes, stream, err);
    return status == TRF_OK ? lay_out(maker, most.num_stored, err) : status;
}

/* ---- memory beside it ---- */

uint64_t trf_packed_maker_memory_bytes(const trf_packed_maker *maker, uint32_t rows) {
    return trf_device_align(sizeof *maker->device_results) + trf_pack_coded_scratch_bytes(rows, maker->bands.cols);
}

trf_status trf_packed_maker_use(trf_packed_maker *maker, const trf_load_scratch *scratch, uint8_t *memory,
                                uint32_t part_rows, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(maker->made->context->copier);
    maker->device_results = (trf_pack_results *)memory;
    maker->kernel_scratch = memory + trf_device_align(sizeof *maker->device_results);
    maker->results = (const trf_pack_results *)scratch->results;
    maker->coded_packed = scratch->arrived;
    maker->bands.part_rows = part_rows;
    return trf_check_cuda(cudaMemsetAsync(maker->device_results, 0, sizeof *maker->device_results, stream),
                          "packing a layer", err);
}

int trf_packed_maker_fetch(const trf_packed_maker *maker, trf_stream stream) {
    return cudaMemcpyAsync((void *)maker->results, maker->device_results, sizeof *maker->device_results,
                           cudaMemcpyDeviceToHost, stream);
}

void trf_packed_maker_release(trf_packed_maker *maker, trf_status status) {
    if (status != TRF_OK) /* queued work may write to the caller's memory, too */
        trf_pass_over_cuda(cudaStreamSynchronize(trf_cuda_copier_work_stream(maker->made->context->copier)));
    trf_dense_bands_release(&maker->bands);
    if (status != TRF_OK) {
        cudaFree(maker->made->memory);
        maker->made->memory = NULL;
    }
}

/* ---- parts, from dense rows ---- */

static trf_status pack_dense(trf_packed_maker *maker, const trf_coded_part *coded, trf_stream stream, trf_error *err) {
    trf_status status = make_room(maker, stream, err);
    if (status == TRF_OK)
        status = trf_dense_bands_take(&maker->bands, coded, stream, err);
    return status == TRF_OK ? trf_check_cuda(trf_packed_maker_fetch(maker, stream), "packing a part of a layer", err)
                            : status;
}

/* ---- parts, from their slabs ---- */

/* Whether a part can be packed from its slabs: it lies in the shard, and no rows are left over from the part before. */
static int is_direct(const trf_packed_maker *maker, const trf_coded_part *part) {
    const trf_shard_range *shard = maker->bands.shard;
    return maker->bands.left == 0 && shard->col == 0 && shard->cols == maker->bands.cols &&
           part->first_row >= shard->row && part->first_row + part->view.rows <= shard->row + shard->rows &&
           trf_can_pack_coded(&part->view, &part->traits);
}

static trf_status pack_directly(trf_packed_maker *maker, const trf_coded_part *part, trf_stream stream,
                                trf_error *err) {
    trf_pack_results *const results = maker->device_results;
    const trf_pack_coded_memory memory = {maker->kernel_scratch, &results->counts, &results->state};
    int error = cudaMemsetAsync(&results->counts, 0, sizeof results->counts, stream);
    if (!error)
        error = trf_launch_pack_coded(&part->view, &part->traits, &maker->view, maker->bands.packed, &memory, stream);
    if (!error)
        error = trf_packed_maker_fetch(maker, stream);
    if (!error)
        error = cudaEventRecord(maker->coded_packed, stream);
    maker->open = *part;
    maker->bands.packed += part->view.rows;
    return trf_check_cuda(error, "packing a part of a layer", err);
}

/* Checks whether the open part was packed completely. It is packed again, from dense rows, if lines are left. */
static trf_status settle(trf_packed_maker *maker, trf_stream stream, trf_error *err) {
    const trf_coded_part part = maker->open;
    if (part.view.rows == 0)
        return TRF_OK;
    maker->open.view.rows = 0;
    trf_status status = trf_check_cuda(cudaEventSynchronize(maker->coded_packed), "packing a part of a layer", err);
    if (status != TRF_OK)
        return status;
    const trf_pack_coded_counts counts = maker->results->counts;
    if (counts.num_left == 0) {
        maker->num_records += counts.num_records;
        return TRF_OK;
    }
    maker->bands.packed -= part.view.rows;
    status = pack_dense(maker, &part, stream, err);
    const cudaError_t error = cudaStreamSynchronize(stream); /* the part is gone when the next one has been taken */
    return status == TRF_OK ? trf_check_cuda(error, "packing a part of a layer", err) : status;
}

trf_status trf_packed_maker_take_part(void *context, const trf_coded_part *part, trf_stream stream, trf_error *err) {
    trf_packed_maker *maker = context;
    trf_status status = settle(maker, stream, err);
    if (status != TRF_OK || !part)
        return status;
    return is_direct(maker, part) ? pack_directly(maker, part, stream, err) : pack_dense(maker, part, stream, err);
}

/* ---- the end ---- */

/* Turns the outcome of packing into the layer's head, or into the reason why the layer cannot be packed. */
static trf_status judge_state(trf_packed_maker *maker, trf_error *err) {
    const trf_pack_state state = maker->state;
    trf_packed_head *head = &maker->head;
    uint64_t room = 0;
    uint32_t row, col;
    trf_status status = TRF_OK;
    if (trf_pack_inexact(&state, maker->view.lines_per_band, &row, &col))
        status = trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                          "the weight in row %u, column %u is no BF16 in the scale of the exponents from %u on", row,
                          col, head->base);
    else if (state.num_stored > head->num_stored)
        status =
            trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                     "packed, %llu of %llu tiles would have to be stored: more than %d bits a weight",
                     (unsigned long long)state.num_stored, (unsigned long long)head->num_tiles, TRF_PACKED_MAX_BITS);
    if (status == TRF_OK)
        status = trf_packed_choose_stored(head, state.num_stored, maker->stored_room, maker->like, &room, err);
    if (status != TRF_OK)
        return trf_packed_fail(status, err);
    status = lay_out(maker, room, err);
    head->num_records = state.num_records;
    return status;
}

/* Queues zeros for the room of stored tiles that is not used. @return a cudaError_t. */
static int clear_room(const trf_packed_maker *maker, cudaStream_t stream) {
    const trf_packed_head *head = &maker->head;
    const uint64_t empty = head->num_stored - maker->state.num_stored;
    uint8_t *const stored = maker->buffer + head->stored_offset;
    return empty ? cudaMemsetAsync(stored + maker->state.num_stored * TRF_PACKED_STORED_TILE_BYTES, 0,
                                   empty * TRF_PACKED_STORED_TILE_BYTES, stream)
                 : cudaSuccess;
}

/* Shrinks memory that the library allocated to what the layer takes. If there is no memory to move the layer to, it
 * stays where it is. @return how many bytes the layer has. */
static uint64_t fit_memory(trf_packed_maker *maker) {
    trf_device_layer *made = maker->made;
    const uint64_t bytes = maker->head.common.buffer_bytes;
    if (!made->memory)
        return bytes;
    if (made->memory_bytes != bytes)
        move_buffer(maker, bytes, bytes, trf_cuda_copier_work_stream(made->context->copier), NULL);
    return made->memory_bytes;
}

void trf_packed_maker_read_results(trf_packed_maker *maker) {
    maker->state = maker->results->state;
    maker->state.num_records += maker->num_records;
}

trf_status trf_packed_maker_complete(trf_packed_maker *maker, trf_error *err) {
    trf_device_layer *made = maker->made;
    trf_packed_head *head = &maker->head;
    trf_status status = judge_state(maker, err);
    if (status != TRF_OK)
        return status;
    const cudaStream_t stream = trf_cuda_copier_work_stream(made->context->copier);
    const uint64_t memory_bytes = fit_memory(maker);
    trf_packed_head_set_coded(head, &made->header, &made->info);
    int error = clear_room(maker, stream);
    if (!error)
        error = cudaMemcpyAsync(maker->buffer, head, sizeof *head, cudaMemcpyHostToDevice, stream);
    if (!error)
        error = trf_cuda_queue_data_checksum(made->context, maker->buffer, head->common.buffer_bytes, stream);
    const int waited = cudaStreamSynchronize(stream);
    status = trf_check_cuda(error ? error : waited, "packing a layer", err);
    if (status != TRF_OK)
        return status;
    trf_packed_set_buffer(made, head, maker->buffer);
    made->memory_bytes = memory_bytes;
    return TRF_OK;
}
