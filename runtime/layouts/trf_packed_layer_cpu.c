/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers on the CPU, BF16 and FP8. When a layer is loaded, its tiles are decoded to dense weights; these are
 * packed, and not kept. */
#include "trf_decoded_bits.h"
#include "trf_device_cpu.h"
#include "trf_layer_feed.h"
#include "trf_load_dense_cpu.h"
#include "trf_pack.h"
#include "trf_packed8_form.h"
#include "trf_packed8_layer.h"
#include "trf_packed_layer.h"
#include "trf_packed_validate.h"
#include "trf_plain_layer.h"
#include "trf_row_reader.h"
#include "trf_threads.h"
#include "trf_unpack.h"
#include "trf_unpack8.h"

#include <stdlib.h>

/* ---- loading ---- */

/* Changes the head to that of a layer with room for more stored tiles. */
static trf_status make_room(const trf_pack_input *from, uint64_t stored_room, const trf_packed_view *like,
                            trf_packed_head *head, trf_error *err) {
    const trf_packed_head needed = *head;
    uint64_t room;
    trf_status status = trf_packed_choose_stored(head, needed.num_stored, stored_room, like, &room, err);
    if (status == TRF_OK)
        status = trf_size_packed(from->rows, from->cols, from->row_offsets != NULL, room, head, err);
    return status;
}

/* Finds out how the weights are packed. The row offsets of the coded layer are taken out of the weights, since its rows
 * may have very different scales; if some weight is no BF16 number then, they stay in. options: or NULL. */
static trf_status choose_packing(trf_pack_input *from, const trf_pack_options *options, trf_packed_head *head,
                                 trf_error *err) {
    const trf_packed_view *like = options && options->like ? &options->like->packed : NULL;
    const trf_packed_window window = like ? trf_packed_window_of_view(like) : trf_pack_window(from);
    trf_status status = trf_pack_head(from, window, head, err);
    if (status == TRF_ERR_UNSUPPORTED && from->row_offsets) {
        from->row_offsets = NULL;
        status = trf_pack_head(from, trf_pack_window(from), head, err);
    }
    return status == TRF_OK && options ? make_room(from, options->stored_room, like, head, err) : status;
}

/* Packs to the caller's memory, or, if at is NULL, to made->memory. */
static trf_status pack_rows(trf_device_layer *made, trf_pack_input from, const trf_pack_options *options, uint8_t *at,
                            trf_error *err) {
    trf_packed_head head;
    trf_status status = choose_packing(&from, options, &head, err);
    if (status != TRF_OK)
        return trf_packed_fail(status, err);
    if (!at) {
        status = trf_cpu_allocate(made->context, head.common.buffer_bytes, &made->memory, err);
        if (status != TRF_OK)
            return status;
        at = made->memory;
    }
    trf_packed_head_set_coded(&head, &made->header, &made->info);
    status = trf_pack(&from, &head, at, err);
    if (status == TRF_OK)
        status = trf_cpu_add_data_checksum(made->context, at, head.common.buffer_bytes, err);
    if (status != TRF_OK) {
        free(made->memory);
        return trf_packed_fail(status, err);
    }
    trf_packed_set_buffer(made, &head, at);
    return TRF_OK;
}

/* Packs weights without padding. row_offsets: of the layer's rows, or NULL. */
static trf_status pack_weights(trf_device_layer *made, const uint16_t *weights, const int8_t *row_offsets, uint8_t *at,
                               trf_error *err) {
    const trf_pack_input from = {.weights = weights,
                                 .stride = made->info.cols,
                                 .rows = made->info.rows,
                                 .cols = made->info.cols,
                                 .row_offsets = row_offsets};
    return pack_rows(made, from, NULL, at, err);
}

/* Packs dense weights, as FP8 if they are. options: or NULL. */
static trf_status pack_dense(trf_device_layer *made, const trf_rows_to_pack *rows, const trf_pack_options *options,
                             uint8_t *at, trf_error *err) {
    const trf_pack_input from = {
        .weights = rows->weights, .stride = rows->stride, .rows = rows->num_rows, .cols = rows->cols};
    const trf_device_layer *like = options ? options->like : NULL;
    int done = 0;
    trf_status status = TRF_OK;
    if (trf_pack8_looks(made, like))
        status = trf_cpu_pack8_dense(made, rows, like, at, &done, err);
    return status == TRF_OK && !done ? pack_rows(made, from, options, at, err) : status;
}

trf_status trf_cpu_pack(trf_device_layer *made, const trf_device_matrix *matrix, const trf_pack_options *options,
                        trf_error *err) {
    const trf_rows_to_pack rows = {matrix->weights, matrix->ld, 0, matrix->rows, matrix->cols};
    return pack_dense(made, &rows, options, options->memory.buffer, err);
}

/* Packs decoded elements without padding, as FP8 if that is due. */
static trf_status pack_elements(trf_device_layer *made, const trf_pack8_request *request, const uint16_t *elements,
                                const int8_t *row_offsets, uint8_t *at, trf_error *err) {
    if (trf_pack8_is_due(made, request)) {
        trf_error failure = {0};
        trf_status status = trf_cpu_pack8(made, request, elements, request->cols, at, &failure);
        if (!trf_pack8_falls_back(made, status, &failure)) {
            if (err)
                *err = failure;
            return status;
        }
    }
    const trf_pack_request bf16 = {trf_element_codec(request->codec, request->dtype), request->rows, request->cols,
                                   row_offsets != NULL};
    trf_packed_head most;
    trf_status status = trf_packed_size_most(&bf16, &most, err); /* refuses E4M3 that is not to be packed as FP8 */
    return status == TRF_OK ? pack_weights(made, elements, row_offsets, at, err) : status;
}

trf_status trf_cpu_fill_packed_layer(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                                     trf_error *err) {
    const int8_t *offsets = trf_feed_row_offsets(feed);
    const trf_pack8_request request = trf_pack8_request_of_shard(feed->view, &feed->shard);
    void *weights;
    trf_status status =
        trf_cpu_allocate(made->context, sizeof(uint16_t) * feed->shard.rows * feed->shard.cols, &weights, err);
    if (status != TRF_OK)
        return status;
    status = trf_cpu_load_dense(feed, weights, err);
    if (status == TRF_OK)
        status =
            pack_elements(made, &request, weights, offsets ? offsets + feed->shard.row : NULL, memory->buffer, err);
    free(weights);
    return status;
}

trf_status trf_cpu_convert_to_packed(trf_device_layer *made, const trf_device_layer *from,
                                     const trf_layer_memory *memory, trf_error *err) {
    const int8_t *offsets = trf_layer_row_offsets(from);
    const trf_pack8_request request = trf_pack8_request_of_layer(from);
    void *weights;
    if (from->layout->layout == TRF_LAYOUT_PLAIN) {
        const trf_rows_to_pack rows = {trf_plain_weights(from), from->info.cols, 0, from->info.rows, from->info.cols};
        return pack_dense(made, &rows, NULL, memory->buffer, err);
    }
    trf_status status =
        trf_cpu_allocate(made->context, sizeof(uint16_t) * made->info.rows * made->info.cols, &weights, err);
    if (status != TRF_OK)
        return status;
    status = trf_cpu_decode_dense(from, weights, err);
    if (status == TRF_OK)
        status =
            pack_elements(made, &request, weights, offsets ? offsets + from->shard.row : NULL, memory->buffer, err);
    free(weights);
    return status;
}

/* Checks all of the buffer: what follows the head decides what is read, and on the CPU the check costs little. */
trf_status trf_cpu_adopt_packed_layer(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes,
                                      trf_error *err) {
    trf_packed_view view;
    trf_status status = trf_packed_adopt(made, buffer, buffer_bytes, err);
    return status == TRF_OK ? trf_validate_packed(buffer, buffer_bytes, &view, err) : status;
}

void trf_cpu_destroy_packed_layer(trf_device_layer *layer) { free(layer->memory); }

/* Loading and adopting have checked everything. */
trf_status trf_cpu_check_packed_layer(const trf_device_layer *layer, trf_error *err) {
    (void)layer, (void)err;
    return TRF_OK;
}

/* ---- decoding ---- */

/* The rows to decode: all of them, or those of a request. */
typedef struct trf_packed_rows {
    const trf_device_layer *layer;
    const trf_row_request *request; /* or NULL */
    trf_decode_as as;
    uint64_t count;
    uint8_t *to;
    uint16_t *rows; /* a row of elements for each worker; NULL: elements are written straight to `to` */
} trf_packed_rows;

enum {
    ROWS_AT_A_TIME = TRF_PACKED_TILE_ROWS
};

/* Writes the elements of a row: BF16 weights, or the codes that FP8 without scales consists of. */
static void unpack_row(const trf_device_layer *layer, uint32_t row, uint16_t *elements) {
    if (layer->layout->layout == TRF_LAYOUT_PACKED) {
        trf_unpack_row(&layer->packed, row, elements);
        return;
    }
    trf_unpack8_row(&layer->packed8, row, elements);
    for (uint32_t col = 0; layer->info.codec == TRF_CODEC_E4M3 && col < layer->view.cols; col++)
        elements[col] = (uint16_t)trf_packed8_code_of_number(elements[col]);
}

/* Writes row `id` of the layer as number `index` of the result. elements: room for one row, or NULL. */
static void put_row(const trf_packed_rows *work, int64_t id, uint64_t index, uint16_t *elements) {
    const trf_device_view *view = &work->layer->view;
    const uint32_t weight_bytes = trf_decoded_weight_bytes(view, work->as);
    uint8_t *const to = work->to + index * view->cols * weight_bytes;
    const int is_there = id >= 0 && id < view->rows;
    const uint32_t row = is_there ? (uint32_t)id : 0, missing = trf_decoded_corrupt_bits(view, work->as);
    if (is_there)
        unpack_row(work->layer, row, elements ? elements : (uint16_t *)to);
    for (uint32_t col = 0; (elements || !is_there) && col < view->cols; col++)
        trf_store_decoded_bits(to, weight_bytes, col,
                               is_there ? trf_decoded_bits(view, work->as, elements[col], row, col) : missing);
}

/* A trf_parallel_fn; index: number of a run of ROWS_AT_A_TIME rows. */
static trf_status put_rows(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_packed_rows *work = context;
    uint16_t *const elements = work->rows ? work->rows + (size_t)worker * work->layer->view.cols : NULL;
    const uint64_t first = index * ROWS_AT_A_TIME, end = first + ROWS_AT_A_TIME;
    (void)err;
    for (uint64_t i = first; i < end && i < work->count; i++) {
        const trf_row_request *request = work->request;
        put_row(work, request ? trf_row_id(request->row_ids, request->id_bytes, i) : (int64_t)i, i, elements);
    }
    return TRF_OK;
}

static trf_status decode_rows(trf_packed_rows *work, trf_error *err) {
    const trf_device_view *view = &work->layer->view;
    const uint64_t parts = (work->count + ROWS_AT_A_TIME - 1) / ROWS_AT_A_TIME;
    const int most = trf_thread_count(work->layer->context->threads),
              workers = (uint64_t)most < parts ? most : (int)parts;
    if (trf_decoded_weight_bytes(view, work->as) != sizeof *work->rows || view->codec != TRF_CODEC_BF16) {
        const size_t bytes = sizeof *work->rows * (size_t)workers * view->cols;
        work->rows = malloc(bytes);
        if (!work->rows)
            return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate rows for %d workers", workers);
    }
    trf_status status = trf_parallel_for(workers, parts, put_rows, work, err);
    free(work->rows);
    return status;
}

trf_status trf_cpu_decode_packed(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                                 trf_error *err) {
    trf_packed_rows work = {.layer = layer, .as = as, .count = layer->view.rows, .to = weights};
    (void)stream;
    return decode_rows(&work, err);
}

trf_status trf_cpu_decode_packed_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                      trf_error *err) {
    trf_packed_rows work = {
        .layer = layer, .request = request, .as = request->as, .count = request->count, .to = request->rows};
    (void)stream;
    return decode_rows(&work, err);
}
