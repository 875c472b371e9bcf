/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse bench --device cuda --mode offload: passes through the layers of a model that lie in pinned host memory,
 * compressed (trf_stack) and plain (bench_offload_dense_cuda.h). It measures them with only those layers in device
 * memory that are on their way, and with a budget. */
#include "bench_memory.h"
#include "bench_modes.h"
#include "bench_offload_dense_cuda.h"
#include "bench_offload_session_cuda.h"
#include "bench_table.h"
#include "cli_cuda.h"
#include "cli_messages.h"
#include "transfuse/stacks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    TIMED_PASSES = 2 /* in a row, after one that is not timed: so a turn begins and ends with full buffers */
};

/* The layers with one budget. */
typedef struct offload_stacks {
    bench_offload_session *session;
    trf_stack *stack;
    bench_plan *plans; /* [count], of the stack's layers */
    bench_offload_dense *dense;
    cudaEvent_t begin, end;
} offload_stacks;

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

/* ---- passes ---- */

typedef int pass_fn(const offload_stacks *s);

static int pass_compressed(const offload_stacks *s) {
    const bench_offload_session *session = s->session;
    trf_operands operands;
    trf_error err = {0};
    trf_operands_init(&operands);
    operands.x = session->x;
    for (uint32_t i = 0; i < session->count; i++) {
        operands.y = bench_offload_y_of(session, i);
        if (trf_stack_linear(s->stack, i, s->plans[i].plan, &operands, session->workspace, session->device->stream,
                             &err))
            return report(&err);
    }
    return 0;
}

static int pass_dense(const offload_stacks *s) {
    bench_offload_session *session = s->session;
    const cudaStream_t stream = session->device->stream;
    for (uint32_t i = 0; i < session->count; i++) {
        const void *w = bench_offload_dense_begin(s->dense, i, stream);
        if (!w ||
            bench_offload_queue_dense(session, bench_offload_matrix_of(session, i), w,
                                      bench_offload_y_of(session, i)) ||
            bench_offload_dense_end(s->dense, i, stream))
            return -1;
    }
    return 0;
}

/* Copies the block's plain weights to device memory, which shows what the link can do. */
static int pass_copy(const offload_stacks *s) {
    bench_offload_session *session = s->session;
    for (uint32_t i = 0; i < session->per_block; i++) {
        const bench_offload_matrix *matrix = bench_offload_matrix_of(session, i);
        if (cli_cuda_check(cudaMemcpyAsync(matrix->dense, session->host_weights[i], matrix->dense_bytes,
                                           cudaMemcpyHostToDevice, session->device->stream),
                           "bench: copying to the device"))
            return -1;
    }
    return 0;
}

/* Times passes. All that was queued before, copies ahead included, is done first. */
static int time_passes(const offload_stacks *s, pass_fn *pass, bench_figure *figure) {
    const cudaStream_t stream = s->session->device->stream;
    float milliseconds = 0;
    if (cli_cuda_check(cudaDeviceSynchronize(), "bench") || pass(s) ||
        cli_cuda_check(cudaEventRecord(s->begin, stream), "bench: an event"))
        return -1;
    for (int i = 0; i < TIMED_PASSES; i++)
        if (pass(s))
            return -1;
    if (cli_cuda_check(cudaEventRecord(s->end, stream), "bench: an event") ||
        cli_cuda_check(cudaDeviceSynchronize(), "bench: passes") ||
        cli_cuda_check(cudaEventElapsedTime(&milliseconds, s->begin, s->end), "bench: a time"))
        return -1;
    bench_figure_take(figure, 1e-3 * (double)milliseconds / TIMED_PASSES);
    return 0;
}

/* Makes one more pass, and checks every layer's y. */
static int check_pass(const offload_stacks *s, pass_fn *pass) {
    bench_offload_session *session = s->session;
    const uint64_t bytes = session->y_bytes;
    uint8_t *y = bench_alloc(bytes);
    int failed = !y || cli_cuda_check(cudaMemset(session->y, 0xFF, bytes), "bench: y") ||
                 cli_cuda_check(cudaDeviceSynchronize(), "bench: y") || pass(s) ||
                 cli_cuda_check(cudaDeviceSynchronize(), "bench: a pass") ||
                 cli_cuda_check(cudaMemcpy(y, session->y, bytes, cudaMemcpyDeviceToHost), "bench: y");
    for (uint32_t i = 0; !failed && i < session->count; i++) {
        const bench_offload_matrix *matrix = bench_offload_matrix_of(session, i);
        if (memcmp(y + session->y_offsets[i], pass == pass_compressed ? matrix->y_compressed : matrix->y_dense,
                   2ull * session->batch * matrix->shape.rows)) {
            cli_fail(TRF_ERR_MISMATCH, "bench: y of layer %" PRIu32 " is not what the layer gives without copying", i);
            failed = 1;
        }
    }
    free(y);
    return failed;
}

/* ---- one budget ---- */

/* budget: 0 means that no layer stays. */
static int make_stack(offload_stacks *s, uint64_t budget) {
    bench_offload_session *session = s->session;
    trf_stack_info info;
    trf_error err = {0};
    if (trf_stack_create(session->device->context, &s->stack, &err))
        return report(&err);
    for (uint32_t i = 0; i < session->count; i++)
        if (trf_stack_add(s->stack, bench_offload_matrix_of(session, i)->layer, &err))
            return report(&err);
    trf_stack_get_info(s->stack, &info);
    if (trf_stack_prepare(s->stack, budget ? budget : info.least_bytes, &err))
        return report(&err);
    for (uint32_t i = 0; i < session->count; i++)
        if (bench_offload_plan(session, trf_stack_layer(s->stack, i), &s->plans[i]))
            return -1;
    return 0;
}

static int make_stacks(offload_stacks *s, uint64_t budget) {
    const bench_offload_session *session = s->session;
    s->plans = bench_alloc_zeros(session->count, sizeof *s->plans);
    if (!s->plans || cli_cuda_check(cudaEventCreate(&s->begin), "bench: an event") ||
        cli_cuda_check(cudaEventCreate(&s->end), "bench: an event") || make_stack(s, budget))
        return -1;
    s->dense = bench_offload_dense_make(session->host_weights, session->host_weights_bytes, session->count, budget);
    return s->dense ? 0 : -1;
}

static void free_stacks(offload_stacks *s) {
    for (uint32_t i = 0; s->plans && i < s->session->count; i++)
        bench_plan_free(&s->plans[i]);
    free(s->plans);
    trf_stack_destroy(s->stack);
    bench_offload_dense_free(s->dense);
    if (s->begin)
        cudaEventDestroy(s->begin);
    if (s->end)
        cudaEventDestroy(s->end);
}

/* figures: of passes over compressed and plain layers, and of copying. */
static int time_stacks(const offload_stacks *s, int rounds, bench_figure *const figures[3]) {
    static pass_fn *const passes[3] = {pass_compressed, pass_dense, pass_copy};
    for (int i = 0; i < 3; i++)
        if (bench_figure_begin(figures[i], rounds))
            return -1;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < 3; i++)
            if (time_passes(s, passes[i], figures[i]))
                return -1;
    return check_pass(s, pass_compressed) || check_pass(s, pass_dense) ? -1 : 0;
}

static int add_figures(const offload_stacks *s, bench_subject *subject, uint64_t budget, bench_figure *figures[3]) {
    char what[3][48], stay[24] = "none stay";
    trf_stack_info info;
    trf_stack_get_info(s->stack, &info);
    if (budget)
        snprintf(stay, sizeof stay, "in %.3g GB", 1e-9 * (double)budget);
    snprintf(what[0], sizeof what[0], "compressed, %s", stay);
    snprintf(what[1], sizeof what[1], "bf16, %s", stay);
    snprintf(what[2], sizeof what[2], "copying, beside %s", stay);
    figures[0] = bench_add_time(subject, what[0], what[1], info.offloaded_bytes);
    figures[1] = bench_add_time(subject, what[1], "", bench_offload_dense_offloaded_bytes(s->dense));
    figures[2] = bench_add_time(subject, what[2], "", s->session->block_bytes);
    return figures[0] && figures[1] && figures[2] ? 0 : -1;
}

/* Notes what the table says below the figures. */
static void note_rates(const offload_stacks *s, bench_figure *const figures[3]) {
    const double batch = s->session->batch;
    trf_stack_info info;
    trf_stack_get_info(s->stack, &info);
    for (int i = 0; i < 2; i++)
        bench_figure_finish(figures[i]);
    snprintf(figures[2]->note, sizeof figures[2]->note,
             "tokens a second: compressed %.2f, %u of %u layers stay; bf16 %.2f, %u stay. y of every layer as without "
             "copying.",
             batch / figures[0]->median, info.resident, info.layers, batch / figures[1]->median,
             bench_offload_dense_resident(s->dense));
}

static int measure_budget(const bench_request *request, bench_offload_session *session, uint64_t budget) {
    offload_stacks s = {.session = session};
    bench_figure *figures[3];
    char text[80];
    snprintf(text, sizeof text, "%d x %" PRIu32 " layers, %.3g G weights", BENCH_OFFLOAD_BLOCKS, session->per_block,
             1e-9 * (double)session->num_weights);
    bench_subject *subject = bench_add_figures_subject(request->record, text, session->batch);
    const int failed = !subject || make_stacks(&s, budget) || add_figures(&s, subject, budget, figures) ||
                       time_stacks(&s, request->options->repeats, figures);
    if (!failed) {
        note_rates(&s, figures);
        bench_print_subject(request->style, request->record, subject);
    }
    free_stacks(&s);
    return failed ? -1 : 0;
}

/* ---- the mode ---- */

static int measure_batch(const bench_request *request, const bench_device *device, uint32_t batch) {
    bench_offload_session session = {.options = request->options, .device = device, .batch = batch};
    const int failed = bench_offload_session_open(&session) || measure_budget(request, &session, 0) ||
                       measure_budget(request, &session, request->options->budget_bytes);
    bench_offload_session_close(&session);
    return failed ? -1 : 0;
}

static int measure(const bench_request *request) {
    const cli_options *options = request->options;
    const uint32_t one = 1, *batches = options->num_batches ? options->batches : &one;
    const int count = options->num_batches ? options->num_batches : 1;
    bench_device device = {0};
    int failed = bench_device_open(&device, request);
    for (int i = 0; !failed && i < count; i++)
        failed = measure_batch(request, &device, batches[i]);
    bench_device_close(&device);
    return failed ? -1 : 0;
}

static void set_defaults(cli_options *options) {
    options->repeats = options->repeats ? options->repeats : 7; /* passes through a whole model take long */
    options->budget_bytes = options->budget_bytes ? options->budget_bytes : 8000000000;
}

const bench_mode bench_mode_offload_cuda = {
    .name = "offload",
    .style = &bench_figures_style,
    .set_defaults = set_defaults,
    .measure = measure,
};
