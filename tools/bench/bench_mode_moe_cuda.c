/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse bench --device cuda --mode moe: products of 64 experts, each token routed to 8 of them, and then whole
 * mixtures (bench_mixtures_cuda.h). It compares one call over coded or packed experts (trf_experts_linear), which takes
 * the counts from device memory, with dense BF16 experts. For some of these the host knows the counts: one cuBLASLt
 * call for each active expert, in a row and on several streams (the cuBLASLt of CUDA 13.0 has no grouped product), and
 * one grouped product of cuBLAS (bench_cublas_grouped_cuda.h), which is left out if that library is missing or refuses.
 * A plain grouped kernel takes the counts from device memory as well (bench_experts.cu).
 *
 * The calls of a graph have different experts: with one token, a graph's calls go through all experts before one is
 * used again. */
#include "bench_kernels.h"
#include "bench_memory.h"
#include "bench_mixtures_cuda.h"
#include "bench_modes.h"
#include "bench_moe_session_cuda.h"
#include "bench_table.h"
#include "bench_timer_cuda.h"
#include "cli_cuda.h"
#include "cli_messages.h"

#include <stdlib.h>
#include <string.h>

static const cli_shape kShapes[] = {{4096, 1536}, {1536, 4096}};
static const uint32_t kBatches[] = {1, 16};

/* ---- what is timed ---- */

static const uint32_t *offsets_of(const bench_moe_session *s, uint32_t call) {
    return s->offsets_dev + (uint64_t)call * (BENCH_MOE_EXPERTS + 1);
}

static int queue_plan(const bench_moe_session *s, const trf_experts_plan *plan, uint32_t call, cudaStream_t stream) {
    trf_error err = {0};
    if (trf_experts_linear(plan, s->x, offsets_of(s, call), s->y, s->workspace, stream, &err) == TRF_OK)
        return 0;
    cli_report_error(&err);
    return -1;
}

static int queue_experts(void *context, uint32_t call, cudaStream_t stream) {
    const bench_moe_session *s = context;
    return queue_plan(s, s->plan, call, stream);
}

static int queue_packed(void *context, uint32_t call, cudaStream_t stream) {
    const bench_moe_session *s = context;
    return queue_plan(s, s->packed_plan, call, stream);
}

static int queue_dense(void *context, uint32_t call, cudaStream_t stream) {
    const bench_moe_session *s = context;
    const bench_experts product = {
        s->dense_list, offsets_of(s, call), BENCH_MOE_EXPERTS, s->shape.rows, s->shape.cols, s->x, s->y};
    const uint32_t max_active = s->rows < BENCH_MOE_EXPERTS ? s->rows : BENCH_MOE_EXPERTS;
    return cli_cuda_check(bench_experts_launch(&product, max_active, stream), "bench: dense experts");
}

/* Multiplies one compressed expert after the other, with counts that the host knows. */
static int queue_layers(void *context, uint32_t call, cudaStream_t stream) {
    const bench_moe_session *s = context;
    for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++) {
        const uint32_t first = s->routes[call].offsets[e], tokens = bench_moe_tokens_of(&s->routes[call], e);
        if (tokens && bench_plan_queue(&s->plans[e][tokens], bench_moe_row_of(s->x, first, s->shape.cols),
                                       bench_moe_row_of(s->y, first, s->shape.rows), s->workspace, stream))
            return -1;
    }
    return 0;
}

/* The n-th expert with tokens runs on stream n % streams; the first one is the caller's. */
static int queue_cublaslt(const bench_moe_session *s, uint32_t call, uint32_t streams, cudaStream_t stream) {
    uint32_t turn = 0;
    int failed = cli_cuda_check(cudaEventRecord(s->fork, stream), "bench: an event");
    for (uint32_t i = 1; !failed && i < streams; i++)
        failed = cli_cuda_check(cudaStreamWaitEvent(s->side[i], s->fork, 0), "bench: an event");
    for (uint32_t e = 0; !failed && e < BENCH_MOE_EXPERTS; e++) {
        const uint32_t first = s->routes[call].offsets[e], tokens = bench_moe_tokens_of(&s->routes[call], e);
        const bench_moe_product *p = &s->products[tokens];
        if (!tokens)
            continue;
        const uint32_t at = turn++ % streams;
        failed = bench_cublaslt_queue_workspace(
            p->product, p->candidate, s->dense[e], bench_moe_row_of(s->x, first, s->shape.cols),
            bench_moe_row_of(s->y, first, s->shape.rows), s->lt_workspaces[at], at ? s->side[at] : stream);
    }
    for (uint32_t i = 1; !failed && i < streams; i++)
        failed = cli_cuda_check(cudaEventRecord(s->join[i], s->side[i]), "bench: an event") ||
                 cli_cuda_check(cudaStreamWaitEvent(stream, s->join[i], 0), "bench: an event");
    return failed ? -1 : 0;
}

static int queue_row(void *context, uint32_t call, cudaStream_t stream) {
    return queue_cublaslt(context, call, 1, stream);
}

static int queue_4_streams(void *context, uint32_t call, cudaStream_t stream) {
    return queue_cublaslt(context, call, 4, stream);
}

static int queue_16_streams(void *context, uint32_t call, cudaStream_t stream) {
    return queue_cublaslt(context, call, 16, stream);
}

static int queue_grouped(void *context, uint32_t call, cudaStream_t stream) {
    const bench_moe_session *s = context;
    return bench_grouped_queue(s->grouped_calls[call], stream);
}

typedef struct moe_case {
    const char *name;
    bench_queue_fn *queue;
    trf_layout layout; /* of the weights */
    int baseline;      /* ratios compare with the fastest of these */
} moe_case;

static const moe_case kCases[] = {
    {"cuBLASLt, one stream", queue_row, TRF_LAYOUT_PLAIN, 1},
    {"cuBLASLt, 4 streams", queue_4_streams, TRF_LAYOUT_PLAIN, 1},
    {"cuBLASLt, 16 streams", queue_16_streams, TRF_LAYOUT_PLAIN, 1},
    {"cuBLAS grouped", queue_grouped, TRF_LAYOUT_PLAIN, 1},
    {"dense grouped kernel", queue_dense, TRF_LAYOUT_PLAIN, 0},
    {"layers one by one", queue_layers, TRF_LAYOUT_CODED, 0},
    {"experts", queue_experts, TRF_LAYOUT_CODED, 0},
    {"packed experts", queue_packed, TRF_LAYOUT_PACKED, 0},
};
enum {
    CASES = sizeof kCases / sizeof kCases[0]
};

/* ---- one batch ---- */

static void warn_left_out(void) { fputs("transfuse: bench: goes on without \"cuBLAS grouped\"\n", stderr); }

/* Makes all calls once before they are captured: cuBLAS may take another kernel for each, and what CUDA loads at a
 * kernel's first call cannot be captured. @return 0, or -1 after a message if the library refuses; its CUDA error is
 * then cleared. */
static int make_grouped_timer(bench_moe_session *s, bench_timer *timer) {
    const cudaStream_t stream = s->device->stream;
    int failed = 0;
    for (uint32_t call = 0; !failed && call < BENCH_MOE_CALLS; call++)
        failed = queue_grouped(s, call, stream);
    if (!failed && !bench_timer_make(timer, queue_grouped, s, BENCH_MOE_CALLS, stream))
        return 0;
    bench_timer_free(timer);
    cudaGetLastError(); /* or the next launch that asks would find it */
    warn_left_out();
    return -1;
}

/* Measures the error of the last call of the graph that is timed. A call outside the graph comes first: if the graph
 * depends on host memory that a library uses again, that memory is the other call's by then, and the error shows it. */
static int measure_error(bench_moe_session *s, const moe_case *c, const bench_timer *timer) {
    const cudaStream_t stream = s->device->stream;
    const bench_moe_route *const route = &s->routes[BENCH_MOE_CALLS - 1];
    bench_error error = {0};
    if (c->queue(s, 0, stream) || cli_cuda_check(cudaStreamSynchronize(stream), "bench: multiplying") ||
        cli_cuda_check(cudaMemset(s->y, 0xFF, (uint64_t)s->rows * s->shape.rows * 2), "bench: clearing y") ||
        cli_cuda_check(cudaDeviceSynchronize(), "bench: clearing y") || bench_timer_run(timer, stream))
        return -1;
    for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++) {
        const uint32_t first = route->offsets[e], tokens = bench_moe_tokens_of(route, e);
        if (tokens &&
            bench_matrix_add_error(&s->matrices[e % BENCH_MOE_DISTINCT], s->x_host + (uint64_t)first * s->shape.cols,
                                   tokens, bench_moe_row_of(s->y, first, s->shape.rows), &error))
            return -1;
    }
    bench_error_finish(&error, timer->figure);
    return 0;
}

/* Makes the fastest baseline the one that the others are compared with. cases[i]: the case that timers[i] times. */
static void compare(bench_timer *timers, const moe_case *const *cases, int count) {
    int best = -1;
    for (int i = 0; i < count; i++) {
        bench_figure_finish(timers[i].figure);
        if (cases[i]->baseline && (best < 0 || timers[i].figure->median < timers[best].figure->median))
            best = i;
    }
    for (int i = 0; i < count; i++)
        if (i != best)
            snprintf(timers[i].figure->against, sizeof timers[i].figure->against, "%s", cases[best]->name);
}

/* @return the bytes of one expert. */
static double expert_bytes(const bench_moe_session *s, trf_layout layout) {
    trf_device_layer_info info;
    if (layout == TRF_LAYOUT_PLAIN)
        return 2.0 * s->shape.rows * s->shape.cols;
    if (layout == TRF_LAYOUT_CODED)
        return (double)s->matrices[0].blob.size;
    trf_device_layer_get_info(trf_experts_layer(s->packed, 0), &info);
    return (double)info.memory_bytes;
}

static int make_figure(bench_moe_session *s, const bench_rates *rates, bench_subject *subject, const moe_case *c,
                       bench_timer *timer) {
    const double flops = 2.0 * s->rows * s->shape.rows * s->shape.cols;
    const double bytes = bench_moe_mean_active(s->routes) * expert_bytes(s, c->layout);
    timer->figure = bench_add_time(subject, c->name, "", (uint64_t)bytes);
    if (!timer->figure)
        return -1;
    bench_add_real(&timer->figure->details, "limit_seconds", bench_rates_limit(rates, bytes, flops));
    return measure_error(s, c, timer);
}

/* timers, cases: [CASES]; count: how many of them are made. */
static int make_cases(bench_moe_session *s, const bench_rates *rates, bench_subject *subject, bench_timer *timers,
                      const moe_case **cases, int *count) {
    for (int i = 0; i < CASES; i++) {
        bench_timer *const timer = &timers[*count];
        if (kCases[i].queue == queue_packed && !s->packed)
            continue;
        if (kCases[i].queue == queue_grouped && (!s->grouped || make_grouped_timer(s, timer)))
            continue;
        cases[(*count)++] = &kCases[i];
        if ((kCases[i].queue != queue_grouped &&
             bench_timer_make(timer, kCases[i].queue, s, BENCH_MOE_CALLS, s->device->stream)) ||
            make_figure(s, rates, subject, &kCases[i], timer))
            return -1;
    }
    return 0;
}

static int measure_batch(const bench_request *request, bench_moe_session *s, const bench_rates *rates) {
    const moe_case *cases[CASES];
    bench_timer timers[CASES] = {0};
    int count = 0;
    char text[80];
    snprintf(text, sizeof text, "%d experts %ux%u, %.1f active", BENCH_MOE_EXPERTS, s->shape.rows, s->shape.cols,
             bench_moe_mean_active(s->routes));
    bench_subject *subject = bench_add_figures_subject(request->record, text, s->batch);
    const int failed = !subject || make_cases(s, rates, subject, timers, cases, &count) ||
                       bench_time(timers, (size_t)count, request->options->repeats, s->device->stream);
    if (!failed) {
        compare(timers, cases, count);
        bench_print_subject(request->style, request->record, subject);
    }
    for (int i = 0; i < count; i++)
        bench_timer_free(&timers[i]);
    return failed ? -1 : 0;
}

/* ---- the mode ---- */

static int measure_shape(const bench_request *request, const bench_device *device, bench_grouped *grouped,
                         const bench_rates *rates, cli_shape shape) {
    const cli_options *options = request->options;
    const uint32_t *batches = options->num_batches ? options->batches : kBatches;
    const int count = options->num_batches ? options->num_batches : 2;
    bench_moe_session *s = bench_alloc_zeros(1, sizeof *s);
    if (!s)
        return -1;
    s->options = options;
    s->device = device;
    s->shape = shape;
    s->grouped = grouped;
    int failed = bench_moe_session_open(s);
    for (int i = 0; !failed && i < count; i++) {
        failed = bench_moe_session_begin_batch(s, batches[i]) || measure_batch(request, s, rates);
        bench_moe_session_end_batch(s);
    }
    bench_moe_session_close(s);
    free(s);
    return failed ? -1 : 0;
}

/* Products and mixtures are measured unless the options name only the other. */
static int wants_products(const cli_options *options) { return options->num_layers || !options->num_mixtures; }
static int wants_mixtures(const cli_options *options) { return options->num_mixtures || !options->num_layers; }

static int check_options(const cli_options *options) {
    for (int i = 0; wants_products(options) && i < options->num_batches; i++)
        if (options->batches[i] > BENCH_MOE_MAX_BATCH) {
            cli_fail(TRF_ERR_ARGUMENT, "bench: --mode moe takes batches up to %d, and more with --mixture alone",
                     BENCH_MOE_MAX_BATCH);
            return -1;
        }
    for (int i = 0; i < options->num_layers; i++)
        if (options->layers[i].rows % 16 || options->layers[i].cols % 32) {
            cli_fail(TRF_ERR_ARGUMENT, "bench: --mode moe takes multiples of 16 rows and 32 columns");
            return -1;
        }
    for (int i = 0; i < options->num_mixtures; i++)
        if (options->mixtures[i].inner % 8 || options->mixtures[i].hidden % 8) {
            cli_fail(TRF_ERR_ARGUMENT, "bench: --mixture takes sizes that are multiples of 8");
            return -1;
        }
    return 0;
}

/* @return whether mixtures are to be measured, or -1 after a message if they are asked for and the GPU has none. By
 * default they are left out there, after a note. */
static int find_mixtures(const bench_request *request) {
    trf_context_info info;
    trf_context_get_info(request->context, &info);
    if (!wants_mixtures(request->options) || info.capability == BENCH_MOE_PACKED_CAPABILITY)
        return wants_mixtures(request->options);
    if (request->options->num_mixtures) {
        cli_fail(TRF_ERR_UNSUPPORTED, "bench: --mixture: packed experts need compute capability 9.0, not %d.%d",
                 info.capability / 10, info.capability % 10);
        return -1;
    }
    fputs("transfuse: bench: goes on without packed experts, which need compute capability 9.0\n", stderr);
    return 0;
}

static int measure_all(const bench_request *request, const bench_device *device) {
    const cli_options *options = request->options;
    const cli_shape *shapes = options->num_layers ? options->layers : kShapes;
    const int count = options->num_layers ? options->num_layers : (int)(sizeof kShapes / sizeof kShapes[0]);
    const int mixtures = find_mixtures(request);
    bench_rates rates = {0};
    if (mixtures < 0 || bench_rates_measure(request, device, &rates))
        return -1;
    bench_grouped *grouped = bench_grouped_open();
    if (!grouped)
        warn_left_out();
    int failed = 0;
    for (int i = 0; !failed && wants_products(options) && i < count; i++)
        failed = measure_shape(request, device, grouped, &rates, shapes[i]);
    failed = failed || (mixtures && bench_measure_mixtures(request, device, grouped, &rates));
    bench_grouped_close(grouped);
    return failed ? -1 : 0;
}

static int measure(const bench_request *request) {
    bench_device device = {0};
    const int failed =
        check_options(request->options) || bench_device_open(&device, request) || measure_all(request, &device);
    bench_device_close(&device);
    return failed ? -1 : 0;
}

static void set_defaults(cli_options *options) { options->repeats = options->repeats ? options->repeats : 20; }

const bench_mode bench_mode_moe_cuda = {
    .name = "moe",
    .style = &bench_limits_style,
    .set_defaults = set_defaults,
    .measure = measure,
};
