/* transfuse bench --mode moe: mixtures of 64 experts, each token routed to 8 of them. One call over compressed experts
 * (trf_experts_linear), which takes the counts from device memory, against dense BF16 experts whose counts the host
 * knows: one cuBLASLt call an active expert, in a row and on several streams (that of CUDA 13.0 has no grouped
 * product), and one grouped product of cuBLAS (bench_cuda_grouped.h), which is left out where that library is missing
 * or refuses; and against a plain grouped kernel that takes them from device memory as well (bench_cuda_experts.cu).
 *
 * Each call of a graph has other experts: with one token, a graph's calls go through all experts before one is used
 * again. */
#include "bench_cuda_cublaslt.h"
#include "bench_cuda_grouped.h"
#include "bench_cuda_kernels.h"
#include "bench_cuda_matrix.h"
#include "bench_cuda_modes.h"
#include "bench_cuda_timer.h"
#include "bench_random.h"
#include "cli_cuda.h"
#include "cli_report.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXPERTS = 64,
    ROUTED = 8,   /* experts of a token */
    CALLS = 16,   /* of a graph */
    DISTINCT = 4, /* experts with weights of their own; the others repeat these, in memory of their own */
    STREAMS = 16,
    MAX_TOKENS = 16, /* of a batch */
    TRIAL_REPEATS = 5
};

static const cli_shape kShapes[] = {{4096, 1536}, {1536, 4096}};
static const uint32_t kBatches[] = {1, 16};

/* Which tokens an expert has, in one call. */
typedef struct moe_route {
    uint32_t offsets[EXPERTS + 1];
} moe_route;

/* cuBLASLt's product for a number of tokens. */
typedef struct moe_product {
    bench_cublaslt_product *product;
    int candidate;
} moe_product;

typedef struct moe_session {
    bench_cuda *cuda;
    cli_shape shape;
    uint32_t batch, rows; /* tokens; rows of x, ROUTED for each */
    bench_matrix matrices[DISTINCT];
    trf_device_layer *layers[EXPERTS];
    void *dense[EXPERTS], *dense_list; /* device: matrices, and pointers to them */
    trf_experts *experts;
    trf_experts_plan plan;
    moe_route routes[CALLS];
    uint32_t *offsets_dev; /* [CALLS][EXPERTS + 1] */
    void *x, *y, *workspace, *lt_workspaces[STREAMS];
    uint16_t *x_host;
    moe_product products[MAX_TOKENS + 1]; /* by tokens */
    bench_grouped *grouped;               /* not owned; NULL: there is none, and no calls */
    bench_grouped_product *grouped_calls[CALLS];
    uint32_t streams; /* that queue_cublaslt uses */
    cudaStream_t side[STREAMS];
    cudaEvent_t fork, join[STREAMS];
} moe_session;

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

static uint32_t tokens_of(const moe_route *route, uint32_t expert) {
    return route->offsets[expert + 1] - route->offsets[expert];
}

/* ---- routes ---- */

/* One token: the calls take turns with sets of ROUTED of one order. More: each token has ROUTED experts at random. */
static void make_routes(moe_session *s) {
    uint64_t state = 1;
    uint32_t order[EXPERTS];
    for (uint32_t e = 0; e < EXPERTS; e++)
        order[e] = e;
    bench_shuffle(order, EXPERTS, &state);
    for (uint32_t call = 0; call < CALLS; call++) {
        uint32_t counts[EXPERTS] = {0};
        for (uint32_t t = 0; t < s->batch; t++) {
            const uint32_t first = s->batch == 1 ? call % (EXPERTS / ROUTED) * ROUTED : 0;
            if (s->batch > 1)
                bench_shuffle(order, EXPERTS, &state);
            for (uint32_t i = 0; i < ROUTED; i++)
                counts[order[first + i]]++;
        }
        s->routes[call].offsets[0] = 0;
        for (uint32_t e = 0; e < EXPERTS; e++)
            s->routes[call].offsets[e + 1] = s->routes[call].offsets[e] + counts[e];
    }
}

static double mean_active(const moe_session *s) {
    double active = 0;
    for (uint32_t call = 0; call < CALLS; call++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            active += tokens_of(&s->routes[call], e) > 0;
    return active / CALLS;
}

/* ---- what is timed ---- */

static void *row_of(const void *base, uint32_t row, uint32_t cols) { return (char *)base + (uint64_t)row * cols * 2; }

static const uint32_t *offsets_of(const moe_session *s, uint32_t call) {
    return s->offsets_dev + (uint64_t)call * (EXPERTS + 1);
}

static int queue_experts(void *context, uint32_t call, cudaStream_t stream) {
    moe_session *s = context;
    trf_error err = {0};
    if (trf_experts_linear(s->experts, &s->plan, s->x, offsets_of(s, call), s->y, s->workspace, stream, &err))
        return report(&err);
    return 0;
}

static int queue_dense(void *context, uint32_t call, cudaStream_t stream) {
    moe_session *s = context;
    const bench_experts product = {s->dense_list, offsets_of(s, call), EXPERTS, s->shape.rows, s->shape.cols, s->x,
                                   s->y};
    return cli_cuda_check(bench_experts_launch(&product, s->rows < EXPERTS ? s->rows : EXPERTS, stream),
                          "bench: dense experts");
}

/* One compressed expert after the other, with counts that the host knows. */
static int queue_layers(void *context, uint32_t call, cudaStream_t stream) {
    moe_session *s = context;
    trf_error err = {0};
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const uint32_t first = s->routes[call].offsets[e], count = tokens_of(&s->routes[call], e);
        trf_linear_plan plan;
        if (!count)
            continue;
        if (trf_linear_plan_init(s->layers[e], count, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO, &plan, &err) ||
            trf_linear(s->layers[e], &plan, row_of(s->x, first, s->shape.cols), row_of(s->y, first, s->shape.rows),
                       s->workspace, stream, &err))
            return report(&err);
    }
    return 0;
}

/* The n-th expert with tokens runs on stream n % streams; the first one is the caller's. */
static int queue_cublaslt(void *context, uint32_t call, cudaStream_t stream) {
    moe_session *s = context;
    uint32_t turn = 0;
    int failed = cli_cuda_check(cudaEventRecord(s->fork, stream), "bench: an event");
    for (uint32_t i = 1; !failed && i < s->streams; i++)
        failed = cli_cuda_check(cudaStreamWaitEvent(s->side[i], s->fork, 0), "bench: an event");
    for (uint32_t e = 0; !failed && e < EXPERTS; e++) {
        const uint32_t first = s->routes[call].offsets[e], count = tokens_of(&s->routes[call], e);
        const moe_product *p = &s->products[count];
        if (!count)
            continue;
        const uint32_t at = turn++ % s->streams;
        failed = bench_cublaslt_queue_with_workspace(
            p->product, p->candidate, s->dense[e], row_of(s->x, first, s->shape.cols),
            row_of(s->y, first, s->shape.rows), s->lt_workspaces[at], at ? s->side[at] : stream);
    }
    for (uint32_t i = 1; !failed && i < s->streams; i++)
        failed = cli_cuda_check(cudaEventRecord(s->join[i], s->side[i]), "bench: an event") ||
                 cli_cuda_check(cudaStreamWaitEvent(stream, s->join[i], 0), "bench: an event");
    return failed ? -1 : 0;
}

static int queue_row(void *context, uint32_t call, cudaStream_t stream) {
    moe_session *s = context;
    s->streams = 1;
    return queue_cublaslt(s, call, stream);
}
static int queue_4_streams(void *context, uint32_t call, cudaStream_t stream) {
    moe_session *s = context;
    s->streams = 4;
    return queue_cublaslt(s, call, stream);
}
static int queue_16_streams(void *context, uint32_t call, cudaStream_t stream) {
    moe_session *s = context;
    s->streams = 16;
    return queue_cublaslt(s, call, stream);
}

static int queue_grouped(void *context, uint32_t call, cudaStream_t stream) {
    const moe_session *s = context;
    return bench_grouped_queue(s->grouped_calls[call], stream);
}

typedef struct moe_way {
    const char *name;
    bench_cuda_queue_fn *queue;
    int dense, baseline; /* baseline: the fastest of these is what the ratio is of */
} moe_way;

static const moe_way kWays[] = {
    {"cuBLASLt, one stream", queue_row, 1, 1},
    {"cuBLASLt, 4 streams", queue_4_streams, 1, 1},
    {"cuBLASLt, 16 streams", queue_16_streams, 1, 1},
    {"cuBLAS grouped", queue_grouped, 1, 1},
    {"dense grouped kernel", queue_dense, 1, 0},
    {"layers one by one", queue_layers, 0, 0},
    {"experts", queue_experts, 0, 0},
};
enum {
    WAYS = sizeof kWays / sizeof kWays[0]
};

/* ---- cuBLASLt: the fastest candidate for each number of tokens ---- */

typedef struct moe_trial {
    moe_session *session;
    uint32_t tokens;
    int candidate;
} moe_trial;

static int queue_trial(void *context, uint32_t call, cudaStream_t stream) {
    const moe_trial *trial = context;
    const moe_session *s = trial->session;
    return bench_cublaslt_queue_with_workspace(s->products[trial->tokens].product, trial->candidate,
                                               s->dense[call * 5 % EXPERTS], s->x, s->y, s->lt_workspaces[0], stream);
}

static int tune_product(moe_session *s, uint32_t tokens) {
    moe_product *p = &s->products[tokens];
    double best = 0;
    p->product = bench_cublaslt_product_make(bench_cuda_lt_of(s->cuda), s->shape.rows, s->shape.cols, tokens,
                                             TRF_DTYPE_BF16, TRF_DTYPE_BF16);
    if (!p->product)
        return -1;
    for (int i = 0; i < bench_cublaslt_candidates(p->product); i++) {
        moe_trial trial = {s, tokens, i};
        bench_cuda_timer timer = {0}, *const timers[] = {&timer};
        bench_times times = {0}, *const lists[] = {&times};
        const cudaStream_t stream = bench_cuda_stream_of(s->cuda);
        const int failed = bench_cuda_timer_make(&timer, queue_trial, &trial, CALLS, stream) ||
                           bench_cuda_time(timers, lists, 1, TRIAL_REPEATS, stream);
        const double seconds = bench_median(&times);
        bench_cuda_timer_free(&timer);
        free(times.seconds);
        if (failed)
            return -1;
        if (i == 0 || seconds < best) {
            p->candidate = i;
            best = seconds;
        }
    }
    return 0;
}

/* For all numbers of tokens that an expert has in any call. */
static int tune_products(moe_session *s) {
    for (uint32_t call = 0; call < CALLS; call++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            const uint32_t tokens = tokens_of(&s->routes[call], e);
            if (tokens && !s->products[tokens].product && tune_product(s, tokens))
                return -1;
        }
    return 0;
}

/* ---- cuBLAS: grouped products ---- */

static void warn_left_out(void) { fputs("transfuse: bench: goes on without \"cuBLAS grouped\"\n", stderr); }

/* One for each call: a group for each expert with tokens. */
static int make_grouped_calls(moe_session *s) {
    static_assert(EXPERTS <= (int)BENCH_GROUPED_MAX_PRODUCTS, "all experts in one product");
    for (uint32_t call = 0; s->grouped && call < CALLS; call++) {
        bench_grouped_matrix with_tokens[EXPERTS];
        uint32_t count = 0;
        for (uint32_t e = 0; e < EXPERTS; e++) {
            const uint32_t first = s->routes[call].offsets[e], tokens = tokens_of(&s->routes[call], e);
            if (tokens)
                with_tokens[count++] = (bench_grouped_matrix){s->dense[e], row_of(s->x, first, s->shape.cols),
                                                              row_of(s->y, first, s->shape.rows), tokens};
        }
        s->grouped_calls[call] =
            bench_grouped_product_make(s->grouped, s->shape.rows, s->shape.cols, with_tokens, count);
        if (!s->grouped_calls[call])
            return -1;
    }
    return 0;
}

/* All calls once before they are captured: cuBLAS may take another kernel for each, and what CUDA loads at a kernel's
 * first call cannot be captured. @return 0, or -1 after a message: the library does not do it, and what it left of an
 * error is gone. */
static int make_grouped_timer(moe_session *s, bench_cuda_timer *timer) {
    const cudaStream_t stream = bench_cuda_stream_of(s->cuda);
    int failed = 0;
    for (uint32_t call = 0; !failed && call < CALLS; call++)
        failed = queue_grouped(s, call, stream);
    if (!failed && !bench_cuda_timer_make(timer, queue_grouped, s, CALLS, stream))
        return 0;
    bench_cuda_timer_free(timer);
    cudaGetLastError(); /* or the next launch that asks would find it */
    warn_left_out();
    return -1;
}

/* ---- the session ---- */

static int make_streams(moe_session *s) {
    int failed = cli_cuda_check(cudaEventCreateWithFlags(&s->fork, cudaEventDisableTiming), "bench: an event");
    for (uint32_t i = 0; !failed && i < STREAMS; i++) {
        failed = cli_cuda_check(cudaStreamCreateWithFlags(&s->side[i], cudaStreamNonBlocking), "bench: a stream") ||
                 cli_cuda_check(cudaEventCreateWithFlags(&s->join[i], cudaEventDisableTiming), "bench: an event");
        s->lt_workspaces[i] = failed ? NULL : cli_cuda_alloc(BENCH_CUBLASLT_WORKSPACE_BYTES);
        failed = failed || !s->lt_workspaces[i];
    }
    return failed ? -1 : 0;
}

static int make_experts(moe_session *s) {
    const uint64_t bytes = (uint64_t)s->shape.rows * s->shape.cols * 2;
    trf_error err = {0};
    if (bench_matrix_make(s->matrices, DISTINCT, s->shape, bench_cuda_log_of(s->cuda)->options))
        return -1;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const bench_matrix *matrix = &s->matrices[e % DISTINCT];
        s->dense[e] = cli_cuda_alloc(bytes);
        if (!s->dense[e] || cli_cuda_check(cudaMemcpy(s->dense[e], matrix->weights, bytes, cudaMemcpyHostToDevice),
                                           "bench: copying weights"))
            return -1;
        if (trf_device_layer_create(bench_cuda_context_of(s->cuda), matrix->layer, &s->layers[e], &err))
            return report(&err);
    }
    s->dense_list = cli_cuda_alloc(sizeof s->dense);
    if (!s->dense_list ||
        cli_cuda_check(cudaMemcpy(s->dense_list, s->dense, sizeof s->dense, cudaMemcpyHostToDevice), "bench: a list"))
        return -1;
    return trf_experts_create(s->layers, EXPERTS, &s->experts, &err) ? report(&err) : 0;
}

static void session_free(moe_session *s) {
    trf_experts_destroy(s->experts);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        trf_device_layer_destroy(s->layers[e]);
        cudaFree(s->dense[e]);
    }
    for (uint32_t i = 0; i < DISTINCT; i++)
        bench_matrix_free(&s->matrices[i]);
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (s->side[i])
            cudaStreamDestroy(s->side[i]);
        if (s->join[i])
            cudaEventDestroy(s->join[i]);
        cudaFree(s->lt_workspaces[i]);
    }
    if (s->fork)
        cudaEventDestroy(s->fork);
    cudaFree(s->dense_list);
}

/* ---- one batch ---- */

/* x, y, routes, plans and workspace: of the experts' call, and of layers one by one. */
static int plan_batch(moe_session *s) {
    trf_error err = {0};
    uint64_t workspace_bytes;
    s->rows = s->batch * ROUTED;
    make_routes(s);
    s->offsets_dev = cli_cuda_alloc(sizeof s->routes);
    s->y = cli_cuda_alloc((uint64_t)s->rows * s->shape.rows * 2);
    if (!s->offsets_dev || !s->y || bench_matrix_draw_x(s->rows, s->shape.cols, &s->x, &s->x_host) ||
        cli_cuda_check(cudaMemcpy(s->offsets_dev, s->routes, sizeof s->routes, cudaMemcpyHostToDevice),
                       "bench: copying counts"))
        return -1;
    if (trf_experts_plan_init(s->experts, s->rows, TRF_DTYPE_BF16, TRF_DTYPE_BF16, &s->plan, &err))
        return report(&err);
    workspace_bytes = s->plan.workspace_bytes;
    for (uint32_t m = 1; m <= MAX_TOKENS; m++) {
        trf_linear_plan plan;
        if (trf_linear_plan_init(s->layers[0], m, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO, &plan, &err))
            return report(&err);
        workspace_bytes = plan.workspace_bytes > workspace_bytes ? plan.workspace_bytes : workspace_bytes;
    }
    s->workspace = cli_cuda_alloc(workspace_bytes);
    return !s->workspace || tune_products(s) || make_grouped_calls(s) ? -1 : 0;
}

static void unplan_batch(moe_session *s) {
    for (uint32_t m = 0; m <= MAX_TOKENS; m++) {
        bench_cublaslt_product_free(s->products[m].product);
        s->products[m] = (moe_product){0};
    }
    for (uint32_t call = 0; call < CALLS; call++) {
        bench_grouped_product_free(s->grouped_calls[call]);
        s->grouped_calls[call] = NULL;
    }
    cudaFree(s->offsets_dev);
    cudaFree(s->x);
    cudaFree(s->y);
    cudaFree(s->workspace);
    free(s->x_host);
    s->offsets_dev = NULL;
    s->x = s->y = s->workspace = s->x_host = NULL;
}

/* Of the last call of the graph that is timed. A call outside of it comes first: if what was captured depends on memory
 * of the host that a library uses again, that is the other call's by then, and the error shows it. */
static int measure_error(moe_session *s, const moe_way *way, const bench_cuda_timer *timer, bench_mode_figure *figure) {
    const cudaStream_t stream = bench_cuda_stream_of(s->cuda);
    const moe_route *const route = &s->routes[CALLS - 1];
    bench_error error = {0};
    if (way->queue(s, 0, stream) || cli_cuda_check(cudaStreamSynchronize(stream), "bench: multiplying") ||
        cli_cuda_check(cudaMemset(s->y, 0xFF, (uint64_t)s->rows * s->shape.rows * 2), "bench: clearing y") ||
        cli_cuda_check(cudaDeviceSynchronize(), "bench: clearing y") || bench_cuda_timer_run(timer, stream))
        return -1;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const uint32_t first = route->offsets[e], count = tokens_of(route, e);
        if (count && bench_matrix_add_error(&s->matrices[e % DISTINCT], s->x_host + (uint64_t)first * s->shape.cols,
                                            count, row_of(s->y, first, s->shape.rows), &error))
            return -1;
    }
    figure->has_error = 1;
    figure->error = bench_error_of(&error);
    return 0;
}

/* Names the fastest baseline as what the others are compared with. ways[i]: what figures[i] is of. */
static void compare(bench_mode_figure *figures, const moe_way *const *ways, int count) {
    int best = -1;
    for (int i = 0; i < count; i++)
        if (ways[i]->baseline && (best < 0 || bench_median(&figures[i].times) < bench_median(&figures[best].times)))
            best = i;
    for (int i = 0; i < count; i++)
        if (i != best)
            snprintf(figures[i].against, sizeof figures[i].against, "%s", ways[best]->name);
}

static int add_figure(moe_session *s, const moe_way *way, const bench_cuda_timer *timer) {
    const double active = mean_active(s);
    char subject[80];
    snprintf(subject, sizeof subject, "%d experts %ux%u, %.1f active", EXPERTS, s->shape.rows, s->shape.cols, active);
    bench_mode_figure *figure = bench_mode_add(s->cuda, subject, way->name, "", s->batch);
    if (!figure || measure_error(s, way, timer, figure))
        return -1;
    figure->bytes =
        (uint64_t)(active * (way->dense ? 2.0 * s->shape.rows * s->shape.cols : (double)s->matrices[0].blob_bytes));
    return 0;
}

static int time_batch(moe_session *s) {
    const cudaStream_t stream = bench_cuda_stream_of(s->cuda);
    const size_t first = bench_cuda_figures_of(s->cuda)->count;
    bench_cuda_timer timers[WAYS] = {0};
    const moe_way *ways[WAYS];
    int count = 0, failed = 0;
    for (int w = 0; !failed && w < WAYS; w++) {
        bench_cuda_timer *const timer = &timers[count];
        if (kWays[w].queue != queue_grouped)
            failed = bench_cuda_timer_make(timer, kWays[w].queue, s, CALLS, stream);
        else if (!s->grouped || make_grouped_timer(s, timer))
            continue;
        ways[count++] = &kWays[w];
        failed = failed || add_figure(s, &kWays[w], timer);
    }
    failed = failed || bench_mode_time(s->cuda, timers, first);
    for (int i = 0; i < count; i++)
        bench_cuda_timer_free(&timers[i]);
    if (failed)
        return -1;
    compare(&bench_cuda_figures_of(s->cuda)->list[first], ways, count);
    bench_mode_print(s->cuda, first);
    return 0;
}

/* ---- the mode ---- */

static int run_shape(bench_cuda *cuda, bench_grouped *grouped, cli_shape shape, const uint32_t *batches,
                     int num_batches) {
    moe_session s = {.cuda = cuda, .grouped = grouped, .shape = shape};
    int failed = make_experts(&s) || make_streams(&s);
    for (int b = 0; !failed && b < num_batches; b++) {
        s.batch = batches[b];
        failed = plan_batch(&s) || time_batch(&s);
        unplan_batch(&s);
    }
    session_free(&s);
    return failed ? -1 : 0;
}

int bench_moe_run(bench_cuda *cuda) {
    const cli_options *options = bench_cuda_log_of(cuda)->options;
    const cli_shape *shapes = options->num_layers ? options->layers : kShapes;
    const int num_shapes = options->num_layers ? options->num_layers : 2,
              num_batches = options->num_batches ? options->num_batches : 2;
    const uint32_t *batches = options->num_batches ? options->batches : kBatches;
    for (int i = 0; i < num_batches; i++)
        if (batches[i] > MAX_TOKENS) {
            cli_fail(TRF_ERR_ARGUMENT, "bench: --mode moe takes batches up to %d", MAX_TOKENS);
            return -1;
        }
    for (int i = 0; i < num_shapes; i++)
        if (shapes[i].rows % 16 || shapes[i].cols % 32) {
            cli_fail(TRF_ERR_ARGUMENT, "bench: --mode moe takes multiples of 16 rows and 32 columns");
            return -1;
        }
    bench_grouped *grouped = bench_grouped_open();
    if (!grouped)
        warn_left_out();
    int failed = 0;
    for (int i = 0; !failed && i < num_shapes; i++)
        failed = run_shape(cuda, grouped, shapes[i], batches, num_batches);
    bench_grouped_close(grouped);
    return failed ? -1 : 0;
}
