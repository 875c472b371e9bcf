/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse extract */
#include "cli_messages.h"
#include "cli_output.h"
#include "cli_report.h"
#include "cli_signals.h"

static const cli_option_id kOptions[] = {
    CLI_OPT_OUTPUT, CLI_OPT_FORCE, CLI_OPT_QUIET, CLI_OPT_JSON, CLI_OPT_MAX_OUTPUT, CLI_OPT_MAX_MEMORY, 0};

static cli_exit print_json(const cli_options *options, const trf_layer_info *info) {
    cli_json_begin();
    json_t *root = json_object();
    json_object_set_new(root, "command", json_string(cmd_extract.name));
    json_object_set_new(root, "input", cli_json_text(options->arguments[0]));
    json_object_set_new(root, "tensor", cli_json_text(options->arguments[1]));
    json_object_set_new(root, "output", cli_json_text(options->output));
    json_object_set_new(root, "codec", json_string(trf_codec_name(info->codec)));
    json_object_set_new(root, "rows", json_integer(info->rows));
    json_object_set_new(root, "cols", json_integer(info->cols));
    json_object_set_new(root, "bytes", json_integer((json_int_t)info->blob_bytes));
    return cli_report_object(root);
}

/* Reports what was written, as its file says. */
static cli_exit report(const cli_options *options) {
    trf_layer *layer;
    trf_layer_info info;
    trf_error err = {0};
    char size[16];
    if (options->quiet && !options->json)
        return CLI_OK;
    if (trf_layer_open(options->output, &layer, &err))
        return cli_report_error(&err);
    trf_layer_get_info(layer, &info);
    trf_layer_free(layer);
    if (options->json)
        return print_json(options, &info);
    cli_report_line(NULL, "%s: %s, %s %ux%u, %s", options->output, options->arguments[1], trf_codec_name(info.codec),
                    info.rows, info.cols, cli_size_text(info.blob_bytes, size));
    return CLI_OK;
}

static int run(const cli_options *options) {
    trf_error err = {0};
    const trf_limits limits = cli_limits(options);
    const cli_exit status = cli_output_check(cmd_extract.name, NULL, options->output);
    if (status != CLI_OK)
        return status;
    cli_signals_hold();
    trf_status failed = trf_extract_layer_within(options->arguments[0], options->arguments[1], options->output,
                                                 options->force, &limits, &err);
    cli_signals_settle(failed);
    return failed ? cli_report_output_error(options, &err) : report(options);
}

const cli_command cmd_extract = {
    .name = "extract",
    .summary = "write one compressed layer as a .trf file",
    .help = "usage: transfuse extract IN TENSOR -o OUT.trf [OPTIONS]\n"
            "IN: a compressed checkpoint. TENSOR: a name that 'transfuse info IN' lists;\n"
            "NAME[3] is expert 3 of an expert tensor.\n\n"
            "  -o, --output OUT      where to write\n"
            "  --max-output SIZE     fail before more is written, such as 80G (K, M, G, T)\n"
            "  --max-memory SIZE     fail before files make it take more memory\n"
            "  -f, --force           replace OUT if it exists\n"
            "  -q, --quiet           print nothing but errors\n"
            "  --json                print the report for programs\n",
    .arguments = {"IN", "TENSOR"},
    .options = kOptions,
    .needs_output = 1,
    .run = run,
};
