/* The cases of a session: what each of them queues, its errors, and its timer. */
#ifndef BENCH_CUDA_CASE_H
#define BENCH_CUDA_CASE_H

#include "bench_cuda_layer_session.h"

typedef struct bench_cuda_case {
    bench_layer_session *session;
    bench_cuda_figure *figure; /* the result's */
    int compressed;            /* index of the compressed layer, or -1 */
    trf_linear_plan *plans;    /* one for each of its copies */
    bench_cublaslt_product *product;
    int candidate; /* of product */
    bench_cuda_timer timer;
    cudaStream_t beside; /* AHEAD: where the next layer is decoded */
    cudaEvent_t decoded, free;
} bench_cuda_case;

/* All: @return 0, or -1 after a message. */

/* Prepares a case but for its timer, and measures its errors. Where it cannot run, figure->reason says why. c: all zero
 * but session, compressed and figure, which has kind, favor and batch. Release with bench_cuda_case_free in either
 * case. */
int bench_cuda_case_make(bench_cuda_case *c);
void bench_cuda_case_free(bench_cuda_case *c);

/* Makes the timer, unless there is a reason against it. Only after all cases are made: graphs hold the address of the
 * workspace, which grows until then. */
int bench_cuda_case_capture(bench_cuda_case *c);

#endif
