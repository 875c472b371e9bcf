/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse bench --mode overlap: independent layers in one call (trf_linear_group), one after another on one stream,
 * and each on a stream of its own. All are graphs over rotating copies of the layers. */
#include "bench_device_cuda.h"
#include "bench_matrix_cuda.h"
#include "bench_memory.h"
#include "bench_modes.h"
#include "bench_plan_cuda.h"
#include "bench_table.h"
#include "bench_timer_cuda.h"
#include "cli_cuda.h"
#include "cli_messages.h"
#include "transfuse/groups.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_LAYERS = CLI_MAX_LIST,
    MIN_SETS = 2,
    MIN_CALLS = 16 /* in a graph */
};

/* Layers that are run together. */
typedef struct overlap_subject {
    char name[80];
    uint32_t count;
    cli_shape shapes[MAX_LAYERS];
} overlap_subject;

static const overlap_subject kSubjects[] = {
    {"5 x 2048x5632 bf16", 5, {{2048, 5632}, {2048, 5632}, {2048, 5632}, {2048, 5632}, {2048, 5632}}},
    {"4096x4096, 2 x 1024x4096 bf16", 3, {{4096, 4096}, {1024, 4096}, {1024, 4096}}},
    {"2 x 14336x4096 bf16", 2, {{14336, 4096}, {14336, 4096}}},
};

/* One set of the layers, each with memory of its own. */
typedef struct overlap_set {
    trf_device_layer *layers[MAX_LAYERS];
    bench_plan plans[MAX_LAYERS];
    trf_layer_group *group;
} overlap_set;

typedef struct overlap_session {
    const bench_request *request;
    const bench_device *device;
    const overlap_subject *subject;
    bench_matrix matrices[MAX_LAYERS]; /* only of layers whose shape no earlier layer has */
    uint32_t batch, num_sets;
    overlap_set *sets;
    void *x[MAX_LAYERS], *y[MAX_LAYERS], *workspaces[MAX_LAYERS]; /* of layer i, for streams of their own */
    uint16_t *x_host[MAX_LAYERS];
    void *workspace;
    uint64_t layer_bytes; /* of a set, compressed */
    cudaStream_t streams[MAX_LAYERS];
    cudaEvent_t fork, join[MAX_LAYERS];
} overlap_session;

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

/* @return the first layer that has this layer's shape. */
static uint32_t first_of_same_shape(const overlap_subject *subject, uint32_t layer) {
    uint32_t i = 0;
    while (subject->shapes[i].rows != subject->shapes[layer].rows ||
           subject->shapes[i].cols != subject->shapes[layer].cols)
        i++;
    return i;
}

/* ---- what is timed ---- */

static int queue_grouped(void *context, uint32_t call, cudaStream_t stream) {
    overlap_session *s = context;
    trf_error err = {0};
    if (trf_linear_group(s->sets[call % s->num_sets].group, (const void *const *)s->x, s->y, s->workspace, stream,
                         &err))
        return report(&err);
    return 0;
}

static int queue_serial(void *context, uint32_t call, cudaStream_t stream) {
    overlap_session *s = context;
    const overlap_set *set = &s->sets[call % s->num_sets];
    for (uint32_t i = 0; i < s->subject->count; i++)
        if (bench_plan_queue(&set->plans[i], s->x[i], s->y[i], s->workspace, stream))
            return -1;
    return 0;
}

static int queue_streams(void *context, uint32_t call, cudaStream_t stream) {
    overlap_session *s = context;
    const overlap_set *set = &s->sets[call % s->num_sets];
    int failed = cli_cuda_check(cudaEventRecord(s->fork, stream), "bench: an event");
    for (uint32_t i = 0; !failed && i < s->subject->count; i++) {
        const cudaStream_t side = i ? s->streams[i] : stream;
        if (i)
            failed = cli_cuda_check(cudaStreamWaitEvent(side, s->fork, 0), "bench: an event");
        failed = failed || bench_plan_queue(&set->plans[i], s->x[i], s->y[i], s->workspaces[i], side);
        if (!failed && i)
            failed = cli_cuda_check(cudaEventRecord(s->join[i], side), "bench: an event");
    }
    for (uint32_t i = 1; !failed && i < s->subject->count; i++)
        failed = cli_cuda_check(cudaStreamWaitEvent(stream, s->join[i], 0), "bench: an event");
    return failed ? -1 : 0;
}

static const struct {
    const char *name, *against;
    bench_queue_fn *queue;
} kCases[] = {
    {"one after another", "", queue_serial},
    {"grouped", "one after another", queue_grouped},
    {"each on a stream", "one after another", queue_streams},
};
enum {
    CASES = sizeof kCases / sizeof kCases[0]
};

/* ---- the session ---- */

static int make_streams(overlap_session *s) {
    int failed = cli_cuda_check(cudaEventCreateWithFlags(&s->fork, cudaEventDisableTiming), "bench: an event");
    for (uint32_t i = 1; !failed && i < s->subject->count; i++)
        failed = cli_cuda_check(cudaStreamCreateWithFlags(&s->streams[i], cudaStreamNonBlocking), "bench: a stream") ||
                 cli_cuda_check(cudaEventCreateWithFlags(&s->join[i], cudaEventDisableTiming), "bench: an event");
    return failed ? -1 : 0;
}

/* Encodes what is needed, and uploads as many sets as make four times the L2 cache. */
static int make_layers(overlap_session *s) {
    const uint64_t l2_bytes = s->device->l2_bytes;
    for (uint32_t i = 0; i < s->subject->count; i++) {
        const uint32_t first = first_of_same_shape(s->subject, i);
        if (first == i && bench_matrix_make(&s->matrices[i], 1, s->subject->shapes[i], s->request->options))
            return -1;
        s->layer_bytes += s->matrices[first].blob.size;
    }
    assert(s->layer_bytes > 0);
    const uint64_t sets = (4 * l2_bytes + s->layer_bytes - 1) / s->layer_bytes;
    s->num_sets = sets < MIN_SETS ? MIN_SETS : (uint32_t)sets;
    s->sets = bench_alloc_zeros(s->num_sets, sizeof *s->sets);
    if (!s->sets)
        return -1;
    for (uint32_t n = 0; n < s->num_sets; n++)
        for (uint32_t i = 0; i < s->subject->count; i++)
            if (bench_matrix_upload(&s->matrices[first_of_same_shape(s->subject, i)], s->device->context,
                                    &s->sets[n].layers[i]))
                return -1;
    return 0;
}

static void session_free(overlap_session *s) {
    for (uint32_t n = 0; s->sets && n < s->num_sets; n++)
        for (uint32_t i = 0; i < s->subject->count; i++)
            trf_device_layer_destroy(s->sets[n].layers[i]);
    free(s->sets);
    for (uint32_t i = 0; i < s->subject->count; i++) {
        bench_matrix_free(&s->matrices[i]);
        if (s->streams[i])
            cudaStreamDestroy(s->streams[i]);
        if (s->join[i])
            cudaEventDestroy(s->join[i]);
    }
    if (s->fork)
        cudaEventDestroy(s->fork);
}

/* ---- one batch ---- */

static uint64_t max_of(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Makes a set's plans and group. *workspace_bytes grows to what the largest of them needs. */
static int plan_set(const overlap_session *s, overlap_set *set, uint64_t *workspace_bytes) {
    trf_group_member members[MAX_LAYERS];
    trf_layer_group_info info;
    trf_error err = {0};
    for (uint32_t i = 0; i < s->subject->count; i++) {
        trf_group_member_init(&members[i]);
        members[i].layer = set->layers[i];
        members[i].m = s->batch;
        members[i].x_dtype = members[i].y_dtype = TRF_DTYPE_BF16;
        if (bench_plan_make_bf16(&set->plans[i], set->layers[i], s->batch))
            return -1;
        *workspace_bytes = max_of(*workspace_bytes, set->plans[i].info.workspace_bytes);
    }
    if (trf_layer_group_create(members, s->subject->count, &set->group, &err))
        return report(&err);
    trf_layer_group_get_info(set->group, &info);
    *workspace_bytes = max_of(*workspace_bytes, info.workspace_bytes);
    return 0;
}

/* Makes plans, x, y and workspaces. */
static int plan_batch(overlap_session *s) {
    uint64_t workspace_bytes = 0;
    for (uint32_t i = 0; i < s->subject->count; i++) {
        const cli_shape shape = s->subject->shapes[i];
        s->y[i] = cli_cuda_alloc((uint64_t)s->batch * shape.rows * 2);
        if (!s->y[i] || bench_matrix_draw_x(s->batch, shape.cols, &s->x[i], &s->x_host[i]))
            return -1;
    }
    for (uint32_t n = 0; n < s->num_sets; n++)
        if (plan_set(s, &s->sets[n], &workspace_bytes))
            return -1;
    for (uint32_t i = 0; i < s->subject->count; i++)
        if (!(s->workspaces[i] = cli_cuda_alloc(s->sets[0].plans[i].info.workspace_bytes)))
            return -1;
    s->workspace = cli_cuda_alloc(workspace_bytes);
    return s->workspace ? 0 : -1;
}

static void unplan_batch(overlap_session *s) {
    for (uint32_t n = 0; n < s->num_sets; n++) {
        trf_layer_group_destroy(s->sets[n].group);
        s->sets[n].group = NULL;
        for (uint32_t i = 0; i < s->subject->count; i++)
            bench_plan_free(&s->sets[n].plans[i]);
    }
    for (uint32_t i = 0; i < s->subject->count; i++) {
        cudaFree(s->x[i]);
        cudaFree(s->y[i]);
        cudaFree(s->workspaces[i]);
        free(s->x_host[i]);
        s->x[i] = s->y[i] = s->workspaces[i] = s->x_host[i] = NULL;
    }
    cudaFree(s->workspace);
    s->workspace = NULL;
}

/* Measures the error of one call. */
static int measure_error(overlap_session *s, bench_queue_fn *queue, bench_figure *figure) {
    const cudaStream_t stream = s->device->stream;
    bench_error error = {0};
    for (uint32_t i = 0; i < s->subject->count; i++)
        if (cli_cuda_check(cudaMemset(s->y[i], 0xFF, (uint64_t)s->batch * s->subject->shapes[i].rows * 2),
                           "bench: clearing y"))
            return -1;
    if (cli_cuda_check(cudaDeviceSynchronize(), "bench: clearing y") || queue(s, 0, stream) ||
        cli_cuda_check(cudaStreamSynchronize(stream), "bench: multiplying"))
        return -1;
    for (uint32_t i = 0; i < s->subject->count; i++)
        if (bench_matrix_add_error(&s->matrices[first_of_same_shape(s->subject, i)], s->x_host[i], s->batch, s->y[i],
                                   &error))
            return -1;
    bench_error_finish(&error, figure);
    return 0;
}

static int time_batch(overlap_session *s) {
    const bench_request *request = s->request;
    const cudaStream_t stream = s->device->stream;
    const uint32_t calls = (MIN_CALLS + s->num_sets - 1) / s->num_sets * s->num_sets;
    bench_timer timers[CASES] = {0};
    bench_subject *subject = bench_add_figures_subject(request->record, s->subject->name, s->batch);
    int failed = !subject;
    for (int i = 0; !failed && i < CASES; i++) {
        timers[i].figure = bench_add_time(subject, kCases[i].name, kCases[i].against, s->layer_bytes);
        failed = !timers[i].figure || measure_error(s, kCases[i].queue, timers[i].figure) ||
                 bench_timer_make(&timers[i], kCases[i].queue, s, calls, stream);
    }
    failed = failed || bench_time(timers, CASES, request->options->repeats, stream);
    for (int i = 0; i < CASES; i++)
        bench_timer_free(&timers[i]);
    if (!failed)
        bench_print_subject(request->style, request->record, subject);
    return failed ? -1 : 0;
}

/* ---- the mode ---- */

static int measure_subject(const bench_request *request, const bench_device *device, const overlap_subject *subject) {
    static const uint32_t batches[] = {1, 8};
    const cli_options *options = request->options;
    const uint32_t *chosen = options->num_batches ? options->batches : batches;
    const int count = options->num_batches ? options->num_batches : 2;
    overlap_session s = {.request = request, .device = device, .subject = subject};
    int failed = make_layers(&s) || make_streams(&s);
    for (int b = 0; !failed && b < count; b++) {
        s.batch = chosen[b];
        failed = plan_batch(&s) || time_batch(&s);
        unplan_batch(&s);
    }
    session_free(&s);
    return failed ? -1 : 0;
}

/* One subject with all layers of --layers. */
static overlap_subject subject_of_options(const cli_options *options) {
    overlap_subject given = {.count = (uint32_t)options->num_layers};
    size_t at = 0;
    for (int i = 0; i < options->num_layers; i++) {
        given.shapes[i] = options->layers[i];
        if (at < sizeof given.name)
            at += (size_t)snprintf(given.name + at, sizeof given.name - at, "%s%" PRIu32 "x%" PRIu32, i ? ", " : "",
                                   options->layers[i].rows, options->layers[i].cols);
    }
    return given;
}

static int measure_all(const bench_request *request, const bench_device *device) {
    if (request->options->num_layers) {
        const overlap_subject given = subject_of_options(request->options);
        return measure_subject(request, device, &given);
    }
    for (size_t i = 0; i < sizeof kSubjects / sizeof kSubjects[0]; i++)
        if (measure_subject(request, device, &kSubjects[i]))
            return -1;
    return 0;
}

static int measure(const bench_request *request) {
    bench_device device = {0};
    const int failed = bench_device_open(&device, request) || measure_all(request, &device);
    bench_device_close(&device);
    return failed ? -1 : 0;
}

static void set_defaults(cli_options *options) { options->repeats = options->repeats ? options->repeats : 20; }

const bench_mode bench_mode_overlap_cuda = {
    .name = "overlap",
    .style = &bench_figures_style,
    .set_defaults = set_defaults,
    .measure = measure,
};
