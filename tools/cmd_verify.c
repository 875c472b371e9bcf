/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse verify */
#include "cli_messages.h"
#include "cli_report.h"

static const cli_option_id kOptions[] = {CLI_OPT_AGAINST, CLI_OPT_STRICT,  CLI_OPT_SKIP_EXTRA, CLI_OPT_THREADS,
                                         CLI_OPT_QUIET,   CLI_OPT_VERBOSE, CLI_OPT_PROGRESS,   CLI_OPT_JSON,
                                         CLI_OPT_DEVICE,  CLI_OPT_LAYOUT,  CLI_OPT_MAX_MEMORY, 0};

static void print_against(const cli_options *options, const trf_checkpoint_report *r) {
    char count[CLI_COUNT_BYTES];
    if (!options->against)
        return;
    if (!r->differing_tensors)
        cli_report_line("against", "%s: every tensor is equal, bit for bit", options->against);
    else if (r->relative_rms_error > 0)
        cli_report_line("against", "%s: relative error %.4g (RMS, over the compressed weights)", options->against,
                        r->relative_rms_error);
    else
        cli_report_line("against", "%s: %s that differ, by signs of zeros or in NaN", options->against,
                        cli_count_text(r->differing_tensors, "tensor", count));
    if (r->compared_files)
        cli_report_line("other files", "%s compared, byte for byte the source's",
                        cli_count_text(r->compared_files, "file", count));
    if (r->added_files)
        cli_report_line("added", "%s that the source does not have", cli_count_text(r->added_files, "file", count));
}

/* check: NULL without --device. */
static void print_device_check(const cli_device_check *check) {
    char size[16], count[CLI_COUNT_BYTES];
    if (!check)
        return;
    cli_report_line("in memory", "%s: %s sound, %s at %.0f GB/s", check->device,
                    cli_count_text(check->layers, "layer", count), cli_size_text(check->bytes, size),
                    check->seconds > 0 ? (double)check->bytes / 1e9 / check->seconds : 0.0);
    if (check->coded)
        cli_report_line(NULL, "%s coded, since --layout does not take them",
                        cli_count_text(check->coded, "layer", count));
}

static void print_summary(const cli_run *run) {
    const cli_options *options = run->options;
    const trf_checkpoint_report *r = &run->report;
    char size[16], source[16], count[CLI_COUNT_BYTES];
    if (r->compressed_tensors)
        cli_report_line(NULL, "%s: sound, %.1f s", options->arguments[0], run->seconds);
    else
        cli_report_line(NULL, "%s: nothing in it is compressed, %.1f s", options->arguments[0], run->seconds);
    if (r->models > 1)
        cli_report_line("models", "%llu, of a pipeline", (unsigned long long)r->models);
    if (r->compressed_tensors)
        cli_report_line("tensors", "%llu, of which %llu compressed; every tile of those was decoded",
                        (unsigned long long)r->tensors, (unsigned long long)r->compressed_tensors);
    else
        cli_report_line("tensors", "%llu, which have no checksums; what was checked is where they lie",
                        (unsigned long long)r->tensors);
    cli_report_line("size", "%s for %s of tensors", cli_size_text(r->output_bytes, size),
                    cli_size_text(r->source_bytes, source));
    if (r->extra_files && !r->compared_files)
        cli_report_line("not checked", "%s with weights that are not compressed, %s: they have no checksums",
                        cli_count_text(r->extra_files, "file", count), cli_size_text(r->extra_bytes, size));
    const cli_unchecked unchecked = cli_run_unchecked(run);
    if (r->compressed_tensors && unchecked.tensors)
        cli_report_line("not compressed", "%s, %s: no checksums; --against checks them",
                        cli_count_text(unchecked.tensors, "tensor", count), cli_size_text(unchecked.bytes, size));
    print_against(options, r);
    print_device_check(run->device_check);
}

/* With --strict a checkpoint in which nothing is compressed does not pass. */
static cli_exit judge(const cli_run *run) {
    if (!run->options->strict || run->report.compressed_tensors)
        return CLI_OK;
    return cli_fail(TRF_ERR_NOT_FOUND, "%s: nothing in it is compressed", run->options->arguments[0]);
}

/* context: that of --device, or NULL. */
static cli_exit verify(const cli_options *options, trf_context *context) {
    cli_run run;
    cli_device_check check;
    trf_error err = {0};
    cli_run_begin(&run, options, cmd_verify.name, "verifying");
    trf_status failed = trf_verify_checkpoint(options->arguments[0], options->against, &run.library, &run.report, &err);
    cli_run_end(&run, failed);
    cli_exit status = failed ? cli_report_error(&err) : judge(&run);
    if (status == CLI_OK && context) {
        status = cli_check_on_device(options, context, &check);
        run.device_check = &check;
    }
    if (status == CLI_OK && cli_run_wants_summary(&run))
        print_summary(&run);
    if (status == CLI_OK)
        status = cli_report_json(&run);
    cli_run_free(&run);
    return status;
}

static int run(const cli_options *options) {
    trf_context *context = NULL;
    trf_error err = {0};
    if (options->has_layout && !options->has_device)
        return cli_usage_error(cmd_verify.name, "--layout needs --device");
    if (options->skip_extra && !options->against)
        return cli_usage_error(cmd_verify.name, "--skip-extra needs --against");
    if (!options->has_device)
        return verify(options, NULL);
    cli_exit status = cli_open_device(options->device, &context);
    if (status != CLI_OK)
        return status;
    if (!context && trf_context_create(TRF_DEVICE_CPU, &context, &err))
        return cli_report_error(&err);
    status = verify(options, context);
    trf_context_destroy(context);
    return status;
}

const cli_command cmd_verify = {
    .name = "verify",
    .summary = "check a compressed checkpoint",
    .help = "usage: transfuse verify IN [OPTIONS]\n"
            "IN: a compressed checkpoint or pipeline, or a .trf file. Checks every checksum\n"
            "and decodes every tile. One in which nothing is compressed passes, and the\n"
            "output says so.\n\n"
            "  --against SOURCE      also compare every tensor, and the other files, with the\n"
            "                        checkpoint that was compressed; one that differs or is\n"
            "                        missing is an error; one that was added is named\n"
            "  --device DEVICE       cpu or cuda: then also load each layer, and compare it\n"
            "                        with its checksums in the device's memory\n"
            "  --layout LAYOUT       in which layers are loaded for that: coded (default),\n"
            "                        plain, packed or packed8; those that it does not take\n"
            "                        are loaded coded\n"
            "  --strict              one in which nothing is compressed does not pass\n"
            "  --skip-extra GLOB     with --against: do not compare files of these paths\n"
            "                        below the folder; may be repeated\n"
            "  --max-memory SIZE     fail before files make it take more memory\n"
            "  -T, --threads N       threads; 0 (default): one for each core\n"
            "  -q, --quiet           print nothing but errors\n"
            "  -v, --verbose         print the name of each tensor and file, too\n"
            "  --progress WHEN       auto (default: a line on a terminal, one every 30 s in a\n"
            "                        log), always, never\n"
            "  --json                print the report for programs\n",
    .arguments = {"IN"},
    .options = kOptions,
    .run = run,
};
