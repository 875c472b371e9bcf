#include "bench_cuda_modes.h"

#include "bench_cuda_timer.h"
#include "bench_output.h"
#include "cli_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the modes ---- */

typedef int mode_fn(bench_cuda *cuda);

static const struct {
    const char *name;
    mode_fn *run; /* @return 0, or -1 after a message */
} kModes[] = {
    [CLI_BENCH_LAYERS] = {"layers", NULL}, /* it and the sweep: bench_cuda.c */
    [CLI_BENCH_SWEEP] = {"batch-sweep", NULL},
    [CLI_BENCH_OVERLAP] = {"overlap", bench_overlap_run},
    [CLI_BENCH_MOE] = {"moe", bench_moe_run},
    [CLI_BENCH_LOAD] = {"load", bench_load_run},
    [CLI_BENCH_OFFLOAD] = {"offload", bench_offload_run},
};

static const char *mode_name(const bench_log *log) { return kModes[log->options->mode].name; }

int bench_cuda_run_mode(bench_cuda *cuda) {
    const bench_log *log = bench_cuda_log_of(cuda);
    if (!kModes[log->options->mode].run)
        return cli_fail(TRF_ERR_UNSUPPORTED, "bench: --mode %s is not there yet", mode_name(log)), -1;
    bench_cuda_print_device(log);
    printf("%s: median (min-max) of %d runs. ratio: the time of what a row is compared with by its own.\n\n",
           mode_name(log), log->environment.repeats);
    printf("%-36s %6s %-24s %27s %8s %7s %9s  %s\n", "what it is done to", "batch", "how", "us", "GB/s", "ratio",
           "error", "compared with");
    return kModes[log->options->mode].run(cuda);
}

/* ---- figures ---- */

bench_mode_figure *bench_mode_add(bench_cuda *cuda, const char *subject, const char *what, const char *against,
                                  uint32_t batch) {
    bench_mode_figures *figures = bench_cuda_figures_of(cuda);
    bench_mode_figure *grown = realloc(figures->list, (figures->count + 1) * sizeof *grown);
    if (!grown) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
        return NULL;
    }
    figures->list = grown;
    bench_mode_figure *figure = &grown[figures->count++];
    *figure = (bench_mode_figure){.batch = batch};
    snprintf(figure->subject, sizeof figure->subject, "%s", subject);
    snprintf(figure->what, sizeof figure->what, "%s", what);
    snprintf(figure->against, sizeof figure->against, "%s", against);
    return figure;
}

void bench_mode_free(bench_mode_figures *figures) {
    for (size_t i = 0; i < figures->count; i++)
        free(figures->list[i].times.seconds);
    free(figures->list);
}

int bench_mode_time(bench_cuda *cuda, bench_cuda_timer *timers, size_t first) {
    const bench_mode_figures *figures = bench_cuda_figures_of(cuda);
    const size_t count = figures->count - first;
    bench_cuda_timer **timer_list = calloc(count, sizeof *timer_list);
    bench_times **times = calloc(count, sizeof *times);
    int failed = !timer_list || !times;
    if (failed)
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
    for (size_t i = 0; !failed && i < count; i++) {
        timer_list[i] = &timers[i];
        times[i] = &figures->list[first + i].times;
    }
    failed = failed || bench_cuda_time(timer_list, times, count, bench_cuda_log_of(cuda)->environment.repeats,
                                       bench_cuda_stream_of(cuda));
    for (size_t i = 0; failed && i < count; i++) {
        free(figures->list[first + i].times.seconds);
        figures->list[first + i].times = (bench_times){0};
    }
    free(timer_list);
    free(times);
    return failed ? -1 : 0;
}

/* @return how many times faster than what it is compared with; 0 if it is compared with nothing. */
static double ratio_of(const bench_mode_figures *figures, const bench_mode_figure *figure) {
    const double seconds = bench_median(&figure->times);
    for (size_t i = 0; figure->against[0] && seconds > 0 && i < figures->count; i++) {
        const bench_mode_figure *other = &figures->list[i];
        if (strcmp(other->what, figure->against) == 0 && strcmp(other->subject, figure->subject) == 0 &&
            other->batch == figure->batch && !other->reason)
            return bench_median(&other->times) / seconds;
    }
    return 0;
}

static void print_figure(const bench_mode_figures *figures, const bench_mode_figure *f) {
    char batch[16] = "-", times[64], rate[16] = "-", ratio[16] = "-", error[16] = "-";
    const double seconds = bench_median(&f->times), compared = ratio_of(figures, f);
    if (f->batch)
        snprintf(batch, sizeof batch, "%" PRIu32, f->batch);
    printf("%-36s %6s %-24s ", f->subject, batch, f->what);
    if (f->reason) {
        printf("(%s)\n", f->reason);
        return;
    }
    snprintf(times, sizeof times, "%.1f (%.1f-%.1f)", 1e6 * seconds, 1e6 * bench_min(&f->times),
             1e6 * bench_max(&f->times));
    if (f->bytes && seconds > 0)
        snprintf(rate, sizeof rate, "%.1f", 1e-9 * (double)f->bytes / seconds);
    if (compared > 0)
        snprintf(ratio, sizeof ratio, "%.3f", compared);
    if (f->has_error)
        snprintf(error, sizeof error, "%.2e", f->error);
    printf("%27s %8s %7s %9s  %s\n", times, rate, ratio, error, f->against);
}

void bench_mode_print(bench_cuda *cuda, size_t first) {
    const bench_mode_figures *figures = bench_cuda_figures_of(cuda);
    for (size_t i = first; i < figures->count; i++)
        print_figure(figures, &figures->list[i]);
    fflush(stdout);
}

/* ---- files ---- */

static json_t *figure_json(const bench_mode_figures *figures, const bench_mode_figure *f) {
    json_t *object = json_object();
    json_object_set_new(object, "subject", json_string(f->subject));
    json_object_set_new(object, "batch", json_integer(f->batch));
    json_object_set_new(object, "what", json_string(f->what));
    if (f->reason) {
        json_object_set_new(object, "reason", json_string(f->reason));
        return object;
    }
    if (f->bytes)
        json_object_set_new(object, "bytes", json_integer((json_int_t)f->bytes));
    if (f->has_error)
        json_object_set_new(object, "error", isfinite(f->error) ? json_real(f->error) : json_null());
    if (f->against[0]) {
        json_object_set_new(object, "against", json_string(f->against));
        json_object_set_new(object, "ratio", json_real(ratio_of(figures, f)));
    }
    json_object_set_new(object, "median_seconds", json_real(bench_median(&f->times)));
    json_object_set_new(object, "seconds", bench_times_json(&f->times));
    return object;
}

trf_status bench_cuda_write_mode_json(const bench_log *log, FILE *file) {
    cli_json_begin();
    const bench_mode_figures *figures = bench_cuda_figures_of(log->cuda);
    json_t *root = json_object(), *list = json_array();
    for (size_t i = 0; i < figures->count; i++)
        json_array_append_new(list, figure_json(figures, &figures->list[i]));
    bench_cuda_describe_device(log, root);
    json_object_set_new(root, "mode", json_string(mode_name(log)));
    json_object_set_new(root, "figures", list);
    return cli_json_write(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9), file);
}

/* One row for each run. */
trf_status bench_cuda_write_mode_csv(const bench_log *log, FILE *file) {
    const bench_mode_figures *figures = bench_cuda_figures_of(log->cuda);
    const bench_cuda_environment *device = bench_cuda_environment_of(log->cuda);
    fputs("gpu,driver,date,version,commit,mode,subject,batch,what,bytes,run,seconds\n", file);
    for (size_t i = 0; i < figures->count; i++) {
        const bench_mode_figure *f = &figures->list[i];
        for (int run = 0; run < f->times.count; run++) {
            bench_write_text(file, device->gpu);
            fprintf(file, ",%s,%s,%s,", device->driver, log->environment.date, log->environment.version);
            bench_write_text(file, device->commit);
            fprintf(file, ",%s,", mode_name(log));
            bench_write_text(file, f->subject);
            fprintf(file, ",%" PRIu32 ",", f->batch);
            bench_write_text(file, f->what);
            fprintf(file, ",%" PRIu64 ",%d,%.12g\n", f->bytes, run, f->times.seconds[run]);
        }
    }
    return ferror(file) ? TRF_ERR_IO : TRF_OK;
}
