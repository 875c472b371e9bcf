/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the place of an output is of the sort that the command writes. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "cli_options.h"

/* Before any work is done. in: the input whose sort the output has, a file or a folder (an index stands for its
 * folder); NULL: the output is a file whatever the input is. out: NULL if there is to be none.
 * @return CLI_OK, or the exit status after a message. */
cli_exit cli_output_check(const char *command, const char *in, const char *out);

/* Reports the failure of a library's call that was to make the command's output: where that exists, it says what -f
 * would have replaced. @return the exit status for it. */
cli_exit cli_report_output_error(const cli_options *options, const trf_error *err);

#endif
