/* SPDX-License-Identifier: Apache-2.0 */
/* Packed experts of dense weights, and of other experts: trf_experts_pack, trf_experts_convert. */
#include "trf_device_layer.h"
#include "trf_experts.h"
#include "trf_gate_up.h"
#include "trf_packed8_layer.h"
#include "trf_packed_layer.h"
#include "trf_struct.h"

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

/* Experts that are being packed, and device memory for one dense expert each, or NULL where it is not needed. */
typedef struct expert_packing {
    const expert_source *from;
    const trf_expert_pack_options *options;
    void *decoded, *interleaved;
    uint32_t packed; /* so many experts have been packed, also after a failure */
} expert_packing;

/* Makes packed expert `index`. */
typedef trf_status pack_one_fn(const expert_packing *packing, uint32_t index, trf_device_layer **layer, trf_error *err);

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

/* A pack_one_fn, by way of dense weights. */
static trf_status pack_bf16(const expert_packing *packing, uint32_t index, trf_device_layer **layer, trf_error *err) {
    const expert_source *from = packing->from;
    const trf_stream stream = packing->options->stream;
    trf_device_matrix matrix;
    trf_pack_options pack;
    trf_pack_options_init(&pack);
    pack.stream = stream;
    pack.packed_bf16 = 1; /* experts must lie alike */
    trf_status status = get_dense(from, index, packing->decoded, stream, &matrix, err);
    if (status == TRF_OK && packing->interleaved) {
        status = trf_interleave_gate_up(from->context, &matrix, packing->interleaved, stream, err);
        matrix.weights = packing->interleaved;
        matrix.ld = 0;
    }
    return status == TRF_OK ? trf_device_layer_pack(from->context, &matrix, &pack, layer, err) : status;
}

static trf_status allocate_scratch(expert_packing *packing, trf_error *err) {
    const expert_source *from = packing->from;
    const uint64_t bytes = 2ull * from->rows * from->cols;
    trf_status status = TRF_OK;
    if (!from->matrices)
        status = from->context->ops->allocate(from->context, bytes, &packing->decoded, err);
    if (status == TRF_OK && packing->options->gate_up_order)
        status = from->context->ops->allocate(from->context, bytes, &packing->interleaved, err);
    return status;
}

static void release_scratch(const expert_packing *packing) {
    const trf_context *context = packing->from->context;
    if (packing->decoded)
        context->ops->release(context, packing->decoded);
    if (packing->interleaved)
        context->ops->release(context, packing->interleaved);
}

static trf_status check_order(const expert_source *from, const trf_expert_pack_options *options, trf_error *err) {
    if (options->gate_up_order && options->gate_up_order != TRF_GATE_UP_INTERLEAVED_8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no order %d of gate and up",
                        (int)options->gate_up_order);
    return options->gate_up_order ? trf_check_gate_up_rows(from->rows, err) : TRF_OK;
}

/* Packs each expert, and releases the scratch memory. Messages name the expert that failed. */
static trf_status pack_each(expert_packing *packing, pack_one_fn *pack_one, trf_experts **experts, trf_error *err) {
    const uint32_t count = packing->from->count;
    trf_device_layer **layers = calloc(count, sizeof *layers);
    trf_status status = TRF_OK;
    uint32_t packed = 0;
    if (!layers) {
        release_scratch(packing);
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u experts", count);
    }
    for (; packed < count && status == TRF_OK; packed += status == TRF_OK) {
        trf_error failure = {0};
        status = pack_one(packing, packed, &layers[packed], &failure);
        if (status != TRF_OK) {
            trf_fail(err, status, failure.offset, "expert %u: %s", packed, failure.message);
            if (err)
                err->cuda = failure.cuda;
        }
    }
    release_scratch(packing);
    packing->packed = packed;
    if (status == TRF_OK)
        status = trf_experts_make(layers, count, 1, experts, err);
    if (status == TRF_OK) {
        (*experts)->is_packed_here = 1;
        (*experts)->gate_up_order = packing->options->gate_up_order;
    }
    for (uint32_t i = 0; status != TRF_OK && i < packed; i++)
        trf_device_layer_destroy(layers[i]);
    free(layers);
    return status;
}

/* Packs all experts of a checked source as BF16. */
static trf_status pack_all(const expert_source *from, const trf_expert_pack_options *options, trf_experts **experts,
                           trf_error *err) {
    expert_packing packing = {.from = from, .options = options};
    const trf_status status = allocate_scratch(&packing, err);
    if (status == TRF_OK)
        return pack_each(&packing, pack_bf16, experts, err);
    release_scratch(&packing);
    return status;
}

/* Does the same, and has all experts note why they are not packed as FP8. */
static trf_status pack_all_since(const expert_source *from, const trf_expert_pack_options *options, const char *reason,
                                 trf_experts **experts, trf_error *err) {
    const trf_status status = pack_all(from, options, experts, err);
    for (uint32_t i = 0; status == TRF_OK && i < from->count; i++)
        trf_note_layout_reason((*experts)->layers[i], reason);
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
        /* Rows that are put in turns are read before any layer is packed. */
        trf_device_matrix taken;
        trf_layer_size size;
        trf_status status = trf_take_device_matrix(&matrices[i], &taken, err);
        if (status == TRF_OK)
            status = trf_check_dense_weights(&taken, &size, err);
        if (status != TRF_OK)
            return trf_prefix_error(err, status, "expert %u", i);
    }
    return TRF_OK;
}

/* A pack_one_fn. Errors: TRF_ERR_MISMATCH if the weights are no FP8, TRF_ERR_UNSUPPORTED if they do not fit. */
static trf_status pack_dense_fp8(const expert_packing *packing, uint32_t index, trf_device_layer **layer,
                                 trf_error *err) {
    const expert_source *from = packing->from;
    const trf_device_matrix *matrix = &from->matrices[index];
    trf_pack_options pack;
    if (packing->options->gate_up_order)
        return trf_gate_up_pack(from->context, matrix, packing->options->stream, NULL, layer, err);
    trf_pack_options_init(&pack);
    pack.stream = packing->options->stream;
    trf_status status = trf_device_layer_pack(from->context, matrix, &pack, layer, err);
    if (status != TRF_OK || (*layer)->layout->layout == TRF_LAYOUT_PACKED8)
        return status;
    status =
        (*layer)->layout_reason[0]
            ? trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "%s", (*layer)->layout_reason)
            : trf_fail(err, TRF_ERR_MISMATCH, TRF_NO_OFFSET, "the weights are no codes times scales of %dx%d of them",
                       TRF_FOUND_FP8_BLOCK, TRF_FOUND_FP8_BLOCK);
    trf_device_layer_destroy(*layer);
    return status;
}

/* Whether the last expert is FP8, though the first one is not: else the experts are taken for what never was FP8. */
static int is_last_fp8(const expert_packing *packing) {
    trf_device_layer *layer;
    const trf_status status = pack_dense_fp8(packing, packing->from->count - 1, &layer, NULL);
    if (status == TRF_OK)
        trf_device_layer_destroy(layer);
    return status == TRF_OK || status == TRF_ERR_UNSUPPORTED;
}

/* Packs dense experts as FP8 if all were that, and else as BF16. */
static trf_status pack_dense(const expert_source *from, const trf_expert_pack_options *options, trf_experts **experts,
                             trf_error *err) {
    expert_packing packing = {.from = from, .options = options};
    trf_error failure = {0};
    const trf_status status = pack_each(&packing, pack_dense_fp8, experts, &failure);
    if (status == TRF_ERR_MISMATCH && packing.packed == 0 && !is_last_fp8(&packing))
        return pack_all(from, options, experts, err);
    if (status == TRF_ERR_MISMATCH || status == TRF_ERR_UNSUPPORTED)
        return pack_all_since(from, options, failure.message, experts, err);
    if (status != TRF_OK && err)
        *err = failure;
    return status;
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
    if (status != TRF_OK)
        return status;
    return taken.packed_bf16 ? pack_all(&from, &taken, experts, err) : pack_dense(&from, &taken, experts, err);
}

/* ---- of other experts ---- */

static trf_status check_codec(const trf_experts *experts, trf_error *err) {
    for (uint32_t i = 0; i < experts->count; i++) {
        const trf_layer_info *info = &experts->layers[i]->info;
        if (trf_element_codec(info->codec, info->dtype) != TRF_CODEC_BF16)
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
    for (uint32_t i = 0; experts && i < experts->count; i++)
        if (!trf_is_coded_scaled_fp8(experts->layers[i]))
            return 0;
    return 1;
}

/* A pack_one_fn. Errors: TRF_ERR_UNSUPPORTED if the expert cannot be packed as FP8. */
static trf_status pack_fp8(const expert_packing *packing, uint32_t index, trf_device_layer **layer, trf_error *err) {
    const expert_source *from = packing->from;
    const trf_device_layer *expert = from->experts->layers[index];
    return packing->options->gate_up_order
               ? trf_gate_up_convert(expert, from->up ? from->up->layers[index] : NULL, NULL, layer, err)
               : trf_device_layer_convert(expert, TRF_LAYOUT_PACKED8, NULL, layer, err);
}

/* Packs FP8 experts as such, or all of them as BF16 if one cannot be, which then note why. */
static trf_status pack_fp8_or_bf16(const expert_source *from, const trf_expert_pack_options *options,
                                   trf_experts **packed, trf_error *err) {
    expert_packing packing = {.from = from, .options = options};
    trf_error failure = {0};
    trf_status status = TRF_ERR_UNSUPPORTED;
    if (from->up && !options->gate_up_order)
        trf_fail(&failure, status, TRF_NO_OFFSET, "gate and up of two tensors are packed as FP8 in turns");
    else
        status = pack_each(&packing, pack_fp8, packed, &failure);
    if (status != TRF_ERR_UNSUPPORTED) {
        if (status != TRF_OK && err)
            *err = failure;
        return status;
    }
    return pack_all_since(from, options, failure.message, packed, err);
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
    if (taken.packed_bf16 || !are_fp8(experts) || !are_fp8(up))
        return pack_all(&from, &taken, packed, err);
    return pack_fp8_or_bf16(&from, &taken, packed, err);
}
