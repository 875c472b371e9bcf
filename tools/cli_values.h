/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers of option values. Each returns 0, or -1 if the text is not such a value (the output is then unspecified). */
#ifndef CLI_VALUES_H
#define CLI_VALUES_H

#include "cli_options.h"

/* Decimal digits only. */
int cli_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *value);

/* Finite, within [min, max]. */
int cli_parse_real(const char *text, double min, double max, double *value);

/* Bytes, at least 1: a whole number, after which K, M, G or T means 10^3, 10^6, 10^9 or 10^12 times as much. */
int cli_parse_bytes(const char *text, uint64_t *bytes);

/* @return the index of text among the NULL-terminated names, or -1. */
int cli_parse_name(const char *text, const char *const *names);

/* "tensor", "channel", "scale-group:G" or "scale-block:B". */
int cli_parse_granularity(const char *text, trf_granularity *granularity, uint32_t *scale_group_size);

/* "4096x4096". */
int cli_parse_shape(const char *text, cli_shape *shape);

/* "128x768x2048/8": experts (512 at most), inner, hidden, and how many experts a token has (32 at most). */
int cli_parse_mixture(const char *text, cli_mixture *mixture);

/* Calls take(context, list_entry) for each part of a comma list; no part may be empty, nor be longer than 63 bytes. */
int cli_parse_list(const char *text, int (*take)(void *context, const char *list_entry), void *context);

#endif
