/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_moe_session_cuda.h"

#include "bench_candidates_cuda.h"
#include "cli_cuda.h"
#include "cli_messages.h"

#include <assert.h>
#include <stdlib.h>

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

void *bench_moe_row_of(const void *base, uint32_t row, uint32_t cols) {
    return (char *)base + (uint64_t)row * cols * 2;
}

/* ---- experts ---- */

static int make_streams(bench_moe_session *s) {
    int failed = cli_cuda_check(cudaEventCreateWithFlags(&s->fork, cudaEventDisableTiming), "bench: an event");
    for (uint32_t i = 0; !failed && i < BENCH_MOE_STREAMS; i++) {
        failed = cli_cuda_check(cudaStreamCreateWithFlags(&s->side[i], cudaStreamNonBlocking), "bench: a stream") ||
                 cli_cuda_check(cudaEventCreateWithFlags(&s->join[i], cudaEventDisableTiming), "bench: an event");
        s->lt_workspaces[i] = failed ? NULL : cli_cuda_alloc(BENCH_CUBLASLT_WORKSPACE_BYTES);
        failed = failed || !s->lt_workspaces[i];
    }
    return failed ? -1 : 0;
}

/* Packs the dense matrices, on GPUs that have products of packed experts. */
static int make_packed(bench_moe_session *s) {
    trf_device_matrix matrices[BENCH_MOE_EXPERTS];
    trf_error err = {0};
    trf_context_info info;
    trf_context_get_info(s->device->context, &info);
    if (info.capability != BENCH_MOE_PACKED_CAPABILITY)
        return 0;
    for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++) {
        trf_device_matrix_init(&matrices[e]);
        matrices[e].weights = s->dense[e];
        matrices[e].rows = s->shape.rows;
        matrices[e].cols = s->shape.cols;
    }
    return trf_experts_pack(s->device->context, matrices, BENCH_MOE_EXPERTS, NULL, &s->packed, &err) ? report(&err) : 0;
}

static int make_experts(bench_moe_session *s) {
    const uint64_t bytes = (uint64_t)s->shape.rows * s->shape.cols * 2;
    trf_error err = {0};
    if (bench_matrix_make(s->matrices, BENCH_MOE_DISTINCT, s->shape, s->options))
        return -1;
    for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++) {
        const bench_matrix *matrix = &s->matrices[e % BENCH_MOE_DISTINCT];
        s->dense[e] = cli_cuda_alloc(bytes);
        if (!s->dense[e] ||
            cli_cuda_check(cudaMemcpy(s->dense[e], matrix->weights, bytes, cudaMemcpyHostToDevice),
                           "bench: copying weights") ||
            bench_matrix_upload(matrix, s->device->context, &s->layers[e]))
            return -1;
    }
    s->dense_list = cli_cuda_alloc(sizeof s->dense);
    if (!s->dense_list ||
        cli_cuda_check(cudaMemcpy(s->dense_list, s->dense, sizeof s->dense, cudaMemcpyHostToDevice), "bench: a list"))
        return -1;
    return trf_experts_create(s->layers, BENCH_MOE_EXPERTS, &s->experts, &err) ? report(&err) : 0;
}

int bench_moe_session_open(bench_moe_session *s) {
    return make_experts(s) || make_packed(s) || make_streams(s) ? -1 : 0;
}

void bench_moe_session_close(bench_moe_session *s) {
    trf_experts_destroy(s->experts);
    trf_experts_destroy(s->packed);
    for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++) {
        trf_device_layer_destroy(s->layers[e]);
        cudaFree(s->dense[e]);
    }
    for (uint32_t i = 0; i < BENCH_MOE_DISTINCT; i++)
        bench_matrix_free(&s->matrices[i]);
    for (uint32_t i = 0; i < BENCH_MOE_STREAMS; i++) {
        if (s->side[i])
            cudaStreamDestroy(s->side[i]);
        if (s->join[i])
            cudaEventDestroy(s->join[i]);
        cudaFree(s->lt_workspaces[i]);
    }
    if (s->fork)
        cudaEventDestroy(s->fork);
    cudaFree(s->dense_list);
}

/* ---- what a batch needs ---- */

/* @return 0, or -1 after a message. */
typedef int expert_fn(bench_moe_session *s, uint32_t expert, uint32_t tokens);

/* Calls fn for each number of tokens that an expert has in any call, perhaps several times. */
static int for_each_count(bench_moe_session *s, expert_fn *fn) {
    for (uint32_t call = 0; call < BENCH_MOE_CALLS; call++)
        for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++) {
            const uint32_t tokens = bench_moe_tokens_of(&s->routes[call], e);
            if (tokens && fn(s, e, tokens))
                return -1;
        }
    return 0;
}

static int make_plan(bench_moe_session *s, uint32_t expert, uint32_t tokens) {
    bench_plan *plan = &s->plans[expert][tokens];
    return plan->plan ? 0 : bench_plan_make_bf16(plan, s->layers[expert], tokens);
}

/* Finds the fastest of cuBLASLt's candidates. Products of one size are alike for all experts. */
static int make_product(bench_moe_session *s, uint32_t expert, uint32_t tokens) {
    bench_moe_product *p = &s->products[tokens];
    const bench_candidate_operands operands = {
        .weights = (const void *const *)s->dense, .count = BENCH_MOE_EXPERTS, .step = 5, .x = s->x, .y = s->y};
    (void)expert;
    if (p->product)
        return 0;
    p->product = bench_cublaslt_product_make(s->device->lt, s->shape.rows, s->shape.cols, tokens, TRF_DTYPE_BF16,
                                             TRF_DTYPE_BF16);
    if (!p->product)
        return -1;
    p->candidate = bench_fastest_candidate(p->product, &operands, BENCH_MOE_CALLS, s->device->stream);
    return p->candidate < 0 ? -1 : 0;
}

/* Makes cuBLAS's grouped products, one for each call, with a group for each expert that has tokens. */
static int make_grouped_calls(bench_moe_session *s) {
    static_assert((int)BENCH_MOE_EXPERTS <= (int)BENCH_GROUPED_MAX_PRODUCTS, "all experts in one product");
    for (uint32_t call = 0; s->grouped && call < BENCH_MOE_CALLS; call++) {
        bench_grouped_matrix matrices[BENCH_MOE_EXPERTS];
        uint32_t count = 0;
        for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++) {
            const uint32_t first = s->routes[call].offsets[e], tokens = bench_moe_tokens_of(&s->routes[call], e);
            if (tokens)
                matrices[count++] = (bench_grouped_matrix){s->dense[e], bench_moe_row_of(s->x, first, s->shape.cols),
                                                           bench_moe_row_of(s->y, first, s->shape.rows), tokens};
        }
        s->grouped_calls[call] = bench_grouped_product_make(s->grouped, s->shape.rows, s->shape.cols, matrices, count);
        if (!s->grouped_calls[call])
            return -1;
    }
    return 0;
}

/* Makes plans and the workspace, which serves the experts' call and layers one by one. */
static int make_plans(bench_moe_session *s) {
    trf_error err = {0};
    if (trf_experts_plan_create(s->experts, s->rows, TRF_DTYPE_BF16, TRF_DTYPE_BF16, &s->plan, &err))
        return report(&err);
    if (s->packed && trf_experts_plan_create(s->packed, s->rows, TRF_DTYPE_BF16, TRF_DTYPE_BF16, &s->packed_plan, &err))
        return report(&err);
    if (for_each_count(s, make_plan))
        return -1;
    uint64_t bytes = trf_experts_plan_workspace_bytes(s->plan);
    const uint64_t packed_bytes = s->packed ? trf_experts_plan_workspace_bytes(s->packed_plan) : 0;
    bytes = packed_bytes > bytes ? packed_bytes : bytes;
    for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++)
        for (uint32_t m = 0; m <= BENCH_MOE_MAX_BATCH; m++)
            bytes = s->plans[e][m].info.workspace_bytes > bytes ? s->plans[e][m].info.workspace_bytes : bytes;
    s->workspace = cli_cuda_alloc(bytes);
    return s->workspace ? 0 : -1;
}

int bench_moe_session_begin_batch(bench_moe_session *s, uint32_t batch) {
    s->batch = batch;
    s->rows = batch * BENCH_MOE_ROUTED;
    bench_moe_make_routes(s->routes, batch);
    s->offsets_dev = cli_cuda_alloc(sizeof s->routes);
    s->y = cli_cuda_alloc((uint64_t)s->rows * s->shape.rows * 2);
    if (!s->offsets_dev || !s->y || bench_matrix_draw_x(s->rows, s->shape.cols, &s->x, &s->x_host) ||
        cli_cuda_check(cudaMemcpy(s->offsets_dev, s->routes, sizeof s->routes, cudaMemcpyHostToDevice),
                       "bench: copying counts"))
        return -1;
    return make_plans(s) || for_each_count(s, make_product) || make_grouped_calls(s) ? -1 : 0;
}

void bench_moe_session_end_batch(bench_moe_session *s) {
    trf_experts_plan_destroy(s->plan);
    trf_experts_plan_destroy(s->packed_plan);
    s->plan = s->packed_plan = NULL;
    for (uint32_t m = 0; m <= BENCH_MOE_MAX_BATCH; m++) {
        for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++)
            bench_plan_free(&s->plans[e][m]);
        bench_cublaslt_product_free(s->products[m].product);
        s->products[m] = (bench_moe_product){0};
    }
    for (uint32_t call = 0; call < BENCH_MOE_CALLS; call++) {
        bench_grouped_product_free(s->grouped_calls[call]);
        s->grouped_calls[call] = NULL;
    }
    cudaFree(s->offsets_dev);
    cudaFree(s->x);
    cudaFree(s->y);
    cudaFree(s->workspace);
    free(s->x_host);
    s->offsets_dev = NULL;
    s->x = s->y = s->workspace = s->x_host = NULL;
}
