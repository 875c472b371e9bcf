/* Times of calls on the device: a timer is a graph of several calls in a row, and several timers take turns. */
#ifndef BENCH_CUDA_TIMER_H
#define BENCH_CUDA_TIMER_H

#include "bench.h"

#include <cuda_runtime_api.h>

/* Queues call number `call`. @return 0, or -1 after a message. */
typedef int bench_cuda_queue_fn(void *context, uint32_t call, cudaStream_t stream);

typedef struct bench_cuda_timer {
    cudaGraphExec_t graph;
    cudaEvent_t begin, end;
    uint32_t calls;
} bench_cuda_timer;

/* All functions: @return 0, or -1 after a message. Release with bench_cuda_timer_free in either case. */
int bench_cuda_timer_make(bench_cuda_timer *timer, bench_cuda_queue_fn *queue, void *context, uint32_t calls,
                          cudaStream_t stream);
void bench_cuda_timer_free(bench_cuda_timer *timer);

/* Runs the timer once, untimed, and waits for it. */
int bench_cuda_timer_run(const bench_cuda_timer *timer, cudaStream_t stream);

/* Runs each timer once untimed, then all of them in turns, `rounds` times, each time in another order. times[i]:
 * seconds a call of timers[i]; their lists are made here. */
int bench_cuda_time(bench_cuda_timer *const *timers, bench_times *const *times, size_t count, int rounds,
                    cudaStream_t stream);

#endif
