/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of a session of --mode layers: what each of them queues, its errors, and its timer. */
#ifndef BENCH_LAYER_CASES_CUDA_H
#define BENCH_LAYER_CASES_CUDA_H

#include "bench_layer_session_cuda.h"
#include "bench_plan_cuda.h"
#include "bench_timer_cuda.h"

/* What a case times. */
typedef enum bench_layer_case_id {
    BENCH_CASE_FUSED,
    BENCH_CASE_WIDE,
    BENCH_CASE_TWO_STEP,
    BENCH_CASE_DENSE,    /* the dense path, of plain layers */
    BENCH_CASE_PACKED,   /* the packed path, of packed layers */
    BENCH_CASE_AUTO,     /* the path that a plan takes by itself, for batch sweeps */
    BENCH_CASE_DECODE,   /* to dense 16-bit weights */
    BENCH_CASE_CUBLASLT, /* the product with dense 16-bit weights */
    BENCH_CASE_RAW8,     /* the product with plain 8-bit codes */
    BENCH_CASE_COPY      /* of device memory */
} bench_layer_case_id;

typedef struct bench_layer_case {
    bench_layer_session *session;
    bench_figure *figure; /* with the labels what, favor and batch */
    bench_layer_case_id id;
    int compressed; /* index of the compressed layer, or -1 */
    uint32_t batch; /* 0 for decoding and copying */
    uint32_t calls, copies;
    bench_plan *plans; /* one for each of its copies */
    bench_cublaslt_product *product;
    int candidate; /* of product */
} bench_layer_case;

/* "fused", "wide", "two-step", "dense", "packed", "auto", "decode", "cublaslt", "raw8" or "copy". */
const char *bench_layer_case_name(bench_layer_case_id id);

/* All functions that return an int: 0, or -1 after a message. */

/* Prepares a case except for its timer, measures its errors, and adds the figure's details. If it cannot run,
 * figure->reason says why. c: zeros but for session, figure, id, compressed and batch. Release with
 * bench_layer_case_free in either case, before the session is closed. */
int bench_layer_case_make(bench_layer_case *c);
void bench_layer_case_free(bench_layer_case *c);

/* Makes the timer, unless the figure has a reason. Call this only after all cases are made, since graphs hold the
 * address of the workspace, which grows until then. */
int bench_layer_case_capture(bench_layer_case *c, bench_timer *timer);

#endif
