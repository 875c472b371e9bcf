/* SPDX-License-Identifier: Apache-2.0 */
/* What commands tell the user: errors, notes and sizes. Commands also open their device here. */
#ifndef CLI_MESSAGES_H
#define CLI_MESSAGES_H

#include "cli_options.h"

#include <stdio.h>

/* Copies text, cut to fit, with control characters replaced by '?': names come from files that anyone may have made,
 * and a terminal obeys escape sequences. @return buffer. */
const char *cli_printable(const char *text, char *buffer, size_t buffer_bytes);

/* Prints "transfuse: message [TRF_ERR_X]" on stderr. @return the exit status for it. */
cli_exit cli_report_error(const trf_error *err);

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

/* "1.50 GB" (powers of 1000). buffer: at least 16 bytes. @return buffer. */
const char *cli_size_text(uint64_t bytes, char *buffer);

/* @return a / b, or 0 if b is 0. */
double cli_ratio(uint64_t a, uint64_t b);

/* Seconds of a clock that only goes forward. */
double cli_now(void);

/* Opens the device that --device names: *context is NULL for the CPU and after a failure, else it is that of the first
 * CUDA device. @return CLI_OK, or the exit status after a message. There is never a silent fallback. */
cli_exit cli_open_device(cli_device device, trf_context **context);

/* Lets the context's plans follow the tuning that --tuning names. path: NULL if --tuning was not given; then context
 * may be NULL, too. @return CLI_OK, or the exit status after a message. */
cli_exit cli_use_tuning(trf_context *context, const char *path);

#endif
