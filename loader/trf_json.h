/* SPDX-License-Identifier: Apache-2.0 */
/* JSON in files. */
#ifndef TRF_JSON_H
#define TRF_JSON_H

#include "trf_error.h"

#include <jansson.h>

/* Whether Jansson failed for want of memory; it does not always say so. */
static inline int trf_json_lacked_memory(const json_error_t *json_error) {
    return json_error_code(json_error) == json_error_out_of_memory || !json_error->text[0];
}

/* Parses the text of a file. flags: Jansson's, such as JSON_REJECT_DUPLICATES. Release *root with json_decref; NULL
 * after a failure. Errors: TRF_ERR_FORMAT (the message names file and byte), _MEMORY. */
trf_status trf_json_parse(const char *path, const char *text, size_t bytes, size_t flags, json_t **root,
                          trf_error *err);

/* Parses it as Python's json module does, which wrote it or will read it: NaN and infinities, numbers that are too
 * large, lone surrogates, NULs in keys, and keys that stand in an object twice (the last one counts) are taken; and so
 * is a byte order mark, as by Python's utf-8-sig. All numbers become reals; what C cannot hold becomes another number,
 * and such characters U+FFFD. *strict: the text as it was parsed, malloc'd, as long as text, each byte of which that
 * means something in the same place; or NULL after a failure. strict may be NULL. Errors: as trf_json_parse. */
trf_status trf_json_parse_python(const char *path, const char *text, size_t bytes, json_t **root, char **strict,
                                 trf_error *err);

/* Finds a member of the object that a strict text is. @return the number of members of that name; *begin, *end: the
 * first one's key and value, in the text; or SIZE_MAX without memory. */
size_t trf_json_find_member(const char *strict, size_t bytes, const char *key, size_t *begin, size_t *end);

#endif
