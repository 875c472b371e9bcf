#include "bench_output.h"

#include "cli_report.h"

#include <inttypes.h>
#include <string.h>

const char *bench_favor_name(trf_favor favor) { return favor == TRF_FAVOR_SIZE ? "size" : "speed"; }

double bench_bits_per_weight(uint64_t bytes, uint64_t weights) { return 8 * cli_ratio(bytes, weights); }

/* ---- the table ---- */

static double million_a_second(uint64_t weights, double seconds) {
    return seconds > 0 ? (double)weights / seconds / 1e6 : 0;
}

/* "812 (790-830)": median, slowest and fastest run. */
static const char *rate_text(uint64_t weights, const bench_times *times, char *buffer, size_t buffer_bytes) {
    double rate = million_a_second(weights, bench_median(times));
    int digits = rate < 100 ? 1 : 0;
    snprintf(buffer, buffer_bytes, "%.*f (%.*f-%.*f)", digits, rate, digits,
             million_a_second(weights, bench_max(times)), digits, million_a_second(weights, bench_min(times)));
    return buffer;
}

const char *bench_shape_text(cli_shape shape, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, "%" PRIu32 "x%" PRIu32, shape.rows, shape.cols);
    return buffer;
}

void bench_print_heading(const bench_log *log) {
    const bench_environment *e = &log->environment;
    printf("transfuse %s on %s, %d %s, %s\n", e->version, e->cpu, e->threads, e->threads == 1 ? "thread" : "threads",
           e->date);
    printf("Weights: %s. Rates: million weights a second, median (slowest-fastest) of %d.\n", e->distribution,
           e->repeats);
    printf("bits: a weight, all counted; over: above the order-0 entropy. encode+: with its own check, the default.\n");
    printf("lz4 %s and zstd %s: default levels, one thread, on the same bytes (int8: on its plain codes).\n\n",
           e->lz4_version, e->zstd_version);
    printf("%-13s %-9s %-10s %-6s %7s %8s %7s %9s %18s %18s %18s", "layer", "sigma", "codec", "coder", "bits",
           "entropy", "over", "error", "encode", "encode+", "decode");
    for (int i = 0; i < log->options->num_batches; i++)
        printf("      matmul %6" PRIu32, log->options->batches[i]);
    putchar('\n');
}

void bench_print_result(const bench_log *log, const bench_result *r) {
    char shape[32], encode[64], checked[64], decode[64], error[16] = "-";
    uint64_t weights = r->report.weights;
    double bits = bench_bits_per_weight(r->report.blob_bytes, weights);
    if (r->report.relative_rms_error > 0)
        snprintf(error, sizeof error, "%.5f", r->report.relative_rms_error);
    printf("%-13s %-9g %-10s %-6s %7.3f %8.3f %+7.3f %9s %18s %18s %18s",
           bench_shape_text(r->subject.shape, shape, sizeof shape), r->subject.sigma, r->subject.codec,
           bench_favor_name(r->favor), bits, r->report.entropy_bits, bits - r->report.entropy_bits, error,
           rate_text(weights, &r->encode, encode, sizeof encode),
           rate_text(weights, &r->encode_verified, checked, sizeof checked),
           rate_text(weights, &r->decode, decode, sizeof decode));
    for (int i = 0; i < log->options->num_batches; i++)
        printf(" %18s", rate_text(weights, &r->matmul[i], decode, sizeof decode));
    putchar('\n');
    fflush(stdout);
}

void bench_print_baseline(const bench_baseline *b) {
    char shape[32], compress[64], decompress[64];
    printf("%-13s %-9g %-10s %-6s %7.3f %8s %7s %9s %18s %18s %18s\n",
           bench_shape_text(b->subject.shape, shape, sizeof shape), b->subject.sigma, b->subject.codec, b->compressor,
           bench_bits_per_weight(b->bytes, b->weights), "-", "-", "-",
           rate_text(b->weights, &b->compress, compress, sizeof compress), "-",
           rate_text(b->weights, &b->decompress, decompress, sizeof decompress));
    fflush(stdout);
}

/* ---- JSON ---- */

json_t *bench_times_json(const bench_times *times) {
    json_t *list = json_array();
    for (int i = 0; i < times->count; i++)
        json_array_append_new(list, json_real(times->seconds[i]));
    return list;
}

static json_t *integer(uint64_t value) { return json_integer((json_int_t)value); }

json_t *bench_subject_json(const bench_subject *subject) {
    json_t *object = json_object();
    json_object_set_new(object, "rows", integer(subject->shape.rows));
    json_object_set_new(object, "cols", integer(subject->shape.cols));
    json_object_set_new(object, "sigma", json_real(subject->sigma));
    json_object_set_new(object, "codec", json_string(subject->codec));
    json_object_set_new(object, "source", json_string(trf_dtype_name(subject->source)));
    return object;
}

static json_t *result_json(const bench_log *log, const bench_result *r) {
    json_t *object = bench_subject_json(&r->subject);
    json_object_set_new(object, "favor", json_string(bench_favor_name(r->favor)));
    json_object_set_new(object, "weights", integer(r->report.weights));
    json_object_set_new(object, "source_bytes", integer(r->report.source_bytes));
    json_object_set_new(object, "bytes", integer(r->report.blob_bytes));
    json_object_set_new(object, "bits_per_weight",
                        json_real(bench_bits_per_weight(r->report.blob_bytes, r->report.weights)));
    json_object_set_new(object, "entropy_bits", json_real(r->report.entropy_bits));
    json_object_set_new(object, "relative_rms_error", json_real(r->report.relative_rms_error));
    json_object_set_new(object, "exceptions", integer(r->report.exceptions));
    json_object_set_new(object, "predictor_modes", integer(r->report.predictor_modes));
    json_object_set_new(object, "class_bits", integer(r->info.class_bits));
    json_object_set_new(object, "probability_bits", integer(r->info.probability_bits));
    json_object_set_new(object, "slab_cols", integer(r->info.slab_cols));
    json_object_set_new(object, "encode_seconds", bench_times_json(&r->encode));
    json_object_set_new(object, "encode_verified_seconds", bench_times_json(&r->encode_verified));
    json_object_set_new(object, "decode_seconds", bench_times_json(&r->decode));
    json_t *products = json_array();
    for (int i = 0; i < log->options->num_batches; i++) {
        json_t *product = json_object();
        json_object_set_new(product, "batch", integer(log->options->batches[i]));
        json_object_set_new(product, "seconds", bench_times_json(&r->matmul[i]));
        json_array_append_new(products, product);
    }
    json_object_set_new(object, "matmul", products);
    return object;
}

static json_t *baseline_json(const bench_baseline *b) {
    json_t *object = bench_subject_json(&b->subject);
    json_object_set_new(object, "compressor", json_string(b->compressor));
    json_object_set_new(object, "input", json_string(trf_dtype_name(b->input)));
    json_object_set_new(object, "weights", integer(b->weights));
    json_object_set_new(object, "source_bytes", integer(b->source_bytes));
    json_object_set_new(object, "bytes", integer(b->bytes));
    json_object_set_new(object, "bits_per_weight", json_real(bench_bits_per_weight(b->bytes, b->weights)));
    json_object_set_new(object, "compress_seconds", bench_times_json(&b->compress));
    json_object_set_new(object, "decompress_seconds", bench_times_json(&b->decompress));
    return object;
}

trf_status bench_write_json(const bench_log *log, FILE *file) {
    cli_json_begin();
    const bench_environment *e = &log->environment;
    json_t *root = json_object(), *results = json_array(), *baselines = json_array();
    for (size_t i = 0; i < log->num_results; i++)
        json_array_append_new(results, result_json(log, &log->results[i]));
    for (size_t i = 0; i < log->num_baselines; i++)
        json_array_append_new(baselines, baseline_json(&log->baselines[i]));
    json_object_set_new(root, "version", json_string(e->version));
    json_object_set_new(root, "date", json_string(e->date));
    json_object_set_new(root, "cpu", cli_json_text(e->cpu));
    json_object_set_new(root, "device", json_string("cpu"));
    json_object_set_new(root, "threads", json_integer(e->threads));
    json_object_set_new(root, "runs", json_integer(e->repeats));
    json_object_set_new(root, "distribution", json_string(e->distribution));
    json_object_set_new(root, "lz4_version", json_string(e->lz4_version));
    json_object_set_new(root, "zstd_version", json_string(e->zstd_version));
    json_object_set_new(root, "results", results);
    json_object_set_new(root, "baselines", baselines);
    return cli_json_write(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9), file);
}

/* ---- CSV: one row for each figure, `run` counting from 0 ---- */

typedef struct csv_row {
    FILE *file;
    const bench_environment *environment;
    const bench_subject *subject;
    const char *compressor; /* "transfuse-speed", "transfuse-size", "lz4", "zstd" */
} csv_row;

void bench_write_text(FILE *file, const char *text) {
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', file);
        fputc(*text, file);
    }
    fputc('"', file);
}

static void write_value(const csv_row *row, const char *measure, uint32_t batch, int run, double value) {
    const bench_environment *e = row->environment;
    bench_write_text(row->file, e->cpu);
    fprintf(row->file, ",%s,%s,%d,%s,%" PRIu32 ",%" PRIu32 ",%.9g,%s,%s,%s,%s,%" PRIu32 ",%d,%.9g\n", e->date,
            e->version, e->threads, e->distribution, row->subject->shape.rows, row->subject->shape.cols,
            row->subject->sigma, row->subject->codec, trf_dtype_name(row->subject->source), row->compressor, measure,
            batch, run, value);
}

static void write_times(const csv_row *row, const char *measure, uint32_t batch, const bench_times *times) {
    for (int i = 0; i < times->count; i++)
        write_value(row, measure, batch, i, times->seconds[i]);
}

static void write_result_rows(const bench_log *log, const bench_result *r, FILE *file) {
    csv_row row = {file, &log->environment, &r->subject,
                   r->favor == TRF_FAVOR_SIZE ? "transfuse-size" : "transfuse-speed"};
    write_value(&row, "bits_per_weight", 0, 0, bench_bits_per_weight(r->report.blob_bytes, r->report.weights));
    write_value(&row, "entropy_bits", 0, 0, r->report.entropy_bits);
    write_value(&row, "relative_rms_error", 0, 0, r->report.relative_rms_error);
    write_value(&row, "exceptions", 0, 0, (double)r->report.exceptions);
    write_times(&row, "encode_seconds", 0, &r->encode);
    write_times(&row, "encode_verified_seconds", 0, &r->encode_verified);
    write_times(&row, "decode_seconds", 0, &r->decode);
    for (int i = 0; i < log->options->num_batches; i++)
        write_times(&row, "matmul_seconds", log->options->batches[i], &r->matmul[i]);
}

trf_status bench_write_csv(const bench_log *log, FILE *file) {
    fputs("cpu,date,version,threads,distribution,rows,cols,sigma,codec,source,compressor,measure,batch,run,value\n",
          file);
    for (size_t i = 0; i < log->num_results; i++)
        write_result_rows(log, &log->results[i], file);
    for (size_t i = 0; i < log->num_baselines; i++) {
        const bench_baseline *b = &log->baselines[i];
        csv_row row = {file, &log->environment, &b->subject, b->compressor};
        write_value(&row, "bits_per_weight", 0, 0, bench_bits_per_weight(b->bytes, b->weights));
        write_times(&row, "encode_seconds", 0, &b->compress);
        write_times(&row, "decode_seconds", 0, &b->decompress);
    }
    return ferror(file) ? TRF_ERR_IO : TRF_OK;
}
