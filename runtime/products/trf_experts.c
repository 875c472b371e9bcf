/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: the public functions, and what a device without kernels for experts does, one expert after the
 * other. */
#include "trf_experts.h"
#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer_feed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making ---- */

static trf_status fail_layout(uint32_t expert, trf_layout layout, trf_error *err) {
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "expert %u: experts of layout '%s' are not multiplied by",
                    expert, trf_layout_name(layout));
}

static trf_status check_experts(trf_device_layer *const *layers, uint32_t count, trf_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        const trf_device_layer *layer = layers[i], *first = layers[0];
        if (!layer || !first)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "expert %u is missing", i);
        if (layer->context != first->context)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "expert %u is of another context", i);
        if (layer->info.rows != first->info.rows || layer->info.cols != first->info.cols ||
            layer->info.codec != first->info.codec)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                            "expert %u is %ux%u of codec %s, expert 0 %ux%u of codec %s", i, layer->info.rows,
                            layer->info.cols, trf_codec_name(layer->info.codec), first->info.rows, first->info.cols,
                            trf_codec_name(first->info.codec));
        if (!layer->layout->has_experts)
            return fail_layout(i, layer->layout->layout, err);
        if (layer->layout != first->layout)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "expert %u is %s, expert 0 %s", i,
                            trf_layout_name(layer->layout->layout), trf_layout_name(first->layout->layout));
        if (layer->layout->layout == TRF_LAYOUT_CODED &&
            (layer->shard.rows != layer->view.rows || layer->shard.cols != layer->view.cols))
            return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                            "expert %u is a shard that does not begin and end with tiles of %d", i, TRF_TILE_SIZE);
    }
    return TRF_OK;
}

trf_status trf_experts_make(trf_device_layer *const *layers, uint32_t count, int owns_layers, trf_experts **experts,
                            trf_error *err) {
    if (!layers || !experts || count < 1)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "experts need layers");
    trf_status status = check_experts(layers, count, err);
    if (status != TRF_OK)
        return status;
    trf_experts *made = calloc(1, sizeof *made);
    trf_device_layer **list = calloc(count, sizeof *list);
    if (made && list) {
        memcpy(list, layers, count * sizeof *list);
        made->context = layers[0]->context;
        made->layers = list;
        made->count = count;
        made->info = layers[0]->info;
        made->ops = layers[0]->layout->expert_ops;
        made->owns_layers = owns_layers;
        if (made->ops)
            status = made->ops->fill(made, err);
    } else {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u experts", count);
    }
    if (status != TRF_OK) {
        free(list);
        free(made);
        return status;
    }
    *experts = made;
    return TRF_OK;
}

trf_status trf_experts_create(trf_device_layer *const *layers, uint32_t count, trf_experts **experts, trf_error *err) {
    return trf_experts_make(layers, count, 0, experts, err);
}

void trf_experts_destroy(trf_experts *experts) {
    if (!experts)
        return;
    if (experts->ops)
        experts->ops->destroy(experts);
    for (uint32_t i = 0; experts->owns_layers && i < experts->count; i++)
        trf_device_layer_destroy(experts->layers[i]);
    free(experts->layers);
    free(experts);
}

uint32_t trf_experts_count(const trf_experts *experts) { return experts->count; }

trf_device_layer *trf_experts_layer(const trf_experts *experts, uint32_t index) {
    return index < experts->count ? experts->layers[index] : NULL;
}

/* ---- loading ---- */

/* Finds the expert tensor's name, without _trf, and how many experts it has. *name is the checkpoint's. */
static trf_status find_expert_tensor(trf_checkpoint *checkpoint, const char *tensor, const char **name, uint32_t *count,
                                     trf_error *err) {
    static const char suffix[] = "_trf";
    for (uint64_t i = 0; i < trf_checkpoint_num_tensors(checkpoint); i++) {
        trf_tensor_info info;
        trf_status status = trf_checkpoint_tensor(checkpoint, i, &info, err);
        if (status != TRF_OK)
            return status;
        const size_t length = strlen(info.name);
        if (strncmp(tensor, info.name, length) != 0 ||
            (tensor[length] && !(info.compressed && strcmp(tensor + length, suffix) == 0)))
            continue;
        if (!info.compressed || info.num_dims != 3 || info.blobs < 1 || info.blobs > UINT32_MAX)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: tensor '%s' is no compressed tensor of experts",
                            info.file, tensor);
        *name = info.name;
        *count = (uint32_t)info.blobs;
        return TRF_OK;
    }
    return trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: there is no tensor '%s'", checkpoint->root, tensor);
}

/* Fills layers[count]. *loaded says how many of them have been loaded, also after a failure. */
static trf_status load_expert_tensor(trf_context *context, trf_checkpoint *checkpoint, const char *name, uint32_t count,
                                     const trf_load_options *options, trf_device_layer **layers, uint32_t *loaded,
                                     trf_error *err) {
    const size_t room = strlen(name) + sizeof "[4294967295]";
    char *expert = malloc(room);
    trf_status status = TRF_OK;
    if (!expert)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a name");
    for (*loaded = 0; *loaded < count && status == TRF_OK; *loaded += status == TRF_OK) {
        snprintf(expert, room, "%s[%u]", name, *loaded);
        status = trf_device_layer_load(context, checkpoint, expert, options, &layers[*loaded], err);
    }
    free(expert);
    return status;
}

static void destroy_layers(trf_device_layer **layers, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        trf_device_layer_destroy(layers[i]);
}

/* Returns the first expert that does not lie as expert 0 does; count if there is none. */
static uint32_t find_other_layout(trf_device_layer *const *layers, uint32_t count) {
    uint32_t i = 0;
    while (i < count && layers[i]->layout == layers[0]->layout)
        i++;
    return i;
}

/* Loads all experts again, as packed BF16, since some of them cannot be packed as FP8; all note the reason of the first
 * one of these. The other arguments are those of load_expert_tensor, which has loaded them. */
static trf_status load_as_bf16(trf_context *context, trf_checkpoint *checkpoint, const char *name, uint32_t count,
                               const trf_load_options *options, trf_device_layer **layers, uint32_t *loaded,
                               trf_error *err) {
    char reason[sizeof layers[0]->layout_reason];
    trf_load_options as_bf16 = *options;
    uint32_t unfit = 0;
    while (unfit + 1 < count && layers[unfit]->layout->layout != TRF_LAYOUT_PACKED)
        unfit++;
    snprintf(reason, sizeof reason, "expert %u: %.200s", unfit, layers[unfit]->layout_reason);
    destroy_layers(layers, count);
    as_bf16.packed_bf16 = 1;
    const trf_status status = load_expert_tensor(context, checkpoint, name, count, &as_bf16, layers, loaded, err);
    for (uint32_t i = 0; status == TRF_OK && i < count; i++)
        trf_note_layout_reason(layers[i], reason);
    return status;
}

trf_status trf_experts_load(trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                            const trf_load_options *options, trf_experts **experts, trf_error *err) {
    if (!context || !checkpoint || !tensor || !experts)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "loading experts needs a context, a checkpoint and a name");
    const char *name = NULL;
    uint32_t count = 0, loaded = 0;
    trf_load_options taken;
    const trf_layout_ops *layout;
    trf_status status = trf_take_load_options(options, &taken, err);
    if (status == TRF_OK)
        status = trf_find_layout(context, taken.layout, &layout, err);
    if (status == TRF_OK && !layout->has_experts) /* fails here rather than when all have been loaded */
        status = fail_layout(0, taken.layout, err);
    if (status == TRF_OK && trf_has_memory(&taken.memory))
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                          "%s: tensor '%s': experts that are loaded together are in memory of the library's",
                          checkpoint->root, tensor);
    if (status == TRF_OK)
        status = find_expert_tensor(checkpoint, tensor, &name, &count, err);
    if (status != TRF_OK)
        return trf_sanitize_error(status, err);
    trf_device_layer **layers = calloc(count, sizeof *layers);
    if (!layers)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u experts", count);
    status = load_expert_tensor(context, checkpoint, name, count, &taken, layers, &loaded, err);
    if (status == TRF_OK && find_other_layout(layers, count) < count)
        status = load_as_bf16(context, checkpoint, name, count, &taken, layers, &loaded, err);
    if (status == TRF_OK)
        status = trf_experts_make(layers, count, 1, experts, err);
    if (status != TRF_OK)
        destroy_layers(layers, loaded);
    free(layers);
    return status;
}

/* ---- products ---- */

/* Makes the plan for a device without kernels for experts: the product of one expert and all tokens. The experts have
 * one shape, so it fits any of them. */
static trf_status plan_one(trf_experts_plan *plan, trf_error *err) {
    const trf_experts *experts = plan->experts;
    trf_plan *const one = &plan->one;
    one->layer = experts->layers[0];
    one->product = (trf_product){.m = plan->max_tokens, .x_dtype = plan->x_dtype, .y_dtype = plan->y_dtype};
    one->product.y_stride = one->product.multiplier_stride = one->product.residual_stride = experts->info.rows;
    one->tiles_product = one->product;
    trf_status status = one->layer->layout->create_plan(one, TRF_PATH_AUTO, err);
    plan->workspace_bytes = one->device_workspace_bytes;
    return status;
}

trf_status trf_experts_plan_create(const trf_experts *experts, uint32_t max_tokens, trf_dtype x_dtype,
                                   trf_dtype y_dtype, trf_experts_plan **plan, trf_error *err) {
    if (!experts || !plan)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a plan needs experts");
    if (max_tokens > TRF_EXPERTS_MAX_TOKENS)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%u tokens; %d are the limit", max_tokens,
                        TRF_EXPERTS_MAX_TOKENS);
    trf_status status = trf_check_types(&experts->info, max_tokens, x_dtype, y_dtype, err);
    if (status != TRF_OK)
        return status;
    trf_experts_plan *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a plan");
    made->experts = experts;
    made->max_tokens = max_tokens;
    made->x_dtype = x_dtype;
    made->y_dtype = y_dtype;
    status = experts->ops ? experts->ops->create_plan(made, err) : plan_one(made, err);
    if (status != TRF_OK) {
        free(made);
        return status;
    }
    *plan = made;
    return TRF_OK;
}

void trf_experts_plan_destroy(trf_experts_plan *plan) { free(plan); }

uint64_t trf_experts_plan_workspace_bytes(const trf_experts_plan *plan) { return plan->workspace_bytes; }

/* Multiplies one expert after the other. This process reads the offsets. */
static trf_status multiply_experts(const trf_experts_plan *plan, const void *x, const uint32_t *offsets, void *y,
                                   void *workspace, trf_stream stream, trf_error *err) {
    const trf_experts *experts = plan->experts;
    const uint64_t x_bytes = experts->info.cols * (uint64_t)trf_dtype_bytes(plan->x_dtype),
                   y_bytes = experts->info.rows * (uint64_t)trf_dtype_bytes(plan->y_dtype);
    trf_plan one = plan->one;
    trf_status status = TRF_OK;
    for (uint32_t i = 0; i < experts->count && (status == TRF_OK || status == TRF_ERR_RANS); i++) {
        const trf_expert_tokens tokens = trf_expert_tokens_of(offsets[i], offsets[i + 1], plan->max_tokens);
        const trf_operands operands = {.struct_bytes = sizeof operands,
                                       .x = (const uint8_t *)x + tokens.first * x_bytes,
                                       .y = (uint8_t *)y + tokens.first * y_bytes};
        trf_error failure = {0};
        if (!tokens.count)
            continue;
        one.layer = experts->layers[i];
        one.product.m = one.tiles_product.m = tokens.count;
        const trf_status multiplied = one.layer->layout->linear(&one, &operands, workspace, stream, &failure);
        if (multiplied != TRF_OK && status == TRF_OK)
            status = trf_fail(err, multiplied, failure.offset, "expert %u: %s", i, failure.message);
    }
    return status;
}

trf_status trf_experts_linear(const trf_experts_plan *plan, const void *x, const uint32_t *offsets, void *y,
                              void *workspace, trf_stream stream, trf_error *err) {
    if (!plan || !x || !offsets || !y)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product of experts needs a plan, x, offsets and y");
    if ((uintptr_t)x % trf_dtype_bytes(plan->x_dtype) || (uintptr_t)y % trf_dtype_bytes(plan->y_dtype) ||
        (uintptr_t)offsets % sizeof *offsets)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "x, offsets and y must be aligned to their elements");
    trf_status status = trf_check_workspace("the plan", workspace, plan->workspace_bytes, err);
    if (status != TRF_OK)
        return status;
    if (plan->experts->ops)
        return plan->experts->ops->linear(plan, x, offsets, y, workspace, stream, err);
    return multiply_experts(plan, x, offsets, y, workspace, stream, err);
}

/* ---- decoding ---- */

/* Checks the place for the experts' weights as that for a layer's, and the distances between experts. */
static trf_status check_expert_targets(const trf_experts *experts, trf_decode_as as, const void *weights,
                                       uint64_t expert_stride, uint64_t weights_bytes, trf_error *err) {
    const trf_layer_info *info = &experts->info;
    trf_status status = trf_check_decode_as(experts->layers[0], as, err);
    if (status != TRF_OK)
        return status;
    const uint64_t value_bytes = trf_decoded_weight_bytes_of_info(info, as),
                   bytes = (uint64_t)info->rows * info->cols * value_bytes, others = experts->count - 1;
    status = trf_check_decode_target(info, as, info->rows, weights, bytes, value_bytes, err);
    if (status != TRF_OK)
        return status;
    for (uint32_t i = 1; as == TRF_DECODE_SOURCE && i < experts->count; i++)
        if (experts->layers[i]->info.dtype != info->dtype)
            return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                            "expert %u was made of %s, expert 0 of %s: they have no source type in common", i,
                            trf_dtype_name(experts->layers[i]->info.dtype), trf_dtype_name(info->dtype));
    if (others && (expert_stride < bytes || expert_stride % value_bytes))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "experts of %llu bytes cannot be %llu bytes apart, with weights of %llu bytes",
                        (unsigned long long)bytes, (unsigned long long)expert_stride, (unsigned long long)value_bytes);
    if (weights_bytes < bytes || (others && (weights_bytes - bytes) / expert_stride < others))
        return trf_fail(err, TRF_ERR_SHAPE, TRF_NO_OFFSET,
                        "a buffer of %llu bytes for %u experts of %llu bytes, %llu bytes apart",
                        (unsigned long long)weights_bytes, experts->count, (unsigned long long)bytes,
                        (unsigned long long)expert_stride);
    return TRF_OK;
}

/* Decodes one expert after the other. The others are still decoded if one is corrupt. */
static trf_status decode_each(const trf_experts *experts, trf_decode_as as, void *weights, uint64_t expert_stride,
                              trf_stream stream, trf_error *err) {
    trf_status status = TRF_OK;
    for (uint32_t i = 0; i < experts->count && (status == TRF_OK || status == TRF_ERR_RANS); i++) {
        trf_error failure = {0};
        const trf_device_layer *layer = experts->layers[i];
        const trf_status decoded =
            layer->layout->decode(layer, as, (uint8_t *)weights + i * expert_stride, stream, &failure);
        if (decoded != TRF_OK && status == TRF_OK)
            status = trf_fail(err, decoded, failure.offset, "expert %u: %s", i, failure.message);
    }
    return status;
}

trf_status trf_experts_decode(const trf_experts *experts, trf_decode_as as, void *weights, uint64_t expert_stride,
                              uint64_t weights_bytes, trf_stream stream, trf_error *err) {
    if (!experts)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no experts to decode");
    trf_status status = check_expert_targets(experts, as, weights, expert_stride, weights_bytes, err);
    if (status != TRF_OK)
        return status;
    if (experts->count == 1)
        expert_stride = 0; /* the caller's value does not matter */
    if (experts->ops && experts->ops->decode)
        return experts->ops->decode(experts, as, weights, expert_stride, stream, err);
    return decode_each(experts, as, weights, expert_stride, stream, err);
}

/* ---- faults ---- */

trf_status trf_experts_check(const trf_experts *experts, trf_error *err) {
    if (!experts)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no experts to check");
    for (uint32_t i = 0; i < experts->count; i++) {
        trf_error failure = {0};
        const trf_status status = trf_device_layer_check(experts->layers[i], &failure);
        if (status != TRF_OK) {
            trf_fail(err, status, failure.offset, "expert %u: %s", i, failure.message);
            if (err)
                err->cuda = failure.cuda;
            return status;
        }
    }
    return TRF_OK;
}
