/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse bench --mode layers on the CPU: encoding, decoding and products, and LZ4 and zstd on the same weights. */
#include "bench_compressors.h"
#include "bench_environment.h"
#include "bench_layer_inputs.h"
#include "bench_memory.h"
#include "bench_modes.h"
#include "bench_table.h"
#include "bench_weights.h"
#include "cli_messages.h"
#include "transfuse/cpu.h"
#include "transfuse/device_memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const kCompressors[] = {"lz4", "zstd"};

/* Calls work once to warm up, then times it `repeats` times. @return 0, or -1 after a message. */
static int time_repeats(int repeats, int (*work)(void *context), void *context, bench_figure *figure) {
    if (!figure || bench_figure_begin(figure, repeats) || work(context))
        return -1;
    for (int i = 0; i < repeats; i++) {
        const double start = cli_now();
        if (work(context))
            return -1;
        bench_figure_take(figure, cli_now() - start);
    }
    return 0;
}

/* A figure of a single subject, which has no batch. */
static bench_figure *add_figure(bench_subject *subject, const char *quantity) {
    bench_figure *figure = bench_add_figure(subject, NULL, quantity);
    if (figure)
        bench_add_integer(&figure->labels, "batch", 0)->csv_only = 1;
    return figure;
}

/* ---- this library ---- */

typedef struct codec_work {
    const bench_request *request;
    const bench_layer_input *input;
    bench_subject *subject;
    const void *source;
    trf_encode_options encode;
    bench_blob blob;
    trf_layer *layer;
    void *decoded;
    uint64_t decoded_bytes;
    float *x, *y;
    uint32_t batch;
} codec_work;

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

static int run_encode(void *context) {
    codec_work *work = context;
    return bench_encode(work->source, work->input->dtype, work->input->shape, &work->encode, &work->blob);
}

static int run_decode(void *context) {
    codec_work *work = context;
    trf_error err = {0};
    if (trf_layer_decode(work->layer, work->decoded, work->decoded_bytes, work->encode.threads, &err))
        return report(&err);
    return 0;
}

static int run_matmul(void *context) {
    codec_work *work = context;
    trf_error err = {0};
    if (trf_layer_matmul_cpu(work->layer, work->x, work->batch, work->y, work->encode.threads, &err))
        return report(&err);
    return 0;
}

static void describe_blob(const codec_work *work, bench_figure *figure) {
    const trf_layer_report *found = &work->blob.report;
    bench_fields *details = &figure->details;
    trf_layer_info info;
    trf_layer_get_info(work->layer, &info);
    bench_add_integer(details, "weights", found->weights);
    bench_add_integer(details, "source_bytes", found->source_bytes);
    bench_add_integer(details, "bytes", found->blob_bytes);
    bench_add_real(details, "bits_per_weight", 8 * cli_ratio(found->blob_bytes, found->weights));
    bench_add_real(details, "entropy_bits", found->entropy_bits);
    bench_add_real(details, "relative_rms_error", found->relative_rms_error);
    bench_add_integer(details, "exceptions", found->exceptions);
    bench_add_integer(details, "predictor_modes", found->predictor_modes);
    bench_add_integer(details, "class_bits", info.class_bits);
    bench_add_integer(details, "probability_bits", info.probability_bits);
    bench_add_integer(details, "slab_cols", info.slab_cols);
}

static int measure_encoding(codec_work *work) {
    const int repeats = work->request->options->repeats;
    trf_error err = {0};
    bench_figure *const blob = add_figure(work->subject, NULL);
    work->encode.verify = 0;
    if (!blob || time_repeats(repeats, run_encode, work, add_figure(work->subject, "encode_seconds")))
        return -1;
    work->encode.verify = 1;
    if (time_repeats(repeats, run_encode, work, add_figure(work->subject, "encode_verified_seconds")))
        return -1;
    if (trf_layer_from_memory(work->blob.bytes, work->blob.size, &work->layer, &err))
        return report(&err);
    describe_blob(work, blob);
    return 0;
}

/* Times decoding. For lossless codecs the decoded weights are compared with the source. */
static int measure_decoding(codec_work *work) {
    work->decoded_bytes = work->subject->weights * trf_dtype_bytes(work->input->dtype);
    work->decoded = bench_alloc(work->decoded_bytes);
    if (!work->decoded ||
        time_repeats(work->request->options->repeats, run_decode, work, add_figure(work->subject, "decode_seconds")))
        return -1;
    if (work->encode.codec != TRF_CODEC_INT && memcmp(work->decoded, work->source, work->decoded_bytes)) {
        cli_fail(TRF_ERR_MISMATCH, "bench: %s: the decoded weights differ from the source", work->input->codec);
        return -1;
    }
    return 0;
}

static int measure_product(codec_work *work, uint32_t batch) {
    const uint64_t x_count = (uint64_t)batch * work->input->shape.cols;
    bench_figure *figure = bench_add_figure(work->subject, "matmul", "matmul_seconds");
    if (!figure)
        return -1;
    bench_add_integer(&figure->labels, "batch", batch);
    figure->json_key = "seconds";
    work->batch = batch;
    work->x = bench_alloc(x_count * sizeof *work->x);
    work->y = bench_alloc((uint64_t)batch * work->input->shape.rows * sizeof *work->y);
    int failed = !work->x || !work->y;
    if (!failed) {
        bench_draw(work->x, x_count, 0);
        failed = time_repeats(work->request->options->repeats, run_matmul, work, figure);
    }
    free(work->x);
    free(work->y);
    return failed ? -1 : 0;
}

static int measure_products(codec_work *work) {
    for (int i = 0; i < work->request->options->num_batches; i++)
        if (measure_product(work, work->request->options->batches[i]))
            return -1;
    return 0;
}

static int measure_codec(const bench_request *request, const bench_layer_input *input, trf_favor favor) {
    codec_work work = {.request = request, .input = input, .encode = input->encode};
    char coder[32];
    work.encode.favor = favor;
    work.source = bench_input_weights(input, input->dtype);
    work.subject = bench_add_subject(request->record, "results");
    if (!work.subject)
        return -1;
    bench_label_input(work.subject, input);
    bench_add_bare_text(&work.subject->labels, "favor", bench_favor_name((int)favor));
    snprintf(coder, sizeof coder, "transfuse-%s", bench_favor_name((int)favor));
    bench_add_bare_text(&work.subject->labels, "compressor", coder)->csv_only = 1;
    const int failed = measure_encoding(&work) || measure_decoding(&work) || measure_products(&work);
    trf_layer_free(work.layer);
    trf_free(work.blob.bytes);
    free(work.decoded);
    if (!failed)
        bench_print_subject(request->style, request->record, work.subject);
    return failed ? -1 : 0;
}

/* ---- LZ4 and zstd ---- */

static int time_compressor(const bench_request *request, bench_subject *subject, bench_compressor *compressor,
                           uint64_t source_bytes) {
    bench_figure *const size = add_figure(subject, NULL), *const compress = add_figure(subject, "encode_seconds"),
                        *const decompress = add_figure(subject, "decode_seconds");
    const int repeats = request->options->repeats;
    if (!size || !compress || !decompress || time_repeats(repeats, bench_compress, compressor, compress) ||
        time_repeats(repeats, bench_decompress, compressor, decompress))
        return -1;
    const uint64_t bytes = bench_compressor_output_bytes(compressor);
    compress->json_key = "compress_seconds";
    decompress->json_key = "decompress_seconds";
    bench_add_integer(&size->details, "weights", subject->weights);
    bench_add_integer(&size->details, "source_bytes", source_bytes);
    bench_add_integer(&size->details, "bytes", bytes);
    bench_add_real(&size->details, "bits_per_weight", 8 * cli_ratio(bytes, subject->weights));
    return 0;
}

/* dtype: that of the weights that are compressed; for int8 these are the plain codes. */
static int measure_baseline(const bench_request *request, const bench_layer_input *input, trf_dtype dtype,
                            const char *name) {
    bench_subject *subject = bench_add_subject(request->record, "baselines");
    if (!subject)
        return -1;
    bench_label_input(subject, input);
    bench_add_bare_text(&subject->labels, "compressor", name);
    bench_add_bare_text(&subject->labels, "input", trf_dtype_name(dtype));
    const uint64_t bytes = subject->weights * trf_dtype_bytes(dtype);
    bench_compressor *compressor = bench_compressor_open(name, bench_input_weights(input, dtype), bytes);
    const int failed = !compressor || time_compressor(request, subject, compressor, bytes);
    bench_compressor_close(compressor);
    if (!failed)
        bench_print_subject(request->style, request->record, subject);
    return failed ? -1 : 0;
}

/* ---- the table ---- */

static const bench_figure *find_quantity(const bench_row *row, const char *quantity, uint32_t batch) {
    for (size_t i = 0; i < row->subject->num_figures; i++) {
        const bench_figure *figure = row->subject->figures[i];
        if (figure->quantity && strcmp(figure->quantity, quantity) == 0 &&
            bench_integer_of(&figure->labels, "batch") == batch)
            return figure;
    }
    return NULL;
}

/* The first figure has the sizes. @return NULL if it has no such field. */
static const bench_field *find_size(const bench_row *row, const char *key) {
    return bench_find_field(&row->subject->figures[0]->details, key);
}

static const char *cell_coder(const bench_row *row, char *buffer, size_t buffer_bytes) {
    (void)buffer, (void)buffer_bytes;
    const char *favor = bench_text_of(&row->subject->labels, "favor");
    return favor[0] ? favor : bench_text_of(&row->subject->labels, "compressor");
}

static const char *cell_bits(const bench_row *row, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, "%.3f", find_size(row, "bits_per_weight")->real);
    return buffer;
}

static const char *cell_entropy(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_field *entropy = find_size(row, "entropy_bits");
    if (!entropy)
        return "-";
    snprintf(buffer, buffer_bytes, "%.3f", entropy->real);
    return buffer;
}

static const char *cell_over(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_field *entropy = find_size(row, "entropy_bits");
    if (!entropy)
        return "-";
    snprintf(buffer, buffer_bytes, "%+.3f", find_size(row, "bits_per_weight")->real - entropy->real);
    return buffer;
}

static const char *cell_error(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_field *error = find_size(row, "relative_rms_error");
    if (!error || error->real <= 0)
        return "-";
    snprintf(buffer, buffer_bytes, "%.5f", error->real);
    return buffer;
}

static double million_a_second(uint64_t weights, double seconds) {
    return seconds > 0 ? (double)weights / seconds / 1e6 : 0;
}

/* "812 (790-830)": median, slowest and fastest repeat. figure: NULL if there is none. */
static const char *rate_text(const bench_row *row, const bench_figure *figure, char *buffer, size_t buffer_bytes) {
    const uint64_t weights = row->subject->weights;
    if (!figure)
        return "-";
    const double rate = million_a_second(weights, figure->median);
    const int digits = rate < 100 ? 1 : 0;
    snprintf(buffer, buffer_bytes, "%.*f (%.*f-%.*f)", digits, rate, digits, million_a_second(weights, figure->max),
             digits, million_a_second(weights, figure->min));
    return buffer;
}

static const char *cell_encode(const bench_row *row, char *buffer, size_t buffer_bytes) {
    return rate_text(row, find_quantity(row, "encode_seconds", 0), buffer, buffer_bytes);
}

static const char *cell_verified(const bench_row *row, char *buffer, size_t buffer_bytes) {
    return rate_text(row, find_quantity(row, "encode_verified_seconds", 0), buffer, buffer_bytes);
}

static const char *cell_decode(const bench_row *row, char *buffer, size_t buffer_bytes) {
    return rate_text(row, find_quantity(row, "decode_seconds", 0), buffer, buffer_bytes);
}

/* Compressors have no products. */
static const char *cell_matmul(const bench_row *row, char *buffer, size_t buffer_bytes) {
    const bench_figure *figure = find_quantity(row, "matmul_seconds", row->batch);
    return figure ? rate_text(row, figure, buffer, buffer_bytes) : NULL;
}

static void print_heading(const bench_record *record) {
    const bench_fields *e = &record->environment;
    const uint64_t threads = bench_integer_of(e, "threads");
    printf("transfuse %s on %s, %" PRIu64 " %s, %s\n", bench_text_of(e, "version"), bench_text_of(e, "cpu"), threads,
           threads == 1 ? "thread" : "threads", bench_text_of(e, "date"));
    printf("Weights: %s. Rates: million weights a second, median (slowest-fastest) of %" PRIu64 ".\n",
           bench_text_of(e, "distribution"), bench_integer_of(e, "runs"));
    printf("bits: a weight, all counted; over: above the order-0 entropy. encode+: with its own check, the default.\n");
    printf("lz4 %s and zstd %s: default levels, one thread, on the same bytes (int8: on its plain codes).\n\n",
           bench_text_of(e, "lz4_version"), bench_text_of(e, "zstd_version"));
}

/* ---- the mode ---- */

static const bench_column kColumns[] = {
    {"layer", -13, bench_cell_shape}, {"sigma", -9, bench_cell_sigma}, {"codec", -10, bench_cell_codec},
    {"coder", -6, cell_coder},        {"bits", 7, cell_bits},          {"entropy", 8, cell_entropy},
    {"over", 7, cell_over},           {"error", 9, cell_error},        {"encode", 18, cell_encode},
    {"encode+", 18, cell_verified},   {"decode", 18, cell_decode},
};
static const bench_column kBatchColumn = {"matmul", 18, cell_matmul};

static const bench_csv_column kCsvColumns[] = {
    {"cpu", "cpu"},
    {"date", "date"},
    {"version", "version"},
    {"threads", "threads"},
    {"distribution", "distribution"},
    {"rows", "rows"},
    {"cols", "cols"},
    {"sigma", "sigma"},
    {"codec", "codec"},
    {"source", "source"},
    {"compressor", "compressor"},
    {"measure", BENCH_CSV_QUANTITY},
    {"batch", "batch"},
    {"run", BENCH_CSV_RUN},
    {"value", BENCH_CSV_VALUE},
};

static const char *const kJsonLists[] = {"results", "baselines", NULL};
static const char *const kCsvDetails[] = {"bits_per_weight", "entropy_bits", "relative_rms_error", "exceptions", NULL};

static const bench_style kStyle = {
    .print_heading = print_heading,
    .columns = kColumns,
    .num_columns = sizeof kColumns / sizeof kColumns[0],
    .batch_column = &kBatchColumn,
    .json_lists = kJsonLists,
    .csv_columns = kCsvColumns,
    .num_csv_columns = sizeof kCsvColumns / sizeof kCsvColumns[0],
    .csv_details = kCsvDetails,
    .csv_digits = 9,
};

static void set_defaults(cli_options *options) { bench_set_layer_defaults(options, 5); }

static void describe_environment(const bench_request *request) {
    bench_fields *e = &request->record->environment;
    const int threads = request->options->threads;
    bench_add_bare_text(e, "version", trf_version());
    bench_add_machine(e);
    bench_add_bare_text(e, "device", "cpu");
    bench_add_integer(e, "threads", (uint64_t)(threads ? threads : bench_count_cores()));
    bench_add_conditions(e, request->options);
    bench_add_bare_text(e, "lz4_version", bench_lz4_version());
    bench_add_bare_text(e, "zstd_version", bench_zstd_version());
}

static int measure_input(void *context, const bench_layer_input *input) {
    const bench_request *request = context;
    for (trf_favor favor = TRF_FAVOR_SPEED; favor <= TRF_FAVOR_SIZE; favor++)
        if ((!request->options->has_favor || request->options->favor == favor) && measure_codec(request, input, favor))
            return -1;
    if (input->bench_codec == CLI_BENCH_BITS)
        return 0; /* without the encoder there are no such weights */
    const trf_dtype dtype = input->bench_codec == CLI_BENCH_INT8 ? TRF_DTYPE_I8 : input->dtype;
    for (size_t i = 0; i < sizeof kCompressors / sizeof kCompressors[0]; i++)
        if (measure_baseline(request, input, dtype, kCompressors[i]))
            return -1;
    return 0;
}

static int measure(const bench_request *request) {
    bench_request own = *request;
    describe_environment(request);
    bench_print_heading(request->style, request->record);
    return bench_for_each_input(request->options, measure_input, &own);
}

const bench_mode bench_mode_layers_cpu = {
    .name = "layers",
    .style = &kStyle,
    .set_defaults = set_defaults,
    .measure = measure,
};
