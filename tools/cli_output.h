/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs of commands: whether their place is of the sort that the command writes; and a run that makes a checkpoint of
 * another. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "cli_report.h"

/* Before any work is done. in: the input whose sort the output has, a file or a folder (an index stands for its
 * folder); NULL: the output is a file whatever the input is. out: NULL if there is to be none.
 * @return CLI_OK, or the exit status after a message. */
cli_exit cli_output_check(const char *command, const char *in, const char *out);

/* Refuses to replace an input, by whatever name, or what is in a folder that is one. inputs[count]: paths, as
 * arguments have them, or NULL. @return as cli_output_check. */
cli_exit cli_output_check_inputs(const char *const *inputs, size_t count, const char *out);

/* Reports the failure of a library's call that was to make the command's output: where that exists, it says what -f
 * would have replaced. @return the exit status for it. */
cli_exit cli_report_output_error(const cli_options *options, const trf_error *err);

/* trf_compress_checkpoint, or trf_decompress_checkpoint. */
typedef trf_status cli_rewrite_fn(const char *in_path, const char *out_path, const trf_checkpoint_options *options,
                                  trf_checkpoint_report *report, trf_error *err);

/* Makes the output of a run that has begun, from its first argument, and says what became of it. Ends and frees the
 * run. @return the command's exit status. */
cli_exit cli_run_rewrite(cli_run *run, cli_rewrite_fn *rewrite, void (*print_summary)(const cli_run *run));

#endif
