/* SPDX-License-Identifier: Apache-2.0 */
/* Shows how far a long run has come: on a terminal in a line that changes, elsewhere with a line now and then. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include "cli_options.h"

typedef struct cli_progress {
    const char *verb;
    double start, shown; /* seconds */
    double interval;     /* between two times that progress is shown; 0: never */
    int is_line;         /* it is a line that changes, on a terminal */
    int is_on_screen;
    int columns;
    int verbose;      /* a line for each tensor */
    char tensor[256]; /* the last one */
} cli_progress;

/* verb: such as "compressing". From here on signals stop the run, as cli_signals_catch says. A process shows one
 * progress at a time. options: --progress, --quiet and --verbose. */
void cli_progress_start(cli_progress *progress, const cli_options *options, const char *verb);

/* A trf_progress_fn; context: the cli_progress. */
int cli_progress_step(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes);

/* The same for things that are not bytes. A trf_tune_fn. */
int cli_progress_count(void *context, uint32_t done, uint32_t total);

/* Wipes the line, if it is there, before something else is written. */
void cli_progress_wipe(cli_progress *progress);

/* Wipes the line. @return seconds since the start. */
double cli_progress_end(cli_progress *progress);

#endif
