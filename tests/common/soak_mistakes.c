/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that a soak makes in order to see them fail: each thread has to get the error of its own call. */
#include "soak_work.h"

#include <stdio.h>
#include <string.h>

static trf_status load(soak_thread *thread, trf_context *context, soak_file file, const char *tensor,
                       const trf_load_options *options) {
    trf_device_layer *layer = NULL;
    soak_checkpoint *checkpoint = soak_open(thread, file);
    if (!checkpoint)
        return TRF_OK;
    const trf_status status =
        trf_device_layer_load(context, checkpoint->checkpoint, tensor, options, &layer, &thread->err);
    if (layer) {
        soak_fail(thread, "%s of %s was loaded", tensor, thread->soak->paths[file]);
        trf_device_layer_destroy(layer);
    }
    soak_let_go(&checkpoint->shared);
    return status;
}

/* Asks for a path that coded layers do not have. */
static trf_status plan_dense(soak_thread *thread, trf_context *context) {
    trf_device_layer *layer = NULL;
    trf_plan *plan = NULL;
    soak_checkpoint *checkpoint = soak_open(thread, SOAK_PAIR);
    if (!checkpoint)
        return TRF_OK;
    trf_status status = trf_device_layer_load(context, checkpoint->checkpoint, "first", NULL, &layer, &thread->err);
    soak_let_go(&checkpoint->shared);
    if (!soak_expect(thread, status, TRF_OK, "first"))
        return TRF_OK;
    status = test_make_plan(layer, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_DENSE, &plan, &thread->err);
    trf_plan_destroy(plan);
    trf_device_layer_destroy(layer);
    return status;
}

trf_status soak_make_mistake(soak_thread *thread, trf_context *context, uint32_t kind, char text[64]) {
    trf_load_options options;
    trf_checkpoint *checkpoint = NULL;
    trf_layer *layer = NULL;
    char path[512];
    text[0] = 0;
    trf_load_options_init(&options);
    options.threads = 1 + (int)test_below(&thread->rng, 3);
    switch (kind) {
    case 0:
        snprintf(text, 64, "nobody.%d.%llu", thread->number, (unsigned long long)thread->step);
        return load(thread, context, SOAK_FOLDER, text, &options);
    case 1:
        snprintf(text, 64, "nowhere.%d.%llu", thread->number, (unsigned long long)thread->step);
        snprintf(path, sizeof path, "%s.%s", thread->soak->output, text);
        return trf_checkpoint_open(path, &checkpoint, &thread->err);
    case 2:
        return load(thread, context, SOAK_DAMAGED, "weight", &options);
    case 3:
        return trf_layer_open(thread->soak->paths[SOAK_DAMAGED], &layer, &thread->err);
    case 4:
        return plan_dense(thread, context);
    case 5:
        return load(thread, context, SOAK_FOLDER, "experts.down", &options);
    case 6:
        options.layout = TRF_LAYOUT_PLAIN;
        return load(thread, context, SOAK_FOLDER, "e5m2", &options);
    default:
        options.first_row = 8;
        return load(thread, context, SOAK_PAIR, "second", &options);
    }
}
