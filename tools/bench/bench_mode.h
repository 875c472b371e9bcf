/* SPDX-License-Identifier: Apache-2.0 */
/* A mode of the bench, which is what --mode names. Each is a bench_mode in a file bench_mode_*.c (batch-sweep is in the
 * file of layers, whose measuring it shares), declared in bench_modes.h and listed in bench_modes.c. A new mode needs a
 * value in cli_bench_mode (cli_options.h), and its name in set_mode and kOptions (cli_options.c) and in the help
 * (cmd_bench.c). */
#ifndef BENCH_MODE_H
#define BENCH_MODE_H

#include "bench_columns.h"
#include "cli_options.h"

/* What a mode is asked to measure, and where its results go. */
typedef struct bench_request {
    const char *mode; /* its name */
    const bench_style *style;
    const cli_options *options;
    trf_context *context; /* NULL: the CPU is measured */
    bench_record *record;
} bench_request;

typedef struct bench_mode {
    const char *name;
    const bench_style *style;
    void (*set_defaults)(cli_options *options);

    /* Describes the environment, prints the heading, and measures; prints each subject when it is finished. @return 0,
     * or -1 after a message. */
    int (*measure)(const bench_request *request);

    /* Called once files are written. @return CLI_OK, or another status after a message. NULL means always CLI_OK. */
    cli_exit (*exit_status)(const bench_record *record);
} bench_mode;

#endif
