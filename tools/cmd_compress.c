/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse compress */
#include "cli_messages.h"

static const cli_option_id kOptions[] = {CLI_OPT_OUTPUT,      CLI_OPT_CODEC,   CLI_OPT_INT8,    CLI_OPT_BITS,
                                         CLI_OPT_GRANULARITY, CLI_OPT_FAVOR,   CLI_OPT_INCLUDE, CLI_OPT_EXCLUDE,
                                         CLI_OPT_EMBEDDINGS,  CLI_OPT_THREADS, CLI_OPT_FORCE,   0};

static cli_exit set_encoding(const cli_options *options, trf_encode_options *encode) {
    const char *name = cmd_compress.name;
    int quantize = options->int8 || options->bits != 0;
    if (options->int8 && options->bits != 0)
        return cli_usage_error(name, "--int8 and --bits exclude each other");
    if (quantize && options->has_codec && options->codec != TRF_CODEC_INT)
        return cli_usage_error(name, "%s goes with --codec int only", options->int8 ? "--int8" : "--bits");
    encode->codec = quantize ? TRF_CODEC_INT : options->codec;
    if (options->granularity != TRF_GRANULARITY_NONE && encode->codec != TRF_CODEC_INT)
        return cli_usage_error(name, "--granularity goes with --int8, --bits or --codec int only");
    encode->bits = options->bits;
    encode->granularity = options->granularity;
    encode->scale_group_size = options->scale_group_size;
    encode->favor = options->favor;
    encode->threads = options->threads;
    return CLI_OK;
}

static void print_summary(const cli_options *options, const trf_checkpoint_report *r, double seconds) {
    char from[16], to[16];
    printf("%s -> %s, %.1f s\n", options->arguments[0], options->output, seconds);
    printf("  tensors         %llu, of which %llu compressed\n", (unsigned long long)r->tensors,
           (unsigned long long)r->compressed_tensors);
    if (r->compressed_tensors) {
        printf("  compressed      %s -> %s, ratio %.3f, %.3f bits a weight\n",
               cli_size_text(r->compressed_source_bytes, from), cli_size_text(r->compressed_bytes, to),
               cli_ratio(r->compressed_source_bytes, r->compressed_bytes),
               8 * cli_ratio(r->compressed_bytes, r->compressed_weights));
    }
    printf("  all tensors     %s -> %s, ratio %.3f\n", cli_size_text(r->source_bytes, from),
           cli_size_text(r->output_bytes, to), cli_ratio(r->source_bytes, r->output_bytes));
    if (r->rounded_tensors) {
        printf("  rounded         %llu F32 tensors, to the nearest BF16\n", (unsigned long long)r->rounded_tensors);
    }
    if (r->relative_rms_error > 0)
        printf("  relative error  %.4g (RMS, over the compressed weights)\n", r->relative_rms_error);
    else if (r->compressed_tensors && !r->rounded_tensors)
        printf("  lossless        every tile was decoded and compared\n");
    if (!r->compressed_tensors) {
        printf("  Nothing was compressed: no tensor was chosen, or none shrinks. Embeddings need --embeddings, F32\n"
               "  tensors --codec bf16, --int8 or --bits.\n");
    }
}

static int run(const cli_options *options) {
    trf_checkpoint_options library;
    trf_checkpoint_options_init(&library);
    if (options->embeddings && options->include)
        return cli_usage_error(cmd_compress.name, "--embeddings and --include exclude each other");
    cli_exit status = set_encoding(options, &library.encode);
    if (status != CLI_OK)
        return status;
    cli_progress progress;
    library.include = options->include;
    library.exclude = options->exclude;
    library.embeddings = options->embeddings;
    library.overwrite = options->force;
    library.progress = cli_progress_step;
    library.progress_context = &progress;

    trf_checkpoint_report report;
    trf_error err = {0};
    cli_progress_start(&progress, "compressing");
    trf_status failed = trf_compress_checkpoint(options->arguments[0], options->output, &library, &report, &err);
    double seconds = cli_progress_end(&progress);
    if (failed)
        return cli_report_output_error(options, &err);
    cli_warn(report.warning);
    print_summary(options, &report, seconds);
    return CLI_OK;
}

const cli_command cmd_compress = {
    .name = "compress",
    .summary = "compress a checkpoint",
    .help =
        "usage: transfuse compress IN -o OUT [OPTIONS]\n"
        "IN: a .safetensors file, a model.safetensors.index.json, or a folder that holds either; OUT is a file or a\n"
        "folder likewise. Matrices and expert tensors whose type the codec takes are compressed; embeddings, small\n"
        "tensors and all else are copied. A folder's config.json gets a quantization_config.\n\n"
        "  -o, --output OUT      where to write\n"
        "  --codec CODEC         auto (default: lossless for each tensor's type), bf16 (rounds F32), fp16, fp8, int\n"
        "  --int8                quantize to 8 bits, then code; implies --codec int\n"
        "  --bits B              quantize so that a weight takes B bits in the file, 2 to 8; implies --codec int\n"
        "  --granularity G       scales of the quantizer: tensor, channel (default), scale-group:SIZE,\n"
        "                        scale-block:SIZE\n"
        "  --favor speed|size    decode four weights a step (default), or two for smaller files\n"
        "  --include GLOB        compress the tensors of these names, embeddings too, and no others; may be repeated\n"
        "  --embeddings          compress embeddings and outputs tied to them, too\n"
        "  --exclude GLOB        leave the tensors of these names as they are; may be repeated\n"
        "  -T, --threads N       threads; 0 (default): one for each core\n"
        "  -f, --force           replace OUT if it exists\n",
    .arguments = {"IN"},
    .options = kOptions,
    .needs_output = 1,
    .run = run,
};
