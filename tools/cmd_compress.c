/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse compress */
#include "cli_messages.h"
#include "cli_output.h"

#include <string.h>

static const cli_option_id kOptions[] = {CLI_OPT_OUTPUT,      CLI_OPT_CODEC,
                                         CLI_OPT_INT8,        CLI_OPT_BITS,
                                         CLI_OPT_GRANULARITY, CLI_OPT_FAVOR,
                                         CLI_OPT_INCLUDE,     CLI_OPT_EXCLUDE,
                                         CLI_OPT_EMBEDDINGS,  CLI_OPT_STORE_ONLY,
                                         CLI_OPT_DRY_RUN,     CLI_OPT_RESUME,
                                         CLI_OPT_SKIP_EXTRA,  CLI_OPT_THREADS,
                                         CLI_OPT_FORCE,       CLI_OPT_QUIET,
                                         CLI_OPT_VERBOSE,     CLI_OPT_PROGRESS,
                                         CLI_OPT_JSON,        CLI_OPT_MAX_OUTPUT,
                                         CLI_OPT_MAX_MEMORY,  0};

/* Looks for options that contradict each other. @return CLI_OK, or CLI_USAGE after a message. */
static cli_exit check_options(const cli_options *options) {
    const char *name = cmd_compress.name;
    int quantize = options->int8 || options->bits != 0;
    if (options->embeddings && options->include)
        return cli_usage_error(name, "--embeddings and --include exclude each other");
    if (options->int8 && options->bits != 0)
        return cli_usage_error(name, "--int8 and --bits exclude each other");
    if (quantize && options->has_codec && options->codec != TRF_CODEC_INT)
        return cli_usage_error(name, "%s goes with --codec int only", options->int8 ? "--int8" : "--bits");
    if (options->granularity != TRF_GRANULARITY_NONE && !quantize && options->codec != TRF_CODEC_INT)
        return cli_usage_error(name, "--granularity goes with --int8, --bits or --codec int only");
    if (options->resume && options->dry_run)
        return cli_usage_error(name, "--resume does not go with --dry-run, which writes nothing");
    if (options->store_only && (quantize || options->codec == TRF_CODEC_INT || options->codec == TRF_CODEC_BF16))
        return cli_usage_error(name, "--store-only keeps every bit, and does not go with %s",
                               options->int8   ? "--int8"
                               : options->bits ? "--bits"
                                               : "a codec that rounds");
    return CLI_OK;
}

static void set_encoding(const cli_options *options, trf_encode_options *encode) {
    encode->codec = options->int8 || options->bits != 0 ? TRF_CODEC_INT : options->codec;
    encode->bits = options->bits;
    encode->granularity = options->granularity;
    encode->scale_group_size = options->scale_group_size;
    encode->favor = options->favor;
}

/* Says what became of the bits. It claims no more than the report has. */
static void print_exactness(const cli_options *options, const trf_checkpoint_report *r) {
    char count[CLI_COUNT_BYTES];
    if (r->widened_tensors) {
        cli_report_line("F32 as BF16", "%s, without loss: %s", cli_count_text(r->widened_tensors, "tensor", count),
                        options->dry_run ? "by a sample every weight is a BF16 number; a run looks at all"
                                         : "every weight is a BF16 number");
        if (!options->store_only)
            cli_report_line("", "load them with dtype=bfloat16, since in float32 they are slow");
    }
    if (r->rounded_tensors)
        cli_report_line("rounded", "%s, to the nearest BF16", cli_count_text(r->rounded_tensors, "F32 tensor", count));
    if (r->relative_rms_error > 0)
        cli_report_line("relative error", "%.4g (RMS, %s)", r->relative_rms_error,
                        options->dry_run ? "estimated from a sample of the weights" : "over the compressed weights");
    else if (r->compressed_tensors && !r->rounded_tensors)
        cli_report_line("lossless", "%s",
                        options->dry_run ? "the codecs keep every bit" : "every tile was decoded and compared");
}

static void print_sizes(const trf_checkpoint_report *r) {
    char from[16], to[16];
    if (r->models > 1)
        cli_report_line("models", "%llu, of a pipeline", (unsigned long long)r->models);
    cli_report_line("tensors", "%llu, of which %llu compressed", (unsigned long long)r->tensors,
                    (unsigned long long)r->compressed_tensors);
    if (r->compressed_tensors) {
        cli_report_line("compressed", "%s -> %s, ratio %.3f, %.3f bits a weight",
                        cli_size_text(r->compressed_source_bytes, from), cli_size_text(r->compressed_bytes, to),
                        cli_ratio(r->compressed_source_bytes, r->compressed_bytes),
                        8 * cli_ratio(r->compressed_bytes, r->compressed_weights));
    }
    cli_report_line("all tensors", "%s -> %s, ratio %.3f", cli_size_text(r->source_bytes, from),
                    cli_size_text(r->output_bytes, to), cli_ratio(r->source_bytes, r->output_bytes));
    if (r->source_file_bytes)
        cli_report_line("all files", "%s -> %s, ratio %.3f", cli_size_text(r->source_file_bytes, from),
                        cli_size_text(r->output_file_bytes, to), cli_ratio(r->source_file_bytes, r->output_file_bytes));
}

static void print_summary(const cli_run *run) {
    const cli_options *options = run->options;
    const trf_checkpoint_report *r = &run->report;
    if (options->dry_run)
        cli_report_line(NULL, "%s: nothing was written, and sizes are estimates, %.1f s", options->arguments[0],
                        run->seconds);
    else
        cli_report_line(NULL, "%s -> %s, %.1f s", options->arguments[0], options->output, run->seconds);
    print_sizes(r);
    cli_report_fp8(r->scaled_fp8_tensors, r->compressed_tensors);
    cli_source_fp8 fp8 = {.block = r->source_fp8_block,
                          .compressed = r->compressed_tensors,
                          .scales = r->side_tables,
                          .unused_scales = r->unused_side_tables};
    memcpy(fp8.weights, r->source_fp8_tensors, sizeof fp8.weights);
    cli_report_source_fp8(&fp8);
    print_exactness(options, r);
    cli_report_files(r);
    cli_report_left(r);
    if (!r->compressed_tensors && options->dry_run)
        cli_report_line(NULL, "  Nothing would be compressed.");
    else if (!r->compressed_tensors)
        cli_report_line(NULL, "  Nothing was compressed; %s is a copy.", options->output);
}

static int run(const cli_options *options) {
    cli_run run;
    cli_exit status = check_options(options);
    if (status != CLI_OK)
        return status;
    cli_run_begin(&run, options, cmd_compress.name, options->dry_run ? "sampling" : "compressing");
    set_encoding(options, &run.library.encode);
    run.library.include = options->include;
    run.library.exclude = options->exclude;
    run.library.embeddings = options->embeddings;
    run.library.store_only = options->store_only;
    run.library.dry_run = options->dry_run;
    run.library.resume = options->resume;
    return cli_run_rewrite(&run, trf_compress_checkpoint, print_summary);
}

const cli_command cmd_compress = {
    .name = "compress",
    .summary = "compress a checkpoint",
    .help = "usage: transfuse compress IN -o OUT [OPTIONS]\n"
            "IN: a .safetensors file, a model.safetensors.index.json, a folder that holds\n"
            "either, or a pipeline of diffusers; OUT is a file or a folder likewise.\n"
            "Matrices and expert tensors whose type the codec takes are compressed;\n"
            "embeddings, small tensors and all else are copied. A folder's config.json gets\n"
            "a quantization_config.\n\n"
            "  -o, --output OUT      where to write\n"
            "  --codec CODEC         auto (default: lossless for each tensor's type, and FP8\n"
            "                        again where BF16 was FP8 with scales), bf16 (rounds\n"
            "                        F32, does not look for FP8), fp16, fp8 (and BF16), int\n"
            "  --int8                quantize to 8 bits, then code; implies --codec int\n"
            "  --bits B              quantize so that a weight takes B bits in the file, 2 to\n"
            "                        8; implies --codec int\n"
            "  --granularity G       scales of the quantizer: tensor, channel (default),\n"
            "                        scale-group:SIZE, scale-block:SIZE\n"
            "  --favor speed|size    decode four weights a step (default), or two for smaller\n"
            "                        files\n"
            "  --include GLOB        compress the tensors of these names, embeddings too, and\n"
            "                        no others; may be repeated\n"
            "  --embeddings          compress embeddings and outputs tied to them, too\n"
            "  --exclude GLOB        leave the tensors of these names as they are; may be\n"
            "                        repeated\n"
            "  --store-only          take what cannot be loaded while it is compressed, too:\n"
            "                        quantized checkpoints and adapters, bit for bit\n"
            "  --skip-extra GLOB     do not copy files of these paths below the folder, such\n"
            "                        as original or '*.bin'; may be repeated\n"
            "  --dry-run             write nothing, and say what would be compressed, and\n"
            "                        about how small it would become; -o may be missing\n"
            "  --resume              keep what is encoded if the run is stopped, and go on\n"
            "                        where such a run of the same input and options ended\n"
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
