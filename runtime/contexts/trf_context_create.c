/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: the public functions. */
#include "trf_context_create.h"

#include "transfuse/cpu.h"
#include "trf_context.h"

#include <stdio.h>
#include <stdlib.h>

trf_status trf_context_create(int device, trf_context **context, trf_error *err) {
    if (!context)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no place for a context");
    if (device == TRF_DEVICE_CPU)
        return trf_cpu_context_create(context, err);
    if (device != TRF_DEVICE_AUTO)
        return trf_cuda_context_create(device, context, err);
    trf_error failure;
    trf_status status = trf_cuda_context_create(0, context, &failure);
    if (status == TRF_ERR_DEVICE)
        return trf_cpu_context_create(context, err);
    if (status != TRF_OK && err)
        *err = failure; /* a GPU exists and fails: the caller has to know */
    return status;
}

void trf_context_destroy(trf_context *context) {
    if (!context)
        return;
    context->ops->destroy(context);
    trf_tuning_free(context->tuning);
    free(context);
}

void trf_context_get_info(const trf_context *context, trf_context_info *info) {
    *info = (trf_context_info){.device = context->device, .capability = context->limits.capability};
    snprintf(info->name, sizeof info->name, "%s", context->name);
}

void trf_context_set_threads(trf_context *context, int threads) { context->threads = threads; }
