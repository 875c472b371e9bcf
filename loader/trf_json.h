/* SPDX-License-Identifier: Apache-2.0 */
/* JSON in files. */
#ifndef TRF_JSON_H
#define TRF_JSON_H

#include "trf_budget.h"

#include <jansson.h>

/* Whether Jansson failed for lack of memory. It does not always say so. */
static inline int trf_json_lacked_memory(const json_error_t *json_error) {
    return json_error_code(json_error) == json_error_out_of_memory || !json_error->text[0];
}

/* json_loadb, but a NUL byte is an error wherever it is: Jansson passes over one behind a number or a literal. */
json_t *trf_json_load(const char *text, size_t bytes, size_t flags, json_error_t *json_error);

/* @return the most memory that parsing a text takes at a time, besides the text itself. */
uint64_t trf_json_bytes(const char *text, size_t bytes);

/* Checks that the budget has room for parsing the text of a file `trees` times over and `copies` of it. Errors:
 * TRF_ERR_LIMIT (the message names the file). */
trf_status trf_json_check(const trf_budget *budget, const char *path, const char *text, size_t bytes, unsigned trees,
                          unsigned copies, trf_error *err);

/* Parses the text of a file. flags: Jansson's, such as JSON_REJECT_DUPLICATES. Release *root with json_decref; NULL
 * after a failure. Errors: TRF_ERR_FORMAT (the message names file and byte), _MEMORY. */
trf_status trf_json_parse(const char *path, const char *text, size_t bytes, size_t flags, json_t **root,
                          trf_error *err);

/* Parses the text as Python's json module does, which wrote it or will read it. It accepts NaN and infinities, numbers
 * that are too large, lone surrogates, NULs in keys, keys that an object has twice (the last one counts), and a byte
 * order mark, as Python's utf-8-sig does. All numbers become reals; numbers that C cannot hold become other numbers,
 * and such characters become U+FFFD. *strict, malloc'd, is the text as it was parsed: it is as long as text, and each
 * byte that has a meaning is in the same place; NULL after a failure. strict may be NULL. Errors: as trf_json_parse. */
trf_status trf_json_parse_python(const char *path, const char *text, size_t bytes, json_t **root, char **strict,
                                 trf_error *err);

/* @return an object with the same members, a new reference; NULL without memory. (Jansson's own json_copy leaves out
 * those for which there is none.) */
json_t *trf_json_copy(const json_t *object);

/* Writes an object or array as json_dumps does with these flags, which leaves out without a word what it has no memory
 * for. *bytes: without the NUL after it; may be NULL. @return malloc'd; NULL without memory, or if root is NULL. */
char *trf_json_dump(const json_t *root, size_t flags, size_t *bytes);

/* A member of an object in a strict text: its key and value are [begin, end). */
typedef struct trf_json_member {
    size_t begin, end, next; /* next: where the one after it begins */
} trf_json_member;

/* Finds the next member of a name in the object that a strict text is; the first one where *member is zeros. Up to
 * `end` the text may have been written over. @return 1 if there is one, 0 if not, -1 without memory. */
int trf_json_next_member(const char *strict, size_t bytes, const char *key, trf_json_member *member);

#endif
