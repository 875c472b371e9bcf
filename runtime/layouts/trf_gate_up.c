/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a packed FP8 layer of gate and up, whose rows take turns: the public functions. Coded layers are decoded to
 * dense weights, these are put in turns, and the device packs them by the scales of the coded layers, or by those that
 * are found in dense weights. */
#include "trf_gate_up.h"

#include "transfuse/experts.h"
#include "trf_device_layer.h"
#include "trf_packed8_layer.h"
#include "trf_packed_layer.h"

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

trf_status trf_check_gate_up_rows(uint64_t rows, trf_error *err) {
    if (rows % (2 * TRF_GATE_UP_TURN) == 0 && rows <= UINT32_MAX)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                    "gate and up of %llu rows in all cannot take turns by %d rows", (unsigned long long)rows,
                    TRF_GATE_UP_TURN);
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
    if ((status = trf_check_gate_up_rows(rows, err)) != TRF_OK)
        return status;
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

/* ---- of dense weights ---- */

/* Dense gate and up, one half each, and device memory for what is made of them. */
typedef struct dense_turns {
    trf_device_matrix matrix;
    trf_stream stream; /* writes the weights */
    float *scales;     /* those of gate, and then those of up, [trf_found_fp8_blocks] each */
    void *turns;       /* the weights in turns */
} dense_turns;

static trf_rows_to_pack half_of(const dense_turns *of, int turn) {
    const uint32_t rows = of->matrix.rows / 2;
    const uint16_t *weights = of->matrix.weights;
    return (trf_rows_to_pack){weights + (uint64_t)turn * rows * of->matrix.ld, of->matrix.ld, 0, rows, of->matrix.cols};
}

/* Looks for FP8 in both halves, and makes their requests. */
static trf_status find_halves(trf_device_layer *made, const dense_turns *of, int checks_all,
                              trf_pack8_request requests[2], trf_error *err) {
    for (int turn = 0; turn < 2; turn++) {
        const trf_rows_to_pack rows = half_of(of, turn);
        float *const scales = of->scales + (turn ? trf_found_fp8_blocks(rows.num_rows, rows.cols) : 0);
        trf_found_fp8 found;
        trf_status status = made->layout->find_fp8(made->context, &rows, of->stream, checks_all, scales, &found, err);
        if (status != TRF_OK)
            return status;
        if (!trf_found_fp8_is_fp8(&found))
            return trf_fail(err, TRF_ERR_MISMATCH, TRF_NO_OFFSET,
                            "the weights of %s are no codes times scales of %dx%d of them", turn ? "up" : "gate",
                            TRF_FOUND_FP8_BLOCK, TRF_FOUND_FP8_BLOCK);
        requests[turn] = trf_pack8_request_of_dense(rows.num_rows, rows.cols, scales, NULL);
    }
    return TRF_OK;
}

/* Searches and packs, first by samples, and, if these misled the search, by all weights. */
static trf_status search_and_pack(trf_device_layer *made, const dense_turns *of, const trf_layer_memory *memory,
                                  trf_error *err) {
    trf_status status = TRF_ERR_UNSUPPORTED;
    for (int checks_all = 0; checks_all < 2 && status == TRF_ERR_UNSUPPORTED; checks_all++) {
        trf_pack8_request requests[2];
        status = find_halves(made, of, checks_all, requests, err);
        if (status != TRF_OK)
            return status;
        /* The search has waited for the weights, so the NULL stream may read them. */
        status = trf_interleave_gate_up(made->context, &of->matrix, of->turns, NULL, err);
        if (status == TRF_OK)
            status = made->layout->pack_turns(made, requests, of->turns, memory, err);
    }
    return status;
}

static trf_status pack_dense(trf_device_layer *made, dense_turns *of, const trf_layer_memory *memory, trf_error *err) {
    const trf_context *context = made->context;
    const uint64_t blocks = trf_found_fp8_blocks(of->matrix.rows / 2, of->matrix.cols);
    void *scales = NULL;
    trf_status status = context->ops->allocate(context, 2 * blocks * sizeof *of->scales, &scales, err);
    of->scales = scales;
    if (status == TRF_OK)
        status = context->ops->allocate(context, 2ull * of->matrix.rows * of->matrix.cols, &of->turns, err);
    if (status == TRF_OK)
        status = search_and_pack(made, of, memory, err);
    if (scales)
        context->ops->release(context, scales);
    if (of->turns)
        context->ops->release(context, of->turns);
    return status;
}

/* Checks the shape, that the weights are given, and the layer's memory, if the caller supplies it. */
static trf_status check_dense(const trf_context *context, const trf_device_matrix *matrix,
                              const trf_layer_memory *memory, trf_error *err) {
    const uint64_t weights = (uint64_t)(matrix->rows ? matrix->rows - 1 : 0) * matrix->ld + matrix->cols;
    const trf_given_buffer given = {matrix->weights, weights * sizeof(uint16_t)};
    trf_packed8_head head = {0};
    if (!given.at || (uintptr_t)given.at % sizeof(uint16_t))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "packing needs weights in device memory, aligned to 2 bytes");
    trf_status status = trf_check_gate_up_rows(matrix->rows, err);
    if (status == TRF_OK)
        status = trf_size_packed8(matrix->rows, matrix->cols, &head, err);
    const trf_layer_size size = {.buffer_bytes = head.common.buffer_bytes};
    if (status != TRF_OK || !trf_has_memory(memory))
        return status;
    return trf_check_layer_memory(memory, &size, &given, context->ops->alignment, 0, err);
}

trf_status trf_gate_up_pack(trf_context *context, const trf_device_matrix *matrix, trf_stream stream,
                            const trf_layer_memory *memory, trf_device_layer **packed, trf_error *err) {
    const trf_layer_memory given = memory ? *memory : (trf_layer_memory){0};
    dense_turns of = {.stream = stream};
    const trf_layout_ops *ops;
    trf_device_layer *made;
    if (!context || !packed)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "packing needs a context, and a place for the layer");
    trf_status status = trf_take_device_matrix(matrix, &of.matrix, err);
    if (status == TRF_OK)
        status = check_dense(context, &of.matrix, &given, err);
    if (status == TRF_OK)
        status = trf_find_layout(context, TRF_LAYOUT_PACKED8, &ops, err);
    if (status == TRF_OK)
        status = trf_begin_device_layer(context, ops, &made, err);
    if (status != TRF_OK)
        return status;
    made->header = trf_layout_bf16_header(of.matrix.rows, of.matrix.cols);
    made->info = trf_layout_coded_info(&made->header, of.matrix.rows, of.matrix.cols);
    status = pack_dense(made, &of, &given, err);
    if (status == TRF_OK)
        *packed = made;
    else
        free(made);
    return status;
}
