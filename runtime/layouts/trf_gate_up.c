/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a packed FP8 layer of gate and up, whose rows take turns: the public functions. The coded layers are decoded to
 * dense weights, these are put in turns, and the device packs them by the scales of the coded layers. */
#include "trf_gate_up.h"

#include "transfuse/experts.h"
#include "trf_device_layer.h"
#include "trf_packed8_layer.h"

#include <stdlib.h>

trf_status trf_interleave_gate_up(const trf_context *context, const trf_device_matrix *matrix, void *to,
                                  trf_stream stream, trf_error *err) {
    const uint64_t row_bytes = 2ull * matrix->cols, ld_bytes = 2 * (matrix->ld ? matrix->ld : matrix->cols);
    trf_status status = TRF_OK;
    for (uint32_t i = 0; i < 2 * TRF_GATE_UP_TURN && status == TRF_OK; i++) { /* row i, and every 16th one after it */
        const uint32_t from = i < TRF_GATE_UP_TURN ? i : matrix->rows / 2 + i - TRF_GATE_UP_TURN;
        const trf_row_copy copy = {.to = (uint8_t *)to + i * row_bytes,
                                   .to_pitch = 2 * TRF_GATE_UP_TURN * row_bytes,
                                   .from = (const uint8_t *)matrix->weights + from * ld_bytes,
                                   .from_pitch = TRF_GATE_UP_TURN * ld_bytes,
                                   .width = row_bytes,
                                   .rows = matrix->rows / (2 * TRF_GATE_UP_TURN)};
        status = context->ops->copy_rows(context, &copy, stream, err);
    }
    return status;
}

/* ---- what is packed ---- */

static trf_status check_part(const trf_device_layer *layer, trf_error *err) {
    if (layer->is_of_stack)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a stack's layer is not converted");
    if (trf_is_coded_scaled_fp8(layer))
        return TRF_OK;
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                    "gate and up are packed as FP8 of coded layers of FP8 with scales, not of a %s layer of the codec "
                    "%s and %s weights",
                    trf_layout_name(layer->layout->layout), trf_codec_name(layer->info.codec),
                    trf_dtype_name(layer->info.dtype));
}

/* Fills in the requests of gate and of up. */
static trf_status take_parts(const trf_device_layer *gate, const trf_device_layer *up, trf_pack8_request requests[2],
                             trf_error *err) {
    if (!gate)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "gate and up need layers");
    if (up && (up->context != gate->context || up->info.rows != gate->info.rows || up->info.cols != gate->info.cols))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "gate is %ux%u and up %ux%u, or they are of two contexts",
                        gate->info.rows, gate->info.cols, up->info.rows, up->info.cols);
    trf_status status = check_part(gate, err);
    if (status == TRF_OK && up)
        status = check_part(up, err);
    if (status != TRF_OK)
        return status;
    requests[0] = trf_pack8_request_of_layer(gate);
    requests[1] = trf_pack8_request_of_layer(up ? up : gate);
    const uint64_t rows = (uint64_t)requests[0].rows * (up ? 2 : 1);
    if (rows % (2 * TRF_GATE_UP_TURN) || rows > UINT32_MAX)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "gate and up of %llu rows in all cannot take turns by %d rows", (unsigned long long)rows,
                        TRF_GATE_UP_TURN);
    requests[0].rows = requests[1].rows = (uint32_t)(rows / 2);
    if (!up)
        requests[1].row += requests[1].rows;
    return TRF_OK;
}

static trf_status size_parts(const trf_pack8_request requests[2], trf_layer_size *size, trf_error *err) {
    trf_packed8_head head;
    trf_status status = trf_pack8_size_turns(requests, &head, err);
    if (status == TRF_OK)
        *size = (trf_layer_size){.buffer_bytes = head.common.buffer_bytes};
    return status;
}

trf_status trf_gate_up_get_converted_size(const trf_device_layer *gate, const trf_device_layer *up,
                                          trf_layer_size *size, trf_error *err) {
    trf_pack8_request requests[2];
    if (!size)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer's size needs a place");
    trf_status status = take_parts(gate, up, requests, err);
    return status == TRF_OK ? size_parts(requests, size, err) : status;
}

/* ---- converting ---- */

static trf_status check_memory(const trf_device_layer *gate, const trf_device_layer *up,
                               const trf_pack8_request requests[2], const trf_layer_memory *memory, trf_error *err) {
    trf_layer_size size;
    trf_status status = size_parts(requests, &size, err);
    for (int part = 0; status == TRF_OK && trf_has_memory(memory) && part < (up ? 2 : 1); part++) {
        const trf_device_layer *layer = part ? up : gate;
        const trf_given_buffer from = {layer->view.buffer, layer->view.buffer_bytes};
        status = trf_check_layer_memory(memory, &size, &from, gate->context->ops->alignment, 0, err);
    }
    return status;
}

/* Decodes a layer to `to`, and waits to know that no tile is corrupt. */
static trf_status decode(const trf_device_layer *layer, void *to, trf_error *err) {
    const trf_status status = layer->layout->decode(layer, TRF_DECODE_BF16, to, NULL, err);
    return status == TRF_OK ? trf_device_layer_check(layer, err) : status;
}

/* Puts the weights in turns. dense, turns: device memory for all of them. */
static trf_status make_turns(const trf_device_layer *gate, const trf_device_layer *up,
                             const trf_pack8_request requests[2], void *dense, void *turns, trf_error *err) {
    const uint32_t cols = requests[0].cols;
    trf_device_matrix matrix;
    trf_device_matrix_init(&matrix);
    matrix.weights = dense;
    matrix.rows = 2 * requests[0].rows;
    matrix.cols = cols;
    trf_status status = decode(gate, dense, err);
    if (status == TRF_OK && up)
        status = decode(up, (uint8_t *)dense + 2ull * requests[0].rows * cols, err);
    return status == TRF_OK ? trf_interleave_gate_up(gate->context, &matrix, turns, NULL, err) : status;
}

static trf_status fill(trf_device_layer *made, const trf_device_layer *gate, const trf_device_layer *up,
                       const trf_pack8_request requests[2], const trf_layer_memory *memory, trf_error *err) {
    const trf_context *context = made->context;
    const uint64_t bytes = 4ull * requests[0].rows * requests[0].cols;
    void *dense = NULL, *turns = NULL;
    trf_status status = context->ops->allocate(context, bytes, &dense, err);
    if (status == TRF_OK)
        status = context->ops->allocate(context, bytes, &turns, err);
    if (status == TRF_OK)
        status = make_turns(gate, up, requests, dense, turns, err);
    if (status == TRF_OK)
        status = made->layout->pack_turns(made, requests, turns, memory, err);
    if (dense)
        context->ops->release(context, dense);
    if (turns)
        context->ops->release(context, turns);
    return status;
}

trf_status trf_gate_up_convert(const trf_device_layer *gate, const trf_device_layer *up, const trf_layer_memory *memory,
                               trf_device_layer **converted, trf_error *err) {
    const trf_layer_memory given = memory ? *memory : (trf_layer_memory){0};
    trf_pack8_request requests[2];
    const trf_layout_ops *ops;
    trf_device_layer *made;
    if (!converted)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "converting needs a place for the new layer");
    trf_status status = take_parts(gate, up, requests, err);
    if (status == TRF_OK)
        status = check_memory(gate, up, requests, &given, err);
    if (status == TRF_OK)
        status = trf_find_layout(gate->context, TRF_LAYOUT_PACKED8, &ops, err);
    if (status == TRF_OK)
        status = trf_begin_device_layer(gate->context, ops, &made, err);
    if (status != TRF_OK)
        return status;
    made->header = trf_layout_bf16_header(2 * requests[0].rows, requests[0].cols);
    made->info = trf_layout_coded_info(&made->header, 2 * requests[0].rows, requests[0].cols);
    status = fill(made, gate, up, requests, &given, err);
    if (status == TRF_OK)
        *converted = made;
    else
        free(made);
    return status;
}
