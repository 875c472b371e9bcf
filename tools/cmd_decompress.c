/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse decompress */
#include "cli_messages.h"
#include "cli_output.h"

static const cli_option_id kOptions[] = {CLI_OPT_OUTPUT,
                                         CLI_OPT_SKIP_EXTRA,
                                         CLI_OPT_THREADS,
                                         CLI_OPT_FORCE,
                                         CLI_OPT_QUIET,
                                         CLI_OPT_VERBOSE,
                                         CLI_OPT_PROGRESS,
                                         CLI_OPT_JSON,
                                         CLI_OPT_MAX_OUTPUT,
                                         CLI_OPT_MAX_MEMORY,
                                         0};

static void print_summary(const cli_run *run) {
    const cli_options *options = run->options;
    const trf_checkpoint_report *r = &run->report;
    char from[16], to[16];
    cli_report_line(NULL, "%s -> %s, %.1f s", options->arguments[0], options->output, run->seconds);
    if (r->models > 1)
        cli_report_line("models", "%llu, of a pipeline", (unsigned long long)r->models);
    if (r->compressed_tensors)
        cli_report_line("tensors", "%llu, of which %llu were compressed", (unsigned long long)r->tensors,
                        (unsigned long long)r->compressed_tensors);
    else
        cli_report_line("tensors", "%llu, copied: nothing in %s is compressed", (unsigned long long)r->tensors,
                        options->arguments[0]);
    cli_report_line("all tensors", "%s -> %s", cli_size_text(r->output_bytes, from),
                    cli_size_text(r->source_bytes, to));
    if (r->source_file_bytes)
        cli_report_line("all files", "%s -> %s", cli_size_text(r->output_file_bytes, from),
                        cli_size_text(r->source_file_bytes, to));
    cli_report_files(r);
}

static int run(const cli_options *options) {
    cli_run run;
    cli_run_begin(&run, options, cmd_decompress.name, "decompressing");
    return cli_run_rewrite(&run, trf_decompress_checkpoint, print_summary);
}

const cli_command cmd_decompress = {
    .name = "decompress",
    .summary = "give back the checkpoint that was compressed",
    .help = "usage: transfuse decompress IN -o OUT [OPTIONS]\n"
            "IN: a compressed checkpoint or pipeline, or a .trf file, which becomes a\n"
            "safetensors file with one tensor, \"weight\". Quantized tensors come back\n"
            "dequantized in their first type; all others bit for bit, and config.json byte\n"
            "for byte.\n\n"
            "  -o, --output OUT      where to write\n"
            "  --skip-extra GLOB     do not copy files of these paths below the folder; may\n"
            "                        be repeated\n"
            "  --max-output SIZE     fail before more is written, such as 80G (K, M, G, T)\n"
            "  --max-memory SIZE     fail before files make it take more memory\n"
            "  -T, --threads N       threads; 0 (default): one for each core\n"
            "  -f, --force           replace OUT if it exists\n"
            "  -q, --quiet           print nothing but errors\n"
            "  -v, --verbose         print the name of each tensor and file, too\n"
            "  --progress WHEN       auto (default: a line on a terminal, one every 30 s in a\n"
            "                        log), always, never\n"
            "  --json                print the report for programs\n",
    .arguments = {"IN"},
    .options = kOptions,
    .needs_output = 1,
    .run = run,
};
