/* SPDX-License-Identifier: Apache-2.0 */
/* Packed experts of dense weights: trf_experts_pack. */
#include "trf_device_layer.h"
#include "trf_experts.h"
#include "trf_struct.h"

#include <stdlib.h>

enum {
    ROWS_AT_ONCE = 8 /* of gate or of up, that follow each other in TRF_GATE_UP_INTERLEAVED_8 */
};

void trf_expert_pack_options_init(trf_expert_pack_options *options) {
    *options = (trf_expert_pack_options){.struct_bytes = sizeof *options};
}

/* Copies one expert's dense weights to `to`, [rows][cols], with 8 rows of gate and 8 of up in turns. */
static trf_status interleave(const trf_context *context, const trf_device_matrix *matrix, void *to, trf_stream stream,
                             trf_error *err) {
    const uint64_t row_bytes = 2ull * matrix->cols, ld_bytes = 2 * (matrix->ld ? matrix->ld : matrix->cols);
    trf_status status = TRF_OK;
    for (uint32_t i = 0; i < 2 * ROWS_AT_ONCE && status == TRF_OK; i++) { /* row i, and every 16th one after it */
        const uint32_t from = i < ROWS_AT_ONCE ? i : matrix->rows / 2 + i - ROWS_AT_ONCE;
        const trf_row_copy copy = {.to = (uint8_t *)to + i * row_bytes,
                                   .to_pitch = 2 * ROWS_AT_ONCE * row_bytes,
                                   .from = (const uint8_t *)matrix->weights + from * ld_bytes,
                                   .from_pitch = ROWS_AT_ONCE * ld_bytes,
                                   .width = row_bytes,
                                   .rows = matrix->rows / (2 * ROWS_AT_ONCE)};
        status = context->ops->copy_rows(context, &copy, stream, err);
    }
    return status;
}

static trf_status pack_one(trf_context *context, const trf_device_matrix *matrix,
                           const trf_expert_pack_options *options, void *scratch, trf_device_layer **layer,
                           trf_error *err) {
    trf_device_matrix from = *matrix;
    trf_pack_options pack;
    trf_pack_options_init(&pack);
    pack.stream = options->stream;
    trf_status status = TRF_OK;
    if (scratch) {
        status = interleave(context, matrix, scratch, options->stream, err);
        from.weights = scratch;
        from.ld = 0;
    }
    return status == TRF_OK ? trf_device_layer_pack(context, &from, &pack, layer, err) : status;
}

static trf_status check_matrices(const trf_device_matrix *matrices, uint32_t count,
                                 const trf_expert_pack_options *options, trf_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        if (matrices[i].struct_bytes != sizeof matrices[i])
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "matrix %u has %zu bytes; this version's have %zu", i,
                            matrices[i].struct_bytes, sizeof matrices[i]);
        if (matrices[i].rows != matrices[0].rows || matrices[i].cols != matrices[0].cols)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "expert %u is %ux%u, expert 0 %ux%u", i,
                            matrices[i].rows, matrices[i].cols, matrices[0].rows, matrices[0].cols);
    }
    if (options->gate_up_order && options->gate_up_order != TRF_GATE_UP_INTERLEAVED_8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no order %d of gate and up",
                        (int)options->gate_up_order);
    if (options->gate_up_order && matrices[0].rows % (2 * ROWS_AT_ONCE))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "gate and up of %u rows in all cannot take turns by %d rows", matrices[0].rows, ROWS_AT_ONCE);
    return TRF_OK;
}

trf_status trf_experts_pack(trf_context *context, const trf_device_matrix *matrices, uint32_t count,
                            const trf_expert_pack_options *options, trf_experts **experts, trf_error *err) {
    static const trf_struct_type type = {"trf_expert_pack_options", sizeof *options,
                                         TRF_STRUCT_BYTES(trf_expert_pack_options, stream)};
    trf_expert_pack_options taken;
    if (!context || !matrices || count < 1 || !experts)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "packing experts needs a context and matrices");
    trf_expert_pack_options_init(&taken);
    trf_status status = options ? trf_take_struct(&type, &taken, options, err) : TRF_OK;
    if (status == TRF_OK)
        status = check_matrices(matrices, count, &taken, err);
    if (status != TRF_OK)
        return status;
    trf_device_layer **layers = calloc(count, sizeof *layers);
    void *scratch = NULL;
    uint32_t packed = 0;
    if (!layers)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u experts", count);
    if (taken.gate_up_order)
        status = context->ops->allocate(context, 2ull * matrices[0].rows * matrices[0].cols, &scratch, err);
    for (; packed < count && status == TRF_OK; packed += status == TRF_OK) {
        trf_error failure = {0};
        status = pack_one(context, &matrices[packed], &taken, scratch, &layers[packed], &failure);
        if (status != TRF_OK) {
            trf_fail(err, status, failure.offset, "expert %u: %s", packed, failure.message);
            if (err)
                err->cuda = failure.cuda;
        }
    }
    if (scratch)
        context->ops->release(context, scratch);
    if (status == TRF_OK)
        status = trf_experts_make(layers, count, 1, experts, err);
    if (status == TRF_OK) {
        (*experts)->is_packed_here = 1;
        (*experts)->gate_up_order = taken.gate_up_order;
    }
    for (uint32_t i = 0; status != TRF_OK && i < packed; i++)
        trf_device_layer_destroy(layers[i]);
    free(layers);
    return status;
}
