/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_messages.h"

#include "transfuse/tuning.h"

#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#undef cli_fail

static const double kProgressSeconds = 0.1;
static const int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU};
enum {
    kNumStopSignals = sizeof kStopSignals / sizeof kStopSignals[0]
};

static volatile sig_atomic_t stop_requested;

const char *cli_printable(const char *text, char *buffer, size_t buffer_bytes) {
    size_t i = 0;
    for (; text[i] && i + 1 < buffer_bytes; i++)
        buffer[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    buffer[i] = 0;
    return buffer;
}

cli_exit cli_report_error(const trf_error *err) {
    char message[sizeof err->message];
    if (err->status == TRF_ERR_CANCELLED && stop_requested)
        snprintf(message, sizeof message, "interrupted");
    else
        cli_printable(err->message[0] ? err->message : "failed", message, sizeof message);
    fprintf(stderr, "transfuse: %s [%s]\n", message, trf_status_name(err->status));
    return err->status == TRF_ERR_DEVICE ? CLI_NO_DEVICE : CLI_FAILED;
}

cli_exit cli_report_output_error(const cli_options *options, const trf_error *err) {
    if (err->status == TRF_ERR_EXISTS && !options->force)
        return cli_fail(err->status, "%s; -f replaces it", err->message);
    return cli_report_error(err);
}

cli_exit cli_fail(trf_status status, const char *format, ...) {
    trf_error err = {.status = status};
    va_list args;
    va_start(args, format);
    vsnprintf(err.message, sizeof err.message, format, args);
    va_end(args);
    return cli_report_error(&err);
}

void cli_warn(const char *text) {
    char line[1024];
    if (*text)
        fprintf(stderr, "transfuse: warning: %s\n", cli_printable(text, line, sizeof line));
}

const char *cli_size_text(uint64_t bytes, char *buffer) {
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1000) {
        snprintf(buffer, 16, "%u bytes", (unsigned)bytes);
        return buffer;
    }
    double value = (double)bytes / 1000;
    int unit = 0;
    for (; value >= 999.5 && unit < 5; unit++)
        value /= 1000;
    snprintf(buffer, 16, "%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, units[unit]);
    return buffer;
}

double cli_ratio(uint64_t a, uint64_t b) { return b ? (double)a / (double)b : 0; }

double cli_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

cli_exit cli_open_device(cli_device device, trf_context **context) {
    trf_error err = {0};
    *context = NULL;
    if (device == CLI_DEVICE_CPU || trf_context_create(0, context, &err) == TRF_OK)
        return CLI_OK;
    return cli_fail(err.status, "--device cuda: %s", err.message);
}

cli_exit cli_use_tuning(trf_context *context, const char *path) {
    trf_error err = {0};
    trf_tuning *tuning = NULL;
    if (!path)
        return CLI_OK;
    if (trf_tuning_read(path, &tuning, &err))
        return cli_report_error(&err);
    const trf_status failed = trf_context_set_tuning(context, tuning, &err);
    trf_tuning_free(tuning);
    if (!failed)
        return CLI_OK;
    cli_fail(err.status, "%s: %s", path, err.message);
    return CLI_FAILED; /* a file for another device: there is a device */
}

void cli_signals_prepare(void) { signal(SIGXFSZ, SIG_IGN); }

static void request_stop(int number) {
    (void)number;
    stop_requested = 1;
}

void cli_progress_start(cli_progress *progress, const char *verb) {
    struct sigaction action = {.sa_handler = request_stop, .sa_flags = SA_RESTART};
    for (int i = 0; i < kNumStopSignals; i++) {
        struct sigaction old;
        /* nohup and shells that start background jobs have some of them ignored, and mean it. */
        if (sigaction(kStopSignals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(kStopSignals[i], &action, NULL);
    }
    struct winsize window;
    int known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col >= 40;
    *progress = (cli_progress){
        .verb = verb,
        .start = cli_now(),
        .terminal = isatty(STDERR_FILENO),
        .columns = known ? window.ws_col : 80,
    };
}

/* @return whether the line is due again. */
static int is_due(cli_progress *progress) {
    double now = cli_now();
    if (!progress->terminal || now - progress->shown < kProgressSeconds)
        return 0;
    progress->shown = now;
    return 1;
}

static void show(const cli_progress *progress, double share, const char *rest) {
    char line[512];
    snprintf(line, sizeof line, "%s %3.0f %%, %s", progress->verb, 100 * share, rest);
    fprintf(stderr, "\r\033[K%.*s", progress->columns - 1, line);
    fflush(stderr);
}

int cli_progress_step(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes) {
    if (is_due(context)) {
        char done[16], total[16], name[256], rest[320];
        snprintf(rest, sizeof rest, "%s of %s  %s", cli_size_text(done_bytes, done), cli_size_text(total_bytes, total),
                 cli_printable(tensor ? tensor : "", name, sizeof name));
        show(context, cli_ratio(done_bytes, total_bytes), rest);
    }
    return stop_requested;
}

int cli_progress_count(void *context, uint32_t done, uint32_t total) {
    if (is_due(context)) {
        char rest[64];
        snprintf(rest, sizeof rest, "%u of %u", done, total);
        show(context, cli_ratio(done, total), rest);
    }
    return stop_requested;
}

double cli_progress_end(cli_progress *progress) {
    if (progress->terminal && progress->shown > 0)
        fputs("\r\033[K", stderr);
    return cli_now() - progress->start;
}

static void mask_stop_signals(int how) {
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < kNumStopSignals; i++)
        sigaddset(&set, kStopSignals[i]);
    sigprocmask(how, &set, NULL);
}

void cli_signals_hold(void) { mask_stop_signals(SIG_BLOCK); }

void cli_signals_settle(int failed) {
    if (failed)
        mask_stop_signals(SIG_UNBLOCK);
}
