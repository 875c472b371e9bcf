/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse bench */
#include "bench_files.h"
#include "bench_modes.h"
#include "cli_file.h"
#include "cli_messages.h"
#include "cli_output.h"
#include "cli_signals.h"

#include "transfuse/device_memory.h"

#include <string.h>

static const cli_option_id kOptions[] = {CLI_OPT_DEVICE,    CLI_OPT_LAYERS,     CLI_OPT_MIXTURE,
                                         CLI_OPT_ROUTES,    CLI_OPT_BATCH,      CLI_OPT_BENCH_CODECS,
                                         CLI_OPT_FAVOR,     CLI_OPT_BENCH_BITS, CLI_OPT_DISTRIBUTION,
                                         CLI_OPT_SIGMA,     CLI_OPT_REPEATS,    CLI_OPT_GRANULARITY,
                                         CLI_OPT_JSON_FILE, CLI_OPT_CSV_FILE,   CLI_OPT_THREADS,
                                         CLI_OPT_FORCE,     CLI_OPT_MODE,       CLI_OPT_BUDGET,
                                         CLI_OPT_TUNING,    CLI_OPT_LAYOUT,     0};

typedef trf_status write_fn(const bench_style *style, const bench_record *record, FILE *file);

static cli_exit write_file(const bench_request *request, const char *path, write_fn *write) {
    if (!path)
        return CLI_OK;
    cli_file file;
    cli_signals_hold();
    cli_exit status = cli_file_begin(&file, path, request->options->force);
    if (status == CLI_OK) {
        const trf_status written = write(request->style, request->record, file.handle);
        if (written == TRF_OK) {
            status = cli_file_commit(&file);
        } else {
            cli_file_abandon(&file);
            status = cli_fail(written, "%s: the results could not be written%s", path,
                              written == TRF_ERR_MEMORY ? ": out of memory" : "");
        }
    }
    cli_signals_settle(status != CLI_OK);
    return status;
}

static cli_exit write_files(const bench_request *request) {
    cli_exit status = write_file(request, request->options->json_file, bench_write_json);
    return status == CLI_OK ? write_file(request, request->options->csv_file, bench_write_csv) : status;
}

static int has_results(const bench_record *record) {
    for (size_t i = 0; i < record->num_subjects; i++)
        if (record->subjects[i]->is_finished)
            return 1;
    return 0;
}

static cli_exit measure(const bench_mode *mode, const bench_request *request) {
    cli_exit status = mode->measure(request) ? cli_signals_failure() : CLI_OK;
    /* Time on a device is expensive, so what was measured before a failure is kept. */
    const int keeps = request->context && has_results(request->record);
    const cli_exit written = status == CLI_OK || keeps ? write_files(request) : CLI_OK;
    status = status == CLI_OK ? written : status;
    return status == CLI_OK && mode->exit_status ? mode->exit_status(request->record) : status;
}

/* Layouts other than coded exist only on a GPU and for some codecs, which become the default codecs. */
static cli_exit complete_layout(cli_options *options) {
    static const struct {
        unsigned codecs;
        const char *text;
    } taken[] = {[TRF_LAYOUT_CODED] = {~0u, ""},
                 [TRF_LAYOUT_PLAIN] = {1u << CLI_BENCH_BF16 | 1u << CLI_BENCH_FP16, "codecs bf16, scaled_fp8 and fp16"},
                 [TRF_LAYOUT_PACKED] = {1u << CLI_BENCH_BF16, "codecs bf16 and scaled_fp8"},
                 [TRF_LAYOUT_PACKED8] = {1u << CLI_BENCH_E4M3, "codecs fp8_e4m3 and scaled_fp8"}};
    const char *const layout = trf_layout_name(options->layout);
    const unsigned codecs = taken[options->layout].codecs;
    if (options->layout == TRF_LAYOUT_CODED)
        return CLI_OK;
    if (options->device != CLI_DEVICE_CUDA ||
        (options->mode != CLI_BENCH_LAYERS && options->mode != CLI_BENCH_SWEEP && options->mode != CLI_BENCH_LOAD))
        return cli_usage_error(
            "bench", "--layout %s goes with --device cuda and --mode layers, batch-sweep or load only", layout);
    if (options->bench_codecs & ~(codecs | 1u << CLI_BENCH_SCALED_FP8))
        return cli_usage_error("bench", "--layout %s goes with the %s only", layout, taken[options->layout].text);
    if (!options->bench_codecs) /* checkpoints that load have BF16 weights */
        options->bench_codecs = options->mode == CLI_BENCH_LOAD && options->layout == TRF_LAYOUT_PACKED8
                                    ? 1u << CLI_BENCH_SCALED_FP8
                                    : codecs;
    if (!options->has_favor) { /* weights are the same, whichever it was */
        options->favor = TRF_FAVOR_SPEED;
        options->has_favor = 1;
    }
    return CLI_OK;
}

/* Only one mode has mixtures; others would ignore these options. */
static cli_exit check_mixtures(const cli_options *options) {
    if (!options->num_mixtures && !options->has_routes)
        return CLI_OK;
    if (options->device != CLI_DEVICE_CUDA || options->mode != CLI_BENCH_MOE)
        return cli_usage_error("bench", "--%s goes with --device cuda and --mode moe only",
                               options->num_mixtures ? "mixture" : "routes");
    if (options->num_layers && !options->num_mixtures)
        return cli_usage_error("bench", "--routes goes with mixtures; --layers needs --mixture beside it");
    return CLI_OK;
}

/* Options that other modes would ignore, and outputs of which the second would take the place of the first. */
static cli_exit check_outputs(const cli_options *options) {
    if (options->budget_bytes && options->mode != CLI_BENCH_OFFLOAD)
        return cli_usage_error("bench", "--budget goes with --mode offload only");
    if (options->json_file && options->csv_file && cli_output_is_same(options->json_file, options->csv_file))
        return cli_usage_error("bench", "--json and --csv name the same file");
    return CLI_OK;
}

/* Two modes have BF16 weights alone. */
static cli_exit check_codecs(const cli_options *options) {
    const unsigned bf16 = 1u << CLI_BENCH_BF16, was_fp8 = 1u << CLI_BENCH_SCALED_FP8, codecs = options->bench_codecs;
    if (options->mode == CLI_BENCH_OFFLOAD && codecs & ~bf16)
        return cli_usage_error("bench", "--mode offload goes with the codec bf16 only");
    if (options->mode == CLI_BENCH_LOAD && codecs && codecs != bf16 && codecs != was_fp8)
        return cli_usage_error("bench", "--mode load goes with one codec, bf16 or scaled_fp8");
    return CLI_OK;
}

/* mode: NULL if the build has none for that device; opening the device then says so. */
static cli_exit complete_options(const bench_mode *mode, cli_options *options) {
    const unsigned integer_codecs = 1u << CLI_BENCH_INT8 | 1u << CLI_BENCH_BITS;
    if (mode)
        mode->set_defaults(options);
    if (mode && options->granularity != TRF_GRANULARITY_NONE && !(options->bench_codecs & integer_codecs))
        return cli_usage_error("bench", "--granularity goes with the codecs int8 and bits only");
    if (!mode && options->device == CLI_DEVICE_CPU)
        return cli_usage_error("bench", "only --mode layers runs on the CPU; add --device cuda");
    if (options->tuning && options->device != CLI_DEVICE_CUDA)
        return cli_usage_error("bench", "--tuning goes with --device cuda only");
    return CLI_OK;
}

static int run(const cli_options *given) {
    cli_options options = *given;
    trf_context *context = NULL;
    const bench_mode *mode = bench_find_mode(options.mode, options.device);
    cli_exit status = complete_layout(&options);
    if (status == CLI_OK)
        status = check_mixtures(&options);
    if (status == CLI_OK)
        status = check_codecs(&options);
    if (status == CLI_OK)
        status = check_outputs(&options);
    if (status == CLI_OK)
        status = complete_options(mode, &options);
    if (status != CLI_OK)
        return status;
    status = cli_open_device(options.device, &context);
    if (status == CLI_OK)
        status = cli_use_tuning(context, options.tuning);
    if (status == CLI_OK && options.json_file)
        status = cli_file_check(options.json_file, options.force);
    if (status == CLI_OK && options.csv_file)
        status = cli_file_check(options.csv_file, options.force);
    if (status == CLI_OK && mode) {
        bench_record record = {.batches = options.batches, .num_batches = options.num_batches};
        const bench_request request = {mode->name, mode->style, &options, context, &record};
        status = measure(mode, &request);
        bench_record_free(&record);
    }
    trf_context_destroy(context);
    return status;
}

const cli_command cmd_bench = {
    .name = "bench",
    .summary = "measure sizes and rates on synthetic weights",
    .help = "usage: transfuse bench [OPTIONS]\n"
            "Lists are separated by commas. Defaults in brackets. On a GPU: fused and\n"
            "two-step products, decoding, cuBLASLt on the plain weights, a plain 8-bit\n"
            "product and a device copy, in turns, with cold caches; TRF_COMMIT of the\n"
            "environment goes into the files.\n\n"
            "  --device cpu|cuda      [cpu]\n"
            "  --mode MODE            layers; on a GPU also, each with layers and batches of\n"
            "                         its own unless given: batch-sweep, overlap, moe, load,\n"
            "                         offload [layers]\n"
            "  --budget BYTES         offload: of device memory, such as 24G [8G]; besides,\n"
            "                         nothing but buffers\n"
            "  --tuning FILE          on a GPU: plans follow what 'transfuse tune' wrote\n"
            "  --layout LAYOUT        layers, batch-sweep, load on a GPU: how the weights lie\n"
            "                         there: coded; plain: bf16 and fp16 decoded once, and\n"
            "                         only cuBLASLt's products; packed: bf16 in fields of\n"
            "                         fixed width; packed8: fp8_e4m3, with x of BF16 [coded]\n"
            "  --layers ROWSxCOLUMNS,...  [4096x4096,2048x5632]\n"
            "  --mixture EXPERTSxINNERxHIDDEN/ROUTED,...  moe: whole mixtures of packed\n"
            "                         experts; gate and up are 2 INNER x HIDDEN; a token has\n"
            "                         ROUTED experts [those of Qwen3-30B-A3B, Mixtral and a\n"
            "                         part of DeepSeek-V3, unless --layers is given]\n"
            "  --routes uniform|skewed  of mixtures; skewed: a quarter of all routes, at most\n"
            "                         one a token, go to one expert, and 5 of 16 experts\n"
            "                         have none [uniform]\n"
            "  --batch M,...          rows of x in the products [1,8]; mixtures: tokens\n"
            "  --codec CODEC,...      bf16, fp16, fp8_e4m3, fp8_e5m2, fp8 (both), scaled_fp8\n"
            "                         (BF16 that was FP8 E4M3 with scales of 128x128), int8,\n"
            "                         bits, int (both) [all]\n"
            "  --bits B,...           sizes for the codec bits, 2 to 8 [4.25]\n"
            "  --granularity G        of int8 and bits: tensor, channel, scale-group:SIZE,\n"
            "                         scale-block:SIZE [channel]\n"
            "  --favor speed|size     [both]\n"
            "  --distribution D       normal or student-t, which has 5 degrees of freedom\n"
            "                         [normal]\n"
            "  --sigma S,...          what drawn weights are multiplied by: of normal ones\n"
            "                         the standard deviation [0.02]\n"
            "  --runs N               timed runs of each measurement, after one that is not\n"
            "                         timed [5; cuda: 20]\n"
            "  -T, --threads N        0: one for each core [0]\n"
            "  --json FILE, --csv FILE  write every figure, run by run\n"
            "  -f, --force            replace these files if they exist\n",
    .options = kOptions,
    .run = run,
};
