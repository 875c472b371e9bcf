/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a record's table, each subject when it is finished. */
#ifndef BENCH_TABLE_H
#define BENCH_TABLE_H

#include "bench_columns.h"

void bench_print_heading(const bench_style *style, const bench_record *record);

/* Finishes the subject first. */
void bench_print_subject(const bench_style *style, const bench_record *record, bench_subject *subject);

#endif
