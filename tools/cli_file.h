/* SPDX-License-Identifier: Apache-2.0 */
/* Files that appear under their name only when they are complete. */
#ifndef CLI_FILE_H
#define CLI_FILE_H

#include "cli_options.h"

#include <stdio.h>

typedef struct cli_file {
    FILE *handle;
    char *path; /* where the file goes; of a link, where it leads */
    char *temporary;
    int force;
} cli_file;

/* Opens a temporary beside path. @return CLI_OK, or the exit status after a message if path exists and force is 0, or
 * if its folder cannot be written. */
cli_exit cli_file_begin(cli_file *file, const char *path, int force);

/* Gives the file its name; on failure nothing is left. @return as cli_file_begin. */
cli_exit cli_file_commit(cli_file *file);

/* Removes the temporary. */
void cli_file_abandon(cli_file *file);

/* Checks in advance, so that long work is not done for nothing. @return CLI_OK if cli_file_begin would succeed. */
cli_exit cli_file_check(const char *path, int force);

#endif
