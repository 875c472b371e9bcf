/* Filling the caller-owned trf_error: the one way in which this library reports a failure. */
#ifndef TRF_ERROR_H
#define TRF_ERROR_H

#include "transfuse.h"

#include <stdarg.h>

/* Records status, offset and a formatted message in err (which may be NULL). @return status, for `return
 * trf_fail(...)`. */
__attribute__((format(printf, 4, 5))) trf_status trf_fail(trf_error *err, trf_status status, uint64_t offset,
                                                          const char *format, ...);

/* Puts "context: " before err's message, such as the file and the tensor that a deeper layer does not know.
 * @return err->status, or status where err is NULL. */
__attribute__((format(printf, 3, 4))) trf_status trf_prefix_error(trf_error *err, trf_status status, const char *format,
                                                                  ...);

#endif
