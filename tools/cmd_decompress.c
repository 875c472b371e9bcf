/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse decompress */
#include "cli_messages.h"

static const cli_option_id kOptions[] = {CLI_OPT_OUTPUT, CLI_OPT_THREADS, CLI_OPT_FORCE, 0};

static int run(const cli_options *options) {
    cli_progress progress;
    trf_checkpoint_options library;
    trf_checkpoint_options_init(&library);
    library.encode.threads = options->threads;
    library.overwrite = options->force;
    library.progress = cli_progress_step;
    library.progress_context = &progress;

    trf_checkpoint_report report;
    trf_error err = {0};
    cli_progress_start(&progress, "decompressing");
    trf_status failed = trf_decompress_checkpoint(options->arguments[0], options->output, &library, &report, &err);
    double seconds = cli_progress_end(&progress);
    if (failed)
        return cli_report_output_error(options, &err);
    cli_warn(report.warning);

    char from[16], to[16];
    printf("%s -> %s, %.1f s\n", options->arguments[0], options->output, seconds);
    if (report.compressed_tensors)
        printf("  tensors         %llu, of which %llu were compressed\n", (unsigned long long)report.tensors,
               (unsigned long long)report.compressed_tensors);
    else
        printf("  tensors         %llu, copied: nothing in %s is compressed\n", (unsigned long long)report.tensors,
               options->arguments[0]);
    printf("  all tensors     %s -> %s\n", cli_size_text(report.output_bytes, from),
           cli_size_text(report.source_bytes, to));
    return CLI_OK;
}

const cli_command cmd_decompress = {
    .name = "decompress",
    .summary = "give back the checkpoint that was compressed",
    .help =
        "usage: transfuse decompress IN -o OUT [OPTIONS]\n"
        "IN: a compressed checkpoint, or a .trf file, which becomes a safetensors file with one tensor, \"weight\".\n"
        "Quantized tensors come back dequantized in their first type; all others bit for bit, and\n"
        "config.json byte for byte.\n\n"
        "  -o, --output OUT      where to write\n"
        "  -T, --threads N       threads; 0 (default): one for each core\n"
        "  -f, --force           replace OUT if it exists\n",
    .arguments = {"IN"},
    .options = kOptions,
    .needs_output = 1,
    .run = run,
};
