/* SPDX-License-Identifier: Apache-2.0 */
/* Packed experts of dense weights, and of other experts: trf_experts_pack, trf_experts_convert. */
#include "trf_device_layer.h"
#include "trf_experts.h"
#include "trf_gate_up.h"
#include "trf_packed8_layer.h"
#include "trf_struct.h"

#include <stdio.h>
#include <stdlib.h>

void trf_expert_pack_options_init(trf_expert_pack_options *options) {
    *options = (trf_expert_pack_options){.struct_bytes = sizeof *options};
}

/* What experts are packed of: dense matrices, or experts that are decoded one at a time, of gates and up projections if
 * `up` is not NULL. */
typedef struct expert_source {
    trf_context *context;
    const trf_device_matrix *matrices; /* [count], or NULL */
    const trf_experts *experts, *up;
    uint32_t count, rows, cols; /* of each packed expert */
} expert_source;

/* Device memory for one dense expert each, or NULL where it is not needed. */
typedef struct pack_scratch {
    void *decoded, *interleaved;
} pack_scratch;

/* Decodes expert `index` to `to`, and waits to know that no tile is corrupt. */
static trf_status decode_one(const trf_experts *experts, uint32_t index, void *to, trf_stream stream, trf_error *err) {
    const trf_device_layer *layer = experts->layers[index];
    const uint64_t bytes = 2ull * layer->info.rows * layer->info.cols;
    const trf_status status = trf_device_layer_decode(layer, TRF_DECODE_BF16, to, bytes, stream, err);
    return status == TRF_OK ? trf_device_layer_check(layer, err) : status;
}

/* Sets *matrix to the dense weights of expert `index`. */
static trf_status get_dense(const expert_source *from, uint32_t index, void *decoded, trf_stream stream,
                            trf_device_matrix *matrix, trf_error *err) {
    if (from->matrices) {
        *matrix = from->matrices[index];
        return TRF_OK;
    }
    trf_device_matrix_init(matrix);
    matrix->weights = decoded;
    matrix->rows = from->rows;
    matrix->cols = from->cols;
    const trf_status status = decode_one(from->experts, index, decoded, stream, err);
    if (status != TRF_OK || !from->up)
        return status;
    return decode_one(from->up, index, (uint8_t *)decoded + (uint64_t)from->rows * from->cols, stream, err);
}

static trf_status pack_one(const expert_source *from, uint32_t index, const trf_expert_pack_options *options,
                           const pack_scratch *scratch, trf_device_layer **layer, trf_error *err) {
    trf_device_matrix matrix;
    trf_pack_options pack;
    trf_pack_options_init(&pack);
    pack.stream = options->stream;
    pack.packed_bf16 = 1; /* nobody looks for FP8 among dense experts, which must lie alike */
    trf_status status = get_dense(from, index, scratch->decoded, options->stream, &matrix, err);
    if (status == TRF_OK && scratch->interleaved) {
        status = trf_interleave_gate_up(from->context, &matrix, scratch->interleaved, options->stream, err);
        matrix.weights = scratch->interleaved;
        matrix.ld = 0;
    }
    return status == TRF_OK ? trf_device_layer_pack(from->context, &matrix, &pack, layer, err) : status;
}

static trf_status allocate_scratch(const expert_source *from, const trf_expert_pack_options *options,
                                   pack_scratch *scratch, trf_error *err) {
    const uint64_t bytes = 2ull * from->rows * from->cols;
    trf_status status = TRF_OK;
    if (!from->matrices)
        status = from->context->ops->allocate(from->context, bytes, &scratch->decoded, err);
    if (status == TRF_OK && options->gate_up_order)
        status = from->context->ops->allocate(from->context, bytes, &scratch->interleaved, err);
    return status;
}

static trf_status check_order(const expert_source *from, const trf_expert_pack_options *options, trf_error *err) {
    if (options->gate_up_order && options->gate_up_order != TRF_GATE_UP_INTERLEAVED_8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no order %d of gate and up",
                        (int)options->gate_up_order);
    if (options->gate_up_order && from->rows % (2 * TRF_GATE_UP_TURN))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "gate and up of %u rows in all cannot take turns by %d rows", from->rows, TRF_GATE_UP_TURN);
    return TRF_OK;
}

/* Packs all experts of a checked source. */
static trf_status pack_all(const expert_source *from, const trf_expert_pack_options *options, trf_experts **experts,
                           trf_error *err) {
    trf_device_layer **layers = calloc(from->count, sizeof *layers);
    pack_scratch scratch = {NULL, NULL};
    uint32_t packed = 0;
    if (!layers)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u experts", from->count);
    trf_status status = allocate_scratch(from, options, &scratch, err);
    for (; packed < from->count && status == TRF_OK; packed += status == TRF_OK) {
        trf_error failure = {0};
        status = pack_one(from, packed, options, &scratch, &layers[packed], &failure);
        if (status != TRF_OK) {
            trf_fail(err, status, failure.offset, "expert %u: %s", packed, failure.message);
            if (err)
                err->cuda = failure.cuda;
        }
    }
    if (scratch.decoded)
        from->context->ops->release(from->context, scratch.decoded);
    if (scratch.interleaved)
        from->context->ops->release(from->context, scratch.interleaved);
    if (status == TRF_OK)
        status = trf_experts_make(layers, from->count, 1, experts, err);
    if (status == TRF_OK) {
        (*experts)->is_packed_here = 1;
        (*experts)->gate_up_order = options->gate_up_order;
    }
    for (uint32_t i = 0; status != TRF_OK && i < packed; i++)
        trf_device_layer_destroy(layers[i]);
    free(layers);
    return status;
}

static trf_status take_options(const trf_expert_pack_options *options, trf_expert_pack_options *taken, trf_error *err) {
    static const trf_struct_type type = {"trf_expert_pack_options", sizeof *options,
                                         TRF_STRUCT_BYTES(trf_expert_pack_options, stream)};
    trf_expert_pack_options_init(taken);
    return options ? trf_take_struct(&type, taken, options, err) : TRF_OK;
}

/* ---- of dense weights ---- */

static trf_status check_matrices(const trf_device_matrix *matrices, uint32_t count, trf_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        if (matrices[i].struct_bytes != sizeof matrices[i])
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "matrix %u has %zu bytes; this version's have %zu", i,
                            matrices[i].struct_bytes, sizeof matrices[i]);
        if (matrices[i].rows != matrices[0].rows || matrices[i].cols != matrices[0].cols)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "expert %u is %ux%u, expert 0 %ux%u", i,
                            matrices[i].rows, matrices[i].cols, matrices[0].rows, matrices[0].cols);
    }
    return TRF_OK;
}

trf_status trf_experts_pack(trf_context *context, const trf_device_matrix *matrices, uint32_t count,
                            const trf_expert_pack_options *options, trf_experts **experts, trf_error *err) {
    trf_expert_pack_options taken;
    if (!context || !matrices || count < 1 || !experts)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "packing experts needs a context and matrices");
    const expert_source from = {
        .context = context, .matrices = matrices, .count = count, .rows = matrices[0].rows, .cols = matrices[0].cols};
    trf_status status = take_options(options, &taken, err);
    if (status == TRF_OK)
        status = check_matrices(matrices, count, err);
    if (status == TRF_OK)
        status = check_order(&from, &taken, err);
    return status == TRF_OK ? pack_all(&from, &taken, experts, err) : status;
}

/* ---- of other experts ---- */

/* Whether an expert's elements are BF16: those of the codec bf16 and of FP8 with scales. */
static int has_bf16_elements(const trf_layer_info *info) {
    return info->codec == TRF_CODEC_BF16 || (info->codec == TRF_CODEC_E4M3 && info->dtype == TRF_DTYPE_BF16);
}

static trf_status check_codec(const trf_experts *experts, trf_error *err) {
    for (uint32_t i = 0; i < experts->count; i++) {
        const trf_layer_info *info = &experts->layers[i]->info;
        if (!has_bf16_elements(info))
            return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                            "experts of codec %s and of %s are not packed (expert %u)", trf_codec_name(info->codec),
                            trf_dtype_name(info->dtype), i);
    }
    return TRF_OK;
}

static trf_status check_source(const trf_experts *experts, const trf_experts *up, trf_error *err) {
    if (experts->gate_up_order || (up && up->gate_up_order))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "rows of gate and up take turns in these experts already");
    if (up && (up->context != experts->context || up->count != experts->count || up->info.rows != experts->info.rows ||
               up->info.cols != experts->info.cols))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "gates are %u experts of %ux%u, up projections %u of %ux%u, or they are of two contexts",
                        experts->count, experts->info.rows, experts->info.cols, up->count, up->info.rows,
                        up->info.cols);
    if (up && experts->info.rows > UINT32_MAX / 2)
        return trf_fail(err, TRF_ERR_SHAPE, TRF_NO_OFFSET, "twice %u rows are too many", experts->info.rows);
    if (up && (uint64_t)experts->info.rows * experts->info.cols % 8)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "gates of %ux%u do not end where 16 bytes do",
                        experts->info.rows, experts->info.cols);
    const trf_status status = check_codec(experts, err);
    return status == TRF_OK && up ? check_codec(up, err) : status;
}

/* Whether all experts are coded FP8 with scales. experts: NULL counts as such. */
static int are_fp8(const trf_experts *experts) {
    for (uint32_t i = 0; experts && i < experts->count; i++) {
        const trf_pack8_request request = trf_pack8_request_of_layer(experts->layers[i]);
        if (!trf_pack8_is_fp8(&request) || request.dtype != TRF_DTYPE_BF16)
            return 0;
    }
    return 1;
}

/* Packs all experts as FP8. They have up only if rows take turns. Errors: TRF_ERR_UNSUPPORTED if one of them cannot be
 * packed so, which the message names. */
static trf_status pack_fp8(const trf_experts *from, const trf_experts *up, const trf_expert_pack_options *options,
                           trf_experts **packed, trf_error *err) {
    trf_device_layer **layers = calloc(from->count, sizeof *layers);
    trf_status status = TRF_OK;
    uint32_t made = 0;
    if (!layers)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u experts", from->count);
    for (; made < from->count && status == TRF_OK; made += status == TRF_OK) {
        trf_error failure = {0};
        const trf_device_layer *layer = from->layers[made];
        status = options->gate_up_order
                     ? trf_gate_up_convert(layer, up ? up->layers[made] : NULL, NULL, &layers[made], &failure)
                     : trf_device_layer_convert(layer, TRF_LAYOUT_PACKED8, NULL, &layers[made], &failure);
        if (status != TRF_OK) {
            trf_fail(err, status, failure.offset, "expert %u: %s", made, failure.message);
            if (err)
                err->cuda = failure.cuda;
        }
    }
    if (status == TRF_OK)
        status = trf_experts_make(layers, from->count, 1, packed, err);
    if (status == TRF_OK) {
        (*packed)->is_packed_here = 1;
        (*packed)->gate_up_order = options->gate_up_order;
    }
    for (uint32_t i = 0; status != TRF_OK && i < made; i++)
        trf_device_layer_destroy(layers[i]);
    free(layers);
    return status;
}

/* Packs FP8 experts as such, or all of them as BF16 if one cannot be, which then note why. */
static trf_status pack_fp8_or_bf16(const expert_source *from, const trf_expert_pack_options *options,
                                   trf_experts **packed, trf_error *err) {
    trf_error failure = {0};
    trf_status status = TRF_ERR_UNSUPPORTED;
    if (from->up && !options->gate_up_order)
        trf_fail(&failure, status, TRF_NO_OFFSET, "gate and up of two tensors are packed as FP8 in turns");
    else
        status = pack_fp8(from->experts, from->up, options, packed, &failure);
    if (status != TRF_ERR_UNSUPPORTED) {
        if (status != TRF_OK && err)
            *err = failure;
        return status;
    }
    status = pack_all(from, options, packed, err);
    for (uint32_t i = 0; status == TRF_OK && i < from->count; i++) {
        trf_device_layer *layer = (*packed)->layers[i];
        snprintf(layer->layout_reason, sizeof layer->layout_reason, "%.255s", failure.message);
    }
    return status;
}

trf_status trf_experts_convert(const trf_experts *experts, const trf_experts *up,
                               const trf_expert_pack_options *options, trf_experts **packed, trf_error *err) {
    trf_expert_pack_options taken;
    if (!experts || !packed)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "converting experts needs some, and a place for others");
    trf_status status = take_options(options, &taken, err);
    if (status == TRF_OK)
        status = check_source(experts, up, err);
    const expert_source from = {.context = experts->context,
                                .experts = experts,
                                .up = up,
                                .count = experts->count,
                                .rows = up ? 2 * experts->info.rows : experts->info.rows,
                                .cols = experts->info.cols};
    if (status == TRF_OK)
        status = check_order(&from, &taken, err);
    if (status != TRF_OK)
        return status;
    if (!are_fp8(experts) || !are_fp8(up))
        return pack_all(&from, &taken, packed, err);
    return pack_fp8_or_bf16(&from, &taken, packed, err);
}
