/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts for --mode moe, packed and dense, and what a number of tokens needs: routes, x, y, and the
 * prepared calls. Weights are drawn on the device; the host reads those that it needs. */
#ifndef BENCH_MIXTURE_SESSION_CUDA_H
#define BENCH_MIXTURE_SESSION_CUDA_H

#include "bench_cublas_grouped_cuda.h"
#include "bench_device_cuda.h"
#include "bench_mixture_routes.h"
#include "transfuse/experts.h"

enum {
    BENCH_MIXTURE_CALLS = 16 /* of a graph at most, each with routes of its own */
};

/* One of a mixture's two matrices an expert, for all experts. */
typedef struct bench_mixture_side {
    uint32_t rows, cols;
    void *dense; /* device, BF16 [experts][rows][cols] */
    trf_experts *packed;
    uint64_t packed_bytes; /* of all experts */

    /* What a number of tokens has, for cuBLAS alone. */
    void *x, *y;                                       /* device: BF16 [routes][cols] and [routes][rows] */
    bench_grouped_product *calls[BENCH_MIXTURE_CALLS]; /* NULL without cuBLAS */
} bench_mixture_side;

typedef struct bench_mixture_session {
    const bench_device *device;
    bench_grouped *grouped; /* not owned; NULL: there is none */
    cli_mixture of;
    bench_mixture_side gate_up, down;
    trf_moe *moe;

    bench_mixture_routes routes;
    void *ids, *weights; /* device: the routes' */
    void *x, *y;         /* device, BF16 [tokens][hidden] */
    void *workspace;
} bench_mixture_session;

/* All functions that return a number: 0, or -1 after a message. */

/* session: zeros but for device, grouped and of. Release with bench_mixture_session_close in either case. */
int bench_mixture_session_open(bench_mixture_session *session);
void bench_mixture_session_close(bench_mixture_session *session);

/* Release with bench_mixture_session_end_tokens in either case. max_tokens of the mixture is what open has set. */
int bench_mixture_session_begin_tokens(bench_mixture_session *session, uint32_t tokens, int skewed);
void bench_mixture_session_end_tokens(bench_mixture_session *session);

/* Queues the whole mixture with a call's routes. */
int bench_mixture_queue(const bench_mixture_session *session, uint32_t call, cudaStream_t stream);

#endif
