/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_rates_cuda.h"

#include "bench_candidates_cuda.h"
#include "bench_kernels.h"
#include "bench_table.h"
#include "bench_timer_cuda.h"
#include "cli_cuda.h"

#include <stdio.h>

#define READ_BYTES (2ull << 30)
#define MATRIX 8192u
static const double kPauseSeconds = 0.06, kFlops = 2.0 * MATRIX * MATRIX * MATRIX;

typedef struct reading {
    void *memory, *word;
} reading;

static int queue_read(void *context, uint32_t call, cudaStream_t stream) {
    const reading *r = context;
    (void)call;
    return cli_cuda_check(bench_read_launch(r->memory, READ_BYTES, r->word, stream), "bench: reading memory");
}

typedef struct multiplying {
    bench_cublaslt_product *product;
    int candidate;
    void *w, *x, *y;
} multiplying;

static int queue_product(void *context, uint32_t call, cudaStream_t stream) {
    const multiplying *m = context;
    (void)call;
    return bench_cublaslt_queue(m->product, m->candidate, m->w, m->x, m->y, stream);
}

/* Times one call, of so many bytes or operations, as the only figure of a subject. @return its median in seconds, or 0
 * after a message. */
static double measure_one(const bench_request *request, const bench_device *device, bench_subject *subject,
                          const char *what, double bytes, double flops, bench_queue_fn *queue, void *context) {
    bench_timer timer = {.pause_seconds = kPauseSeconds};
    timer.figure = subject ? bench_add_time(subject, what, "", (uint64_t)bytes) : NULL;
    const int failed = !timer.figure || bench_timer_make(&timer, queue, context, 1, device->stream) ||
                       bench_time(&timer, 1, request->options->repeats, device->stream);
    bench_figure *const figure = timer.figure;
    bench_timer_free(&timer);
    if (failed)
        return 0;
    bench_figure_finish(figure);
    if (flops > 0)
        snprintf(figure->note, sizeof figure->note, "%.0f TFLOP/s", 1e-12 * flops / figure->median);
    bench_print_subject(request->style, request->record, subject);
    return figure->median;
}

static int measure_reading(const bench_request *request, const bench_device *device, bench_rates *rates) {
    reading r = {cli_cuda_alloc(READ_BYTES), cli_cuda_alloc(sizeof(uint32_t))};
    double seconds = 0;
    if (r.memory && r.word && !cli_cuda_check(cudaMemset(r.memory, 0, READ_BYTES), "bench: clearing memory"))
        seconds = measure_one(request, device, bench_add_figures_subject(request->record, "2 GiB of memory", 0), "read",
                              (double)READ_BYTES, 0, queue_read, &r);
    cudaFree(r.memory);
    cudaFree(r.word);
    rates->bytes_per_second = seconds > 0 ? (double)READ_BYTES / seconds : 0;
    return seconds > 0 ? 0 : -1;
}

static int measure_multiplying(const bench_request *request, const bench_device *device, bench_rates *rates) {
    const uint64_t count = (uint64_t)MATRIX * MATRIX;
    multiplying m = {.w = cli_cuda_alloc(2 * count), .x = cli_cuda_alloc(2 * count), .y = cli_cuda_alloc(2 * count)};
    const void *const weights[] = {m.w};
    const bench_candidate_operands operands = {.weights = weights, .count = 1, .step = 1, .x = m.x, .y = m.y};
    double seconds = 0;
    if (m.w && m.x && m.y &&
        !cli_cuda_check(bench_draw_launch(m.w, count, 0.02f, 1, device->stream), "bench: drawing weights") &&
        !cli_cuda_check(bench_draw_launch(m.x, count, 1.0f, 2, device->stream), "bench: drawing x")) {
        m.product = bench_cublaslt_product_make(device->lt, MATRIX, MATRIX, MATRIX, TRF_DTYPE_BF16, TRF_DTYPE_BF16);
        m.candidate = m.product ? bench_fastest_candidate(m.product, &operands, 1, device->stream) : -1;
        if (m.candidate >= 0)
            seconds =
                measure_one(request, device, bench_add_figures_subject(request->record, "8192x8192, dense", MATRIX),
                            "cuBLASLt", 0, kFlops, queue_product, &m);
    }
    bench_cublaslt_product_free(m.product);
    cudaFree(m.w);
    cudaFree(m.x);
    cudaFree(m.y);
    rates->flops_per_second = seconds > 0 ? kFlops / seconds : 0;
    return seconds > 0 ? 0 : -1;
}

int bench_rates_measure(const bench_request *request, const bench_device *device, bench_rates *rates) {
    return measure_reading(request, device, rates) || measure_multiplying(request, device, rates) ? -1 : 0;
}

double bench_rates_limit(const bench_rates *rates, double bytes, double flops) {
    const double read_seconds = bytes / rates->bytes_per_second, math_seconds = flops / rates->flops_per_second;
    return read_seconds > math_seconds ? read_seconds : math_seconds;
}
