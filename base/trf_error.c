/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_error.h"

#include <stdio.h>
#include <string.h>

#undef trf_fail
#undef trf_prefix_error

static const char *const kNames[TRF_STATUS_COUNT] = {
    "TRF_OK",
    "TRF_ERR_ARGUMENT",
    "TRF_ERR_MEMORY",
    "TRF_ERR_IO",
    "TRF_ERR_EXISTS",
    "TRF_ERR_NOT_FOUND",
    "TRF_ERR_TRUNCATED",
    "TRF_ERR_MAGIC",
    "TRF_ERR_VERSION",
    "TRF_ERR_HEADER",
    "TRF_ERR_TABLE",
    "TRF_ERR_TILE",
    "TRF_ERR_CHECKSUM",
    "TRF_ERR_RANS",
    "TRF_ERR_FORMAT",
    "TRF_ERR_UNSUPPORTED",
    "TRF_ERR_MISMATCH",
    "TRF_ERR_SHAPE",
    "TRF_ERR_DEVICE",
    "TRF_ERR_CUDA",
    "TRF_ERR_CANCELLED",
    "TRF_ERR_LIMIT",
};

const char *trf_status_name(trf_status status) {
    return (unsigned)status < TRF_STATUS_COUNT ? kNames[status] : "TRF_ERR_?";
}

trf_status trf_fail(trf_error *err, trf_status status, uint64_t offset, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
        err->status = status;
        err->offset = offset;
        err->cuda = 0;
    }
    return status;
}

trf_status trf_prefix_error(trf_error *err, trf_status status, const char *format, ...) {
    if (!err)
        return status;
    char inner[sizeof err->message];
    memcpy(inner, err->message, sizeof inner);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    if (length >= 0 && (size_t)length + 3 < sizeof err->message)
        snprintf(err->message + length, sizeof err->message - (size_t)length, ": %s", inner);
    err->status = status;
    return status;
}

/* @return the bytes of a character on which a terminal acts; 0 for another one. */
static size_t control_bytes(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < ' ' || c[0] == 0x7F)
        return 1;
    if (c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0)
        return 2;
    /* U+200E, U+200F, U+2028 to U+202E; U+2066 to U+2069 */
    if (c[0] == 0xE2 && c[1] == 0x80 && (c[2] == 0x8E || c[2] == 0x8F || (c[2] >= 0xA8 && c[2] <= 0xAE)))
        return 3;
    return c[0] == 0xE2 && c[1] == 0x81 && c[2] >= 0xA6 && c[2] <= 0xA9 ? 3 : 0;
}

void trf_make_printable(char *text) {
    size_t end = 0, start;
    for (size_t bytes; text[end]; end += bytes ? bytes : 1)
        if ((bytes = control_bytes(text + end)) != 0)
            memset(text + end, '?', bytes);
    for (start = end; start && end - start < 3 && ((unsigned char)text[start - 1] & 0xC0) == 0x80;)
        start--;
    const unsigned char lead = start ? (unsigned char)text[start - 1] : 0;
    const size_t needed = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    if (needed > end - start)
        text[start - 1] = 0;
}

trf_status trf_sanitize_error(trf_status status, trf_error *err) {
    if (status != TRF_OK && err)
        trf_make_printable(err->message);
    return status;
}
