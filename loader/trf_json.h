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

#endif
