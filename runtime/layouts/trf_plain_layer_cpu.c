/* SPDX-License-Identifier: Apache-2.0 */
/* Plain layers on the CPU: tiles are decoded to the dense matrix when a layer is loaded, and are not kept. */
#include "trf_decoded_bits.h"
#include "trf_device_cpu.h"
#include "trf_layer_feed.h"
#include "trf_load_dense_cpu.h"
#include "trf_plain_layer.h"
#include "trf_row_reader.h"

#include <stdlib.h>
#include <string.h>

/* Finds the layer's buffer: *buffer is the caller's memory, or made->memory, which this allocates. */
static trf_status find_buffer(trf_device_layer *made, const trf_layer_memory *memory, uint8_t **buffer,
                              trf_error *err) {
    *buffer = memory->buffer;
    if (*buffer)
        return TRF_OK;
    trf_status status =
        trf_cpu_allocate(made->context, trf_plain_buffer_bytes(made->info.rows, made->info.cols), &made->memory, err);
    *buffer = made->memory;
    return status;
}

/* Completes the buffer if the weights have been written, or else releases it. The head is written last, so a buffer
 * that has a head is complete. @return status, or TRF_ERR_MEMORY. */
static trf_status finish_buffer(trf_device_layer *made, uint8_t *buffer, trf_status status, trf_error *err) {
    if (status == TRF_OK) {
        trf_plain_head_write(&made->header, &made->info, (trf_plain_head *)buffer);
        trf_plain_set_buffer(made, buffer);
        status = trf_cpu_add_data_checksum(made->context, buffer, made->view.buffer_bytes, err);
    }
    if (status != TRF_OK)
        free(made->memory);
    return status;
}

trf_status trf_cpu_fill_plain_layer(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                                    trf_error *err) {
    uint8_t *buffer;
    trf_status status = find_buffer(made, memory, &buffer, err);
    if (status != TRF_OK)
        return status;
    status = trf_cpu_load_dense(feed, (uint16_t *)(buffer + TRF_PLAIN_WEIGHTS_OFFSET), err);
    return finish_buffer(made, buffer, status, err);
}

trf_status trf_cpu_convert_to_plain(trf_device_layer *made, const trf_device_layer *from,
                                    const trf_layer_memory *memory, trf_error *err) {
    uint8_t *buffer;
    trf_status status = find_buffer(made, memory, &buffer, err);
    if (status != TRF_OK)
        return status;
    status = trf_cpu_decode_dense(from, (uint16_t *)(buffer + TRF_PLAIN_WEIGHTS_OFFSET), err);
    return finish_buffer(made, buffer, status, err);
}

void trf_cpu_destroy_plain_layer(trf_device_layer *layer) { free(layer->memory); }

/* Loading has checked everything. */
trf_status trf_cpu_check_plain_layer(const trf_device_layer *layer, trf_error *err) {
    (void)layer, (void)err;
    return TRF_OK;
}

/* Writes one row of the layer. */
static void put_row(const trf_device_layer *layer, trf_decode_as as, uint32_t row, void *to) {
    const trf_device_view *view = &layer->view;
    const uint16_t *from = trf_plain_weights(layer) + (size_t)row * view->cols;
    if (trf_plain_is_copied(layer, as)) {
        memcpy(to, from, view->cols * sizeof *from);
        return;
    }
    for (uint32_t col = 0; col < view->cols; col++)
        trf_store_decoded_bits(to, sizeof(float), col, trf_decoded_bits(view, as, from[col], row, col));
}

trf_status trf_cpu_decode_plain(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                                trf_error *err) {
    const uint64_t row_bytes = (uint64_t)layer->view.cols * trf_decoded_weight_bytes(&layer->view, as);
    (void)stream, (void)err;
    for (uint32_t row = 0; row < layer->view.rows; row++)
        put_row(layer, as, row, (uint8_t *)weights + row * row_bytes);
    return TRF_OK;
}

trf_status trf_cpu_decode_plain_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                     trf_error *err) {
    const trf_device_view *view = &layer->view;
    const uint32_t weight_bytes = trf_decoded_weight_bytes(view, request->as),
                   missing = trf_decoded_corrupt_bits(view, request->as);
    (void)stream, (void)err;
    for (uint32_t i = 0; i < request->count; i++) {
        uint8_t *const to = (uint8_t *)request->rows + (uint64_t)i * view->cols * weight_bytes;
        const int64_t id = trf_row_id(request->row_ids, request->id_bytes, i);
        if (id >= 0 && id < view->rows)
            put_row(layer, request->as, (uint32_t)id, to);
        else
            for (uint32_t col = 0; col < view->cols; col++)
                trf_store_decoded_bits(to, weight_bytes, col, missing);
    }
    return TRF_OK;
}
