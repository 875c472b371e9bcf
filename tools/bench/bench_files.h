/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a record to files: every figure of its finished subjects, repeat by repeat. */
#ifndef BENCH_FILES_H
#define BENCH_FILES_H

#include "bench_columns.h"
#include "transfuse.h"

#include <stdio.h>

/* Errors, without a message: TRF_ERR_MEMORY, TRF_ERR_IO. */
trf_status bench_write_json(const bench_style *style, const bench_record *record, FILE *file);
trf_status bench_write_csv(const bench_style *style, const bench_record *record, FILE *file);

#endif
