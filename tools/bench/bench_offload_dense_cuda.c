/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_offload_dense_cuda.h"

#include "cli_cuda.h"
#include "cli_messages.h"

#include <stdlib.h>

typedef struct dense_layer {
    const void *host_weights;
    uint64_t bytes, offset; /* in device memory */
    int resident;
    /* Only layers that are offloaded have these. */
    uint32_t turn;   /* among them: 0 ... offloaded - 1 */
    uint32_t behind; /* how many turns earlier the last layer in its place comes, 1 ... offloaded */
    cudaEvent_t copied, used;
} dense_layer;

struct bench_offload_dense {
    dense_layer *layers;
    uint32_t *offloaded_layers; /* layers by turn */
    uint32_t count, offloaded;
    uint64_t buffer_bytes, device_bytes, offloaded_bytes;
    uint8_t *memory;
    cudaStream_t copies;
    /* Counted over all passes: turns whose copies are queued, and turns whose uses are queued. */
    uint64_t turns_copied, turns_used;
};

/* ---- which stay, and where they lie ---- */

static void choose_residents(bench_offload_dense *d, uint64_t room) {
    uint64_t all = 0;
    double due = 0;
    for (uint32_t i = 0; i < d->count; i++)
        all += d->layers[i].bytes;
    const double share = (double)room / (double)all;
    for (uint32_t round = 0; round < 2; round++) /* by share, then whatever fits */
        for (uint32_t i = 0; i < d->count; i++) {
            dense_layer *layer = &d->layers[i];
            due += round == 0 ? share * (double)layer->bytes : 0;
            if (layer->resident || layer->bytes > room || (round == 0 && due < (double)layer->bytes))
                continue;
            layer->resident = 1;
            room -= layer->bytes;
            due -= (double)layer->bytes;
        }
}

static void lay_out(bench_offload_dense *d) {
    uint64_t first = 0, used = 0;
    d->device_bytes = 2 * d->buffer_bytes;
    for (uint32_t i = 0; i < d->count; i++) {
        dense_layer *layer = &d->layers[i];
        if (layer->resident) {
            layer->offset = d->device_bytes;
            d->device_bytes += layer->bytes;
            continue;
        }
        if (used + layer->bytes > d->buffer_bytes) {
            first = first ? 0 : d->buffer_bytes;
            used = 0;
        }
        layer->offset = first + used;
        used += layer->bytes;
        layer->turn = d->offloaded;
        d->offloaded_layers[d->offloaded++] = i;
        d->offloaded_bytes += layer->bytes;
    }
}

static int share_place(const dense_layer *a, const dense_layer *b) {
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static void find_predecessors(bench_offload_dense *d) {
    for (uint32_t turn = 0; turn < d->offloaded; turn++) {
        dense_layer *layer = &d->layers[d->offloaded_layers[turn]];
        layer->behind = 1;
        while (
            layer->behind < d->offloaded &&
            !share_place(layer, &d->layers[d->offloaded_layers[(turn + d->offloaded - layer->behind) % d->offloaded]]))
            layer->behind++;
    }
}

/* ---- copies ---- */

/* Queues copies ahead, as far as the layers that lie in their places have been used. */
static int copy_ahead(bench_offload_dense *d) {
    while (d->offloaded) {
        dense_layer *layer = &d->layers[d->offloaded_layers[d->turns_copied % d->offloaded]];
        const int first = d->turns_copied < layer->behind;
        if (!first && d->turns_copied - layer->behind >= d->turns_used)
            return 0;
        const dense_layer *before =
            first ? NULL : &d->layers[d->offloaded_layers[(d->turns_copied - layer->behind) % d->offloaded]];
        if ((before &&
             cli_cuda_check(cudaStreamWaitEvent(d->copies, before->used, 0), "bench: waiting for a layer's use")) ||
            cli_cuda_check(cudaMemcpyAsync(d->memory + layer->offset, layer->host_weights, layer->bytes,
                                           cudaMemcpyHostToDevice, d->copies),
                           "bench: copying a layer ahead") ||
            cli_cuda_check(cudaEventRecord(layer->copied, d->copies), "bench: an event"))
            return -1;
        d->turns_copied++;
    }
    return 0;
}

const void *bench_offload_dense_begin(bench_offload_dense *d, uint32_t layer, cudaStream_t stream) {
    const dense_layer *l = &d->layers[layer];
    if (!l->resident && cli_cuda_check(cudaStreamWaitEvent(stream, l->copied, 0), "bench: waiting for a layer's copy"))
        return NULL;
    return d->memory + l->offset;
}

int bench_offload_dense_end(bench_offload_dense *d, uint32_t layer, cudaStream_t stream) {
    const dense_layer *l = &d->layers[layer];
    if (l->resident)
        return 0;
    if (cli_cuda_check(cudaEventRecord(l->used, stream), "bench: an event"))
        return -1;
    d->turns_used++;
    return copy_ahead(d);
}

/* ---- making one ---- */

static int fill(bench_offload_dense *d) {
    d->memory = cli_cuda_alloc(d->device_bytes);
    if (!d->memory || cli_cuda_check(cudaStreamCreateWithFlags(&d->copies, cudaStreamNonBlocking), "bench: a stream"))
        return -1;
    for (uint32_t i = 0; i < d->count; i++) {
        dense_layer *layer = &d->layers[i];
        if (layer->resident
                ? cli_cuda_check(
                      cudaMemcpy(d->memory + layer->offset, layer->host_weights, layer->bytes, cudaMemcpyHostToDevice),
                      "bench: uploading a layer")
                : cli_cuda_check(cudaEventCreateWithFlags(&layer->copied, cudaEventDisableTiming), "bench: an event") ||
                      cli_cuda_check(cudaEventCreateWithFlags(&layer->used, cudaEventDisableTiming), "bench: an event"))
            return -1;
    }
    return copy_ahead(d);
}

bench_offload_dense *bench_offload_dense_make(void *const *host_weights, const uint64_t *host_weights_bytes,
                                              uint32_t count, uint64_t budget) {
    bench_offload_dense *d = calloc(1, sizeof *d);
    if (d) {
        d->layers = calloc(count, sizeof *d->layers);
        d->offloaded_layers = calloc(count, sizeof *d->offloaded_layers);
    }
    if (!d || !d->layers || !d->offloaded_layers) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
        bench_offload_dense_free(d);
        return NULL;
    }
    d->count = count;
    uint64_t all = 0, max_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        d->layers[i].host_weights = host_weights[i];
        d->layers[i].bytes = host_weights_bytes[i];
        all += host_weights_bytes[i];
        max_bytes = host_weights_bytes[i] > max_bytes ? host_weights_bytes[i] : max_bytes;
    }
    d->buffer_bytes = all <= budget ? 0 : max_bytes;
    choose_residents(d, all <= budget ? all : budget > 2 * max_bytes ? budget - 2 * max_bytes : 0);
    lay_out(d);
    find_predecessors(d);
    if (!fill(d))
        return d;
    bench_offload_dense_free(d);
    return NULL;
}

void bench_offload_dense_free(bench_offload_dense *d) {
    if (!d)
        return;
    cudaDeviceSynchronize();
    for (uint32_t i = 0; d->layers && i < d->count; i++) {
        if (d->layers[i].copied)
            cudaEventDestroy(d->layers[i].copied);
        if (d->layers[i].used)
            cudaEventDestroy(d->layers[i].used);
    }
    if (d->copies)
        cudaStreamDestroy(d->copies);
    cudaFree(d->memory);
    free(d->layers);
    free(d->offloaded_layers);
    free(d);
}

uint64_t bench_offload_dense_offloaded_bytes(const bench_offload_dense *d) { return d->offloaded_bytes; }

uint32_t bench_offload_dense_resident(const bench_offload_dense *d) { return d->count - d->offloaded; }
