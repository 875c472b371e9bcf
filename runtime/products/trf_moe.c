/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: the public functions. */
#include "trf_device_layer.h"
#include "trf_experts.h"
#include "trf_struct.h"

#include <stdlib.h>

enum {
    MOST_TOKENS = 1 << 20,
    MOST_TOP_K = 32 /* lanes of a warp, each of which knows one */
};

void trf_moe_options_init(trf_moe_options *options) {
    *options = (trf_moe_options){
        .struct_bytes = sizeof *options, .max_tokens = 1, .top_k = 1, .activation = TRF_ACTIVATION_SILU};
}

void trf_moe_operands_init(trf_moe_operands *operands) {
    *operands = (trf_moe_operands){.struct_bytes = sizeof *operands, .id_bytes = 4};
}

/* Whether experts are packed, as BF16 or as FP8. */
static int is_packed(const trf_experts *experts) {
    const trf_layout layout = experts->layers[0]->layout->layout;
    return layout == TRF_LAYOUT_PACKED || layout == TRF_LAYOUT_PACKED8;
}

static trf_status check_options(const trf_experts *gate_up, const trf_moe_options *options, trf_error *err) {
    if (options->max_tokens < 1 || options->max_tokens > MOST_TOKENS)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%u tokens; 1 to %d can be had", options->max_tokens,
                        MOST_TOKENS);
    if (options->top_k < 1 || options->top_k > MOST_TOP_K)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%u experts a token; 1 to %d can be had", options->top_k,
                        MOST_TOP_K);
    if (options->num_ids && (options->num_ids < gate_up->count || options->num_ids > INT32_MAX))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%u experts on all devices, and %u here",
                        options->num_ids, gate_up->count);
    if (options->up && options->gate_up_order != TRF_GATE_UP_HALVES)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "rows of gate and up that are two tensors do not take turns (gate_up_order)");
    if (is_packed(gate_up) && options->gate_up_order != TRF_GATE_UP_INTERLEAVED_8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "a mixture of packed experts needs rows of gate and up that are interleaved by 8 "
                        "(gate_up_order)");
    if (options->gate_up_order != TRF_GATE_UP_HALVES && options->gate_up_order != TRF_GATE_UP_INTERLEAVED_8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no order %d of gate and up",
                        (int)options->gate_up_order);
    if (gate_up->is_packed_here && gate_up->gate_up_order != TRF_GATE_UP_INTERLEAVED_8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "gate_up was packed in another order of rows than the mixture's");
    if (options->activation != TRF_ACTIVATION_SILU && options->activation != TRF_ACTIVATION_GELU_TANH)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "mixtures have no activation %d",
                        (int)options->activation);
    return TRF_OK;
}

/* up: NULL if gate_up has both. */
static trf_status check_up(const trf_experts *gate, const trf_experts *up, trf_error *err) {
    if (!up)
        return TRF_OK;
    if (is_packed(gate) || is_packed(up))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "gate and up of two tensors are coded experts; trf_experts_convert packs them together");
    if (up->context != gate->context || up->count != gate->count || up->info.rows != gate->info.rows ||
        up->info.cols != gate->info.cols || up->info.codec != gate->info.codec)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "gates are %u experts of %ux%u of codec %s, up projections %u of %ux%u of codec %s, or they "
                        "are of two contexts",
                        gate->count, gate->info.rows, gate->info.cols, trf_codec_name(gate->info.codec), up->count,
                        up->info.rows, up->info.cols, trf_codec_name(up->info.codec));
    return TRF_OK;
}

/* rows: of gate and up in all. */
static trf_status check_experts(const trf_experts *gate_up, const trf_experts *down, uint64_t rows, trf_error *err) {
    const trf_layer_info *first = &gate_up->info, *second = &down->info;
    if (gate_up->context != down->context || gate_up->count != down->count || is_packed(gate_up) != is_packed(down))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "gate_up and down need one context, to be packed or coded both, and as many experts as each "
                        "other (%u and %u)",
                        gate_up->count, down->count);
    if (rows % 2 || rows / 2 != second->cols || first->cols != second->rows)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "gate and up of %llux%u and down of %ux%u do not fit each other", (unsigned long long)rows,
                        first->cols, second->rows, second->cols);
    if (first->codec != TRF_CODEC_BF16 || second->codec != TRF_CODEC_BF16)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "mixtures are of BF16 experts, not of %s",
                        trf_codec_name(first->codec != TRF_CODEC_BF16 ? first->codec : second->codec));
    if (rows % 16 || first->cols % 8)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "gate and up have %llu rows in all and %u columns; multiples of 16 and of 8 are needed",
                        (unsigned long long)rows, first->cols);
    return TRF_OK;
}

/* options: checked. rows: of gate and up in all. @return NULL if memory is short. */
static trf_moe *make_moe(const trf_experts *gate_up, const trf_experts *down, const trf_moe_options *options,
                         uint32_t rows) {
    trf_moe *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->gate_up = gate_up;
    made->down = down;
    made->up = options->up;
    made->gate_up_rows = options->up                                           ? TRF_PACK_ROWS_OF_TWO
                         : options->gate_up_order == TRF_GATE_UP_INTERLEAVED_8 ? TRF_PACK_ROWS_AS_THEY_ARE
                                                                               : TRF_PACK_ROWS_OF_HALVES;
    made->max_tokens = options->max_tokens;
    made->activation = options->activation;
    made->shape = (trf_moe_shape){.experts = gate_up->count,
                                  .num_ids = options->num_ids ? options->num_ids : gate_up->count,
                                  .top_k = options->top_k,
                                  .hidden = gate_up->info.cols,
                                  .gate_up_rows = rows};
    return made;
}

trf_status trf_moe_create(const trf_experts *gate_up, const trf_experts *down, const trf_moe_options *options,
                          trf_moe **moe, trf_error *err) {
    static const trf_struct_type type = {"trf_moe_options", sizeof *options,
                                         TRF_STRUCT_BYTES(trf_moe_options, activation)};
    trf_moe_options taken;
    uint64_t rows = 0, bytes;
    if (!gate_up || !down || !options || !moe)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a mixture needs experts and options");
    trf_moe_options_init(&taken);
    trf_status status = trf_take_struct(&type, &taken, options, err);
    if (status == TRF_OK)
        status = check_up(gate_up, taken.up, err);
    if (status == TRF_OK) {
        rows = (uint64_t)gate_up->info.rows * (taken.up ? 2 : 1);
        status = check_experts(gate_up, down, rows, err);
    }
    if (status == TRF_OK)
        status = check_options(gate_up, &taken, err);
    if (status != TRF_OK)
        return status;
    trf_moe *made = make_moe(gate_up, down, &taken, (uint32_t)rows);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a mixture");
    if (gate_up->ops && gate_up->ops->prepare_moe)
        status = gate_up->ops->prepare_moe(made, err);
    if (status == TRF_OK)
        status = trf_moe_get_workspace(made, made->max_tokens, &bytes, err); /* whether so many are possible */
    if (status == TRF_OK)
        *moe = made;
    else
        trf_moe_destroy(made);
    return status;
}

void trf_moe_destroy(trf_moe *moe) {
    if (moe)
        free(moe->packing);
    free(moe);
}

static trf_status check_tokens(const trf_moe *moe, uint32_t tokens, trf_error *err) {
    if (tokens >= 1 && tokens <= moe->max_tokens)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%u tokens; the mixture is for 1 to %u", tokens,
                    moe->max_tokens);
}

trf_status trf_moe_get_workspace(const trf_moe *moe, uint32_t tokens, uint64_t *bytes, trf_error *err) {
    if (!moe || !bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a workspace needs a mixture");
    trf_status status = check_tokens(moe, tokens, err);
    if (status != TRF_OK)
        return status;
    return moe->gate_up->ops ? moe->gate_up->ops->get_moe_workspace(moe, tokens, bytes, err)
                             : trf_cpu_get_moe_workspace(moe, tokens, bytes, err);
}

static trf_status check_operands(const trf_moe *moe, const trf_moe_operands *o, trf_error *err) {
    trf_status status = check_tokens(moe, o->tokens, err);
    if (status != TRF_OK)
        return status;
    if (!o->x || !o->ids || !o->weights || !o->y)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a mixture needs x, ids, weights and y");
    if (o->id_bytes != 4 && o->id_bytes != 8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "ids of %u bytes; they have 4 or 8", o->id_bytes);
    if ((uintptr_t)o->x % 16 || (uintptr_t)o->y % 16 || (uintptr_t)o->ids % o->id_bytes ||
        (uintptr_t)o->weights % sizeof(float) || (uintptr_t)o->expert_map % sizeof(int32_t) ||
        (uintptr_t)o->gate_up_bias % sizeof(uint16_t) || (uintptr_t)o->down_bias % sizeof(uint16_t))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "x and y must be aligned to 16 bytes, all others to their elements");
    return TRF_OK;
}

trf_status trf_moe_forward(const trf_moe *moe, const trf_moe_operands *operands, void *workspace, trf_stream stream,
                           trf_error *err) {
    static const trf_struct_type type = {"trf_moe_operands", sizeof *operands, TRF_STRUCT_BYTES(trf_moe_operands, y)};
    trf_moe_operands taken;
    uint64_t bytes = 0;
    if (!moe || !operands)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a mixture needs operands");
    trf_moe_operands_init(&taken);
    trf_status status = trf_take_struct(&type, &taken, operands, err);
    if (status == TRF_OK)
        status = check_operands(moe, &taken, err);
    if (status == TRF_OK)
        status = trf_moe_get_workspace(moe, taken.tokens, &bytes, err);
    if (status == TRF_OK)
        status = trf_check_workspace("the mixture", workspace, bytes, err);
    if (status != TRF_OK)
        return status;
    return moe->gate_up->ops ? moe->gate_up->ops->forward_moe(moe, &taken, workspace, stream, err)
                             : trf_cpu_forward_moe(moe, &taken, workspace, err);
}
