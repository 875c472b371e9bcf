/* SPDX-License-Identifier: Apache-2.0 */
/* What a record says about the machine and the program, whatever device is measured. */
#ifndef BENCH_ENVIRONMENT_H
#define BENCH_ENVIRONMENT_H

#include "bench_figure.h"
#include "cli_options.h"

/* "date" (UTC, ISO 8601) and "cpu". */
void bench_add_machine(bench_fields *environment);

/* "runs" and "distribution". */
void bench_add_conditions(bench_fields *environment, const cli_options *options);

/* @return how many cores this process may run on. */
int bench_count_cores(void);

#endif
