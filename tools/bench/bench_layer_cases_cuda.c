/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_layer_cases_cuda.h"

#include "bench_candidates_cuda.h"
#include "bench_kernels.h"
#include "bench_memory.h"
#include "cli_cuda.h"
#include "cli_messages.h"
#include "transfuse/tuning.h"

#include <stdlib.h>

enum {
    MIN_CALLS = 16 /* in a graph, whose start is then a small part of its time */
};

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

/* ---- calls ---- */

static int queue_plan(const bench_layer_case *c, const bench_plan *plan, cudaStream_t stream) {
    const bench_layer_session *session = c->session;
    return bench_plan_queue(plan, session->x, session->y, session->workspace, stream);
}

static int queue_linear(void *context, uint32_t call, cudaStream_t stream) {
    const bench_layer_case *c = context;
    return queue_plan(c, &c->plans[call % c->copies], stream);
}

static int queue_decode(void *context, uint32_t call, cudaStream_t stream) {
    const bench_layer_case *c = context;
    const bench_ring *ring = &c->session->decoded;
    const trf_decode_as as = c->session->x_dtype == TRF_DTYPE_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    trf_error err = {0};
    if (trf_device_layer_decode(c->session->compressed[c->compressed].copies[call % c->copies], as,
                                ring->buffers[call % ring->count], ring->bytes, stream, &err))
        return report(&err);
    return 0;
}

static int queue_cublaslt(void *context, uint32_t call, cudaStream_t stream) {
    const bench_layer_case *c = context;
    const bench_layer_session *session = c->session;
    return bench_cublaslt_queue(c->product, c->candidate, session->dense.buffers[call % c->copies], session->x,
                                session->y, stream);
}

static int queue_codes(const bench_layer_case *c, uint32_t call, trf_dtype y_dtype, cudaStream_t stream) {
    const bench_layer_session *session = c->session;
    const cli_shape shape = session->input->shape;
    const bench_raw8 product = {.dtype = session->raw8_dtype,
                                .rows = shape.rows,
                                .cols = shape.cols,
                                .m = c->batch,
                                .scales = session->scales,
                                .x = session->x,
                                .y = session->y,
                                .y_is_f32 = y_dtype == TRF_DTYPE_F32};
    return cli_cuda_check(
        bench_raw8_launch(&product, session->raw8_weights.buffers[call % session->raw8_weights.count], stream),
        "bench: the plain 8-bit product");
}

static int queue_raw8(void *context, uint32_t call, cudaStream_t stream) {
    const bench_layer_case *c = context;
    return queue_codes(c, call, c->session->x_dtype, stream);
}

static int queue_copy(void *context, uint32_t call, cudaStream_t stream) {
    const bench_layer_session *session = ((const bench_layer_case *)context)->session;
    (void)call;
    return cli_cuda_check(bench_copy_launch(session->copy_to, session->copy_from, kBenchCopyBytes, stream),
                          "bench: copying");
}

/* ---- errors: of y as it is timed, and of F32 y ---- */

static void add_errors(const bench_layer_case *c, double error, double error_f32) {
    bench_add_real(&c->figure->details, "error", error);
    bench_add_real(&c->figure->details, "error_f32", error_f32);
}

/* Measures the errors of a product. F32 y has a plan of its own, by the same path. */
static int check_linear(bench_layer_case *c) {
    bench_layer_session *session = c->session;
    const cudaStream_t stream = session->device->stream;
    trf_device_layer *layer = session->compressed[c->compressed].copies[0];
    const trf_path path = c->plans[0].info.path;
    double error, error_f32;
    bench_plan plan = {0};
    const trf_status status = bench_plan_make(&plan, layer, c->batch, session->x_dtype, TRF_DTYPE_F32, path);
    if (status == TRF_ERR_UNSUPPORTED)
        cli_fail(status, "bench: %s, %u rows of x: no product with F32 y by the same path",
                 bench_layer_case_name(c->id), c->batch);
    if (status != TRF_OK)
        return -1;
    const int failed = bench_need_workspace(session, plan.info.workspace_bytes) || queue_linear(c, 0, stream) ||
                       bench_read_error(session, c->compressed, c->batch, session->x_dtype, &error) ||
                       queue_plan(c, &plan, stream) ||
                       bench_read_error(session, c->compressed, c->batch, TRF_DTYPE_F32, &error_f32);
    bench_plan_free(&plan);
    if (!failed)
        add_errors(c, error, error_f32);
    return failed;
}

static int check_cublaslt(bench_layer_case *c) {
    bench_layer_session *session = c->session;
    const cudaStream_t stream = session->device->stream;
    const cli_shape shape = session->input->shape;
    double error, error_f32;
    bench_cublaslt_product *product = bench_cublaslt_product_make(session->device->lt, shape.rows, shape.cols, c->batch,
                                                                  session->x_dtype, TRF_DTYPE_F32);
    const int failed = !product || queue_cublaslt(c, 0, stream) ||
                       bench_read_error(session, 0, c->batch, session->x_dtype, &error) ||
                       bench_cublaslt_queue(product, 0, session->dense.buffers[0], session->x, session->y, stream) ||
                       bench_read_error(session, 0, c->batch, TRF_DTYPE_F32, &error_f32);
    bench_cublaslt_product_free(product);
    if (!failed)
        add_errors(c, error, error_f32);
    return failed;
}

static int check_raw8(bench_layer_case *c) {
    bench_layer_session *session = c->session;
    const cudaStream_t stream = session->device->stream;
    double error, error_f32;
    if (queue_raw8(c, 0, stream) || bench_read_error(session, 0, c->batch, session->x_dtype, &error) ||
        queue_codes(c, 0, TRF_DTYPE_F32, stream) || bench_read_error(session, 0, c->batch, TRF_DTYPE_F32, &error_f32))
        return -1;
    add_errors(c, error, error_f32);
    return 0;
}

/* ---- preparing ---- */

static trf_path path_of(bench_layer_case_id id) {
    return id == BENCH_CASE_FUSED    ? TRF_PATH_FUSED
           : id == BENCH_CASE_WIDE   ? TRF_PATH_WIDE
           : id == BENCH_CASE_AUTO   ? TRF_PATH_AUTO
           : id == BENCH_CASE_DENSE  ? TRF_PATH_DENSE
           : id == BENCH_CASE_PACKED ? TRF_PATH_PACKED
                                     : TRF_PATH_TWO_STEP;
}

/* @return why a path does not take a product. AUTO tells why it is not FUSED. */
static const char *why_not(const bench_layer_case *c, trf_device_layer *layer) {
    const trf_dtype dtype = c->session->x_dtype;
    const char *reason = NULL;
    bench_plan plan = {0};
    if (c->id == BENCH_CASE_FUSED && bench_plan_make(&plan, layer, c->batch, dtype, dtype, TRF_PATH_AUTO) == TRF_OK)
        reason = plan.info.reason;
    bench_plan_free(&plan);
    return reason ? reason : "not supported";
}

/* Notes which kernel a packed layer's product takes, and its cut; both appear below the row of the table, and in the
 * files. */
static void note_kernel(bench_layer_case *c) {
    bench_figure *figure = c->figure;
    const char *kernel, *cut;
    trf_plan_get_kernel(c->plans[0].plan, &kernel, &cut);
    if (!kernel)
        return;
    bench_add_bare_text(&figure->details, "kernel", kernel);
    bench_add_bare_text(&figure->details, "cut", cut ? cut : "");
    snprintf(figure->note, sizeof figure->note, "kernel %s%s%s: %s", kernel, cut ? ", cut " : "", cut ? cut : "",
             c->plans[0].info.reason);
}

static int prepare_linear(bench_layer_case *c) {
    bench_layer_session *session = c->session;
    const bench_compressed *compressed = &session->compressed[c->compressed];
    c->plans = bench_alloc_zeros(c->copies, sizeof *c->plans);
    if (!c->plans)
        return -1;
    for (uint32_t i = 0; i < c->copies; i++) {
        const trf_status status = bench_plan_make(&c->plans[i], compressed->copies[i], c->batch, session->x_dtype,
                                                  session->x_dtype, path_of(c->id));
        if (status == TRF_ERR_UNSUPPORTED) {
            c->figure->reason = why_not(c, compressed->copies[i]);
            return 0;
        }
        if (status != TRF_OK)
            return -1;
    }
    note_kernel(c);
    return bench_need_workspace(session, c->plans[0].info.workspace_bytes) || check_linear(c) ? -1 : 0;
}

static int prepare_cublaslt(bench_layer_case *c) {
    const bench_layer_session *session = c->session;
    const cli_shape shape = session->input->shape;
    const bench_candidate_operands operands = {.weights = (const void *const *)session->dense.buffers,
                                               .count = c->copies,
                                               .step = 1,
                                               .x = session->x,
                                               .y = session->y};
    char algorithm[64];
    c->product = bench_cublaslt_product_make(session->device->lt, shape.rows, shape.cols, c->batch, session->x_dtype,
                                             session->x_dtype);
    if (!c->product)
        return -1;
    c->candidate = bench_fastest_candidate(c->product, &operands, c->calls, session->device->stream);
    if (c->candidate < 0)
        return -1;
    snprintf(algorithm, sizeof algorithm, "candidate %d of %d", c->candidate + 1,
             bench_cublaslt_candidates(c->product));
    bench_add_bare_text(&c->figure->details, "algorithm", algorithm);
    return check_cublaslt(c) ? -1 : 0;
}

static int prepare_raw8(bench_layer_case *c) {
    if (c->batch <= BENCH_RAW8_MAX_M)
        return check_raw8(c);
    c->figure->reason = "more than 64 rows of x";
    return 0;
}

/* What each case does. */
static const struct {
    const char *name;
    bench_queue_fn *queue;
    int (*prepare)(bench_layer_case *c); /* NULL: there is nothing to prepare */
} kCases[] = {
    [BENCH_CASE_FUSED] = {"fused", queue_linear, prepare_linear},
    [BENCH_CASE_WIDE] = {"wide", queue_linear, prepare_linear},
    [BENCH_CASE_TWO_STEP] = {"two-step", queue_linear, prepare_linear},
    [BENCH_CASE_DENSE] = {"dense", queue_linear, prepare_linear},
    [BENCH_CASE_PACKED] = {"packed", queue_linear, prepare_linear},
    [BENCH_CASE_AUTO] = {"auto", queue_linear, prepare_linear},
    [BENCH_CASE_DECODE] = {"decode", queue_decode, NULL},
    [BENCH_CASE_CUBLASLT] = {"cublaslt", queue_cublaslt, prepare_cublaslt},
    [BENCH_CASE_RAW8] = {"raw8", queue_raw8, prepare_raw8},
    [BENCH_CASE_COPY] = {"copy", queue_copy, NULL},
};

const char *bench_layer_case_name(bench_layer_case_id id) { return kCases[id].name; }

/* Finds how many copies a case uses in turn, and the bytes of weights that a call moves. */
static void describe(bench_layer_case *c) {
    const bench_layer_session *session = c->session;
    bench_fields *details = &c->figure->details;
    uint64_t bytes_read, bytes_written = 0;
    c->copies = 1;
    if (c->compressed >= 0) {
        c->copies = session->compressed[c->compressed].num_copies;
        bytes_read = session->compressed[c->compressed].read_bytes;
        bytes_written = c->id == BENCH_CASE_DECODE ? session->decoded.bytes : 0;
    } else if (c->id == BENCH_CASE_COPY) {
        bytes_read = bytes_written = kBenchCopyBytes;
    } else {
        const bench_ring *ring = c->id == BENCH_CASE_RAW8 ? &session->raw8_weights : &session->dense;
        c->copies = ring->count;
        bytes_read = ring->bytes;
    }
    /* A graph makes whole passes over the copies. */
    const uint32_t passes = (MIN_CALLS + c->copies - 1) / c->copies;
    c->calls = c->id == BENCH_CASE_COPY ? 1 : passes * c->copies;
    bench_add_integer(details, "calls", c->calls);
    bench_add_integer(details, "copies", c->copies);
    bench_add_integer(details, "bytes_read", bytes_read);
    bench_add_integer(details, "bytes_written", bytes_written);
}

int bench_layer_case_make(bench_layer_case *c) {
    describe(c);
    return kCases[c->id].prepare && kCases[c->id].prepare(c) ? -1 : 0;
}

int bench_layer_case_capture(bench_layer_case *c, bench_timer *timer) {
    if (c->figure->reason)
        return 0;
    timer->figure = c->figure;
    return bench_timer_make(timer, kCases[c->id].queue, c, c->calls, c->session->device->stream);
}

void bench_layer_case_free(bench_layer_case *c) {
    bench_cublaslt_product_free(c->product);
    for (uint32_t i = 0; c->plans && i < c->copies; i++)
        bench_plan_free(&c->plans[i]);
    free(c->plans);
}
