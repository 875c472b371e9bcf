/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse verify */
#include "cli_messages.h"

static const cli_option_id kOptions[] = {CLI_OPT_AGAINST, CLI_OPT_THREADS, 0};

static void print_summary(const cli_options *options, const trf_checkpoint_report *report, double seconds) {
    char size[16];
    if (report->compressed_tensors) {
        printf("%s: sound, %.1f s\n", options->arguments[0], seconds);
        printf("  tensors         %llu, of which %llu compressed; every tile of those was decoded\n",
               (unsigned long long)report->tensors, (unsigned long long)report->compressed_tensors);
    } else {
        printf("%s: nothing in it is compressed, %.1f s\n", options->arguments[0], seconds);
        printf("  tensors         %llu, which have no checksums; what was checked is where they lie\n",
               (unsigned long long)report->tensors);
    }
    printf("  size            %s", cli_size_text(report->output_bytes, size));
    printf(" for %s of tensors\n", cli_size_text(report->source_bytes, size));
    if (!options->against)
        return;
    if (report->relative_rms_error > 0) {
        printf("  against         %s: relative error %.4g (RMS, over the compressed weights)\n", options->against,
               report->relative_rms_error);
    } else {
        printf("  against         %s: equal bit for bit\n", options->against);
    }
}

static int run(const cli_options *options) {
    cli_progress progress;
    trf_checkpoint_options library;
    trf_checkpoint_options_init(&library);
    library.encode.threads = options->threads;
    library.progress = cli_progress_step;
    library.progress_context = &progress;

    trf_checkpoint_report report;
    trf_error err = {0};
    cli_progress_start(&progress, "verifying");
    trf_status failed = trf_verify_checkpoint(options->arguments[0], options->against, &library, &report, &err);
    double seconds = cli_progress_end(&progress);
    if (failed)
        return cli_report_error(&err);
    cli_warn(report.warning);
    print_summary(options, &report, seconds);
    return CLI_OK;
}

const cli_command cmd_verify = {
    .name = "verify",
    .summary = "check a compressed checkpoint",
    .help = "usage: transfuse verify IN [OPTIONS]\n"
            "IN: a compressed checkpoint or a .trf file. Checks every checksum and decodes every tile. One in which\n"
            "nothing is compressed passes, and the output says so.\n\n"
            "  --against SOURCE      also compare every tensor and config.json with the checkpoint that was\n"
            "                        compressed\n"
            "  -T, --threads N       threads; 0 (default): one for each core\n",
    .arguments = {"IN"},
    .options = kOptions,
    .run = run,
};
