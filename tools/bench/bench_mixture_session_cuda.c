/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_mixture_session_cuda.h"

#include "bench_kernels.h"
#include "bench_memory.h"
#include "cli_cuda.h"
#include "cli_messages.h"

#include <assert.h>
#include <stdlib.h>

static const float kSigma = 0.02f;

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

/* @return device memory of drawn BF16, or NULL after a message. */
static void *draw(uint64_t count, float sigma, uint64_t seed, cudaStream_t stream) {
    void *memory = cli_cuda_alloc(2 * count);
    if (memory && !cli_cuda_check(bench_draw_launch(memory, count, sigma, seed, stream), "bench: drawing numbers"))
        return memory;
    cudaFree(memory);
    return NULL;
}

/* @return device memory with a copy of the host's, or NULL after a message. */
static void *upload(const void *host, uint64_t bytes) {
    void *memory = cli_cuda_alloc(bytes);
    if (memory && !cli_cuda_check(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice), "bench: copying routes"))
        return memory;
    cudaFree(memory);
    return NULL;
}

/* ---- experts ---- */

static int pack(bench_mixture_session *s, bench_mixture_side *side, trf_gate_up_order order) {
    const uint64_t each = (uint64_t)side->rows * side->cols;
    trf_device_matrix *matrices = bench_alloc(s->of.experts * sizeof *matrices);
    trf_expert_pack_options options;
    trf_error err = {0};
    if (!matrices)
        return -1;
    for (uint32_t e = 0; e < s->of.experts; e++) {
        trf_device_matrix_init(&matrices[e]);
        matrices[e].weights = (const uint16_t *)side->dense + e * each;
        matrices[e].rows = side->rows;
        matrices[e].cols = side->cols;
    }
    trf_expert_pack_options_init(&options);
    options.gate_up_order = order;
    options.stream = s->device->stream;
    const trf_status status =
        trf_experts_pack(s->device->context, matrices, s->of.experts, &options, &side->packed, &err);
    free(matrices);
    if (status != TRF_OK)
        return report(&err);
    for (uint32_t e = 0; e < s->of.experts; e++) {
        trf_device_layer_info info;
        trf_device_layer_get_info(trf_experts_layer(side->packed, e), &info);
        side->packed_bytes += info.memory_bytes;
    }
    return 0;
}

static int make_side(bench_mixture_session *s, bench_mixture_side *side, uint32_t rows, uint32_t cols,
                     trf_gate_up_order order) {
    side->rows = rows;
    side->cols = cols;
    side->dense = draw((uint64_t)s->of.experts * rows * cols, kSigma, 1 + (uint64_t)order, s->device->stream);
    return side->dense ? pack(s, side, order) : -1;
}

int bench_mixture_session_open(bench_mixture_session *s) {
    trf_moe_options options;
    trf_error err = {0};
    if (make_side(s, &s->gate_up, 2 * s->of.inner, s->of.hidden, TRF_GATE_UP_INTERLEAVED_8) ||
        make_side(s, &s->down, s->of.hidden, s->of.inner, TRF_GATE_UP_HALVES))
        return -1;
    trf_moe_options_init(&options);
    options.max_tokens = 1 << 20;
    options.top_k = s->of.routed;
    options.gate_up_order = TRF_GATE_UP_INTERLEAVED_8;
    return trf_moe_create(s->gate_up.packed, s->down.packed, &options, &s->moe, &err) ? report(&err) : 0;
}

static void free_side(bench_mixture_side *side) {
    trf_experts_destroy(side->packed);
    cudaFree(side->dense);
    *side = (bench_mixture_side){0};
}

void bench_mixture_session_close(bench_mixture_session *s) {
    trf_moe_destroy(s->moe);
    s->moe = NULL;
    free_side(&s->gate_up);
    free_side(&s->down);
}

/* ---- what a number of tokens needs ---- */

/* Makes cuBLAS's products of one side, of rows of x that are sorted by expert already. The counts are the host's. */
static int make_grouped_calls(bench_mixture_session *s, bench_mixture_side *side) {
    static_assert((int)BENCH_GROUPED_MAX_PRODUCTS >= 512, "all experts that --mixture takes");
    const uint64_t routes = (uint64_t)s->routes.tokens * s->of.routed, each = (uint64_t)side->rows * side->cols;
    side->x = draw(routes * side->cols, 1.0f, 5, s->device->stream);
    side->y = cli_cuda_alloc(2 * routes * side->rows);
    if (!side->x || !side->y)
        return -1;
    for (uint32_t call = 0; call < s->routes.calls; call++) {
        bench_grouped_matrix matrices[BENCH_GROUPED_MAX_PRODUCTS];
        const uint32_t *counts = s->routes.counts + (uint64_t)call * s->of.experts;
        uint32_t count = 0;
        uint64_t first = 0;
        for (uint32_t e = 0; e < s->of.experts; first += counts[e++])
            if (counts[e])
                matrices[count++] = (bench_grouped_matrix){(const uint16_t *)side->dense + e * each,
                                                           (const uint16_t *)side->x + first * side->cols,
                                                           (uint16_t *)side->y + first * side->rows, counts[e]};
        side->calls[call] = bench_grouped_product_make(s->grouped, side->rows, side->cols, matrices, count);
        if (!side->calls[call])
            return -1;
    }
    return 0;
}

/* Few tokens take many calls, so that a graph takes long enough to be timed; what takes milliseconds needs no more. */
static uint32_t calls_of(uint32_t tokens) { return tokens <= 64 ? BENCH_MIXTURE_CALLS : tokens <= 1024 ? 4 : 1; }

int bench_mixture_session_begin_tokens(bench_mixture_session *s, uint32_t tokens, int skewed) {
    const uint64_t values = (uint64_t)tokens * s->of.hidden;
    uint64_t workspace_bytes = 0;
    trf_error err = {0};
    if (bench_mixture_routes_make(&s->routes, &s->of, tokens, calls_of(tokens), skewed))
        return -1;
    const uint64_t routes = (uint64_t)s->routes.calls * tokens * s->of.routed;
    if (trf_moe_get_workspace(s->moe, tokens, &workspace_bytes, &err))
        return report(&err);
    s->ids = upload(s->routes.ids, routes * sizeof *s->routes.ids);
    s->weights = upload(s->routes.weights, routes * sizeof *s->routes.weights);
    s->x = draw(values, 1.0f, 3, s->device->stream);
    s->y = cli_cuda_alloc(2 * values);
    s->workspace = cli_cuda_alloc(workspace_bytes ? workspace_bytes : 1);
    if (!s->ids || !s->weights || !s->x || !s->y || !s->workspace)
        return -1;
    return s->grouped && (make_grouped_calls(s, &s->gate_up) || make_grouped_calls(s, &s->down)) ? -1 : 0;
}

static void end_side(bench_mixture_side *side) {
    for (uint32_t call = 0; call < BENCH_MIXTURE_CALLS; call++) {
        bench_grouped_product_free(side->calls[call]);
        side->calls[call] = NULL;
    }
    cudaFree(side->x);
    cudaFree(side->y);
    side->x = side->y = NULL;
}

void bench_mixture_session_end_tokens(bench_mixture_session *s) {
    void **const memory[] = {&s->ids, &s->weights, &s->x, &s->y, &s->workspace};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        cudaFree(*memory[i]);
        *memory[i] = NULL;
    }
    end_side(&s->gate_up);
    end_side(&s->down);
    bench_mixture_routes_free(&s->routes);
}

int bench_mixture_queue(const bench_mixture_session *s, uint32_t call, cudaStream_t stream) {
    const uint64_t first = (uint64_t)call * s->routes.tokens * s->of.routed;
    trf_moe_operands operands;
    trf_error err = {0};
    trf_moe_operands_init(&operands);
    operands.tokens = s->routes.tokens;
    operands.x = s->x;
    operands.ids = (const int32_t *)s->ids + first;
    operands.id_bytes = sizeof(int32_t);
    operands.weights = (const float *)s->weights + first;
    operands.y = s->y;
    return trf_moe_forward(s->moe, &operands, s->workspace, stream, &err) ? report(&err) : 0;
}
