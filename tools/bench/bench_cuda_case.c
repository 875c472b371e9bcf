#include "bench_cuda_case.h"

#include "cli_cuda.h"
#include "cli_report.h"

#include <stdlib.h>
#include <string.h>

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

/* ---- calls ---- */

/* Of one of an AHEAD case's two workspaces. */
static uint64_t ahead_bytes(const bench_cuda_case *c) { return (c->plans[0].workspace_bytes + 255) / 256 * 256; }

static int queue_linear(const bench_cuda_case *c, uint32_t copy, const trf_linear_plan *plan, cudaStream_t stream) {
    const bench_layer_session *session = c->session;
    trf_error err = {0};
    if (trf_linear(session->compressed[c->compressed].copies[copy], plan, session->x, session->y, session->workspace,
                   stream, &err))
        return report(&err);
    return 0;
}

/* Two workspaces in turns: while a product reads the weights in one, the next layer is decoded to the other. A graph's
 * first layer is decoded before it begins. */
static int queue_ahead(const bench_cuda_case *c, uint32_t call, cudaStream_t stream) {
    const bench_layer_session *session = c->session;
    const bench_cuda_compressed *compressed = &session->compressed[c->compressed];
    const uint32_t copy = call % compressed->num_copies, next = (call + 1) % compressed->num_copies;
    uint8_t *const here = (uint8_t *)session->workspace + call % 2 * ahead_bytes(c), *const there =
                                                                                         (uint8_t *)session->workspace +
                                                                                         (call + 1) % 2 *
                                                                                             ahead_bytes(c);
    trf_error err = {0};
    if (call == 0 && trf_linear_decode(compressed->copies[copy], &c->plans[copy], NULL, here, stream, &err))
        return report(&err);
    if (call > 0 && cli_cuda_check(cudaStreamWaitEvent(stream, c->decoded, 0), "bench: waiting for a layer"))
        return -1;
    if (call + 1 < c->figure->calls) {
        if (cli_cuda_check(cudaEventRecord(c->free, stream), "bench: recording an event") ||
            cli_cuda_check(cudaStreamWaitEvent(c->beside, c->free, 0), "bench: waiting for a workspace"))
            return -1;
        if (trf_linear_decode(compressed->copies[next], &c->plans[next], NULL, there, c->beside, &err))
            return report(&err);
        if (cli_cuda_check(cudaEventRecord(c->decoded, c->beside), "bench: recording an event"))
            return -1;
    }
    if (trf_linear_decoded(compressed->copies[copy], &c->plans[copy], session->x, session->y, NULL, here, stream, &err))
        return report(&err);
    return 0;
}

static int queue_decode(const bench_cuda_case *c, uint32_t call, cudaStream_t stream) {
    const bench_cuda_compressed *compressed = &c->session->compressed[c->compressed];
    const bench_cuda_ring *ring = &c->session->decoded;
    const trf_decode_as as = c->session->x_dtype == TRF_DTYPE_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    trf_error err = {0};
    if (trf_device_layer_decode(compressed->copies[call % compressed->num_copies], as,
                                ring->buffers[call % ring->count], ring->bytes, stream, &err))
        return report(&err);
    return 0;
}

static int queue_raw8(const bench_cuda_case *c, uint32_t call, trf_dtype y_dtype, cudaStream_t stream) {
    const bench_layer_session *session = c->session;
    const bench_raw8 product = {session->code_dtype,
                                session->subject.shape.rows,
                                session->subject.shape.cols,
                                c->figure->batch,
                                session->scales,
                                session->x,
                                session->y,
                                y_dtype == TRF_DTYPE_F32};
    return cli_cuda_check(bench_raw8_launch(&product, session->codes.buffers[call % session->codes.count], stream),
                          "bench: the plain 8-bit product");
}

/* A bench_cuda_queue_fn; context: a bench_cuda_case. */
static int queue_case(void *context, uint32_t call, cudaStream_t stream) {
    const bench_cuda_case *c = context;
    const bench_layer_session *session = c->session;
    uint32_t copy;
    switch (c->figure->kind) {
    case BENCH_CUDA_FUSED:
    case BENCH_CUDA_WIDE:
    case BENCH_CUDA_TWO_STEP:
    case BENCH_CUDA_AUTO:
        copy = call % session->compressed[c->compressed].num_copies;
        return queue_linear(c, copy, &c->plans[copy], stream);
    case BENCH_CUDA_AHEAD:
        return queue_ahead(c, call, stream);
    case BENCH_CUDA_DECODE:
        return queue_decode(c, call, stream);
    case BENCH_CUDA_CUBLASLT:
        return bench_cublaslt_queue(c->product, c->candidate, session->dense.buffers[call % session->dense.count],
                                    session->x, session->y, stream);
    case BENCH_CUDA_RAW8:
        return queue_raw8(c, call, session->x_dtype, stream);
    default:
        return cli_cuda_check(bench_copy_launch(session->copy_to, session->copy_from, kBenchCopyBytes, stream),
                              "bench: copying");
    }
}

/* ---- errors: of y as it is timed, and of F32 y ---- */

static int check_linear(bench_cuda_case *c) {
    bench_layer_session *session = c->session;
    const trf_device_layer *layer = session->compressed[c->compressed].copies[0];
    trf_linear_plan plan;
    trf_error err = {0};
    if (trf_linear_plan_init(layer, c->figure->batch, session->x_dtype, TRF_DTYPE_F32, c->plans[0].path, &plan, &err))
        return report(&err);
    return bench_cuda_need_workspace(session, plan.workspace_bytes) ||
           queue_linear(c, 0, &c->plans[0], session->stream) ||
           bench_cuda_error(session, c->compressed, c->figure->batch, session->x_dtype, &c->figure->error) ||
           queue_linear(c, 0, &plan, session->stream) ||
           bench_cuda_error(session, c->compressed, c->figure->batch, TRF_DTYPE_F32, &c->figure->error_f32);
}

static int check_cublaslt(bench_cuda_case *c) {
    bench_layer_session *session = c->session;
    const cli_shape shape = session->subject.shape;
    const uint32_t batch = c->figure->batch;
    bench_cublaslt_product *product =
        bench_cublaslt_product_make(session->lt, shape.rows, shape.cols, batch, session->x_dtype, TRF_DTYPE_F32);
    int failed = !product || queue_case(c, 0, session->stream) ||
                 bench_cuda_error(session, 0, batch, session->x_dtype, &c->figure->error) ||
                 bench_cublaslt_queue(product, 0, session->dense.buffers[0], session->x, session->y, session->stream) ||
                 bench_cuda_error(session, 0, batch, TRF_DTYPE_F32, &c->figure->error_f32);
    bench_cublaslt_product_free(product);
    return failed;
}

static int check_raw8(bench_cuda_case *c) {
    bench_layer_session *session = c->session;
    const uint32_t batch = c->figure->batch;
    return queue_raw8(c, 0, session->x_dtype, session->stream) ||
           bench_cuda_error(session, 0, batch, session->x_dtype, &c->figure->error) ||
           queue_raw8(c, 0, TRF_DTYPE_F32, session->stream) ||
           bench_cuda_error(session, 0, batch, TRF_DTYPE_F32, &c->figure->error_f32);
}

/* ---- preparing ---- */

/* Why a path does not take a product. AUTO tells why it is not FUSED. */
static const char *why_not(const trf_device_layer *layer, uint32_t batch, trf_dtype dtype, trf_path path) {
    trf_linear_plan plan;
    if (path == TRF_PATH_FUSED &&
        trf_linear_plan_init(layer, batch, dtype, dtype, TRF_PATH_AUTO, &plan, NULL) == TRF_OK && plan.reason)
        return plan.reason;
    return "not supported";
}

static int prepare_linear(bench_cuda_case *c) {
    bench_layer_session *session = c->session;
    const bench_cuda_compressed *compressed = &session->compressed[c->compressed];
    bench_cuda_figure *figure = c->figure;
    const trf_path path = figure->kind == BENCH_CUDA_FUSED  ? TRF_PATH_FUSED
                          : figure->kind == BENCH_CUDA_WIDE ? TRF_PATH_WIDE
                          : figure->kind == BENCH_CUDA_AUTO ? TRF_PATH_AUTO
                                                            : TRF_PATH_TWO_STEP;
    trf_error err = {0};
    c->plans = calloc(compressed->num_copies, sizeof *c->plans);
    if (!c->plans) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for plans");
        return -1;
    }
    for (uint32_t i = 0; i < compressed->num_copies; i++) {
        trf_status status = trf_linear_plan_init(compressed->copies[i], figure->batch, session->x_dtype,
                                                 session->x_dtype, path, &c->plans[i], &err);
        if (status == TRF_ERR_UNSUPPORTED) {
            figure->reason = why_not(compressed->copies[i], figure->batch, session->x_dtype, path);
            return 0;
        }
        if (status != TRF_OK)
            return report(&err);
    }
    return bench_cuda_need_workspace(session, c->plans[0].workspace_bytes) || check_linear(c) ? -1 : 0;
}

/* What decodes comes first where multiprocessors are free: products, which have many blocks, would leave it none. */
static int prepare_ahead(bench_cuda_case *c) {
    int least, greatest;
    if (prepare_linear(c))
        return -1;
    if (c->figure->reason)
        return 0;
    return bench_cuda_need_workspace(c->session, 2 * ahead_bytes(c)) ||
                   cli_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "bench: priorities") ||
                   cli_cuda_check(cudaStreamCreateWithPriority(&c->beside, cudaStreamNonBlocking, greatest),
                                  "bench: making a stream") ||
                   cli_cuda_check(cudaEventCreateWithFlags(&c->decoded, cudaEventDisableTiming),
                                  "bench: making an event") ||
                   cli_cuda_check(cudaEventCreateWithFlags(&c->free, cudaEventDisableTiming), "bench: making an event")
               ? -1
               : 0;
}

/* Times the candidates, and keeps the fastest. */
static int prepare_cublaslt(bench_cuda_case *c) {
    enum {
        TRIAL_REPEATS = 5
    };
    bench_layer_session *session = c->session;
    const cli_shape shape = session->subject.shape;
    double best_seconds = 0;
    int best = -1;
    c->product = bench_cublaslt_product_make(session->lt, shape.rows, shape.cols, c->figure->batch, session->x_dtype,
                                             session->x_dtype);
    if (!c->product)
        return -1;
    for (c->candidate = 0; c->candidate < bench_cublaslt_candidates(c->product); c->candidate++) {
        bench_cuda_timer timer = {0}, *const timers[] = {&timer};
        bench_times times = {0}, *const lists[] = {&times};
        int failed = bench_cuda_timer_make(&timer, queue_case, c, c->figure->calls, session->stream) ||
                     bench_cuda_time(timers, lists, 1, TRIAL_REPEATS, session->stream);
        double seconds = bench_median(&times);
        bench_cuda_timer_free(&timer);
        free(times.seconds);
        if (failed)
            return -1;
        if (best < 0 || seconds < best_seconds) {
            best = c->candidate;
            best_seconds = seconds;
        }
    }
    c->candidate = best;
    snprintf(c->figure->algorithm, sizeof c->figure->algorithm, "candidate %d of %d", best + 1,
             bench_cublaslt_candidates(c->product));
    return check_cublaslt(c) ? -1 : 0;
}

static int prepare_raw8(bench_cuda_case *c) {
    if (c->figure->batch <= BENCH_RAW8_MAX_M)
        return check_raw8(c) ? -1 : 0;
    c->figure->reason = "more than 64 rows of x";
    return 0;
}

/* How many copies a case turns over, and the bytes of weights that a call moves. */
static void describe(const bench_cuda_case *c) {
    const bench_layer_session *session = c->session;
    bench_cuda_figure *f = c->figure;
    f->copies = 1;
    if (c->compressed >= 0) {
        trf_layer_info info;
        trf_layer_get_info(session->compressed[c->compressed].layer, &info);
        f->copies = session->compressed[c->compressed].num_copies;
        f->bytes_read = info.blob_bytes;
        f->bytes_written = f->kind == BENCH_CUDA_DECODE ? session->decoded.bytes : 0;
    } else if (f->kind == BENCH_CUDA_COPY) {
        f->bytes_read = f->bytes_written = kBenchCopyBytes;
    } else {
        const bench_cuda_ring *ring = f->kind == BENCH_CUDA_RAW8 ? &session->codes : &session->dense;
        f->copies = ring->count;
        f->bytes_read = ring->bytes;
    }
    f->has_error = f->kind != BENCH_CUDA_DECODE && f->kind != BENCH_CUDA_COPY;
    /* Whole passes over the copies. */
    uint32_t passes = (BENCH_CUDA_MIN_CALLS + f->copies - 1) / f->copies;
    f->calls = f->kind == BENCH_CUDA_COPY ? 1 : passes * f->copies;
}

int bench_cuda_case_make(bench_cuda_case *c) {
    int failed = 0;
    describe(c);
    switch (c->figure->kind) {
    case BENCH_CUDA_FUSED:
    case BENCH_CUDA_WIDE:
    case BENCH_CUDA_TWO_STEP:
    case BENCH_CUDA_AUTO:
        failed = prepare_linear(c);
        break;
    case BENCH_CUDA_AHEAD:
        failed = prepare_ahead(c);
        break;
    case BENCH_CUDA_CUBLASLT:
        failed = prepare_cublaslt(c);
        break;
    case BENCH_CUDA_RAW8:
        failed = prepare_raw8(c);
        break;
    default:
        break;
    }
    return failed ? -1 : 0;
}

int bench_cuda_case_capture(bench_cuda_case *c) {
    if (c->figure->reason)
        return 0;
    return bench_cuda_timer_make(&c->timer, queue_case, c, c->figure->calls, c->session->stream);
}

void bench_cuda_case_free(bench_cuda_case *c) {
    if (c->beside)
        cudaStreamDestroy(c->beside);
    if (c->decoded)
        cudaEventDestroy(c->decoded);
    if (c->free)
        cudaEventDestroy(c->free);
    bench_cuda_timer_free(&c->timer);
    bench_cublaslt_product_free(c->product);
    free(c->plans);
}
