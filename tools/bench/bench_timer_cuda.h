/* SPDX-License-Identifier: Apache-2.0 */
/* Times calls on the device. A timer is a graph of several calls in a row, and several timers take turns. */
#ifndef BENCH_TIMER_CUDA_H
#define BENCH_TIMER_CUDA_H

#include "bench_figure.h"

#include <cuda_runtime_api.h>

/* Queues call number `call`. @return 0, or -1 after a message. */
typedef int bench_queue_fn(void *context, uint32_t call, cudaStream_t stream);

typedef struct bench_timer {
    cudaGraphExec_t graph;
    cudaEvent_t begin, end;
    uint32_t calls;
    /* How long the device idles before each run, which lets it cool: large products run slower on a hot one. 0: it goes
     * on at once. */
    double pause_seconds;
    bench_figure *figure; /* whose values are seconds a call; the caller's */
} bench_timer;

/* All functions that return an int: 0, or -1 after a message. */

/* timer: zeros but for pause_seconds and figure, which may come later. Release with bench_timer_free in either case. */
int bench_timer_make(bench_timer *timer, bench_queue_fn *queue, void *context, uint32_t calls, cudaStream_t stream);
void bench_timer_free(bench_timer *timer);

/* Runs the timer once, untimed, and waits for it. */
int bench_timer_run(const bench_timer *timer, cudaStream_t stream);

/* Runs each timer that has a graph once untimed, then all of them in turns, `rounds` times, each time in another
 * order. */
int bench_time(bench_timer *timers, size_t count, int rounds, cudaStream_t stream);

#endif
