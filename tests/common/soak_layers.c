/* SPDX-License-Identifier: Apache-2.0 */
/* What a soak does with contexts, layers and experts. */
#include "soak_work.h"

#include "transfuse/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- contexts and checkpoints ---- */

static void destroy_context(soak_shared *thing) {
    soak_context *context = (soak_context *)thing;
    trf_context_destroy(context->context);
    free(context);
}

soak_context *soak_make_context(soak_thread *thread, int threads) {
    soak_context *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->shared = (soak_shared){thread->soak, destroy_context, 1};
    if (!soak_expect(thread, trf_context_create(thread->soak->device->ordinal, &made->context, &thread->err), TRF_OK,
                     "a context")) {
        free(made);
        return NULL;
    }
    if (thread->soak->device->ordinal == TRF_DEVICE_CPU)
        trf_context_set_threads(made->context, threads);
    return made;
}

static void close_checkpoint(soak_shared *thing) {
    soak_checkpoint *checkpoint = (soak_checkpoint *)thing;
    trf_checkpoint_close(checkpoint->checkpoint);
    free(checkpoint);
}

soak_checkpoint *soak_open(soak_thread *thread, soak_file file) {
    soak_checkpoint *made = calloc(1, sizeof *made);
    const char *path = thread->soak->paths[file];
    if (!made)
        return NULL;
    made->shared = (soak_shared){thread->soak, close_checkpoint, 1};
    if (soak_expect(thread, trf_checkpoint_open(path, &made->checkpoint, &thread->err), TRF_OK, path))
        return made;
    free(made);
    return NULL;
}

/* ---- layers ---- */

trf_load_options soak_load_options(const soak_subject *subject) {
    trf_load_options options = test_shard(subject->shard);
    options.layout = subject->layout;
    options.packed_bf16 = subject->packed_bf16;
    options.threads = 1;
    return options;
}

static void destroy_layer(soak_shared *thing) {
    soak_layer *layer = (soak_layer *)thing;
    trf_plan_destroy(layer->plan);
    trf_device_layer_destroy(layer->layer);
    trf_device_free(layer->context->context, layer->memory.buffer);
    trf_device_free(layer->context->context, layer->memory.directory);
    soak_let_go(&layer->context->shared);
    free(layer);
}

soak_layer *soak_wrap(soak_thread *thread, soak_context *context, trf_device_layer *layer, const soak_subject *subject,
                      uint32_t product, const trf_layer_memory *memory) {
    soak_layer *made = calloc(1, sizeof *made);
    if (!made) {
        soak_fail(thread, "out of memory");
        return NULL;
    }
    pthread_mutex_lock(&thread->soak->lock);
    context->shared.users++;
    pthread_mutex_unlock(&thread->soak->lock);
    made->shared = (soak_shared){thread->soak, destroy_layer, 1};
    made->context = context;
    made->layer = layer;
    made->subject = subject;
    if (memory)
        made->memory = *memory;
    if (product >= subject->num_products)
        return made;
    made->product = &subject->products[product];
    if (soak_expect(thread, trf_plan_create(layer, &made->product->options, &made->plan, &thread->err), TRF_OK,
                    subject->tensor))
        return made;
    soak_let_go(&made->shared);
    return NULL;
}

void *soak_queue_product(soak_thread *thread, const trf_plan *plan, const soak_product *product) {
    const soak *soak = thread->soak;
    const uint64_t workspace_bytes = test_plan_info(plan).workspace_bytes;
    void *y = soak_reserve(thread, SOAK_Y, product->y_bytes),
         *workspace = workspace_bytes ? soak_reserve(thread, SOAK_WORKSPACE, workspace_bytes) : NULL;
    if (!y || (workspace_bytes && !workspace))
        return NULL;
    trf_operands operands = test_operands(soak->x, y);
    if (product->options.has_bias)
        operands.bias = soak->numbers;
    if (product->options.has_residual)
        operands.residual = soak->numbers;
    return soak_expect(thread, trf_linear(plan, &operands, workspace, thread->stream, &thread->err), TRF_OK,
                       "a product")
               ? y
               : NULL;
}

int soak_check_product(soak_thread *thread, const trf_plan *plan, const soak_product *product) {
    const void *y = soak_queue_product(thread, plan, product);
    const uint8_t *found = y ? soak_read(thread, y, product->y_bytes) : NULL;
    if (!found)
        return 0;
    if (memcmp(found, product->y, product->y_bytes) == 0)
        return 1;
    soak_fail(thread, "a product of %u rows of x by the path %s differs", product->options.m,
              test_plan_info(plan).path_name);
    return 0;
}

int soak_check_weights(soak_thread *thread, const trf_device_layer *layer, const soak_subject *subject) {
    void *to = soak_reserve(thread, SOAK_WEIGHTS, subject->weights_bytes);
    if (!to || !soak_expect(thread,
                            trf_device_layer_decode(layer, TRF_DECODE_SOURCE, to, subject->weights_bytes,
                                                    thread->stream, &thread->err),
                            TRF_OK, subject->tensor))
        return 0;
    const uint8_t *found = soak_read(thread, to, subject->weights_bytes);
    if (!found)
        return 0;
    if (memcmp(found, subject->weights, subject->weights_bytes) == 0)
        return 1;
    soak_fail(thread, "%s, %s: wrong weights", subject->tensor, trf_layout_name(subject->layout));
    return 0;
}

/* ---- experts ---- */

static void destroy_experts(soak_shared *thing) {
    soak_experts *experts = (soak_experts *)thing;
    trf_moe_destroy(experts->moe);
    trf_experts_plan_destroy(experts->plan);
    trf_experts_destroy(experts->gate_up);
    trf_experts_destroy(experts->down);
    soak_let_go(&experts->context->shared);
    free(experts);
}

/* Packs experts that were loaded coded, in place of them; gate_up in the order that mixtures take. */
static trf_status pack_experts(trf_experts **experts, trf_gate_up_order order, trf_error *err) {
    trf_expert_pack_options options;
    trf_experts *packed = NULL;
    trf_expert_pack_options_init(&options);
    options.gate_up_order = order;
    const trf_status status = trf_experts_convert(*experts, NULL, &options, &packed, err);
    if (status == TRF_OK) {
        trf_experts_destroy(*experts);
        *experts = packed;
    }
    return status;
}

static trf_status fill_experts(soak_thread *thread, trf_checkpoint *checkpoint, soak_experts *made) {
    trf_context *context = made->context->context;
    trf_error *err = &thread->err;
    const int packed = made->mixture->layout == TRF_LAYOUT_PACKED;
    trf_moe_options options;
    trf_moe_options_init(&options);
    options.max_tokens = SOAK_TOKENS;
    options.top_k = SOAK_TOP_K;
    options.gate_up_order = packed ? TRF_GATE_UP_INTERLEAVED_8 : TRF_GATE_UP_HALVES;
    trf_status status = trf_experts_load(context, checkpoint, "experts.gate_up", NULL, &made->gate_up, err);
    if (status == TRF_OK)
        status = trf_experts_load(context, checkpoint, "experts.down", NULL, &made->down, err);
    if (status == TRF_OK && packed)
        status = pack_experts(&made->gate_up, TRF_GATE_UP_INTERLEAVED_8, err);
    if (status == TRF_OK && packed)
        status = pack_experts(&made->down, TRF_GATE_UP_HALVES, err);
    if (status == TRF_OK)
        status = trf_experts_plan_create(made->gate_up, SOAK_TOKENS, TRF_DTYPE_BF16, TRF_DTYPE_F32, &made->plan, err);
    if (status == TRF_OK)
        status = trf_moe_create(made->gate_up, made->down, &options, &made->moe, err);
    return status == TRF_ERR_UNSUPPORTED && made->plan ? TRF_OK : status; /* products of experts alone */
}

soak_experts *soak_load_experts(soak_thread *thread, soak_context *context, const soak_mixture *mixture) {
    soak_checkpoint *checkpoint = soak_open(thread, SOAK_FOLDER);
    soak_experts *made = checkpoint ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return NULL;
    pthread_mutex_lock(&thread->soak->lock);
    context->shared.users++;
    pthread_mutex_unlock(&thread->soak->lock);
    made->shared = (soak_shared){thread->soak, destroy_experts, 1};
    made->context = context;
    made->mixture = mixture;
    const trf_status status = fill_experts(thread, checkpoint->checkpoint, made);
    soak_let_go(&checkpoint->shared);
    if (status == TRF_OK)
        return made;
    if (status != TRF_ERR_UNSUPPORTED)
        soak_expect(thread, status, TRF_OK, "experts");
    soak_let_go(&made->shared);
    return NULL;
}

void *soak_queue_experts(soak_thread *thread, const soak_experts *experts, uint64_t *bytes) {
    const soak *soak = thread->soak;
    const uint64_t workspace_bytes = trf_experts_plan_workspace_bytes(experts->plan);
    *bytes = 4ull * SOAK_TOKENS * test_layer_info(trf_experts_layer(experts->gate_up, 0)).rows;
    void *y = soak_reserve(thread, SOAK_Y, *bytes),
         *workspace = workspace_bytes ? soak_reserve(thread, SOAK_WORKSPACE, workspace_bytes) : NULL;
    if (!y || (workspace_bytes && !workspace))
        return NULL;
    const trf_status status =
        trf_experts_linear(experts->plan, soak->x, soak->offsets, y, workspace, thread->stream, &thread->err);
    return soak_expect(thread, status, TRF_OK, "products of experts") ? y : NULL;
}

void *soak_queue_mixture(soak_thread *thread, const soak_experts *experts, uint64_t *bytes) {
    const soak *soak = thread->soak;
    uint64_t workspace_bytes = 0;
    *bytes = 2ull * SOAK_TOKENS * test_layer_info(trf_experts_layer(experts->down, 0)).rows;
    if (!soak_expect(thread, trf_moe_get_workspace(experts->moe, SOAK_TOKENS, &workspace_bytes, &thread->err), TRF_OK,
                     "a mixture's workspace"))
        return NULL;
    trf_moe_operands operands;
    trf_moe_operands_init(&operands);
    operands.tokens = SOAK_TOKENS;
    operands.x = soak->x;
    operands.ids = soak->ids;
    operands.id_bytes = 4;
    operands.weights = soak->numbers;
    operands.y = soak_reserve(thread, SOAK_Y, *bytes);
    void *workspace = soak_reserve(thread, SOAK_WORKSPACE, workspace_bytes);
    if (!operands.y || !workspace)
        return NULL;
    const trf_status status = trf_moe_forward(experts->moe, &operands, workspace, thread->stream, &thread->err);
    return soak_expect(thread, status, TRF_OK, "a mixture") ? operands.y : NULL;
}

/* ---- groups ---- */

/* Both y, and what lies between them, so that the second one is aligned. */
static uint64_t count_group_bytes(const uint32_t *rows) { return 4ull * ((rows[0] + 63) / 64 * 64 + rows[1]); }

/* Queues the products of a group of [2]. @return y of both, or NULL. */
static const void *queue_group(soak_thread *thread, const trf_layer_group *group, const uint32_t *rows) {
    const soak *soak = thread->soak;
    const uint64_t workspace_bytes = test_group_info(group).workspace_bytes;
    uint8_t *y = soak_reserve(thread, SOAK_Y, count_group_bytes(rows));
    void *workspace = workspace_bytes ? soak_reserve(thread, SOAK_WORKSPACE, workspace_bytes) : NULL;
    if (!y || (workspace_bytes && !workspace))
        return NULL;
    const void *const x[] = {soak->x, soak->x};
    void *const both[] = {y, y + 4ull * ((rows[0] + 63) / 64 * 64)};
    const trf_status status = trf_linear_group(group, x, both, workspace, thread->stream, &thread->err);
    return soak_expect(thread, status, TRF_OK, "products of a group") ? y : NULL;
}

static int compare_group(soak_thread *thread, const trf_layer_group *group, const uint32_t *rows, soak_bytes *due) {
    const void *y = queue_group(thread, group, rows);
    const uint64_t bytes = count_group_bytes(rows);
    const uint8_t *found = y ? soak_read(thread, y, bytes) : NULL;
    if (!found)
        return 0;
    if (!due->at) {
        due->at = malloc(bytes);
        due->size = due->at ? bytes : 0;
        if (due->at)
            memcpy(due->at, found, bytes);
        return due->at != NULL;
    }
    if (memcmp(found, due->at, bytes) == 0)
        return 1;
    soak_fail(thread, "products of a group differ");
    return 0;
}

int soak_check_group(soak_thread *thread, soak_context *context, soak_bytes *y) {
    static const char *const names[] = {"a", "b"};
    trf_device_layer *layers[2] = {NULL, NULL};
    trf_group_member members[2];
    trf_layer_group *group = NULL;
    uint32_t rows[2] = {0, 0};
    soak_checkpoint *checkpoint = soak_open(thread, SOAK_FOLDER);
    int good = checkpoint != NULL;
    for (int i = 0; good && i < 2; i++) {
        const trf_status status =
            trf_device_layer_load(context->context, checkpoint->checkpoint, names[i], NULL, &layers[i], &thread->err);
        good = soak_expect(thread, status, TRF_OK, names[i]);
        if (!good)
            break;
        members[i] = test_group_member(layers[i], 1, TRF_DTYPE_BF16, TRF_DTYPE_F32);
        rows[i] = test_layer_info(layers[i]).rows;
    }
    good = good && soak_expect(thread, trf_layer_group_create(members, 2, &group, &thread->err), TRF_OK, "a group") &&
           compare_group(thread, group, rows, y);
    trf_layer_group_destroy(group);
    trf_device_layer_destroy(layers[0]);
    trf_device_layer_destroy(layers[1]);
    soak_let_go(checkpoint ? &checkpoint->shared : NULL);
    return good;
}
