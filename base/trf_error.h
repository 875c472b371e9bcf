/* SPDX-License-Identifier: Apache-2.0 */
/* Filling the caller-owned trf_error: the one way in which this library reports a failure. */
#ifndef TRF_ERROR_H
#define TRF_ERROR_H

#include "trf_host.h"

#include "transfuse.h"

#include <stdarg.h>

/* Records status, offset and a formatted message in err (which may be NULL). @return status, for `return
 * trf_fail(...)`. */
__attribute__((format(printf, 4, 5))) trf_status trf_fail(trf_error *err, trf_status status, uint64_t offset,
                                                          const char *format, ...);

/* Puts the formatted text and ": " before err's message. The text says what the function that failed does not know,
 * such as the file and the tensor. @return err->status, or status if err is NULL. */
__attribute__((format(printf, 3, 4))) trf_status trf_prefix_error(trf_error *err, trf_status status, const char *format,
                                                                  ...);

/* Replaces, in place, each byte of characters on which a terminal acts by '?': control characters, of C1 as well, and
 * those that change the direction of text or end a line. Names in files may have them. A character that was cut at the
 * end is left out. */
void trf_make_printable(char *text);

/* Ends public functions whose messages quote names of files or tensors: makes the message one line, whatever these
 * hold. @return status. */
trf_status trf_sanitize_error(trf_status status, trf_error *err);

#ifdef __clang_analyzer__
/* clang-tidy reads one source at a time and would follow every failure as if it could return TRF_OK. The sources that
 * define these functions undefine the macros. */
static inline trf_status trf_not_ok(trf_status status) {
    if (status == TRF_OK)
        __builtin_unreachable();
    return status;
}
#define trf_fail(...) trf_not_ok(trf_fail(__VA_ARGS__))
#define trf_prefix_error(...) trf_not_ok(trf_prefix_error(__VA_ARGS__))
#endif

#endif
