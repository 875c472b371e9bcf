/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_messages.h"

#include "cli_signals.h"

#include "transfuse/tuning.h"

#include <stdarg.h>
#include <time.h>

#undef cli_fail

/* @return the bytes of a character on which a terminal acts, such as a control character or one that changes the
 * direction of text; 0 for another one. The library's messages are without them. */
static size_t control_bytes(const unsigned char *c) {
    if (c[0] < 0x20 || c[0] == 0x7f)
        return 1;
    if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
        return 2;
    if (c[0] == 0xe2 && c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xa8 && c[2] <= 0xae)))
        return 3;
    return c[0] == 0xe2 && c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9 ? 3 : 0;
}

const char *cli_printable(const char *text, char *buffer, size_t buffer_bytes) {
    size_t i = 0, control = 0;
    for (; text[i] && i + 1 < buffer_bytes; i++) {
        if (!control)
            control = control_bytes((const unsigned char *)text + i);
        buffer[i] = control ? '?' : text[i];
        control -= control > 0;
    }
    buffer[i] = 0;
    return buffer;
}

cli_exit cli_report_error(const trf_error *err) {
    char message[sizeof err->message];
    const int is_stopped = err->status == TRF_ERR_CANCELLED && cli_signals_caught();
    if (is_stopped)
        snprintf(message, sizeof message, "interrupted");
    else
        cli_printable(err->message[0] ? err->message : "failed", message, sizeof message);
    fprintf(stderr, "transfuse: %s [%s]\n", message, trf_status_name(err->status));
    if (is_stopped)
        return cli_signals_failure();
    return err->status == TRF_ERR_DEVICE ? CLI_NO_DEVICE : CLI_FAILED;
}

cli_exit cli_fail(trf_status status, const char *format, ...) {
    trf_error err = {.status = status};
    va_list args;
    va_start(args, format);
    vsnprintf(err.message, sizeof err.message, format, args);
    va_end(args);
    return cli_report_error(&err);
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
