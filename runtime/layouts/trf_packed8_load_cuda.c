/* SPDX-License-Identifier: Apache-2.0 */
/* A packed FP8 layer is made of BF16 weights: a coded layer is decoded part by part, to dense rows, and a kernel finds
 * the weights' codes again by the scales of the coded layer (trf_pack8_line.cuh). Dense weights are packed at once by
 * scales that were found before. */
#include "trf_packed8_load_cuda.h"

#include "trf_cuda_call.h"
#include "trf_dense_bands_cuda.h"
#include "trf_device_cuda.h"
#include "trf_load_scratch_cuda.h"
#include "trf_pack8_launch.h"
#include "trf_staging_cuda.h"
#include "trf_transcode_layer_cuda.h"
#include "trf_verify_layer_cuda.h"

#include <cuda_runtime_api.h>

enum {
    PART_BYTES = 64 << 20 /* of dense rows in a part */
};

typedef struct trf_packed8_maker {
    trf_device_layer *made;
    const trf_pack8_request *requests; /* one; in turns those of gate and of up */
    int in_turns;
    trf_packed8_head head;
    trf_packed8_view view;
    trf_pack8_scales scales[2]; /* of each request */
    uint8_t *buffer;
    trf_load_scratch *scratch; /* its memory has the state, and its results get a copy */
    trf_dense_bands bands;
    trf_pack8_state state; /* the outcome */
} trf_packed8_maker;
TRF_STATIC_ASSERT((int)sizeof(trf_pack8_state) <= (int)TRF_LOAD_SCRATCH_RESULT_BYTES, "there is a place for a copy");

static trf_pack8_state *state_of(const trf_packed8_maker *maker) { return (trf_pack8_state *)maker->scratch->memory; }

static trf_pack8_scales scales_of(const trf_pack8_request *request) {
    return (trf_pack8_scales){.table = request->granularity == TRF_GRANULARITY_NONE ? NULL : request->scales,
                              .pairs = request->pairs,
                              .granularity = request->granularity,
                              .scale_group_size = request->scale_group_size,
                              .scale_cols = request->scale_cols,
                              .row = request->row,
                              .col = request->col};
}

/* A trf_pack_bands_fn. */
static int pack_bands(void *context, const trf_rows_to_pack *rows, trf_stream stream) {
    const trf_packed8_maker *maker = context;
    return trf_launch_pack8(&maker->view, maker->scales, rows, state_of(maker), stream);
}

/* A trf_take_part_fn. */
static trf_status take_part(void *context, const trf_coded_part *part, trf_stream stream, trf_error *err) {
    trf_packed8_maker *maker = context;
    return part ? trf_dense_bands_take(&maker->bands, part, stream, err) : TRF_OK;
}

static trf_status size(trf_packed8_maker *maker, trf_error *err) {
    const trf_pack8_request *requests = maker->requests;
    if (maker->in_turns)
        return trf_pack8_size_turns(requests, &maker->head, err);
    trf_status status = trf_pack8_check(requests, err);
    return status == TRF_OK ? trf_size_packed8(requests->rows, requests->cols, &maker->head, err) : status;
}

/* Gives the maker, whose fields up to `in_turns` are set, its buffer. The caller releases made->memory after a
 * failure. */
static trf_status begin(trf_packed8_maker *maker, const trf_layer_memory *memory, trf_error *err) {
    trf_status status = size(maker, err);
    maker->buffer = memory->buffer;
    if (status == TRF_OK && !maker->buffer) {
        status = trf_cuda_allocate_here(maker->head.common.buffer_bytes, &maker->made->memory, err);
        maker->buffer = maker->made->memory;
    }
    if (status != TRF_OK)
        return status;
    maker->view = trf_packed8_view_of(&maker->head, maker->buffer);
    for (int turn = 0; turn <= maker->in_turns; turn++)
        maker->scales[turn] = scales_of(&maker->requests[turn]);
    return TRF_OK;
}

/* Queues what the buffer has besides head, tiles and records: constants, and zeros between the sections. */
static trf_status write_rest(trf_packed8_maker *maker, cudaStream_t stream, trf_error *err) {
    const trf_packed8_head *head = &maker->head;
    const uint64_t lines_end = head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES;
    cudaError_t error = cudaMemsetAsync(state_of(maker), 0, sizeof maker->state, stream);
    if (!error && head->tiles_offset > lines_end)
        error = cudaMemsetAsync(maker->buffer + lines_end, 0, head->tiles_offset - lines_end, stream);
    if (!error)
        error = (cudaError_t)trf_launch_pack8_pairs(&maker->view, maker->scales, state_of(maker), stream);
    return trf_check_cuda(error, "packing a layer", err);
}

static trf_status fetch_state(trf_packed8_maker *maker, cudaStream_t stream, trf_error *err) {
    const cudaError_t error =
        cudaMemcpyAsync(maker->scratch->results, state_of(maker), sizeof maker->state, cudaMemcpyDeviceToHost, stream);
    const cudaError_t waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is released */
    maker->state = *(const trf_pack8_state *)maker->scratch->results;
    return trf_check_cuda(error ? error : waited, "packing a layer", err);
}

/* Says why the layer cannot be packed, if that is so. */
static trf_status judge_state(const trf_packed8_maker *maker, trf_error *err) {
    const uint32_t lines_per_band = maker->view.packed.lines_per_band;
    const uint64_t pair = ~maker->state.no_pair, line = pair / TRF_PACKED8_PAIRS, full = ~maker->state.full_line,
                   full_line = full >> TRF_PACK8_COUNT_BITS;
    trf_status status = TRF_OK;
    if (maker->state.no_pair)
        status = trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                          "the scale of the weights in rows from %llu and columns from %llu on is neither 0 nor from "
                          "2^-100 to 2^7",
                          (unsigned long long)(line / lines_per_band * TRF_PACKED_TILE_ROWS),
                          (unsigned long long)(line % lines_per_band * TRF_PACKED_LINE_COLS +
                                               pair % TRF_PACKED8_PAIRS * TRF_PACKED8_PAIR_COLS));
    else if (maker->state.full_line)
        status = trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                          "%llu of the weights in rows from %llu and columns from %llu on are no code times its scale; "
                          "at most %u may be",
                          (unsigned long long)(full & ((1u << TRF_PACK8_COUNT_BITS) - 1)),
                          (unsigned long long)(full_line / lines_per_band * TRF_PACKED_TILE_ROWS),
                          (unsigned long long)(full_line % lines_per_band * TRF_PACKED_LINE_COLS),
                          trf_packed8_max_records(maker->view.flags));
    return status == TRF_OK ? TRF_OK : trf_prefix_error(err, status, "the layer cannot be packed as FP8");
}

/* Writes the head, which comes last, so that a buffer that has a head is complete. */
static trf_status complete(trf_packed8_maker *maker, cudaStream_t stream, trf_error *err) {
    trf_device_layer *made = maker->made;
    trf_packed8_head *head = &maker->head;
    head->num_records = maker->state.num_records;
    head->flags |= (head->num_records ? TRF_PACKED8_HAS_RECORDS : 0) | (maker->state.has_low ? TRF_PACKED8_HAS_LOW : 0);
    trf_status status = trf_pack8_check_like(maker->requests, head->flags, err);
    if (status != TRF_OK)
        return status;
    trf_packed8_head_set_coded(head, &made->header, &made->info);
    int error = cudaMemcpyAsync(maker->buffer, head, sizeof *head, cudaMemcpyHostToDevice, stream);
    if (!error)
        error = trf_cuda_queue_data_checksum(made->context, maker->buffer, head->common.buffer_bytes, stream);
    const int waited = cudaStreamSynchronize(stream);
    status = trf_check_cuda(error ? error : waited, "packing a layer", err);
    return status == TRF_OK ? trf_packed8_set_buffer(made, head, maker->buffer, err) : status;
}

/* Waits for the kernels, and completes the layer. status: that of queueing them. */
static trf_status finish(trf_packed8_maker *maker, cudaStream_t stream, trf_status status, trf_error *err) {
    if (status == TRF_OK)
        status = fetch_state(maker, stream, err);
    else
        trf_pass_over_cuda(cudaStreamSynchronize(stream)); /* queued work may write to memory that is released now */
    if (status == TRF_OK)
        status = judge_state(maker, err);
    return status == TRF_OK ? complete(maker, stream, err) : status;
}

static void release_memory(trf_device_layer *made) {
    cudaFree(made->memory);
    made->memory = NULL;
}

/* ---- of coded layers ---- */

/* @return rows of tiles that are decoded at once. */
static uint32_t part_tile_rows(const trf_device_view *view) {
    const uint64_t row_bytes = sizeof(uint16_t) * TRF_TILE_SIZE * view->cols,
                   fit = PART_BYTES / row_bytes < 1 ? 1 : PART_BYTES / row_bytes;
    return fit < view->num_tile_rows ? (uint32_t)fit : view->num_tile_rows;
}

static trf_status pack_coded(trf_packed8_maker *maker, const trf_device_layer *from, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(from->context->copier);
    const uint32_t tile_rows = part_tile_rows(&from->view);
    maker->bands = (trf_dense_bands){.shard = &from->shard,
                                     .cols = from->view.cols,
                                     .part_rows = tile_rows * TRF_TILE_SIZE,
                                     .as = TRF_DECODE_BF16,
                                     .pack = pack_bands,
                                     .context = maker};
    trf_status status = write_rest(maker, stream, err);
    if (status == TRF_OK)
        status = trf_cuda_transcode_layer(from, tile_rows, take_part, maker, err);
    status = finish(maker, stream, status, err);
    trf_dense_bands_release(&maker->bands);
    return status;
}

trf_status trf_cuda_make_packed8(trf_device_layer *made, const trf_device_layer *from, const trf_layer_memory *memory,
                                 trf_error *err) {
    const trf_pack8_request request = trf_pack8_request_of_layer(from);
    trf_packed8_maker maker = {.made = made, .requests = &request};
    trf_status status =
        trf_load_scratch_take(made->context->load_scratches, trf_device_align(sizeof maker.state), &maker.scratch, err);
    if (status != TRF_OK)
        return status;
    status = begin(&maker, memory, err);
    if (status == TRF_OK)
        status = pack_coded(&maker, from, err);
    trf_load_scratch_give_back(made->context->load_scratches, maker.scratch);
    if (status != TRF_OK)
        release_memory(made);
    return status;
}

/* ---- of dense weights ---- */

/* maker: as for begin, and scratch is set. */
static trf_status pack_rows(trf_packed8_maker *maker, const trf_rows_to_pack *rows, const trf_layer_memory *memory,
                            trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(maker->made->context->copier);
    trf_status status = begin(maker, memory, err);
    if (status == TRF_OK) {
        status = write_rest(maker, stream, err);
        if (status == TRF_OK)
            status = trf_check_cuda(pack_bands(maker, rows, stream), "packing a layer", err);
        status = finish(maker, stream, status, err);
    }
    if (status != TRF_OK)
        release_memory(maker->made);
    return status;
}

trf_status trf_cuda_pack8_rows(trf_device_layer *made, const trf_pack8_request *request, const trf_rows_to_pack *rows,
                               const trf_layer_memory *memory, trf_load_scratch *scratch, trf_error *err) {
    trf_packed8_maker maker = {.made = made, .requests = request, .scratch = scratch};
    return pack_rows(&maker, rows, memory, err);
}

/* ---- gate and up in turns ---- */

static trf_status pack_turns(trf_packed8_maker *maker, const uint16_t *weights, const trf_layer_memory *memory,
                             trf_error *err) {
    const uint32_t cols = maker->requests[0].cols;
    const trf_rows_to_pack rows = {weights, cols, 0, 2 * maker->requests[0].rows, cols};
    trf_load_scratches *scratches = maker->made->context->load_scratches;
    trf_status status = trf_check_cuda(cudaStreamSynchronize(NULL), "packing a layer", err); /* it wrote the weights */
    if (status == TRF_OK)
        status = trf_load_scratch_take(scratches, trf_device_align(sizeof maker->state), &maker->scratch, err);
    if (status != TRF_OK)
        return status;
    status = pack_rows(maker, &rows, memory, err);
    trf_load_scratch_give_back(scratches, maker->scratch);
    return status;
}

trf_status trf_cuda_pack8_turns(trf_device_layer *made, const trf_pack8_request requests[2], const uint16_t *weights,
                                const trf_layer_memory *memory, trf_error *err) {
    trf_packed8_maker maker = {.made = made, .requests = requests, .in_turns = 1};
    trf_device_scope scope;
    trf_status status = trf_enter_device(made->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = pack_turns(&maker, weights, memory, err);
    trf_leave_device(&scope);
    return status;
}

/* ---- loading ---- */

typedef struct trf_coded_load {
    trf_device_layer coded; /* what is loaded, in the scratch's memory */
    const trf_layer_feed *feed;
    trf_load_scratch *scratch; /* blob | directory; no blob if that is on the device already. NULL until it is taken */
} trf_coded_load;

/* A whole blob that is on the device already stays where it lies. */
static void *blob_in_place(const trf_layer_feed *feed) { return feed->is_whole ? (void *)feed->dev : NULL; }

/* A trf_cuda_find_memory_fn. */
static trf_status find_memory(void *context, trf_layer_memory *found, trf_error *err) {
    trf_coded_load *load = context;
    trf_layer_size size;
    trf_status status = trf_cuda_get_layer_size(load->feed->view, &load->feed->shard, &size, err);
    if (status != TRF_OK)
        return status;
    const uint64_t directory_at = blob_in_place(load->feed) ? 0 : trf_device_align(size.buffer_bytes);
    status = trf_load_scratch_take(load->coded.context->load_scratches,
                                   directory_at + trf_device_align(size.directory_bytes), &load->scratch, err);
    if (status != TRF_OK)
        return status;
    found->buffer = load->scratch->memory;
    found->directory = load->scratch->memory + directory_at;
    return TRF_OK;
}

/* Reports a tile that did not decode in terms of the feed. */
static trf_status fail_tile(const trf_coded_load *load, trf_error *err) {
    const trf_device_layer *coded = &load->coded;
    trf_device_fault fault;
    trf_status status = trf_cuda_copy_back(coded->context->copier, &fault, coded->view.fault, sizeof fault, err);
    return status == TRF_OK
               ? trf_layer_feed_fail_tile(load->feed, (uint64_t)fault.tile_high << 32 | fault.tile_low, err)
               : status;
}

trf_status trf_cuda_load_then_make(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                                   trf_cuda_make_packed_fn *make, trf_error *err) {
    trf_coded_load load = {.coded = {.context = made->context, .device = made->device}, .feed = feed};
    trf_status status = trf_find_layout(made->context, TRF_LAYOUT_CODED, &load.coded.layout, err);
    if (status != TRF_OK)
        return status;
    trf_set_device_layer_info(feed->view, &feed->shard, &load.coded);
    status = trf_cuda_fill_layer_later(&load.coded, feed, blob_in_place(feed), find_memory, &load, err);
    if (status == TRF_OK) {
        status = make(made, &load.coded, memory, err);
        if (status == TRF_ERR_RANS)
            status = fail_tile(&load, err);
    }
    trf_load_scratch_give_back(made->context->load_scratches, load.scratch);
    return status;
}
