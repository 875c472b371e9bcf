/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse bench --device cuda --mode layers and batch-sweep: layer by layer and codec by codec, fused, wide and
 * two-step products, decoding, cuBLASLt on the plain weights, a plain 8-bit product and a device copy.
 *
 * A *case* is one thing that is timed: a CUDA graph of several calls in a row, each on another copy of the weights, so
 * that none of them is in the cache. All cases of one layer and codec take turns, round by round, so that a change of
 * clocks meets all of them alike. */
#include "bench_layer_cases_cuda.h"
#include "bench_layer_weights_cuda.h"
#include "bench_memory.h"
#include "bench_modes.h"
#include "bench_table.h"
#include "cli_cuda.h"
#include "cli_messages.h"
#include "transfuse/device_memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char kBlobs[] = "blobs", kMeasurements[] = "measurements";

/* ---- the table ---- */

/* @return the figure of the compressed weights that a figure reads; NULL if it reads others. */
static const bench_figure *find_blob(const bench_subject *subject, const bench_figure *figure) {
    const char *favor = bench_text_of(&figure->labels, "favor");
    for (size_t i = 0; favor[0] && i < subject->num_figures; i++) {
        const bench_figure *blob = subject->figures[i];
        if (blob->json_list == kBlobs && strcmp(bench_text_of(&blob->labels, "favor"), favor) == 0)
            return blob;
    }
    return NULL;
}

/* The rate in bytes of weights in the form that the case reads. For decoding and copying, bytes that are read and bytes
 * that are written both count. */
static double bytes_a_second(const bench_figure *figure) {
    const uint64_t bytes =
        bench_integer_of(&figure->details, "bytes_read") + bench_integer_of(&figure->details, "bytes_written");
    return figure->median > 0 ? (double)bytes / figure->median : 0;
}

static const char *cell_coder(const bench_row *row, char *buffer, size_t buffer_bytes) {
    (void)buffer, (void)buffer_bytes;
    const char *favor = bench_text_of(&row->figure->labels, "favor");
    return favor[0] ? favor : "-";
}

static const char *cell_bits(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_figure *blob = find_blob(row->subject, row->figure);
    if (!blob)
        return "-";
    const char *bits = strcmp(bench_text_of(&row->figure->labels, "layout"), trf_layout_name(TRF_LAYOUT_CODED)) == 0
                           ? "bits_per_weight"
                           : "device_bits_per_weight";
    snprintf(buffer, buffer_bytes, "%.3f", bench_find_field(&blob->details, bits)->real);
    return buffer;
}

static const char *cell_microseconds(const bench_row *row, char *buffer, size_t buffer_bytes) {
    return bench_microseconds_text(row->figure, 2, buffer, buffer_bytes);
}

static const char *cell_weights_a_second(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const char *what = bench_text_of(&row->figure->labels, "what");
    if (strcmp(what, bench_layer_case_name(BENCH_CASE_COPY)) == 0 || row->figure->median <= 0)
        return "-";
    snprintf(buffer, buffer_bytes, "%.3f", 1e-12 * (double)row->subject->weights / row->figure->median);
    return buffer;
}

static const char *cell_bytes_a_second(const bench_row *row, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, "%.3f", 1e-12 * bytes_a_second(row->figure));
    return buffer;
}

static const char *cell_share_of_copy(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_figure *copy = bench_find_figure(row->subject, bench_layer_case_name(BENCH_CASE_COPY), 0);
    const double ceiling = copy ? bytes_a_second(copy) : 0;
    snprintf(buffer, buffer_bytes, "%.1f%%", ceiling > 0 ? 100 * bytes_a_second(row->figure) / ceiling : 0);
    return buffer;
}

static const char *cell_ratio(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const uint32_t batch = (uint32_t)bench_integer_of(&row->figure->labels, "batch");
    const bench_figure *dense =
        batch ? bench_find_figure(row->subject, bench_layer_case_name(BENCH_CASE_CUBLASLT), batch) : NULL;
    const double ratio = dense && row->figure->median > 0 ? dense->median / row->figure->median : 0;
    return bench_ratio_text(ratio, buffer, buffer_bytes);
}

static const char *cell_error(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_field *error = bench_find_field(&row->figure->details, "error_f32");
    if (!error)
        return "-";
    snprintf(buffer, buffer_bytes, "%.2e", error->real);
    return buffer;
}

static void print_heading(const bench_record *record) {
    bench_print_device(record);
    printf("Times: median (min-max) of %" PRIu64
           " rounds in which all cases of a layer and codec take turns, in changing order; weights not in the cache.\n",
           bench_integer_of(&record->environment, "runs"));
    printf("TB/s: of weights as they lie (decode, copy: read and written). ratio: cuBLASLt's time by this "
           "one.\n");
    printf("error: of F32 y against F64, relative. wrong: weights decoded to something else than on the CPU.\n\n");
}

static const bench_column kColumns[] = {
    {"layer", -13, bench_cell_shape}, {"sigma", -9, bench_cell_sigma}, {"codec", -10, bench_cell_codec},
    {"coder", -6, cell_coder},        {"bits", 7, cell_bits},          {"batch", 6, bench_cell_batch},
    {"what", -9, bench_cell_what},    {"us", 25, cell_microseconds},   {"Tw/s", 7, cell_weights_a_second},
    {"TB/s", 7, cell_bytes_a_second}, {"copy", 6, cell_share_of_copy}, {"ratio", 7, cell_ratio},
    {"error", 9, cell_error},
};

static const bench_csv_column kCsvColumns[] = {
    {"gpu", "gpu"},
    {"driver", "driver"},
    {"cuda_runtime", "cuda_runtime_version"},
    {"cublaslt", "cublaslt_version"},
    {"date", "date"},
    {"version", "version"},
    {"commit", "commit"},
    {"distribution", "distribution"},
    {"rows", "rows"},
    {"cols", "cols"},
    {"sigma", "sigma"},
    {"codec", "codec"},
    {"source", "source"},
    {"favor", "favor"},
    {"layout", "layout"},
    {"what", "what"},
    {"batch", "batch"},
    {"measure", BENCH_CSV_QUANTITY},
    {"run", BENCH_CSV_RUN},
    {"value", BENCH_CSV_VALUE},
};

static const char *const kJsonLists[] = {"results", NULL};
static const char *const kCsvDetails[] = {"bits_per_weight", "device_bits_per_weight",
                                          "entropy_bits",    "relative_rms_error",
                                          "exceptions",      "bytes",
                                          "wrong_weights",   "calls",
                                          "copies",          "bytes_read",
                                          "bytes_written",   "error",
                                          "error_f32",       NULL};

static const bench_style kStyle = {
    .print_heading = print_heading,
    .columns = kColumns,
    .num_columns = sizeof kColumns / sizeof kColumns[0],
    .num_label_columns = 7,
    .json_lists = kJsonLists,
    .json_has_median = 1,
    .csv_columns = kCsvColumns,
    .num_csv_columns = sizeof kCsvColumns / sizeof kCsvColumns[0],
    .csv_details = kCsvDetails,
    .csv_digits = 12,
};

/* ---- one layer and codec ---- */

/* The cases of a subject, in the order in which they take turns. */
typedef struct case_list {
    bench_layer_case *cases;
    bench_timer *timers;
    size_t count;
} case_list;

/* favor: "" if no compressed weights are read; layout: that of the compressed weights. */
static bench_figure *add_figure(bench_subject *subject, const char *json_list, const char *what, const char *favor,
                                trf_layout layout, uint32_t batch) {
    const int is_blob = json_list == kBlobs;
    bench_figure *figure = bench_add_figure(subject, json_list, is_blob ? NULL : "seconds");
    if (figure) {
        bench_add_bare_text(&figure->labels, "what", what)->csv_only = is_blob;
        bench_add_bare_text(&figure->labels, "favor", favor);
        bench_add_bare_text(&figure->labels, "layout", favor[0] ? trf_layout_name(layout) : "");
        bench_add_integer(&figure->labels, "batch", batch)->csv_only = is_blob;
    }
    return figure;
}

/* Adds every favor that the options ask for. */
static int add_favors(bench_layer_session *session, bench_subject *subject) {
    const cli_options *options = session->options;
    for (trf_favor favor = TRF_FAVOR_SPEED; favor <= TRF_FAVOR_SIZE; favor++) {
        if (options->has_favor && options->favor != favor)
            continue;
        bench_figure *figure = add_figure(subject, kBlobs, "blob", bench_favor_name((int)favor), options->layout, 0);
        if (!figure || bench_add_compressed(session, favor, figure))
            return -1;
    }
    return 0;
}

/* @return the layout that weights have, which PACKED may have made PACKED8; until they are loaded, that asked for. */
static trf_layout layout_of(const bench_layer_session *session, int compressed) {
    trf_device_layer_info info = {.layout = session->options->layout};
    if (compressed >= 0 && session->compressed[compressed].num_copies)
        trf_device_layer_get_info(session->compressed[compressed].copies[0], &info);
    return info.layout;
}

/* compressed: -1 for a case that reads other weights. */
static int add_case(case_list *list, bench_layer_session *session, bench_subject *subject, bench_layer_case_id id,
                    int compressed, uint32_t batch) {
    const char *favor = compressed < 0 ? "" : bench_favor_name((int)session->compressed[compressed].favor);
    bench_figure *figure =
        add_figure(subject, kMeasurements, bench_layer_case_name(id), favor, layout_of(session, compressed), batch);
    if (!figure)
        return -1;
    list->cases[list->count++] =
        (bench_layer_case){.session = session, .figure = figure, .id = id, .compressed = compressed, .batch = batch};
    return 0;
}

/* Lists the paths of one batch and compressed layer. */
static int list_paths(case_list *list, bench_layer_session *session, bench_subject *subject, int compressed,
                      uint32_t batch) {
    const int sweeps = session->options->mode == CLI_BENCH_SWEEP;
    if (session->options->layout == TRF_LAYOUT_PLAIN)
        return add_case(list, session, subject, BENCH_CASE_DENSE, compressed, batch);
    if (session->options->layout == TRF_LAYOUT_PACKED || session->options->layout == TRF_LAYOUT_PACKED8)
        return add_case(list, session, subject, BENCH_CASE_PACKED, compressed, batch);
    if ((!sweeps || batch <= TRF_FUSED_MAX_M) && add_case(list, session, subject, BENCH_CASE_FUSED, compressed, batch))
        return -1;
    if (batch > 8 && session->input->bench_codec != CLI_BENCH_BF16 && /* which has no wide kernels */
        add_case(list, session, subject, BENCH_CASE_WIDE, compressed, batch))
        return -1;
    if (add_case(list, session, subject, BENCH_CASE_TWO_STEP, compressed, batch))
        return -1;
    return sweeps ? add_case(list, session, subject, BENCH_CASE_AUTO, compressed, batch) : 0;
}

static int list_cases(case_list *list, bench_layer_session *session, bench_subject *subject) {
    const cli_options *options = session->options;
    const int num_compressed = session->num_compressed;
    if (add_case(list, session, subject, BENCH_CASE_COPY, -1, 0))
        return -1;
    for (int c = 0; c < num_compressed; c++)
        if (add_case(list, session, subject, BENCH_CASE_DECODE, c, 0))
            return -1;
    for (int i = 0; i < options->num_batches; i++) {
        const uint32_t batch = options->batches[i];
        if (add_case(list, session, subject, BENCH_CASE_CUBLASLT, -1, batch) ||
            (session->raw8_weights.count && add_case(list, session, subject, BENCH_CASE_RAW8, -1, batch)))
            return -1;
        for (int c = 0; c < num_compressed; c++)
            if (list_paths(list, session, subject, c, batch))
                return -1;
    }
    return 0;
}

static int time_cases(case_list *list, const bench_layer_session *session) {
    for (size_t i = 0; i < list->count; i++)
        if (bench_layer_case_make(&list->cases[i]))
            return -1;
    for (size_t i = 0; i < list->count; i++)
        if (bench_layer_case_capture(&list->cases[i], &list->timers[i]))
            return -1;
    return cli_cuda_check(cudaDeviceSynchronize(), "bench") ||
           bench_time(list->timers, list->count, session->options->repeats, session->device->stream);
}

static int measure_cases(bench_layer_session *session, bench_subject *subject) {
    const size_t compressed = (size_t)session->num_compressed,
                 most = 1 + compressed + (size_t)session->options->num_batches * (2 + 4 * compressed);
    case_list list = {bench_alloc_zeros(most, sizeof *list.cases), bench_alloc_zeros(most, sizeof *list.timers), 0};
    const int failed = !list.cases || !list.timers || list_cases(&list, session, subject) || time_cases(&list, session);
    for (size_t i = 0; i < list.count; i++) {
        bench_timer_free(&list.timers[i]);
        bench_layer_case_free(&list.cases[i]);
    }
    free(list.cases);
    free(list.timers);
    return failed ? -1 : 0;
}

/* Notes what the table says below times of decoding. */
static void note_decoding(const bench_subject *subject) {
    for (size_t i = 0; i < subject->num_figures; i++) {
        bench_figure *figure = subject->figures[i];
        const bench_figure *blob = find_blob(subject, figure);
        if (strcmp(bench_text_of(&figure->labels, "what"), bench_layer_case_name(BENCH_CASE_DECODE)) != 0 || !blob)
            continue;
        bench_figure_finish(figure);
        const double written = (double)bench_integer_of(&figure->details, "bytes_written");
        snprintf(figure->note, sizeof figure->note,
                 "%.0f GB/s of dense weights; %" PRIu64 " of %" PRIu64 " weights wrong",
                 figure->median > 0 ? 1e-9 * written / figure->median : 0,
                 bench_integer_of(&blob->details, "wrong_weights"), subject->weights);
    }
}

/* ---- the modes ---- */

typedef struct layers_context {
    const bench_request *request;
    const bench_device *device;
} layers_context;

static int measure_input(void *context, const bench_layer_input *input) {
    const layers_context *layers = context;
    const bench_request *request = layers->request;
    bench_layer_session session = {.options = request->options, .device = layers->device, .input = input};
    bench_subject *subject = bench_add_subject(request->record, kJsonLists[0]);
    if (!subject)
        return -1;
    bench_label_input(subject, input);
    const int failed = bench_layer_session_open(&session) || add_favors(&session, subject) ||
                       bench_add_dense(&session) || measure_cases(&session, subject) || bench_check_faults(&session);
    bench_layer_session_close(&session);
    if (failed)
        return -1;
    note_decoding(subject);
    bench_print_subject(request->style, request->record, subject);
    return 0;
}

static int measure(const bench_request *request) {
    bench_device device = {0};
    layers_context context = {request, &device};
    const int failed =
        bench_device_open(&device, request) || bench_for_each_input(request->options, measure_input, &context);
    bench_device_close(&device);
    return failed ? -1 : 0;
}

/* Fails if any weight was decoded to something else than the CPU decodes it to. */
static cli_exit check_weights(const bench_record *record) {
    for (size_t i = 0; i < record->num_subjects; i++) {
        const bench_subject *subject = record->subjects[i];
        for (size_t k = 0; k < subject->num_figures; k++) {
            const uint64_t wrong = bench_integer_of(&subject->figures[k]->details, "wrong_weights");
            if (wrong)
                return cli_fail(TRF_ERR_MISMATCH,
                                "bench: %s, %" PRIu64 " x %" PRIu64 ": the device decodes %" PRIu64 " weights wrongly",
                                bench_text_of(&subject->labels, "codec"), bench_integer_of(&subject->labels, "rows"),
                                bench_integer_of(&subject->labels, "cols"), wrong);
        }
    }
    return CLI_OK;
}

static void set_defaults(cli_options *options) { bench_set_layer_defaults(options, 20); }

static void set_sweep_defaults(cli_options *options) {
    if (!options->num_layers) {
        options->layers[options->num_layers++] = (cli_shape){8192, 8192};
        options->layers[options->num_layers++] = (cli_shape){14336, 4096};
    }
    if (!options->num_batches) /* every power of two, and three times it */
        for (uint32_t m = 1; m <= 8192; m *= 2) {
            options->batches[options->num_batches++] = m;
            if (m > 1 && m < 8192)
                options->batches[options->num_batches++] = m / 2 * 3;
        }
    if (!options->bench_codecs)
        options->bench_codecs = 1 << CLI_BENCH_BF16;
    options->has_favor = 1; /* speed, if none was asked for */
    set_defaults(options);
}

const bench_mode bench_mode_layers_cuda = {
    .name = "layers",
    .style = &kStyle,
    .set_defaults = set_defaults,
    .measure = measure,
    .exit_status = check_weights,
};

const bench_mode bench_mode_sweep_cuda = {
    .name = "batch-sweep",
    .style = &kStyle,
    .set_defaults = set_sweep_defaults,
    .measure = measure,
    .exit_status = check_weights,
};
