/* SPDX-License-Identifier: Apache-2.0 */
/* Files that appear under their name only when they are complete. */
#ifndef CLI_FILE_H
#define CLI_FILE_H

#include "cli_options.h"

#include <stdio.h>

typedef struct cli_file {
    FILE *handle;
    char *path; /* where it goes: where a link leads */
    char *temporary;
    int force;
} cli_file;

/* Opens a temporary beside path. @return CLI_OK, or the exit status after a message: path exists and force is 0, or its
 * folder cannot be written. */
cli_exit cli_file_begin(cli_file *file, const char *path, int force);

/* Gives the file its name; on failure nothing is left. @return as cli_file_begin. */
cli_exit cli_file_commit(cli_file *file);

/* Takes the temporary away. */
void cli_file_abandon(cli_file *file);

/* @return CLI_OK if cli_file_begin would succeed, so that long work is not done for nothing. */
cli_exit cli_file_check(const char *path, int force);

#endif
