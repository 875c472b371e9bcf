/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs of commands: checks that their place is of the kind that the command writes, and runs that make one
 * checkpoint from another. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "cli_report.h"

/* Checks the output's place before any work is done. in: the input whose kind the output has, a file or a folder (an
 * index stands for its folder); NULL if the output is a file whatever the input is. out: NULL if there is no output.
 * @return CLI_OK, or the exit status after a message. */
cli_exit cli_output_check(const char *command, const char *in, const char *out);

/* @return whether two names, of files that need not exist, are those of one file: by a link, or by other folders. */
int cli_output_is_same(const char *one, const char *other);

/* Refuses to replace an input, by whatever name, or a file in a folder that is an input. inputs[count]: paths as they
 * were given, or NULL. @return as cli_output_check. */
cli_exit cli_output_check_inputs(const char *const *inputs, size_t count, const char *out);

/* Reports the failure of a library call that should have made the command's output. If the output exists, the message
 * says what -f would replace. @return the exit status for it. */
cli_exit cli_report_output_error(const cli_options *options, const trf_error *err);

/* trf_compress_checkpoint, or trf_decompress_checkpoint. */
typedef trf_status cli_rewrite_fn(const char *in_path, const char *out_path, const trf_checkpoint_options *options,
                                  trf_checkpoint_report *report, trf_error *err);

/* Makes the output of a run that has begun from the command's first argument, and reports on it. Ends and frees the
 * run. @return the command's exit status. */
cli_exit cli_run_rewrite(cli_run *run, cli_rewrite_fn *rewrite, void (*print_summary)(const cli_run *run));

#endif
