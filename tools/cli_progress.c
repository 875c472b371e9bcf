/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_progress.h"

#include "cli_messages.h"
#include "cli_signals.h"
#include "cli_terminal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* Seconds between two times that progress is shown. A log gets a line seldom if nobody asked for progress in it. */
static const double kLineSeconds = 0.1, kLogSeconds = 30, kAskedLogSeconds = 1;

/* Before this time, a rate shows only the file system's cache, and the time left is a guess. */
static const double kRateSeconds = 0.5;

void cli_progress_start(cli_progress *progress, const cli_options *options, const char *verb) {
    cli_signals_catch();
    const int is_terminal = isatty(STDERR_FILENO), asked = options->progress == CLI_PROGRESS_ALWAYS;
    const int silent = options->progress == CLI_PROGRESS_NEVER || (options->quiet && !asked);
    *progress = (cli_progress){
        .verb = verb,
        .start = cli_now(),
        .interval = silent        ? 0
                    : is_terminal ? kLineSeconds
                    : asked       ? kAskedLogSeconds
                                  : kLogSeconds,
        .is_line = is_terminal,
        .columns = cli_terminal_columns(STDERR_FILENO),
        .verbose = options->verbose,
    };
    progress->shown = is_terminal || asked ? 0 : progress->start;
}

/* @return whether it is time to show progress again. */
static int is_due(cli_progress *progress) {
    double now = cli_now();
    if (progress->interval <= 0 || now - progress->shown < progress->interval)
        return 0;
    progress->shown = now;
    return 1;
}

static void show(cli_progress *progress, double share, const char *rest) {
    char line[768];
    snprintf(line, sizeof line, "%s %3.0f %%, %s", progress->verb, 100 * share, rest);
    if (progress->is_line) {
        fprintf(stderr, "\r\033[K%.*s", progress->columns - 1, line);
        progress->is_on_screen = 1;
    } else {
        fprintf(stderr, "transfuse: %s\n", line);
    }
    fflush(stderr);
}

/* ", 0:42 left", or ", 1:02:03 left"; "" as long as it cannot be estimated. */
static const char *time_left_text(double done, double total, double seconds, char *buffer, size_t buffer_bytes) {
    buffer[0] = 0;
    if (done <= 0 || total <= done || seconds < kRateSeconds)
        return buffer;
    const double left = ceil(seconds * (total - done) / done);
    if (left >= 1e6) /* more than ten days are no estimate */
        return buffer;
    const unsigned all = (unsigned)left, hours = all / 3600, minutes = all / 60 % 60;
    if (hours)
        snprintf(buffer, buffer_bytes, ", %u:%02u:%02u left", hours, minutes, all % 60);
    else
        snprintf(buffer, buffer_bytes, ", %u:%02u left", minutes, all % 60);
    return buffer;
}

/* ", 512 MB/s, 0:42 left". */
static void describe_rate(const cli_progress *progress, uint64_t done_bytes, uint64_t total_bytes, char *buffer,
                          size_t buffer_bytes) {
    char rate[16], left[48];
    const double seconds = progress->shown - progress->start;
    buffer[0] = 0;
    if (done_bytes == 0 || seconds < kRateSeconds)
        return;
    snprintf(buffer, buffer_bytes, ", %s/s%s", cli_size_text((uint64_t)((double)done_bytes / seconds), rate),
             time_left_text((double)done_bytes, (double)total_bytes, seconds, left, sizeof left));
}

/* Prints the tensor's line if it is another tensor than the last one. */
static void list_tensor(cli_progress *progress, const char *tensor) {
    char name[sizeof progress->tensor];
    if (!tensor || strcmp(cli_printable(tensor, name, sizeof name), progress->tensor) == 0)
        return;
    memcpy(progress->tensor, name, sizeof name);
    cli_progress_wipe(progress);
    fprintf(stderr, "transfuse: %s %s\n", progress->verb, name);
}

int cli_progress_step(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes) {
    cli_progress *const progress = context;
    if (progress->verbose)
        list_tensor(progress, tensor);
    if (is_due(progress)) {
        char done[16], total[16], rate[80], name[256], rest[512];
        describe_rate(progress, done_bytes, total_bytes, rate, sizeof rate);
        snprintf(rest, sizeof rest, "%s of %s%s  %s", cli_size_text(done_bytes, done),
                 cli_size_text(total_bytes, total), rate, cli_printable(tensor ? tensor : "", name, sizeof name));
        show(progress, cli_ratio(done_bytes, total_bytes), rest);
    }
    return cli_signals_caught();
}

int cli_progress_count(void *context, uint32_t done, uint32_t total) {
    cli_progress *const progress = context;
    if (is_due(progress)) {
        char left[48], rest[128];
        time_left_text(done, total, progress->shown - progress->start, left, sizeof left);
        snprintf(rest, sizeof rest, "%" PRIu32 " of %" PRIu32 "%s", done, total, left);
        show(progress, cli_ratio(done, total), rest);
    }
    return cli_signals_caught();
}

void cli_progress_wipe(cli_progress *progress) {
    if (progress->is_on_screen)
        fputs("\r\033[K", stderr);
    progress->is_on_screen = 0;
}

double cli_progress_end(cli_progress *progress) {
    cli_progress_wipe(progress);
    return cli_now() - progress->start;
}
