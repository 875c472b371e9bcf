/* SPDX-License-Identifier: Apache-2.0 */
/* JSON output through Jansson. A failed allocation inside it yields NULL, which its setters refuse, so that a text
 * could be written with something missing. Therefore allocations are watched from cli_json_begin on. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include "transfuse.h"

#include <jansson.h>
#include <stdio.h>

/* Call this before the first value of a text is made. There can be one text at a time. */
void cli_json_begin(void);

/* Writes root, which was made since cli_json_begin, and a newline. Releases root, which may be NULL. flags:
 * json_dumpf's. Errors, without a message: TRF_ERR_MEMORY (nothing is written), TRF_ERR_IO. */
trf_status cli_json_write(json_t *root, size_t flags, FILE *file);

/* Makes a JSON string of any text. Bytes that are not UTF-8, which a path may hold, become '?'. */
json_t *cli_json_text(const char *text);

#endif
