/* SPDX-License-Identifier: Apache-2.0 */
/* What commands tell the user: errors, warnings, progress, sizes; and what they have in common beside: the device,
 * signals.
 */
#ifndef CLI_MESSAGES_H
#define CLI_MESSAGES_H

#include "cli_options.h"

#include <stdio.h>

/* Copies text with control characters replaced by '?': names come from files that anyone may have made, and a terminal
 * obeys escape sequences. Cuts to fit. @return buffer. */
const char *cli_printable(const char *text, char *buffer, size_t buffer_bytes);

/* Prints "transfuse: message [TRF_ERR_X]" on stderr. @return the exit status for it. */
cli_exit cli_report_error(const trf_error *err);

/* The same for a library's call that was to make the command's output: where that exists, -f would have replaced it. */
cli_exit cli_report_output_error(const cli_options *options, const trf_error *err);

/* The same for a failure that the command finds itself. */
__attribute__((format(printf, 2, 3))) cli_exit cli_fail(trf_status status, const char *format, ...);

#ifdef __clang_analyzer__
/* clang-tidy reads one source at a time and would follow every failure as if it could return CLI_OK. */
static inline cli_exit cli_not_ok(cli_exit status) {
    if (status == CLI_OK)
        __builtin_unreachable();
    return status;
}
#define cli_fail(...) cli_not_ok(cli_fail(__VA_ARGS__))
#endif

/* Prints "transfuse: warning: ..." on stderr; nothing for an empty text. */
void cli_warn(const char *text);

/* "1.50 GB" (powers of 1000). buffer: at least 16 bytes. @return buffer. */
const char *cli_size_text(uint64_t bytes, char *buffer);

/* @return a / b; 0 if b is. */
double cli_ratio(uint64_t a, uint64_t b);

/* Seconds of a clock that only goes forward. */
double cli_now(void);

/* Opens the device that --device names: *context is NULL for the CPU and after a failure, else the first CUDA device's.
 * @return CLI_OK, or the exit status after a message: never a silent fallback. */
cli_exit cli_open_device(cli_device device, trf_context **context);

/* Lets the context's plans follow the tuning that --tuning names. path: NULL if it was not given, and then context may
 * be, too. @return CLI_OK, or the exit status after a message. */
cli_exit cli_use_tuning(trf_context *context, const char *path);

/* Once, at the start: a file that grows beyond the limit on its size (ulimit -f) is then a write that fails. */
void cli_signals_prepare(void);

/* ---- long runs: a line on the terminal, and signals that stop the run through the library ---- */

typedef struct cli_progress {
    const char *verb;
    double start, shown; /* seconds */
    int terminal, columns;
} cli_progress;

/* From here on SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGXCPU (ulimit -t) make cli_progress_step ask to stop, so that the
 * library takes its temporaries away. One at a time in a process. */
void cli_progress_start(cli_progress *progress, const char *verb);

/* A trf_progress_fn; context: the cli_progress. */
int cli_progress_step(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes);

/* The same for things that are not bytes: a trf_tune_fn. */
int cli_progress_count(void *context, uint32_t done, uint32_t total);

/* Wipes the line. @return seconds since the start. */
double cli_progress_end(cli_progress *progress);

/* ---- short writes that cannot be stopped half way: signals wait until it is settled what became of them ---- */

void cli_signals_hold(void);

/* After a failure waiting signals are obeyed now. After a success they wait on, until the process ends: the output has
 * its name, and the exit status is to say so. */
void cli_signals_settle(int failed);

#endif
