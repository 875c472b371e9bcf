/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse bench --device cuda --mode load: loads a checkpoint to the device, checked on the way, and compares with
 * copies of the same bytes that are already page-locked; then looks up rows (bench_load_rows_cuda.h).
 *
 * The checkpoint is a temporary file in which the weights of each shape stand under several names; it is in the page
 * cache when it is loaded. It is removed whatever happens: signals only ask the load under way to stop. Layers are
 * loaded in the layout that was asked for and, if that is not coded, in the same turns coded as well: one by one, and
 * several at once as the loader of transformers models does it. */
#include "bench_device_cuda.h"
#include "bench_load_checkpoint.h"
#include "bench_load_rows_cuda.h"
#include "bench_memory.h"
#include "bench_modes.h"
#include "bench_table.h"
#include "cli_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOADS_AT_ONCE = 4
};

/* What is timed, in turns. */
typedef enum load_case {
    CASE_PINNED,
    CASE_LOAD,
    CASE_LOADS_AT_ONCE,
    CASE_ONE_THREAD,
    CASE_CODED,
    CASE_CODED_AT_ONCE,
    CASE_PAGEABLE,
    NUM_CASES
} load_case;

static const struct {
    const char *name, *against;
} kCases[NUM_CASES] = {
    [CASE_PINNED] = {"copy, page-locked", ""},
    [CASE_LOAD] = {"load", "copy, page-locked"},
    [CASE_LOADS_AT_ONCE] = {"load, 4 layers at once", "copy, page-locked"},
    [CASE_ONE_THREAD] = {"load, 1 thread", "copy, page-locked"},
    [CASE_CODED] = {"load, coded", "copy, page-locked"},
    [CASE_CODED_AT_ONCE] = {"load, coded, 4 layers at once", "copy, page-locked"},
    [CASE_PAGEABLE] = {"copy, pageable", "copy, page-locked"},
};

typedef struct load_session {
    const bench_request *request;
    const bench_device *device;
    bench_checkpoint checkpoint;
    trf_device_layer **loaded; /* [num_layers], NULL where there is none */
    void *pinned, *pageable, *target;
    cli_progress progress;
} load_session;

/* ---- what is timed ---- */

static trf_layout layout_of(const load_session *s) { return s->request->options->layout; }

static int is_timed(const load_session *s, load_case which) {
    return (which != CASE_CODED && which != CASE_CODED_AT_ONCE) || layout_of(s) != TRF_LAYOUT_CODED;
}

static void drop_layers(load_session *s) {
    for (int i = 0; s->loaded && i < s->checkpoint.num_layers; i++) {
        trf_device_layer_destroy(s->loaded[i]);
        s->loaded[i] = NULL;
    }
}

/* Loads layers first, first + step, and so on. progress may be NULL. */
static int load_some(load_session *s, trf_layout layout, int first, int step, int threads, cli_progress *progress) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = layout;
    options.threads = threads;
    options.progress = progress ? cli_progress_step : NULL;
    options.progress_context = progress;
    for (int i = first; i < s->checkpoint.num_layers; i += step) {
        char name[32];
        trf_error err = {0};
        bench_checkpoint_name_layer(i, name);
        if (trf_device_layer_load(s->device->context, s->checkpoint.opened, name, &options, &s->loaded[i], &err))
            return cli_report_error(&err), -1;
    }
    return 0;
}

/* A thread that loads every LOADS_AT_ONCE-th layer. */
typedef struct load_thread {
    load_session *session;
    trf_layout layout;
    int first, failed;
} load_thread;

static void *load_every(void *context) {
    load_thread *thread = context;
    thread->failed = load_some(thread->session, thread->layout, thread->first, LOADS_AT_ONCE,
                               thread->session->request->options->threads, NULL);
    return NULL;
}

static int load_at_once(load_session *s, trf_layout layout) {
    pthread_t ids[LOADS_AT_ONCE];
    load_thread threads[LOADS_AT_ONCE];
    int begun = 1, failed = 0;
    for (; begun < LOADS_AT_ONCE; begun++) { /* this thread is the first */
        threads[begun] = (load_thread){s, layout, begun, 0};
        if (pthread_create(&ids[begun], NULL, load_every, &threads[begun])) {
            cli_fail(TRF_ERR_MEMORY, "bench: out of memory for a thread");
            failed = 1;
            break;
        }
    }
    failed = failed || load_some(s, layout, 0, LOADS_AT_ONCE, s->request->options->threads, &s->progress);
    while (--begun > 0) {
        pthread_join(ids[begun], NULL);
        failed = failed || threads[begun].failed;
    }
    return failed ? -1 : 0;
}

/* Copies the bytes of all layers to one place on the device, queued one after the other. */
static int copy_all(const load_session *s, const void *from) {
    for (int i = 0; i < s->checkpoint.num_layers; i++) {
        const uint64_t bytes = bench_checkpoint_layer_bytes(&s->checkpoint, i);
        const cudaError_t error =
            from == s->pinned ? cudaMemcpyAsync(s->target, from, bytes, cudaMemcpyHostToDevice, s->device->stream)
                              : cudaMemcpy(s->target, from, bytes, cudaMemcpyHostToDevice);
        if (cli_cuda_check(error, "bench: a copy"))
            return -1;
    }
    return cli_cuda_check(cudaDeviceSynchronize(), "bench: a copy");
}

static int load_or_copy(load_session *s, load_case which) {
    switch (which) {
    case CASE_PINNED:
        return copy_all(s, s->pinned);
    case CASE_PAGEABLE:
        return copy_all(s, s->pageable);
    case CASE_LOADS_AT_ONCE:
        return load_at_once(s, layout_of(s));
    case CASE_CODED_AT_ONCE:
        return load_at_once(s, TRF_LAYOUT_CODED);
    case CASE_ONE_THREAD:
        return load_some(s, layout_of(s), 0, 1, 1, &s->progress);
    default:
        return load_some(s, which == CASE_CODED ? TRF_LAYOUT_CODED : layout_of(s), 0, 1, s->request->options->threads,
                         &s->progress);
    }
}

/* ---- timing ---- */

static int add_figures(const load_session *s, bench_subject *subject, bench_figure *figures[NUM_CASES]) {
    for (int i = 0; i < NUM_CASES; i++) {
        if (!is_timed(s, (load_case)i))
            continue;
        figures[i] = bench_add_time(subject, kCases[i].name, kCases[i].against, s->checkpoint.total);
        if (!figures[i] || bench_figure_begin(figures[i], s->request->options->repeats))
            return -1;
    }
    return 0;
}

/* figure: NULL if this time does not count. */
static int time_case(load_session *s, load_case which, bench_figure *figure) {
    if (bench_checkpoint_is_stopped(&s->progress))
        return -1;
    const double start = cli_now();
    const int failed = load_or_copy(s, which);
    const double seconds = cli_now() - start;
    drop_layers(s);
    if (!failed && figure)
        bench_figure_take(figure, seconds);
    return failed;
}

static int time_cases(load_session *s) {
    const bench_request *request = s->request;
    char text[80], named[32];
    bench_load_name_weights(request->options, named);
    snprintf(text, sizeof text, "%d layers, %.2f GB of %s", s->checkpoint.num_layers,
             1e-9 * (double)s->checkpoint.total, named);
    bench_subject *subject = bench_add_figures_subject(request->record, text, 0);
    bench_figure *figures[NUM_CASES];
    if (!subject || add_figures(s, subject, figures))
        return -1;
    for (int repeat = -1; repeat < request->options->repeats; repeat++)
        for (int i = 0; i < NUM_CASES; i++)
            if (is_timed(s, (load_case)i) && time_case(s, (load_case)i, repeat < 0 ? NULL : figures[i]))
                return -1;
    cli_progress_end(&s->progress);
    bench_print_subject(request->style, request->record, subject);
    return 0;
}

static int make_buffers(load_session *s) {
    const uint64_t bytes = s->checkpoint.largest;
    s->loaded = bench_alloc_zeros((uint64_t)s->checkpoint.num_layers, sizeof(trf_device_layer *));
    s->pageable = bench_alloc(bytes);
    s->target = cli_cuda_alloc(bytes);
    if (!s->loaded || !s->pageable || !s->target ||
        cli_cuda_check(cudaMallocHost(&s->pinned, bytes), "bench: page-locked memory"))
        return -1;
    memset(s->pageable, 1, bytes);
    memset(s->pinned, 1, bytes);
    return 0;
}

/* ---- the mode ---- */

static int measure_rows(const load_session *s) {
    const cli_shape table = s->checkpoint.table;
    uint16_t *weights = bench_checkpoint_weights(&s->checkpoint, table);
    const int failed = !weights || bench_measure_rows(s->request, s->device, table, weights, &s->checkpoint.encode);
    free(weights);
    return failed;
}

static int measure_all(load_session *s) {
    int failed = bench_checkpoint_encode(&s->checkpoint) || make_buffers(s) ||
                 bench_checkpoint_write(&s->checkpoint, &s->progress) || time_cases(s);
    bench_checkpoint_remove(&s->checkpoint);
    drop_layers(s);
    failed = failed || measure_rows(s);
    cudaFree(s->target);
    cudaFreeHost(s->pinned);
    free(s->pageable);
    free(s->loaded);
    bench_checkpoint_free(&s->checkpoint);
    return failed;
}

static int measure(const bench_request *request) {
    bench_device device = {0};
    load_session session = {.request = request, .device = &device, .checkpoint = {.options = request->options}};
    const int failed = bench_device_open(&device, request) || measure_all(&session);
    bench_device_close(&device);
    return failed ? -1 : 0;
}

static void set_defaults(cli_options *options) { options->repeats = options->repeats ? options->repeats : 20; }

const bench_mode bench_mode_load_cuda = {
    .name = "load",
    .style = &bench_figures_style,
    .set_defaults = set_defaults,
    .measure = measure,
};
