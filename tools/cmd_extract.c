/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse extract */
#include "cli_messages.h"
#include "cli_output.h"
#include "cli_signals.h"

static const cli_option_id kOptions[] = {CLI_OPT_OUTPUT, CLI_OPT_FORCE, CLI_OPT_QUIET, 0};

static int run(const cli_options *options) {
    trf_error err = {0};
    const cli_exit status = cli_output_check(cmd_extract.name, NULL, options->output);
    if (status != CLI_OK)
        return status;
    cli_signals_hold();
    trf_status failed =
        trf_extract_layer(options->arguments[0], options->arguments[1], options->output, options->force, &err);
    cli_signals_settle(failed);
    return failed ? cli_report_output_error(options, &err) : CLI_OK;
}

const cli_command cmd_extract = {
    .name = "extract",
    .summary = "write one compressed layer as a .trf file",
    .help = "usage: transfuse extract IN TENSOR -o OUT.trf [OPTIONS]\n"
            "IN: a compressed checkpoint. TENSOR: a name that 'transfuse info IN' lists;\n"
            "NAME[3] is expert 3 of an expert tensor.\n\n"
            "  -o, --output OUT      where to write\n"
            "  -f, --force           replace OUT if it exists\n"
            "  -q, --quiet           print nothing but errors\n",
    .arguments = {"IN", "TENSOR"},
    .options = kOptions,
    .needs_output = 1,
    .run = run,
};
