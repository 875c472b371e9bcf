/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_timer_cuda.h"

#include "bench_memory.h"
#include "bench_random.h"
#include "cli_cuda.h"

#include <stdlib.h>
#include <time.h>

int bench_timer_make(bench_timer *timer, bench_queue_fn *queue, void *context, uint32_t calls, cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    int failed = 0;
    timer->calls = calls;
    /* One call is made outside the graph, since what CUDA loads at a kernel's first call cannot be captured. */
    if (queue(context, 0, stream) || cli_cuda_check(cudaStreamSynchronize(stream), "bench: a first call"))
        return -1;
    if (cli_cuda_check(cudaEventCreate(&timer->begin), "bench: an event") ||
        cli_cuda_check(cudaEventCreate(&timer->end), "bench: an event") ||
        cli_cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "bench: capturing a graph"))
        return -1;
    for (uint32_t call = 0; !failed && call < calls; call++)
        failed = queue(context, call, stream);
    cudaError_t ended = cudaStreamEndCapture(stream, &graph); /* also after a failure */
    if (!failed)
        failed = cli_cuda_check(ended, "bench: capturing a graph") ||
                 cli_cuda_check(cudaGraphInstantiate(&timer->graph, graph, 0), "bench: a graph");
    if (graph)
        cudaGraphDestroy(graph);
    return failed ? -1 : 0;
}

void bench_timer_free(bench_timer *timer) {
    if (timer->graph)
        cudaGraphExecDestroy(timer->graph);
    if (timer->begin)
        cudaEventDestroy(timer->begin);
    if (timer->end)
        cudaEventDestroy(timer->end);
    *timer = (bench_timer){0};
}

static int launch(const bench_timer *timer, cudaStream_t stream) {
    return cli_cuda_check(cudaEventRecord(timer->begin, stream), "bench: an event") ||
           cli_cuda_check(cudaGraphLaunch(timer->graph, stream), "bench: launching a graph") ||
           cli_cuda_check(cudaEventRecord(timer->end, stream), "bench: an event");
}

int bench_timer_run(const bench_timer *timer, cudaStream_t stream) {
    return launch(timer, stream) || cli_cuda_check(cudaStreamSynchronize(stream), "bench: running a graph") ? -1 : 0;
}

static int pause_device(double seconds, cudaStream_t stream) {
    const struct timespec pause = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    if (cli_cuda_check(cudaStreamSynchronize(stream), "bench: running a graph"))
        return -1;
    nanosleep(&pause, NULL);
    return 0;
}

/* Runs each timer once, in that order. The device is not left idle between them, unless a timer asks for a pause. */
static int run_round(bench_timer *const *timers, const uint32_t *order, size_t count, int timed, cudaStream_t stream) {
    for (size_t i = 0; i < count; i++)
        if ((timers[order[i]]->pause_seconds > 0 && pause_device(timers[order[i]]->pause_seconds, stream)) ||
            launch(timers[order[i]], stream))
            return -1;
    if (cli_cuda_check(cudaStreamSynchronize(stream), "bench: running a graph"))
        return -1;
    for (size_t i = 0; timed && i < count; i++) {
        float milliseconds = 0;
        if (cli_cuda_check(cudaEventElapsedTime(&milliseconds, timers[i]->begin, timers[i]->end), "bench: a time"))
            return -1;
        bench_figure_take(timers[i]->figure, 1e-3 * (double)milliseconds / timers[i]->calls);
    }
    return 0;
}

int bench_time(bench_timer *timers, size_t count, int rounds, cudaStream_t stream) {
    bench_timer **ready = bench_alloc_zeros(count, sizeof(bench_timer *));
    uint32_t *order = bench_alloc(count * sizeof *order);
    size_t num_ready = 0;
    int failed = !ready || !order;
    for (size_t i = 0; !failed && i < count; i++)
        if (timers[i].graph) {
            order[num_ready] = (uint32_t)num_ready;
            ready[num_ready++] = &timers[i];
            failed = bench_figure_begin(timers[i].figure, rounds);
        }
    uint64_t state = 1; /* what ran before leaves the device warmer or cooler, and should not be the same each time */
    for (int round = -1; !failed && round < rounds; round++) {
        bench_shuffle(order, (uint32_t)num_ready, &state);
        failed = run_round(ready, order, num_ready, round >= 0, stream);
    }
    free(ready);
    free(order);
    return failed ? -1 : 0;
}
