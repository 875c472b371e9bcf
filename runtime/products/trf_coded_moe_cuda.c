/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of coded experts on a GPU: each call packs gate and up to the workspace, multiplies, packs down to the same
 * place, and multiplies again; the kernels of products are those of packed experts.
 *
 *   the workspace: what a mixture of packed experts needs | the packed experts of gate and up, then those of down
 *
 * What a call must know without asking the device is found out once, when the mixture is made: each expert's window,
 * and that no exception line is left and no weight inexact. A call then packs the same bytes each time. Memory for
 * that: one dense expert, and packed experts of TRIAL_BYTES. */
#include "trf_cuda_call.h"
#include "trf_decode_launch.h"
#include "trf_device_layer.h"
#include "trf_experts.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIAL_BYTES = 64 << 20
};
TRF_STATIC_ASSERT((int)TRF_PACK_EXPERTS_MAX >= (int)TRF_MOE_MAX_EXPERTS, "all experts of a mixture are packed at once");

/* Experts of one tensor, or gates and up projections, that a product has as packed ones. */
typedef struct projection {
    const trf_experts *experts, *up; /* up: NULL, but for TRF_PACK_ROWS_OF_TWO */
    trf_pack_rows order;
    uint32_t rows, cols; /* of a packed expert */
    uint32_t max_rans_bytes;
    int may_zero;
    uint16_t windows[TRF_PACK_EXPERTS_MAX];
} projection;

typedef struct trf_moe_packing {
    projection gate_up, down;
} trf_moe_packing;

/* The experts of a projection from number `first` on, to be packed to `memory`. */
static trf_experts_to_pack to_pack(const projection *p, uint32_t first, uint32_t count, void *memory) {
    return (trf_experts_to_pack){.view = &p->experts->layers[0]->view,
                                 .max_rans_bytes = p->max_rans_bytes,
                                 .count = count,
                                 .rows = p->order,
                                 .experts_dev = p->experts->on_device.experts_dev + first,
                                 .up_dev = p->up ? p->up->on_device.experts_dev + first : NULL,
                                 .windows = p->windows + first,
                                 .memory = memory};
}

/* ---- preparing ---- */

/* Checks each expert, and takes what its traits say. */
static trf_status check_experts(projection *p, const trf_experts *experts, trf_error *err) {
    for (uint32_t i = 0; i < experts->count; i++) {
        const trf_device_layer *layer = experts->layers[i];
        const char *refusal = trf_decode_alike(&layer->view, &p->experts->layers[0]->view)
                                  ? trf_pack_coded_experts_refusal(&layer->view, &layer->traits, p->order)
                                  : "its slabs, classes or raw bits are not those of expert 0";
        if (refusal)
            return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "expert %u cannot be packed for a product: %s", i,
                            refusal);
        if (layer->traits.max_rans_bytes > p->max_rans_bytes)
            p->max_rans_bytes = layer->traits.max_rans_bytes;
    }
    return TRF_OK;
}

/* What preparing takes in device memory. */
typedef struct trial {
    cudaStream_t stream;
    uint16_t *dense; /* one expert */
    trf_window_histogram *histograms;
    trf_pack_expert_result *results;
    void *packed;
} trial;

/* Enqueues the counting of an expert's exponents. @return a cudaError_t. */
static int count_exponents(const projection *p, uint32_t expert, const trial *t) {
    const trf_device_layer *layer = p->experts->layers[expert];
    const trf_rows_to_pack rows = {t->dense, p->cols, 0, p->rows, p->cols};
    int error = trf_launch_decode_layer(&layer->view, &layer->traits, TRF_DECODE_ELEMENTS, t->dense, t->stream);
    if (!error && p->up) {
        const trf_device_layer *up = p->up->layers[expert];
        error = trf_launch_decode_layer(&up->view, &up->traits, TRF_DECODE_ELEMENTS,
                                        t->dense + (uint64_t)layer->view.rows * p->cols, t->stream);
    }
    return error ? error : trf_launch_window_histogram(&rows, NULL, t->histograms + expert, t->stream);
}

/* Copies results of the trial's work, and waits for them. error: of that work. */
static trf_status fetch(void *to, const void *from, uint64_t bytes, const trial *t, int error, trf_error *err) {
    if (!error)
        error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, t->stream);
    const int waited = cudaStreamSynchronize(t->stream); /* after a failure, too: memory is released */
    return trf_check_cuda(error ? error : waited, "preparing a mixture of coded experts", err);
}

static trf_status find_windows(projection *p, const trial *t, trf_error *err) {
    const uint32_t count = p->experts->count;
    const uint64_t bytes = count * sizeof(trf_window_histogram);
    trf_window_histogram *const found = calloc(count, sizeof *found);
    if (!found)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate the exponents of %u experts", count);
    int error = cudaMemsetAsync(t->histograms, 0, bytes, t->stream);
    for (uint32_t i = 0; i < count && !error; i++)
        error = count_exponents(p, i, t);
    const trf_status status = fetch(found, t->histograms, bytes, t, error, err);
    for (uint32_t i = 0; i < count && status == TRF_OK; i++) {
        const uint32_t zeroing = trf_packed_is_zeroing(found[i].zeros, (uint64_t)p->rows * p->cols);
        p->windows[i] = trf_pack_window_word(trf_choose_packed_window(found[i].exponents, zeroing));
        p->may_zero |= zeroing != 0;
    }
    free(found);
    return status;
}

static trf_status judge(const trf_pack_expert_result *results, uint32_t count, trf_error *err) {
    for (uint32_t i = 0; i < count; i++)
        if (results[i].counts.num_left || results[i].state.inexact)
            return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "expert %u cannot be packed for a product: %s", i,
                            results[i].state.inexact ? "its exponents lie too far apart"
                                                     : "too many of its weights lie outside of 16 exponents");
    return TRF_OK;
}

/* How many experts are packed at once, as a trial. */
static uint32_t trial_count(const projection *p) {
    const uint64_t one = trf_pack_coded_experts_bytes(1, p->rows, p->cols);
    const uint64_t count = one < TRIAL_BYTES ? TRIAL_BYTES / one : 1;
    return count < p->experts->count ? (uint32_t)count : p->experts->count;
}

/* Packs all experts, some at a time. */
static trf_status try_packing(const projection *p, const trial *t, trf_error *err) {
    const uint32_t count = p->experts->count, at_once = trial_count(p);
    const uint64_t bytes = count * sizeof(trf_pack_expert_result);
    trf_pack_expert_result *const found = calloc(count, sizeof *found);
    if (!found)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate the results of %u experts", count);
    int error = cudaMemsetAsync(t->results, 0, bytes, t->stream);
    for (uint32_t first = 0; first < count && !error; first += at_once) {
        const uint32_t now = count - first < at_once ? count - first : at_once;
        trf_experts_to_pack experts = to_pack(p, first, now, t->packed);
        experts.results = t->results + first;
        error = trf_launch_pack_coded_experts(&experts, t->stream);
    }
    trf_status status = fetch(found, t->results, bytes, t, error, err);
    if (status == TRF_OK)
        status = judge(found, count, err);
    free(found);
    return status;
}

static trf_status prepare(projection *p, trf_error *err) {
    const trf_context *context = p->experts->context;
    const uint32_t count = p->experts->count;
    const uint64_t dense = 2ull * p->rows * p->cols, histograms = count * sizeof(trf_window_histogram),
                   results = count * sizeof(trf_pack_expert_result),
                   packed = trf_pack_coded_experts_bytes(trial_count(p), p->rows, p->cols);
    const uint64_t histograms_at = trf_device_align(dense), results_at = histograms_at + trf_device_align(histograms),
                   packed_at = results_at + trf_device_align(results);
    void *memory = NULL;
    trial t = {0};
    trf_status status = context->ops->allocate(context, packed_at + packed, &memory, err);
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking), "a stream", err);
    t.dense = memory;
    t.histograms = (trf_window_histogram *)((uint8_t *)memory + histograms_at);
    t.results = (trf_pack_expert_result *)((uint8_t *)memory + results_at);
    t.packed = (uint8_t *)memory + packed_at;
    if (status == TRF_OK)
        status = find_windows(p, &t, err);
    if (status == TRF_OK)
        status = try_packing(p, &t, err);
    if (t.stream)
        cudaStreamDestroy(t.stream);
    context->ops->release(context, memory);
    return status;
}

static trf_status check_and_prepare(projection *p, trf_error *err) {
    trf_status status = check_experts(p, p->experts, err);
    if (status == TRF_OK && p->up)
        status = check_experts(p, p->up, err);
    return status == TRF_OK ? prepare(p, err) : status;
}

trf_status trf_cuda_prepare_coded_moe(trf_moe *moe, trf_error *err) {
    const trf_context *context = moe->gate_up->context;
    trf_device_scope scope;
    trf_status status = trf_cuda_check_packed_experts(context, moe->gate_up->count, err);
    if (status != TRF_OK)
        return status;
    trf_moe_packing *packing = calloc(1, sizeof *packing);
    if (!packing)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a mixture");
    packing->gate_up = (projection){.experts = moe->gate_up,
                                    .up = moe->up,
                                    .order = moe->gate_up_rows,
                                    .rows = moe->shape.gate_up_rows,
                                    .cols = moe->shape.hidden};
    packing->down = (projection){.experts = moe->down, .rows = moe->shape.hidden, .cols = moe->shape.gate_up_rows / 2};
    status = trf_enter_device(context->device, &scope, err);
    if (status == TRF_OK) {
        status = check_and_prepare(&packing->gate_up, err);
        if (status == TRF_OK)
            status = check_and_prepare(&packing->down, err);
        trf_leave_device(&scope);
    }
    if (status != TRF_OK)
        free(packing);
    else
        moe->packing = packing;
    return status;
}

/* ---- calls ---- */

static uint64_t packed_bytes(const projection *p) {
    return trf_pack_coded_experts_bytes(p->experts->count, p->rows, p->cols);
}

trf_status trf_cuda_get_coded_moe_workspace(const trf_moe *moe, uint32_t tokens, uint64_t *bytes, trf_error *err) {
    trf_moe_partition partition;
    const trf_status status = trf_cuda_choose_moe(moe, tokens, &partition, err);
    if (status != TRF_OK)
        return status;
    const uint64_t gate_up = packed_bytes(&moe->packing->gate_up), down = packed_bytes(&moe->packing->down);
    *bytes = trf_device_align(partition.workspace_bytes) + (gate_up > down ? gate_up : down);
    return TRF_OK;
}

/* The packed experts of a product, once they are packed. */
static trf_packed_experts packed_experts(const projection *p, const uint8_t *memory) {
    trf_packed_experts packed = {.views_dev = (const trf_packed_view *)memory,
                                 .first = trf_pack_coded_experts_first(p->experts->count, p->rows, p->cols, memory),
                                 .count = p->experts->count,
                                 .may_zero = p->may_zero,
                                 .are_new = 1};
    packed.first.base = p->windows[0] & 255;
    packed.first.zeroing = p->windows[0] >> 8;
    return packed;
}

typedef struct packing_call {
    const trf_moe_packing *packing;
    uint8_t *memory;
} packing_call;

static int pack(const void *context, int is_down, trf_stream stream) {
    const packing_call *call = context;
    const projection *p = is_down ? &call->packing->down : &call->packing->gate_up;
    const trf_experts_to_pack experts = to_pack(p, 0, p->experts->count, call->memory);
    return trf_launch_pack_coded_experts(&experts, stream);
}

trf_status trf_cuda_forward_coded_moe(const trf_moe *moe, const trf_moe_operands *operands, void *workspace,
                                      trf_stream stream, trf_error *err) {
    trf_moe_partition partition;
    const trf_status status = trf_cuda_choose_moe(moe, operands->tokens, &partition, err);
    if (status != TRF_OK)
        return status;
    const packing_call packing = {moe->packing, (uint8_t *)workspace + trf_device_align(partition.workspace_bytes)};
    trf_moe_call call = {.gate_up = packed_experts(&moe->packing->gate_up, packing.memory),
                         .down = packed_experts(&moe->packing->down, packing.memory),
                         .make_weights = pack,
                         .weights_context = &packing};
    return trf_cuda_launch_moe(moe, operands, &call, workspace, stream, err);
}
