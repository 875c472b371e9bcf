/* SPDX-License-Identifier: Apache-2.0 */
/* Makes packed layers on a GPU, by loading blobs or from layers and dense weights that are on the device. A blob is
 * first loaded as a coded layer, to the memory of a load scratch: the window is chosen by rows all over the layer, the
 * last of them near its end, so nothing can be packed before all of it has arrived. From then on loading is the same as
 * converting. A coded layer of whole bands and regular slabs is packed in one launch if no tile has to be stored.
 * Others are packed in parts, in the ways that trf_packed_maker_cuda.c describes.
 *
 * A load scratch:    blob | directory | what sampling takes, and then what packing takes
 *                    (for a load; no blob if that is on the device already) */
#include "trf_cuda_call.h"
#include "trf_device_cuda.h"
#include "trf_layer_feed.h"
#include "trf_nvtx.h"
#include "trf_packed8_load_cuda.h"
#include "trf_packed_layer_cuda.h"
#include "trf_packed_maker_cuda.h"
#include "trf_packed_sample_cuda.h"
#include "trf_plain_layer.h"
#include "trf_staging_cuda.h"
#include "trf_transcode_layer_cuda.h"

#include <cuda_runtime_api.h>

enum {
    PART_BYTES = 64 << 20, /* of dense rows in a part, if the layer is packed in parts */
    REGULAR_COLS = 64      /* the columns of a layer of regular slabs are a multiple of this */
};

/* @return bytes that sampling, which takes `looking`, and then packing need, with room for the kernels to pack so many
 * coded rows at once. */
static uint64_t work_bytes(uint64_t looking, const trf_packed_maker *maker, uint32_t rows) {
    const uint64_t packing = trf_packed_maker_memory_bytes(maker, rows);
    return looking > packing ? looking : packing;
}

/* If the rows have been packed, completes the layer. Releases the maker in any case. @return the outcome. */
static trf_status finish(trf_packed_maker *maker, trf_status status, trf_error *err) {
    if (status == TRF_OK) {
        trf_packed_maker_read_results(maker);
        status = trf_packed_maker_complete(maker, err);
    }
    trf_packed_maker_release(maker, status);
    return status;
}

/* ---- coded layers that are on the device ---- */

/* Packs all rows straight from their slabs. *done says whether that packed them all, because no tile has to be
 * stored. */
static trf_status pack_at_once(trf_packed_maker *maker, const trf_device_layer *from, int *done, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(from->context->copier);
    trf_pack_results *const results = maker->device_results;
    const trf_pack_coded_memory memory = {maker->kernel_scratch, &results->counts, &results->state};
    trf_device_view view = from->view;
    view.fault = &results->fault;
    int error = trf_launch_pack_coded(&view, &from->traits, &maker->view, 0, &memory, stream);
    if (!error)
        error = trf_packed_maker_fetch(maker, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is released */
    trf_status status = trf_check_cuda(error ? error : waited, "packing a layer", err);
    if (status == TRF_OK && maker->results->fault.set)
        status = trf_cuda_note_fault(from, maker->results->fault, err);
    *done = status != TRF_OK || maker->results->counts.num_left == 0;
    if (*done && status == TRF_OK)
        maker->num_records = maker->results->counts.num_records;
    return status;
}

/* The number gives every multiprocessor several slabs for each warp. */
static uint32_t part_tile_rows(const trf_device_view *view) {
    const uint64_t row_bytes = sizeof(uint16_t) * TRF_TILE_SIZE * view->cols,
                   fit = PART_BYTES / row_bytes < 1 ? 1 : PART_BYTES / row_bytes;
    return fit < view->num_tile_rows ? (uint32_t)fit : view->num_tile_rows;
}

static int is_direct(const trf_device_layer *from) {
    return !trf_shard_cuts_rows(from) && !trf_shard_cuts_cols(from) && trf_can_pack_coded(&from->view, &from->traits);
}

/* Packs a layer with a maker that has its window and its buffer. memory: of the scratch, work_bytes for all rows. */
static trf_status pack_coded(trf_packed_maker *maker, const trf_device_layer *from, const trf_load_scratch *scratch,
                             uint8_t *memory, trf_error *err) {
    const uint32_t tile_rows = part_tile_rows(&from->view);
    int done = 0;
    trf_status status = trf_packed_maker_use(maker, scratch, memory, tile_rows * TRF_TILE_SIZE, err);
    if (status == TRF_OK && is_direct(from))
        status = pack_at_once(maker, from, &done, err);
    return status == TRF_OK && !done ? trf_cuda_transcode_layer(from, tile_rows, trf_packed_maker_take_part, maker, err)
                                     : status;
}

/* ---- loading ---- */

typedef struct trf_packed_load {
    trf_packed_maker maker;
    trf_layer_feed *feed;
    const trf_layer_memory *memory; /* the layer's */
    trf_device_layer coded;         /* what is loaded, in the scratch's memory */
    trf_load_scratch *scratch;      /* NULL until it is taken */
    uint8_t *work;                  /* in the scratch's memory: what sampling and packing use */
} trf_packed_load;

/* Whether the layer's head allows that it is packed in one launch. */
static int may_be_direct(const trf_layer_feed *feed) {
    const trf_header *header = &feed->view->header;
    return !trf_feed_row_offsets(feed) && feed->shard.rows == header->rows && feed->shard.cols == header->cols &&
           header->rows % TRF_PACKED_TILE_ROWS == 0 && header->cols % REGULAR_COLS == 0;
}

/* A whole blob that is on the device already stays where it lies. */
static void *blob_in_place(const trf_layer_feed *feed) { return feed->is_whole ? (void *)feed->dev : NULL; }

/* A trf_cuda_find_memory_fn. It finds all that the load takes, and the layer's own memory, too. */
static trf_status find_memory(void *context, trf_layer_memory *found, trf_error *err) {
    trf_packed_load *load = context;
    const trf_layer_feed *feed = load->feed;
    const int8_t *offsets = trf_feed_row_offsets(feed);
    trf_layer_size size;
    trf_status status = trf_cuda_get_layer_size(feed->view, &feed->shard, &size, err);
    if (status != TRF_OK)
        return status;
    const uint64_t directory_at = blob_in_place(feed) ? 0 : trf_device_align(size.buffer_bytes),
                   work_at = directory_at + trf_device_align(size.directory_bytes);
    status = trf_load_scratch_take(
        load->coded.context->load_scratches,
        work_at + work_bytes(trf_cuda_sample_bytes(&load->coded), &load->maker, feed->view->header.rows),
        &load->scratch, err);
    if (status != TRF_OK)
        return status;
    found->buffer = load->scratch->memory;
    found->directory = load->scratch->memory + directory_at;
    load->work = load->scratch->memory + work_at;
    return trf_packed_maker_begin(&load->maker, load->memory, !may_be_direct(feed),
                                  offsets ? offsets + feed->shard.row : NULL, err);
}

/* Converts the coded layer that has been loaded, and reports errors in terms of the feed. */
static trf_status convert_loaded(trf_packed_load *load, trf_error *err) {
    const trf_device_layer *coded = &load->coded;
    trf_packed_window window;
    trf_device_fault fault;
    trf_status status = trf_cuda_sample_window(coded, load->scratch, load->work, &window, err);
    if (status == TRF_OK)
        status = trf_packed_maker_set_window(&load->maker, window, err);
    if (status == TRF_OK)
        status = pack_coded(&load->maker, coded, load->scratch, load->work, err);
    if (status != TRF_ERR_RANS)
        return status;
    status = trf_cuda_copy_back(coded->context->copier, &fault, coded->view.fault, sizeof fault, err);
    return status == TRF_OK
               ? trf_layer_feed_fail_tile(load->feed, (uint64_t)fault.tile_high << 32 | fault.tile_low, err)
               : status;
}

/* The device is current. */
static trf_status run_load(trf_packed_load *load, trf_error *err) {
    trf_device_layer *coded = &load->coded;
    const trf_layer_feed *feed = load->feed;
    trf_status status = trf_find_layout(coded->context, TRF_LAYOUT_CODED, &coded->layout, err);
    if (status != TRF_OK)
        return status;
    trf_set_device_layer_info(feed->view, &feed->shard, coded);
    status = trf_cuda_fill_layer_later(coded, load->feed, blob_in_place(feed), find_memory, load, err);
    if (status == TRF_OK)
        status = convert_loaded(load, err);
    status = finish(&load->maker, status, err);
    trf_load_scratch_give_back(coded->context->load_scratches, load->scratch);
    return status;
}

/* Loads a packed BF16 layer. The device is current. */
static trf_status fill_bf16(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                            trf_error *err) {
    trf_packed_load load = {.maker = {.made = made,
                                      .bands = {.shard = &feed->shard, .cols = feed->view->header.cols},
                                      .request = trf_pack_request_of_shard(feed->view, &feed->shard)},
                            .feed = feed,
                            .memory = memory,
                            .coded = {.context = made->context, .device = made->device}};
    return run_load(&load, err);
}

/* ---- dense weights ---- */

/* The dense weights to pack, the stream that writes them, and the options. */
typedef struct trf_dense_input {
    trf_rows_to_pack rows;
    trf_stream written;
    const trf_pack_options *options;
} trf_dense_input;

/* Packs all rows as BF16, to a layer that has room for stored tiles. */
static trf_status pack_rows(trf_packed_maker *maker, const trf_dense_input *from, const trf_load_scratch *scratch,
                            trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(maker->made->context->copier);
    trf_status status = trf_packed_maker_begin(maker, &from->options->memory, 1, NULL, err);
    if (status == TRF_OK)
        status = trf_packed_maker_use(maker, scratch, scratch->memory, 0, err);
    if (status != TRF_OK)
        return status;
    int error = trf_launch_pack(&maker->view, &from->rows, &maker->device_results->state, stream);
    if (!error)
        error = trf_packed_maker_fetch(maker, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is released */
    return trf_check_cuda(error ? error : waited, "packing a layer", err);
}

/* Packs the weights as FP8 if that is what the search found. If they do not fit, samples may have misled it, so it is
 * repeated with all weights. *done: whether the layer is made. */
static trf_status pack_fp8(trf_device_layer *made, const trf_dense_input *from, trf_fp8_search *search,
                           trf_load_scratch *scratch, int *done, trf_error *err) {
    const trf_rows_to_pack *rows = &from->rows;
    trf_pack8_request request =
        trf_pack8_request_of_dense(rows->num_rows, rows->cols, search->to.scales, from->options->like);
    trf_error failure = {0};
    int is_fp8;
    trf_status status = trf_pack8_judge_search(made, &search->found, &is_fp8, err);
    if (status != TRF_OK || !is_fp8)
        return status;
    request.pairs = search->to.pairs;
    status = trf_cuda_pack8_rows(made, &request, rows, &from->options->memory, scratch, &failure);
    if (status == TRF_ERR_UNSUPPORTED) {
        status = trf_cuda_search_all(made->context, rows, scratch, search, err);
        if (status == TRF_OK)
            status = trf_pack8_judge_search(made, &search->found, &is_fp8, err);
        if (status != TRF_OK || !is_fp8)
            return status;
        status = trf_cuda_pack8_rows(made, &request, rows, &from->options->memory, scratch, &failure);
    }
    *done = !trf_pack8_falls_back(made, status, &failure);
    if (!*done)
        return TRF_OK;
    if (err)
        *err = failure;
    return status;
}

static trf_status pack_bf16(trf_packed_maker *maker, const trf_dense_input *from, const trf_load_scratch *scratch,
                            trf_error *err) {
    if (maker->like)
        maker->window = trf_packed_window_of_view(maker->like);
    return finish(maker, pack_rows(maker, from, scratch, err), err);
}

/* Whether to look for FP8. Without kernels for its products packed BF16 is faster. */
static int looks_for_fp8(const trf_device_layer *made, const trf_device_layer *like) {
    return trf_pack8_looks(made, like) && (like || trf_has_sm_90a(&made->context->limits));
}

/* Searches, and copies the scales that were found. The device is current. */
static trf_status find_fp8(const trf_context *context, const trf_rows_to_pack *rows, trf_stream stream, int checks_all,
                           float *scales, trf_found_fp8 *found, trf_error *err) {
    const uint64_t bytes = sizeof *scales * trf_found_fp8_blocks(rows->num_rows, rows->cols);
    const cudaStream_t own = trf_cuda_copier_work_stream(context->copier);
    trf_packed_window window;
    trf_fp8_search search;
    trf_load_scratch *scratch;
    trf_status status = trf_load_scratch_take(context->load_scratches,
                                              trf_cuda_sample_rows_bytes(rows->num_rows, rows->cols), &scratch, err);
    if (status != TRF_OK)
        return status;
    status = trf_cuda_sample_rows(context, rows, stream, scratch, &search, &window, err);
    if (status == TRF_OK && checks_all)
        status = trf_cuda_search_all(context, rows, scratch, &search, err);
    if (status == TRF_OK) {
        const cudaError_t error = cudaMemcpyAsync(scales, search.to.scales, bytes, cudaMemcpyDeviceToDevice, own);
        const cudaError_t waited = cudaStreamSynchronize(own); /* the scratch is given back */
        status = trf_check_cuda(error ? error : waited, "looking for FP8", err);
        *found = search.found;
    }
    trf_load_scratch_give_back(context->load_scratches, scratch);
    return status;
}

trf_status trf_cuda_find_fp8(trf_context *context, const trf_rows_to_pack *rows, trf_stream stream, int checks_all,
                             float *scales, trf_found_fp8 *found, trf_error *err) {
    trf_device_scope scope;
    *found = (trf_found_fp8){.refused = 1};
    if (!trf_has_sm_90a(&context->limits)) /* as in looks_for_fp8 */
        return TRF_OK;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = find_fp8(context, rows, stream, checks_all, scales, found, err);
    trf_leave_device(&scope);
    return status;
}

static trf_status pack_dense(trf_device_layer *made, const trf_dense_input *from, trf_error *err) {
    const trf_context *context = made->context;
    const trf_rows_to_pack *rows = &from->rows;
    const trf_device_layer *like = from->options->like;
    const int looks = looks_for_fp8(made, like);
    trf_packed_maker maker = {.made = made,
                              .bands = {.cols = rows->cols},
                              .request = {made->info.codec, rows->num_rows, rows->cols, 0},
                              .stored_room = from->options->stored_room,
                              .like = like ? &like->packed : NULL};
    trf_fp8_search search;
    trf_load_scratch *scratch;
    int done = 0;
    trf_status status = trf_load_scratch_take(
        context->load_scratches, work_bytes(trf_cuda_sample_rows_bytes(rows->num_rows, rows->cols), &maker, 0),
        &scratch, err);
    if (status != TRF_OK)
        return status;
    /* This call is needed also when the window is known: it makes packing wait for what writes the weights. */
    status = trf_cuda_sample_rows(context, rows, from->written, scratch, looks ? &search : NULL, &maker.window, err);
    if (status == TRF_OK && looks)
        status = pack_fp8(made, from, &search, scratch, &done, err);
    if (status == TRF_OK && !done)
        status = pack_bf16(&maker, from, scratch, err);
    trf_load_scratch_give_back(context->load_scratches, scratch);
    return status;
}

trf_status trf_cuda_pack(trf_device_layer *made, const trf_device_matrix *matrix, const trf_pack_options *options,
                         trf_error *err) {
    const trf_dense_input from = {
        {matrix->weights, matrix->ld, 0, matrix->rows, matrix->cols}, options->stream, options};
    trf_device_scope scope;
    trf_status status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("pack");
    status = pack_dense(made, &from, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

/* ---- converting ---- */

static trf_status convert_plain(trf_device_layer *made, const trf_device_layer *from, const trf_layer_memory *memory,
                                trf_error *err) {
    const uint32_t rows = from->info.rows, cols = from->info.cols;
    const trf_pack_options options = {.memory = *memory};
    const trf_dense_input dense = {
        {trf_plain_weights(from), cols, 0, rows, cols}, trf_cuda_copier_work_stream(from->context->copier), &options};
    return pack_dense(made, &dense, err);
}

static trf_status convert_coded_to_bf16(trf_device_layer *made, const trf_device_layer *from,
                                        const trf_layer_memory *memory, trf_error *err) {
    const trf_context *context = from->context;
    const int8_t *offsets = trf_layer_row_offsets(from);
    trf_packed_maker maker = {.made = made,
                              .bands = {.shard = &from->shard, .cols = from->view.cols},
                              .request = trf_pack_request_of_layer(from)};
    trf_load_scratch *scratch;
    trf_status status = trf_load_scratch_take(
        context->load_scratches, work_bytes(trf_cuda_sample_bytes(from), &maker, from->view.rows), &scratch, err);
    if (status != TRF_OK)
        return status;
    status = trf_cuda_sample_window(from, scratch, scratch->memory, &maker.window, err);
    if (status == TRF_OK)
        status =
            trf_packed_maker_begin(&maker, memory, !is_direct(from), offsets ? offsets + from->shard.row : NULL, err);
    if (status == TRF_OK)
        status = pack_coded(&maker, from, scratch, scratch->memory, err);
    status = finish(&maker, status, err);
    trf_load_scratch_give_back(context->load_scratches, scratch);
    return status;
}

/* Makes a layer of FP8 if that is due, and can be, and else a packed BF16 layer; a trf_cuda_make_packed_fn. */
static trf_status convert_coded(trf_device_layer *made, const trf_device_layer *from, const trf_layer_memory *memory,
                                trf_error *err) {
    const trf_pack8_request request = trf_pack8_request_of_layer(from);
    if (trf_pack8_is_due(made, &request)) {
        trf_error failure = {0};
        trf_status status = trf_cuda_make_packed8(made, from, memory, &failure);
        if (!trf_pack8_falls_back(made, status, &failure)) {
            if (err)
                *err = failure;
            return status;
        }
    }
    return convert_coded_to_bf16(made, from, memory, err);
}

trf_status trf_cuda_convert_to_packed(trf_device_layer *made, const trf_device_layer *from,
                                      const trf_layer_memory *memory, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("convert");
    status = from->layout->layout == TRF_LAYOUT_PLAIN ? convert_plain(made, from, memory, err)
                                                      : convert_coded(made, from, memory, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

/* ---- loading, of either kind ---- */

trf_status trf_cuda_fill_packed_layer(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                                      trf_error *err) {
    const trf_pack8_request request = trf_pack8_request_of_shard(feed->view, &feed->shard);
    trf_device_scope scope;
    trf_status status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("load");
    status = trf_pack8_is_due(made, &request) ? trf_cuda_load_then_make(made, feed, memory, convert_coded, err)
                                              : fill_bf16(made, feed, memory, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}
