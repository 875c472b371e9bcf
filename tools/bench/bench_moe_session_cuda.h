/* SPDX-License-Identifier: Apache-2.0 */
/* Experts of one shape for --mode moe, compressed and dense, and what a batch of tokens needs: x, y, routes, and
 * products that are prepared for every number of tokens that an expert has. */
#ifndef BENCH_MOE_SESSION_CUDA_H
#define BENCH_MOE_SESSION_CUDA_H

#include "bench_cublas_grouped_cuda.h"
#include "bench_device_cuda.h"
#include "bench_matrix_cuda.h"
#include "bench_moe_routes.h"
#include "bench_plan_cuda.h"
#include "transfuse/experts.h"

enum {
    BENCH_MOE_DISTINCT = 4, /* experts with weights of their own; the others repeat these, in memory of their own */
    BENCH_MOE_STREAMS = 16,
    BENCH_MOE_PACKED_CAPABILITY = 90, /* ten times the compute capability that packed experts need */
    BENCH_MOE_MAX_BATCH = 16          /* tokens */
};

/* cuBLASLt's product for a number of tokens. */
typedef struct bench_moe_product {
    bench_cublaslt_product *product;
    int candidate;
} bench_moe_product;

typedef struct bench_moe_session {
    const cli_options *options;
    const bench_device *device;
    cli_shape shape;
    bench_matrix matrices[BENCH_MOE_DISTINCT];
    trf_device_layer *layers[BENCH_MOE_EXPERTS];
    void *dense[BENCH_MOE_EXPERTS], *dense_list; /* device: matrices, and pointers to them */
    trf_experts *experts, *packed;               /* packed: NULL where the GPU has no products of packed experts */
    void *lt_workspaces[BENCH_MOE_STREAMS];
    cudaStream_t side[BENCH_MOE_STREAMS];
    cudaEvent_t fork, join[BENCH_MOE_STREAMS];
    bench_grouped *grouped; /* not owned; NULL: there is none, and there are no grouped calls */

    /* What a batch has. */
    uint32_t batch, rows; /* tokens; rows of x, BENCH_MOE_ROUTED for each */
    bench_moe_route routes[BENCH_MOE_CALLS];
    uint32_t *offsets_dev; /* [BENCH_MOE_CALLS][BENCH_MOE_EXPERTS + 1] */
    void *x, *y, *workspace;
    uint16_t *x_host;
    trf_experts_plan *plan, *packed_plan;
    bench_plan plans[BENCH_MOE_EXPERTS][BENCH_MOE_MAX_BATCH + 1]; /* by tokens, for the numbers that routes have */
    bench_moe_product products[BENCH_MOE_MAX_BATCH + 1];          /* the same */
    bench_grouped_product *grouped_calls[BENCH_MOE_CALLS];
} bench_moe_session;

/* Both functions that return an int: 0, or -1 after a message. */

/* session: zeros but for options, device, shape and grouped. Release with bench_moe_session_close in either case. */
int bench_moe_session_open(bench_moe_session *session);
void bench_moe_session_close(bench_moe_session *session);

/* Release with bench_moe_session_end_batch in either case. */
int bench_moe_session_begin_batch(bench_moe_session *session, uint32_t batch);
void bench_moe_session_end_batch(bench_moe_session *session);

/* @return where a row of x or y begins. cols: its columns. */
void *bench_moe_row_of(const void *base, uint32_t row, uint32_t cols);

#endif
