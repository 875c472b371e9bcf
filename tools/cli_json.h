/* SPDX-License-Identifier: Apache-2.0 */
/* JSON output through Jansson. A failed allocation inside it yields NULL, which its setters refuse: what is written
 * without that would be a text that lacks something. So allocations are watched from cli_json_begin on. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include "transfuse.h"

#include <jansson.h>
#include <stdio.h>

/* Before the first value of a text is made. One text at a time. */
void cli_json_begin(void);

/* Writes root, made since cli_json_begin, and a newline; releases root, which may be NULL. flags: of json_dumpf.
 * Errors, without a message: TRF_ERR_MEMORY (nothing is written), TRF_ERR_IO. */
trf_status cli_json_write(json_t *root, size_t flags, FILE *file);

/* A JSON string of any text: bytes that are not UTF-8, as a path may hold, become '?'. */
json_t *cli_json_text(const char *text);

#endif
