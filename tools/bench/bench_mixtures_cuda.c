/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a graph have routes of their own, and a mixture is many times larger than the L2 cache, so that most of the
 * weights that a call reads come from memory. cuBLAS gets what the mixture makes on the device for nothing: counts of
 * tokens on the host, and rows of x that are sorted and gathered; the activation and the sum are left out as well. */
#include "bench_mixtures_cuda.h"

#include "bench_mixture_error_cuda.h"
#include "bench_table.h"
#include "bench_timer_cuda.h"
#include "cli_cuda.h"

#include <stdio.h>

static const cli_mixture kMixtures[] = {{128, 768, 2048, 8}, {8, 14336, 4096, 2}, {64, 2048, 7168, 8}};
static const uint32_t kTokens[] = {1, 4, 16, 64, 256, 1024, 4096, 16384};

/* From so many tokens on the device is left idle before each graph: large products heat it. */
static const uint32_t kPauseTokens = 256;
static const double kPauseSeconds = 0.06;

enum {
    PACKED,
    PRODUCTS, /* of cuBLAS */
    CASES
};
static const char kPackedName[] = "packed mixture", kProductsName[] = "cuBLAS, products alone";

static int queue_packed(void *context, uint32_t call, cudaStream_t stream) {
    return bench_mixture_queue(context, call, stream);
}

static int queue_products(void *context, uint32_t call, cudaStream_t stream) {
    const bench_mixture_session *s = context;
    return bench_grouped_queue(s->gate_up.calls[call], stream) || bench_grouped_queue(s->down.calls[call], stream) ? -1
                                                                                                                   : 0;
}

/* Makes all calls once before they are captured: cuBLAS may take another kernel for each, and what CUDA loads at a
 * kernel's first call cannot be captured. @return 0, or -1 after a message, its CUDA error cleared. */
static int make_products_timer(bench_mixture_session *s, bench_timer *timer) {
    const cudaStream_t stream = s->device->stream;
    int failed = 0;
    for (uint32_t call = 0; !failed && call < s->routes.calls; call++)
        failed = queue_products(s, call, stream);
    if (!failed && !bench_timer_make(timer, queue_products, s, s->routes.calls, stream))
        return 0;
    bench_timer_free(timer);
    cudaGetLastError(); /* or the next launch that asks would find it */
    fprintf(stderr, "transfuse: bench: goes on without \"%s\"\n", kProductsName);
    return -1;
}

/* ---- figures ---- */

static int clear(void *memory, uint64_t count) {
    return cli_cuda_check(cudaMemset(memory, 0xFF, 2 * count), "bench: clearing y");
}

/* Measures the error of the last call of the graph that is timed. A call outside the graph comes first, and y is then
 * cleared: so y is what the graph has written, and of its own call even if a library uses host memory again. */
static int measure_error(bench_mixture_session *s, int which, const bench_timer *timer) {
    const cudaStream_t stream = s->device->stream;
    const uint64_t tokens = s->routes.tokens, routes = tokens * s->of.routed;
    bench_error error = {0};
    if (which == PACKED ? queue_packed(s, 0, stream) : queue_products(s, 0, stream))
        return -1;
    if (cli_cuda_check(cudaStreamSynchronize(stream), "bench: multiplying") ||
        (which == PACKED && clear(s->y, tokens * s->of.hidden)) ||
        (which == PRODUCTS &&
         (clear(s->gate_up.y, routes * s->gate_up.rows) || clear(s->down.y, routes * s->down.rows))) ||
        cli_cuda_check(cudaDeviceSynchronize(), "bench: clearing y") || bench_timer_run(timer, stream))
        return -1;
    const int failed = which == PACKED ? bench_mixture_add_error(s, &error)
                                       : bench_mixture_add_product_error(s, &s->gate_up, &error) ||
                                             bench_mixture_add_product_error(s, &s->down, &error);
    bench_error_finish(&error, timer->figure);
    return failed ? -1 : 0;
}

static int make_figure(bench_mixture_session *s, bench_subject *subject, const bench_rates *rates, int which,
                       bench_timer *timer) {
    const double weights = 3.0 * s->of.inner * s->of.hidden, routes = (double)s->routes.tokens * s->of.routed;
    const double packed = (double)(s->gate_up.packed_bytes + s->down.packed_bytes) / s->of.experts;
    const double bytes = bench_mixture_routes_active(&s->routes) * (which == PACKED ? packed : 2 * weights);
    timer->figure = bench_add_time(subject, which == PACKED ? kPackedName : kProductsName,
                                   which == PACKED ? kProductsName : "", (uint64_t)bytes);
    if (!timer->figure)
        return -1;
    bench_add_real(&timer->figure->details, "limit_seconds", bench_rates_limit(rates, bytes, 2 * weights * routes));
    return measure_error(s, which, timer);
}

static int make_cases(bench_mixture_session *s, bench_subject *subject, const bench_rates *rates, bench_timer *timers) {
    const double pause = s->routes.tokens >= kPauseTokens ? kPauseSeconds : 0;
    if (s->grouped && !make_products_timer(s, &timers[PRODUCTS]) &&
        make_figure(s, subject, rates, PRODUCTS, &timers[PRODUCTS]))
        return -1;
    if (bench_timer_make(&timers[PACKED], queue_packed, s, s->routes.calls, s->device->stream) ||
        make_figure(s, subject, rates, PACKED, &timers[PACKED]))
        return -1;
    timers[PRODUCTS].pause_seconds = timers[PACKED].pause_seconds = pause;
    if (!timers[PRODUCTS].graph)
        timers[PACKED].figure->against[0] = 0;
    return 0;
}

static int measure_tokens(const bench_request *request, bench_mixture_session *s, const bench_rates *rates) {
    const cli_mixture of = s->of;
    bench_timer timers[CASES] = {0};
    char text[96];
    snprintf(text, sizeof text, "%u of %ux%u, %u routed, %s", of.experts, of.inner, of.hidden, of.routed,
             request->options->skewed_routes ? "skewed" : "uniform");
    bench_subject *subject = bench_add_figures_subject(request->record, text, s->routes.tokens);
    const int failed = !subject || make_cases(s, subject, rates, timers) ||
                       bench_time(timers, CASES, request->options->repeats, s->device->stream);
    if (!failed)
        bench_print_subject(request->style, request->record, subject);
    for (int i = 0; i < CASES; i++)
        bench_timer_free(&timers[i]);
    return failed ? -1 : 0;
}

/* ---- all mixtures ---- */

static int measure_mixture(const bench_request *request, const bench_device *device, bench_grouped *grouped,
                           const bench_rates *rates, cli_mixture of) {
    const cli_options *options = request->options;
    const uint32_t *tokens = options->num_batches ? options->batches : kTokens;
    const int count = options->num_batches ? options->num_batches : (int)(sizeof kTokens / sizeof kTokens[0]);
    bench_mixture_session s = {.device = device, .grouped = grouped, .of = of};
    int failed = bench_mixture_session_open(&s);
    for (int i = 0; !failed && i < count; i++) {
        failed = bench_mixture_session_begin_tokens(&s, tokens[i], options->skewed_routes) ||
                 measure_tokens(request, &s, rates);
        bench_mixture_session_end_tokens(&s);
    }
    bench_mixture_session_close(&s);
    return failed ? -1 : 0;
}

int bench_measure_mixtures(const bench_request *request, const bench_device *device, bench_grouped *grouped,
                           const bench_rates *rates) {
    const cli_options *options = request->options;
    const cli_mixture *mixtures = options->num_mixtures ? options->mixtures : kMixtures;
    const int count = options->num_mixtures ? options->num_mixtures : (int)(sizeof kMixtures / sizeof kMixtures[0]);
    int failed = 0;
    for (int i = 0; !failed && i < count; i++)
        failed = measure_mixture(request, device, grouped, rates, mixtures[i]);
    return failed ? -1 : 0;
}
