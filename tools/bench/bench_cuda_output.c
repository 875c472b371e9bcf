/* The table and the files of transfuse bench --device cuda. */
#include "bench_cuda.h"

#include "bench_output.h"
#include "cli_report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const kKinds[BENCH_CUDA_KINDS] = {"fused",  "wide",     "two-step", "ahead", "auto",
                                                     "decode", "cublaslt", "raw8",     "copy"};

static const bench_cuda_figure *find_figure(const bench_cuda_result *result, bench_cuda_kind kind, uint32_t batch) {
    for (size_t i = 0; i < result->num_figures; i++)
        if (result->figures[i].kind == kind && result->figures[i].batch == batch)
            return &result->figures[i];
    return NULL;
}

/* Of weights in the form that the case reads; of what decoding and copying read and write. */
static double bytes_a_second(const bench_cuda_figure *f) {
    double seconds = bench_median(&f->times);
    return seconds > 0 ? (double)(f->bytes_read + f->bytes_written) / seconds : 0;
}

static const bench_cuda_blob *find_blob(const bench_cuda_result *result, int favor) {
    for (int i = 0; i < result->num_blobs; i++)
        if ((int)result->blobs[i].favor == favor)
            return &result->blobs[i];
    return NULL;
}

/* ---- the table ---- */

static const char *version_text(int version, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, "%d.%d", version / 1000, version % 1000 / 10);
    return buffer;
}

void bench_cuda_print_device(const bench_log *log) {
    const bench_environment *e = &log->environment;
    const bench_cuda_environment *d = bench_cuda_environment_of(log->cuda);
    char driver_cuda[16], runtime_cuda[16];
    printf("transfuse %s%s%s on %s (%d multiprocessors, L2 %" PRIu64 " MiB), %s\n", e->version, d->commit[0] ? " " : "",
           d->commit, d->gpu, d->multiprocessors, d->l2_bytes >> 20, e->date);
    printf("Driver %s (CUDA %s), runtime %s, cuBLASLt %" PRIu64 ". Weights: %s.\n", d->driver,
           version_text(d->driver_cuda, driver_cuda, sizeof driver_cuda),
           version_text(d->runtime_cuda, runtime_cuda, sizeof runtime_cuda), d->cublaslt, e->distribution);
}

void bench_cuda_print_heading(const bench_log *log) {
    bench_cuda_print_device(log);
    printf(
        "Times: median (min-max) of %d rounds in which all cases of a layer and codec take turns, in changing order; "
        "weights not in the cache.\n",
        log->environment.repeats);
    printf(
        "TB/s: of weights as they are stored (decode, copy: read and written). ratio: cuBLASLt's time by this one.\n");
    printf("error: of F32 y against F64, relative. wrong: weights decoded to something else than on the CPU.\n\n");
    printf("%-13s %-9s %-10s %-6s %7s %6s %-9s %25s %7s %7s %6s %7s %9s\n", "layer", "sigma", "codec", "coder", "bits",
           "batch", "what", "us", "Tw/s", "TB/s", "copy", "ratio", "error");
}

static void print_figure(const bench_cuda_result *result, const bench_cuda_figure *f) {
    const uint64_t weights = (uint64_t)result->subject.shape.rows * result->subject.shape.cols;
    const bench_cuda_figure *copy = find_figure(result, BENCH_CUDA_COPY, 0);
    const bench_cuda_figure *dense = f->batch ? find_figure(result, BENCH_CUDA_CUBLASLT, f->batch) : NULL;
    const bench_cuda_blob *blob = find_blob(result, f->favor);
    const double seconds = bench_median(&f->times), ceiling = bytes_a_second(copy);
    char shape[32], bits[16] = "-", batch[16] = "-", ratio[16] = "-", error[16] = "-";
    if (blob)
        snprintf(bits, sizeof bits, "%.3f", bench_bits_per_weight(blob->report.blob_bytes, weights));
    if (f->batch)
        snprintf(batch, sizeof batch, "%" PRIu32, f->batch);
    if (dense && seconds > 0)
        snprintf(ratio, sizeof ratio, "%.3f", bench_median(&dense->times) / seconds);
    if (f->has_error)
        snprintf(error, sizeof error, "%.2e", f->error_f32);
    printf("%-13s %-9g %-10s %-6s %7s %6s %-9s ", bench_shape_text(result->subject.shape, shape, sizeof shape),
           result->subject.sigma, result->subject.codec, blob ? bench_favor_name(blob->favor) : "-", bits, batch,
           kKinds[f->kind]);
    if (f->reason) {
        printf("- (%s)\n", f->reason);
        return;
    }
    char times[64], rate[16] = "-";
    snprintf(times, sizeof times, "%.2f (%.2f-%.2f)", 1e6 * seconds, 1e6 * bench_min(&f->times),
             1e6 * bench_max(&f->times));
    if (f->kind != BENCH_CUDA_COPY && seconds > 0)
        snprintf(rate, sizeof rate, "%.3f", 1e-12 * (double)weights / seconds);
    printf("%25s %7s %7.3f %5.1f%% %7s %9s\n", times, rate, 1e-12 * bytes_a_second(f),
           ceiling > 0 ? 100 * bytes_a_second(f) / ceiling : 0, ratio, error);
    if (f->kind == BENCH_CUDA_DECODE)
        printf("    %.0f GB/s of dense weights; %" PRIu64 " of %" PRIu64 " weights wrong\n",
               seconds > 0 ? 1e-9 * (double)f->bytes_written / seconds : 0, blob ? blob->wrong_weights : 0, weights);
}

void bench_cuda_print_result(const bench_cuda_result *result) {
    for (size_t i = 0; i < result->num_figures; i++)
        print_figure(result, &result->figures[i]);
    fflush(stdout);
}

/* ---- JSON ---- */

static json_t *integer(uint64_t value) { return json_integer((json_int_t)value); }

/* JSON has no word for what is not a number. */
static json_t *real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *figure_json(const bench_cuda_figure *f) {
    json_t *object = json_object();
    json_object_set_new(object, "what", json_string(kKinds[f->kind]));
    json_object_set_new(object, "favor",
                        f->favor < 0 ? json_null() : json_string(bench_favor_name((trf_favor)f->favor)));
    json_object_set_new(object, "batch", integer(f->batch));
    if (f->reason) {
        json_object_set_new(object, "reason", json_string(f->reason));
        return object;
    }
    json_object_set_new(object, "calls", integer(f->calls));
    json_object_set_new(object, "copies", integer(f->copies));
    json_object_set_new(object, "bytes_read", integer(f->bytes_read));
    json_object_set_new(object, "bytes_written", integer(f->bytes_written));
    if (f->algorithm[0])
        json_object_set_new(object, "algorithm", json_string(f->algorithm));
    if (f->has_error) {
        json_object_set_new(object, "error", real(f->error));
        json_object_set_new(object, "error_f32", real(f->error_f32));
    }
    json_object_set_new(object, "median_seconds", json_real(bench_median(&f->times)));
    json_object_set_new(object, "seconds", bench_times_json(&f->times));
    return object;
}

static json_t *blob_json(const bench_cuda_blob *b) {
    json_t *object = json_object();
    json_object_set_new(object, "favor", json_string(bench_favor_name(b->favor)));
    json_object_set_new(object, "weights", integer(b->report.weights));
    json_object_set_new(object, "bytes", integer(b->report.blob_bytes));
    json_object_set_new(object, "device_bytes", integer(b->device_bytes));
    json_object_set_new(object, "bits_per_weight",
                        json_real(bench_bits_per_weight(b->report.blob_bytes, b->report.weights)));
    json_object_set_new(object, "entropy_bits", json_real(b->report.entropy_bits));
    json_object_set_new(object, "relative_rms_error", json_real(b->report.relative_rms_error));
    json_object_set_new(object, "exceptions", integer(b->report.exceptions));
    json_object_set_new(object, "wrong_weights", integer(b->wrong_weights));
    return object;
}

static json_t *result_json(const bench_cuda_result *r) {
    json_t *object = bench_subject_json(&r->subject), *blobs = json_array(), *figures = json_array();
    for (int i = 0; i < r->num_blobs; i++)
        json_array_append_new(blobs, blob_json(&r->blobs[i]));
    for (size_t i = 0; i < r->num_figures; i++)
        json_array_append_new(figures, figure_json(&r->figures[i]));
    json_object_set_new(object, "blobs", blobs);
    json_object_set_new(object, "measurements", figures);
    return object;
}

void bench_cuda_describe_device(const bench_log *log, json_t *root) {
    const bench_environment *e = &log->environment;
    const bench_cuda_environment *d = bench_cuda_environment_of(log->cuda);
    char version[16];
    json_object_set_new(root, "version", json_string(e->version));
    json_object_set_new(root, "commit", d->commit[0] ? cli_json_text(d->commit) : json_null());
    json_object_set_new(root, "date", json_string(e->date));
    json_object_set_new(root, "cpu", cli_json_text(e->cpu));
    json_object_set_new(root, "device", json_string("cuda"));
    json_object_set_new(root, "gpu", cli_json_text(d->gpu));
    json_object_set_new(root, "compute_capability", json_real(d->capability / 10.0));
    json_object_set_new(root, "multiprocessors", json_integer(d->multiprocessors));
    json_object_set_new(root, "l2_bytes", integer(d->l2_bytes));
    json_object_set_new(root, "driver", cli_json_text(d->driver));
    json_object_set_new(root, "driver_cuda_version",
                        json_string(version_text(d->driver_cuda, version, sizeof version)));
    json_object_set_new(root, "cuda_runtime_version",
                        json_string(version_text(d->runtime_cuda, version, sizeof version)));
    json_object_set_new(root, "cublaslt_version", integer(d->cublaslt));
    json_object_set_new(root, "runs", json_integer(e->repeats));
    json_object_set_new(root, "distribution", json_string(e->distribution));
}

trf_status bench_cuda_write_json(const bench_log *log, FILE *file) {
    cli_json_begin();
    size_t count;
    const bench_cuda_result *results = bench_cuda_results(log->cuda, &count);
    json_t *root = json_object(), *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, result_json(&results[i]));
    bench_cuda_describe_device(log, root);
    json_object_set_new(root, "results", list);
    return cli_json_write(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9), file);
}

/* ---- CSV: one row for each figure, `run` counting from 0 ---- */

typedef struct csv_row {
    FILE *file;
    const bench_log *log;
    const bench_subject *subject;
    const char *what, *favor;
    uint32_t batch;
} csv_row;

static void write_value(const csv_row *row, const char *measure, int run, double value) {
    const bench_environment *e = &row->log->environment;
    const bench_cuda_environment *d = bench_cuda_environment_of(row->log->cuda);
    bench_write_text(row->file, d->gpu);
    fprintf(row->file, ",%s,%d.%d,%" PRIu64 ",%s,%s,", d->driver, d->runtime_cuda / 1000, d->runtime_cuda % 1000 / 10,
            d->cublaslt, e->date, e->version);
    bench_write_text(row->file, d->commit);
    fprintf(row->file, ",%s,%" PRIu32 ",%" PRIu32 ",%.9g,%s,%s,%s,%s,%" PRIu32 ",%s,%d,%.12g\n", e->distribution,
            row->subject->shape.rows, row->subject->shape.cols, row->subject->sigma, row->subject->codec,
            trf_dtype_name(row->subject->source), row->favor, row->what, row->batch, measure, run, value);
}

static void write_blob(const bench_log *log, const bench_subject *subject, const bench_cuda_blob *b, FILE *file) {
    const csv_row row = {file, log, subject, "blob", bench_favor_name(b->favor), 0};
    write_value(&row, "bits_per_weight", 0, bench_bits_per_weight(b->report.blob_bytes, b->report.weights));
    write_value(&row, "entropy_bits", 0, b->report.entropy_bits);
    write_value(&row, "relative_rms_error", 0, b->report.relative_rms_error);
    write_value(&row, "exceptions", 0, (double)b->report.exceptions);
    write_value(&row, "bytes", 0, (double)b->report.blob_bytes);
    write_value(&row, "wrong_weights", 0, (double)b->wrong_weights);
}

static void write_figure(const bench_log *log, const bench_subject *subject, const bench_cuda_figure *f, FILE *file) {
    const char *favor = f->favor < 0 ? "" : bench_favor_name((trf_favor)f->favor);
    const csv_row row = {file, log, subject, kKinds[f->kind], favor, f->batch};
    if (f->reason)
        return;
    write_value(&row, "calls", 0, f->calls);
    write_value(&row, "copies", 0, f->copies);
    write_value(&row, "bytes_read", 0, (double)f->bytes_read);
    write_value(&row, "bytes_written", 0, (double)f->bytes_written);
    if (f->has_error) {
        write_value(&row, "error", 0, f->error);
        write_value(&row, "error_f32", 0, f->error_f32);
    }
    for (int i = 0; i < f->times.count; i++)
        write_value(&row, "seconds", i, f->times.seconds[i]);
}

trf_status bench_cuda_write_csv(const bench_log *log, FILE *file) {
    size_t count;
    const bench_cuda_result *results = bench_cuda_results(log->cuda, &count);
    fputs("gpu,driver,cuda_runtime,cublaslt,date,version,commit,distribution,rows,cols,sigma,codec,source,favor,what,"
          "batch,"
          "measure,run,value\n",
          file);
    for (size_t i = 0; i < count; i++) {
        for (int b = 0; b < results[i].num_blobs; b++)
            write_blob(log, &results[i].subject, &results[i].blobs[b], file);
        for (size_t k = 0; k < results[i].num_figures; k++)
            write_figure(log, &results[i].subject, &results[i].figures[k], file);
    }
    return ferror(file) ? TRF_ERR_IO : TRF_OK;
}
