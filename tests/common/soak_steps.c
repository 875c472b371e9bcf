/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a soak that use layers on a device. */
#include "soak_steps.h"

#include "transfuse/stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what steps draw ---- */

uint32_t soak_draw(soak_thread *thread, uint32_t bound) { return test_below(&thread->rng, bound); }

static const soak_subject *draw_subject(soak_thread *thread) {
    return &thread->soak->subjects[soak_draw(thread, thread->soak->num_subjects)];
}

static soak_shared **draw_layer_slot(soak_thread *thread) {
    return &thread->soak->layers[soak_draw(thread, SOAK_LAYERS)];
}

soak_context *soak_take_context(soak_thread *thread) {
    return (soak_context *)soak_take(thread->soak, &thread->soak->contexts[soak_draw(thread, SOAK_CONTEXTS)]);
}

/* Takes part in the checkpoint that others use, too, or opens it once more. */
static soak_checkpoint *take_checkpoint(soak_thread *thread, soak_file file) {
    soak *soak = thread->soak;
    soak_checkpoint *taken = soak_draw(thread, 2) ? (soak_checkpoint *)soak_take(soak, &soak->checkpoints[file]) : NULL;
    return taken ? taken : soak_open(thread, file);
}

int soak_count_progress(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes) {
    soak_stop *stop = context;
    (void)tensor;
    if (done_bytes > total_bytes)
        stop->is_wrong = 1;
    return ++stop->calls == stop->at;
}

/* ---- loading ---- */

/* Gives the load memory of the caller's. */
static int allocate(soak_thread *thread, const trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                    trf_load_options *options) {
    trf_layer_size size;
    trf_layer_memory *memory = &options->memory;
    trf_error *err = &thread->err;
    if (!soak_expect(thread, trf_device_layer_get_load_size(context, checkpoint, tensor, options, &size, err), TRF_OK,
                     "a layer's size") ||
        !soak_expect(thread, trf_device_allocate(context, size.buffer_bytes, &memory->buffer, err), TRF_OK,
                     "a layer's buffer"))
        return 0;
    memory->buffer_bytes = size.buffer_bytes;
    memory->directory_bytes = size.directory_bytes;
    return soak_expect(thread, trf_device_allocate(context, size.directory_bytes, &memory->directory, err), TRF_OK,
                       "a layer's directory");
}

/* Loads a layer, and counts calls of progress, which stop it in time. @return NULL if it failed or was stopped. */
static soak_layer *load(soak_thread *thread, const soak_subject *subject, soak_stop *stop) {
    soak_context *context = soak_take_context(thread);
    soak_checkpoint *checkpoint = take_checkpoint(thread, subject->file);
    trf_load_options options = soak_load_options(subject);
    trf_device_layer *layer = NULL;
    soak_layer *made = NULL;
    options.threads = 1 + (int)soak_draw(thread, 3);
    options.progress = soak_count_progress;
    options.progress_context = stop;
    if (checkpoint && context &&
        (soak_draw(thread, 3) ||
         allocate(thread, context->context, checkpoint->checkpoint, subject->tensor, &options))) {
        const trf_status status = trf_device_layer_load(context->context, checkpoint->checkpoint, subject->tensor,
                                                        &options, &layer, &thread->err);
        const int stopped = stop->at && stop->calls >= stop->at;
        if (soak_expect(thread, status, stopped ? TRF_ERR_CANCELLED : TRF_OK, subject->tensor) && status == TRF_OK) {
            made = soak_wrap(thread, context, layer, subject, soak_draw(thread, SOAK_MOST_PRODUCTS), &options.memory);
            options.memory = (trf_layer_memory){0}; /* the wrapped layer's */
        } else if (layer)
            soak_fail(thread, "%s: a load that failed gave a layer", subject->tensor);
    }
    if (stop->is_wrong)
        soak_fail(thread, "%s: progress is told more bytes than there are", subject->tensor);
    if (!made && context) {
        trf_device_free(context->context, options.memory.buffer);
        trf_device_free(context->context, options.memory.directory);
    }
    soak_let_go(checkpoint ? &checkpoint->shared : NULL);
    soak_let_go(context ? &context->shared : NULL);
    return made;
}

void soak_step_load(soak_thread *thread) {
    soak_stop stop = {0};
    soak_layer *layer = load(thread, draw_subject(thread), &stop);
    if (layer)
        soak_put(thread->soak, draw_layer_slot(thread), &layer->shared);
}

void soak_step_cancel(soak_thread *thread) {
    soak_stop stop = {.at = 1 + (int)soak_draw(thread, 3)};
    soak_layer *layer = load(thread, draw_subject(thread), &stop);
    soak_let_go(layer ? &layer->shared : NULL);
}

/* Destroys a layer as soon as its product is queued: that waits for the device. */
void soak_step_destroy_early(soak_thread *thread) {
    soak_stop stop = {0};
    soak_layer *layer = load(thread, draw_subject(thread), &stop);
    if (!layer)
        return;
    const soak_product *product = layer->product;
    const void *y = layer->plan ? soak_queue_product(thread, layer->plan, product) : NULL;
    if (y && layer->memory.buffer) /* the caller's memory: the caller waits */
        soak_read(thread, y, 1);
    soak_let_go(&layer->shared);
    const uint8_t *found = y ? soak_read(thread, y, product->y_bytes) : NULL;
    if (found && memcmp(found, product->y, product->y_bytes) != 0)
        soak_fail(thread, "a product whose layer was destroyed before it was read differs");
}

void soak_step_drop(soak_thread *thread) { soak_put(thread->soak, draw_layer_slot(thread), NULL); }

/* ---- layers that others may be using ---- */

/* Takes part in a layer, or loads one for the next step. */
static soak_layer *take_layer(soak_thread *thread) {
    soak_shared *taken = soak_take(thread->soak, draw_layer_slot(thread));
    if (!taken)
        soak_step_load(thread);
    return (soak_layer *)taken;
}

void soak_step_product(soak_thread *thread) {
    soak_layer *layer = take_layer(thread);
    trf_plan *plan = NULL;
    if (!layer)
        return;
    const soak_product *product = &layer->subject->products[soak_draw(thread, layer->subject->num_products)];
    if (layer->plan && soak_draw(thread, 2)) /* others may be multiplying by the same plan */
        soak_check_product(thread, layer->plan, layer->product);
    else if (soak_expect(thread, trf_plan_create(layer->layer, &product->options, &plan, &thread->err), TRF_OK, "plan"))
        soak_check_product(thread, plan, product);
    trf_plan_destroy(plan);
    soak_let_go(&layer->shared);
}

void soak_step_weights(soak_thread *thread) {
    soak_layer *layer = take_layer(thread);
    if (layer && layer->subject->weights)
        soak_check_weights(thread, layer->layer, layer->subject);
    soak_let_go(layer ? &layer->shared : NULL);
}

void soak_step_rows(soak_thread *thread) {
    enum {
        COUNT = 9
    };
    soak_layer *layer = take_layer(thread);
    uint32_t rows[COUNT];
    if (layer && layer->subject->weights) {
        const soak_subject *subject = layer->subject;
        const uint64_t row_bytes = subject->weights_bytes / subject->rows;
        for (int i = 0; i < COUNT; i++)
            rows[i] = soak_draw(thread, subject->rows);
        const void *ids = soak_upload(thread, SOAK_IDS, rows, sizeof rows);
        void *to = soak_reserve(thread, SOAK_WEIGHTS, COUNT * row_bytes);
        const uint8_t *found = NULL;
        if (ids && to &&
            soak_expect(thread,
                        test_decode_rows(layer->layer,
                                         test_row_request(ids, 4, COUNT, TRF_DECODE_SOURCE, to, COUNT * row_bytes),
                                         thread->stream, &thread->err),
                        TRF_OK, "rows"))
            found = soak_read(thread, to, COUNT * row_bytes);
        for (int i = 0; found && i < COUNT; i++)
            if (memcmp(found + (uint64_t)i * row_bytes, subject->weights + rows[i] * row_bytes, row_bytes) != 0)
                soak_fail(thread, "row %u of %s differs", rows[i], subject->tensor);
    }
    soak_let_go(layer ? &layer->shared : NULL);
}

void soak_step_verify(soak_thread *thread) {
    soak_layer *layer = take_layer(thread);
    if (!layer)
        return;
    soak_expect(thread, trf_device_layer_verify(layer->layer, &thread->err), TRF_OK, "verifying");
    soak_expect(thread, trf_device_layer_check(layer->layer, &thread->err), TRF_OK, "checking");
    soak_let_go(&layer->shared);
}

void soak_step_encode(soak_thread *thread) {
    soak_layer *layer = take_layer(thread);
    void *blob = NULL;
    uint64_t bytes = 0;
    if (layer && layer->subject->blob) {
        const int threads = 1 + (int)soak_draw(thread, 3);
        if (soak_expect(thread, trf_device_layer_encode(layer->layer, threads, &blob, &bytes, &thread->err), TRF_OK,
                        "encoding") &&
            (bytes != layer->subject->blob_bytes || memcmp(blob, layer->subject->blob, bytes) != 0))
            soak_fail(thread, "%s, %s: the blob differs", layer->subject->tensor,
                      trf_layout_name(layer->subject->layout));
    }
    trf_free(blob);
    soak_let_go(layer ? &layer->shared : NULL);
}

/* ---- layers made of others ---- */

/* Checks a layer that was made of another one, and shares it. */
static void share_made(soak_thread *thread, soak_context *context, trf_device_layer *layer,
                       const soak_subject *subject) {
    soak_layer *made = soak_wrap(thread, context, layer, subject, soak_draw(thread, subject->num_products), NULL);
    if (!made)
        return;
    soak_check_product(thread, made->plan, made->product);
    soak_put(thread->soak, draw_layer_slot(thread), &made->shared);
}

/* @return what a coded layer becomes by converting it, or NULL. */
static const soak_subject *find_converted(soak_thread *thread, const soak_subject *from) {
    const soak *soak = thread->soak;
    const uint32_t first = soak_draw(thread, soak->num_subjects);
    for (uint32_t i = 0; from->layout == TRF_LAYOUT_CODED && i < soak->num_subjects; i++) {
        const soak_subject *to = &soak->subjects[(first + i) % soak->num_subjects];
        if (to->file == from->file && !strcmp(to->tensor, from->tensor) && to->layout != TRF_LAYOUT_CODED &&
            !to->packed_bf16 && memcmp(to->shard, from->shard, sizeof to->shard) == 0)
            return to;
    }
    return NULL;
}

void soak_step_convert(soak_thread *thread) {
    soak_layer *layer = take_layer(thread);
    const soak_subject *to = layer ? find_converted(thread, layer->subject) : NULL;
    trf_device_layer *converted = NULL;
    if (to && soak_expect(thread, trf_device_layer_convert(layer->layer, to->layout, NULL, &converted, &thread->err),
                          TRF_OK, "converting"))
        share_made(thread, layer->context, converted, to);
    else if (layer && !to)
        soak_expect(thread, trf_device_layer_verify(layer->layer, &thread->err), TRF_OK, "verifying");
    soak_let_go(layer ? &layer->shared : NULL);
}

void soak_step_pack(soak_thread *thread) {
    const soak_subject *subject = draw_subject(thread);
    while (subject->file != SOAK_FOLDER || subject->found_layout != TRF_LAYOUT_PACKED || subject->shard[1])
        subject = draw_subject(thread);
    soak_context *context = soak_take_context(thread);
    trf_device_matrix matrix;
    trf_pack_options options;
    trf_device_layer *packed = NULL;
    trf_device_matrix_init(&matrix);
    trf_pack_options_init(&options);
    options.stream = thread->stream;
    matrix.weights = soak_upload(thread, SOAK_WEIGHTS, subject->weights, subject->weights_bytes);
    matrix.rows = subject->rows;
    matrix.cols = subject->cols;
    if (context && matrix.weights &&
        soak_expect(thread, trf_device_layer_pack(context->context, &matrix, &options, &packed, &thread->err), TRF_OK,
                    "packing"))
        share_made(thread, context, packed, subject);
    soak_let_go(context ? &context->shared : NULL);
}

/* ---- experts, groups and stacks ---- */

/* Loads experts for others, or is stopped half way. */
static void load_experts(soak_thread *thread, const soak_mixture *mixture, soak_shared **slot) {
    soak_context *context = soak_take_context(thread);
    soak_experts *made = context ? soak_load_experts(thread, context, mixture) : NULL;
    if (made)
        soak_put(thread->soak, slot, &made->shared);
    soak_let_go(context ? &context->shared : NULL);
}

void soak_step_experts(soak_thread *thread) {
    const uint32_t number = soak_draw(thread, SOAK_EXPERTS);
    const soak_mixture *mixture = &thread->soak->mixtures[number % 2];
    soak_shared **slot = &thread->soak->experts[number];
    if (!mixture->is_there)
        return;
    soak_experts *experts = soak_draw(thread, 8) ? (soak_experts *)soak_take(thread->soak, slot) : NULL;
    if (!experts) {
        load_experts(thread, mixture, slot);
        return;
    }
    uint64_t bytes = 0;
    const int whole = experts->moe && soak_draw(thread, 2);
    const void *y = whole ? soak_queue_mixture(thread, experts, &bytes) : soak_queue_experts(thread, experts, &bytes);
    const uint8_t *found = y ? soak_read(thread, y, bytes) : NULL;
    if (found && memcmp(found, whole ? mixture->mixture_y : mixture->experts_y, bytes) != 0)
        soak_fail(thread, "%s of %s experts differ", whole ? "a mixture's sums" : "products",
                  trf_layout_name(mixture->layout));
    soak_expect(thread, trf_experts_check(experts->gate_up, &thread->err), TRF_OK, "checking experts");
    soak_let_go(&experts->shared);
}

void soak_step_cancel_experts(soak_thread *thread) {
    soak_context *context = soak_take_context(thread);
    soak_checkpoint *checkpoint = take_checkpoint(thread, SOAK_FOLDER);
    soak_stop stop = {.at = 1 + (int)soak_draw(thread, 2 * SOAK_NUM_EXPERTS)};
    trf_experts *experts = NULL;
    trf_load_options options;
    trf_load_options_init(&options);
    options.progress = soak_count_progress;
    options.progress_context = &stop;
    options.layout = soak_draw(thread, 2) && thread->soak->mixtures[1].is_there ? TRF_LAYOUT_PACKED : TRF_LAYOUT_CODED;
    if (context && checkpoint) {
        const trf_status status = trf_experts_load(context->context, checkpoint->checkpoint, "experts.gate_up",
                                                   &options, &experts, &thread->err);
        soak_expect(thread, status, stop.calls >= stop.at ? TRF_ERR_CANCELLED : TRF_OK, "cancelling experts");
        trf_experts_destroy(experts);
    }
    soak_let_go(checkpoint ? &checkpoint->shared : NULL);
    soak_let_go(context ? &context->shared : NULL);
}

void soak_step_group(soak_thread *thread) {
    soak_context *context = soak_take_context(thread);
    if (context)
        soak_check_group(thread, context, &thread->soak->group_y);
    soak_let_go(context ? &context->shared : NULL);
}

enum {
    STACK_LAYERS = 4
};

/* Goes through a stack twice, by plans of one product of each layer. */
static void run_stack(soak_thread *thread, trf_stack *stack, const soak_subject *const *subjects) {
    trf_plan *plans[STACK_LAYERS] = {NULL};
    int good = 1;
    for (uint32_t i = 0; good && i < STACK_LAYERS; i++)
        good = soak_expect(
            thread,
            trf_plan_create(trf_stack_layer(stack, i), &subjects[i]->products[0].options, &plans[i], &thread->err),
            TRF_OK, "a plan of a stack's layer");
    for (uint32_t step = 0; good && step < 2 * STACK_LAYERS; step++) {
        const uint32_t i = step % STACK_LAYERS;
        const soak_product *product = &subjects[i]->products[0];
        good = soak_expect(thread, trf_stack_acquire(stack, i, thread->stream, &thread->err), TRF_OK, "acquiring");
        const void *y = good ? soak_queue_product(thread, plans[i], product) : NULL;
        good =
            good && soak_expect(thread, trf_stack_release(stack, i, thread->stream, &thread->err), TRF_OK, "releasing");
        const uint8_t *found = y ? soak_read(thread, y, product->y_bytes) : NULL;
        if (found && memcmp(found, product->y, product->y_bytes) != 0)
            soak_fail(thread, "a product of a stack's layer %u differs", i);
    }
    for (uint32_t i = 0; i < STACK_LAYERS; i++)
        trf_plan_destroy(plans[i]);
}

void soak_step_stack(soak_thread *thread) {
    const soak_subject *subjects[STACK_LAYERS];
    soak_context *context = soak_take_context(thread);
    trf_stack *stack = NULL;
    trf_stack_info info;
    int good =
        context && soak_expect(thread, trf_stack_create(context->context, &stack, &thread->err), TRF_OK, "a stack");
    for (uint32_t i = 0; good && i < STACK_LAYERS; i++) {
        do
            subjects[i] = draw_subject(thread);
        while (subjects[i]->layout != TRF_LAYOUT_CODED);
        const trf_load_options options = soak_load_options(subjects[i]);
        soak_checkpoint *checkpoint = take_checkpoint(thread, subjects[i]->file);
        good = checkpoint &&
               soak_expect(thread,
                           trf_stack_load(stack, checkpoint->checkpoint, subjects[i]->tensor, &options, &thread->err),
                           TRF_OK, "a stack's layer");
        soak_let_go(checkpoint ? &checkpoint->shared : NULL);
    }
    if (good) {
        trf_stack_get_info(stack, &info);
        const uint64_t more = info.layer_bytes > info.least_bytes ? info.layer_bytes - info.least_bytes : 0;
        good = soak_expect(thread,
                           trf_stack_prepare(stack, info.least_bytes + more * soak_draw(thread, 4) / 3, &thread->err),
                           TRF_OK, "preparing a stack");
    }
    if (good)
        run_stack(thread, stack, subjects);
    trf_stack_destroy(stack);
    soak_let_go(context ? &context->shared : NULL);
}
