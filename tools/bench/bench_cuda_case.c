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
    const bench_cuda_stand *stand = c->stand;
    trf_error err = {0};
    if (trf_linear(stand->packed[c->packed].copies[copy], plan, stand->x, stand->y, stand->workspace, stream, &err))
        return report(&err);
    return 0;
}

/* Two workspaces in turns: while a product reads the weights in one, the next layer is decoded to the other. A graph's
 * first layer is decoded before it begins. */
static int queue_ahead(const bench_cuda_case *c, uint32_t call, cudaStream_t stream) {
    const bench_cuda_stand *stand = c->stand;
    const bench_cuda_packed *packed = &stand->packed[c->packed];
    const uint32_t copy = call % packed->num_copies, next = (call + 1) % packed->num_copies;
    uint8_t *const here = (uint8_t *)stand->workspace + call % 2 * ahead_bytes(c), *const there =
                                                                                       (uint8_t *)stand->workspace +
                                                                                       (call + 1) % 2 * ahead_bytes(c);
    trf_error err = {0};
    if (call == 0 && trf_linear_decode(packed->copies[copy], &c->plans[copy], NULL, here, stream, &err))
        return report(&err);
    if (call > 0 && cli_cuda_check(cudaStreamWaitEvent(stream, c->decoded, 0), "bench: waiting for a layer"))
        return -1;
    if (call + 1 < c->figure->calls) {
        if (cli_cuda_check(cudaEventRecord(c->free, stream), "bench: recording an event") ||
            cli_cuda_check(cudaStreamWaitEvent(c->beside, c->free, 0), "bench: waiting for a workspace"))
            return -1;
        if (trf_linear_decode(packed->copies[next], &c->plans[next], NULL, there, c->beside, &err))
            return report(&err);
        if (cli_cuda_check(cudaEventRecord(c->decoded, c->beside), "bench: recording an event"))
            return -1;
    }
    if (trf_linear_decoded(packed->copies[copy], &c->plans[copy], stand->x, stand->y, NULL, here, stream, &err))
        return report(&err);
    return 0;
}

static int queue_decode(const bench_cuda_case *c, uint32_t call, cudaStream_t stream) {
    const bench_cuda_packed *packed = &c->stand->packed[c->packed];
    const bench_cuda_ring *ring = &c->stand->decoded;
    const trf_decode_as as = c->stand->x_dtype == TRF_DTYPE_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    trf_error err = {0};
    if (trf_device_layer_decode(packed->copies[call % packed->num_copies], as, ring->buffers[call % ring->count],
                                ring->bytes, stream, &err))
        return report(&err);
    return 0;
}

static int queue_raw8(const bench_cuda_case *c, uint32_t call, trf_dtype y_dtype, cudaStream_t stream) {
    const bench_cuda_stand *stand = c->stand;
    const bench_raw8 product = {stand->code_dtype,
                                stand->subject.shape.rows,
                                stand->subject.shape.cols,
                                c->figure->batch,
                                stand->scales,
                                stand->x,
                                stand->y,
                                y_dtype == TRF_DTYPE_F32};
    return cli_cuda_check(bench_raw8_launch(&product, stand->codes.buffers[call % stand->codes.count], stream),
                          "bench: the plain 8-bit product");
}

/* A bench_cuda_queue_fn; context: a bench_cuda_case. */
static int queue_case(void *context, uint32_t call, cudaStream_t stream) {
    const bench_cuda_case *c = context;
    const bench_cuda_stand *stand = c->stand;
    uint32_t copy;
    switch (c->figure->kind) {
    case BENCH_CUDA_FUSED:
    case BENCH_CUDA_WIDE:
    case BENCH_CUDA_TWO_STEP:
    case BENCH_CUDA_AUTO:
        copy = call % stand->packed[c->packed].num_copies;
        return queue_linear(c, copy, &c->plans[copy], stream);
    case BENCH_CUDA_AHEAD:
        return queue_ahead(c, call, stream);
    case BENCH_CUDA_DECODE:
        return queue_decode(c, call, stream);
    case BENCH_CUDA_CUBLASLT:
        return bench_cublaslt_queue(c->product, c->candidate, stand->dense.buffers[call % stand->dense.count], stand->x,
                                    stand->y, stream);
    case BENCH_CUDA_RAW8:
        return queue_raw8(c, call, stand->x_dtype, stream);
    default:
        return cli_cuda_check(bench_copy_launch(stand->copy_to, stand->copy_from, kBenchCopyBytes, stream),
                              "bench: copying");
    }
}

/* ---- errors: of y as it is timed, and of F32 y ---- */

static int check_linear(bench_cuda_case *c) {
    bench_cuda_stand *stand = c->stand;
    const trf_device_layer *layer = stand->packed[c->packed].copies[0];
    trf_linear_plan plan;
    trf_error err = {0};
    if (trf_linear_plan_init(layer, c->figure->batch, stand->x_dtype, TRF_DTYPE_F32, c->plans[0].path, &plan, &err))
        return report(&err);
    return bench_cuda_need_workspace(stand, plan.workspace_bytes) || queue_linear(c, 0, &c->plans[0], stand->stream) ||
           bench_cuda_error(stand, c->packed, c->figure->batch, stand->x_dtype, &c->figure->error) ||
           queue_linear(c, 0, &plan, stand->stream) ||
           bench_cuda_error(stand, c->packed, c->figure->batch, TRF_DTYPE_F32, &c->figure->error_f32);
}

static int check_cublaslt(bench_cuda_case *c) {
    bench_cuda_stand *stand = c->stand;
    const cli_shape shape = stand->subject.shape;
    const uint32_t batch = c->figure->batch;
    bench_cublaslt_product *product =
        bench_cublaslt_product_make(stand->lt, shape.rows, shape.cols, batch, stand->x_dtype, TRF_DTYPE_F32);
    int failed = !product || queue_case(c, 0, stand->stream) ||
                 bench_cuda_error(stand, 0, batch, stand->x_dtype, &c->figure->error) ||
                 bench_cublaslt_queue(product, 0, stand->dense.buffers[0], stand->x, stand->y, stand->stream) ||
                 bench_cuda_error(stand, 0, batch, TRF_DTYPE_F32, &c->figure->error_f32);
    bench_cublaslt_product_free(product);
    return failed;
}

static int check_raw8(bench_cuda_case *c) {
    bench_cuda_stand *stand = c->stand;
    const uint32_t batch = c->figure->batch;
    return queue_raw8(c, 0, stand->x_dtype, stand->stream) ||
           bench_cuda_error(stand, 0, batch, stand->x_dtype, &c->figure->error) ||
           queue_raw8(c, 0, TRF_DTYPE_F32, stand->stream) ||
           bench_cuda_error(stand, 0, batch, TRF_DTYPE_F32, &c->figure->error_f32);
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
    bench_cuda_stand *stand = c->stand;
    const bench_cuda_packed *packed = &stand->packed[c->packed];
    bench_cuda_figure *figure = c->figure;
    const trf_path path = figure->kind == BENCH_CUDA_FUSED  ? TRF_PATH_FUSED
                          : figure->kind == BENCH_CUDA_WIDE ? TRF_PATH_WIDE
                          : figure->kind == BENCH_CUDA_AUTO ? TRF_PATH_AUTO
                                                            : TRF_PATH_TWO_STEP;
    trf_error err = {0};
    c->plans = calloc(packed->num_copies, sizeof *c->plans);
    if (!c->plans) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for plans");
        return -1;
    }
    for (uint32_t i = 0; i < packed->num_copies; i++) {
        trf_status status = trf_linear_plan_init(packed->copies[i], figure->batch, stand->x_dtype, stand->x_dtype, path,
                                                 &c->plans[i], &err);
        if (status == TRF_ERR_UNSUPPORTED) {
            figure->reason = why_not(packed->copies[i], figure->batch, stand->x_dtype, path);
            return 0;
        }
        if (status != TRF_OK)
            return report(&err);
    }
    return bench_cuda_need_workspace(stand, c->plans[0].workspace_bytes) || check_linear(c) ? -1 : 0;
}

/* What decodes comes first where multiprocessors are free: products, which have many blocks, would leave it none. */
static int prepare_ahead(bench_cuda_case *c) {
    int least, greatest;
    if (prepare_linear(c))
        return -1;
    if (c->figure->reason)
        return 0;
    return bench_cuda_need_workspace(c->stand, 2 * ahead_bytes(c)) ||
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
        TRIAL_RUNS = 5
    };
    bench_cuda_stand *stand = c->stand;
    const cli_shape shape = stand->subject.shape;
    double best_seconds = 0;
    int best = -1;
    c->product = bench_cublaslt_product_make(stand->lt, shape.rows, shape.cols, c->figure->batch, stand->x_dtype,
                                             stand->x_dtype);
    if (!c->product)
        return -1;
    for (c->candidate = 0; c->candidate < bench_cublaslt_candidates(c->product); c->candidate++) {
        bench_cuda_timer timer = {0}, *const timers[] = {&timer};
        bench_times times = {0}, *const lists[] = {&times};
        int failed = bench_cuda_timer_make(&timer, queue_case, c, c->figure->calls, stand->stream) ||
                     bench_cuda_time(timers, lists, 1, TRIAL_RUNS, stand->stream);
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
    const bench_cuda_stand *stand = c->stand;
    bench_cuda_figure *f = c->figure;
    f->copies = 1;
    if (c->packed >= 0) {
        trf_layer_info info;
        trf_layer_get_info(stand->packed[c->packed].layer, &info);
        f->copies = stand->packed[c->packed].num_copies;
        f->bytes_read = info.blob_bytes;
        f->bytes_written = f->kind == BENCH_CUDA_DECODE ? stand->decoded.bytes : 0;
    } else if (f->kind == BENCH_CUDA_COPY) {
        f->bytes_read = f->bytes_written = kBenchCopyBytes;
    } else {
        const bench_cuda_ring *ring = f->kind == BENCH_CUDA_RAW8 ? &stand->codes : &stand->dense;
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
    return bench_cuda_timer_make(&c->timer, queue_case, c, c->figure->calls, c->stand->stream);
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
