/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse matmul */
#include "cli_file.h"
#include "cli_float.h"
#include "cli_messages.h"
#include "cli_npy.h"
#include "cli_output.h"
#include "cli_report.h"
#include "cli_signals.h"
#include "matmul_cuda.h"

#include "transfuse/cpu.h"
#include "transfuse/device_memory.h"
#include "transfuse/tuning.h"

#include <stdlib.h>
#include <sys/stat.h>

static const cli_option_id kOptions[] = {CLI_OPT_OUTPUT, CLI_OPT_DEVICE, CLI_OPT_PATH,  CLI_OPT_LAYOUT, CLI_OPT_THREADS,
                                         CLI_OPT_FORCE,  CLI_OPT_TUNING, CLI_OPT_QUIET, CLI_OPT_JSON,   0};

static cli_exit multiply_on_cpu(const cli_options *options, const trf_layer *layer, const float *x, uint64_t m,
                                float *y, matmul_report *report) {
    trf_error err = {0};
    double start = cli_now();
    trf_status failed = trf_layer_matmul_cpu(layer, x, (uint32_t)m, y, options->threads, &err);
    report->seconds = cli_now() - start;
    report->path = TRF_PATH_FUSED;
    return failed ? cli_report_error(&err) : CLI_OK;
}

static cli_exit multiply_on_cuda(const cli_options *options, trf_context *context, const float *x, uint64_t m, float *y,
                                 matmul_report *report) {
#ifdef TRF_HAVE_CUDA
    return matmul_on_device(options, context, x, m, y, report);
#else
    (void)options, (void)context, (void)x, (void)m, (void)y, (void)report;
    return cli_fail(TRF_ERR_DEVICE, "--device cuda: this command was built without CUDA");
#endif
}

static cli_exit write_product(const cli_options *options, const float *y, uint64_t m, uint32_t rows) {
    cli_signals_hold();
    cli_exit status = cli_write_npy(options->output, y, m, rows, options->force);
    cli_signals_settle(status != CLI_OK);
    return status;
}

static void print_summary(const cli_options *options, const trf_layer_info *info, uint64_t m,
                          const matmul_report *report) {
    char path_note[512] = "";
    if (options->device == CLI_DEVICE_CUDA)
        snprintf(path_note, sizeof path_note, ", %s on %s%s%s%s", trf_path_name(report->path), report->device,
                 report->reason ? " (not fused: " : "", report->reason ? report->reason : "",
                 report->reason ? ")" : "");
    cli_report_line(NULL, "%s: %llu x %u, from X %llu x %u and %s weights %u x %u, %.3f s%s", options->output,
                    (unsigned long long)m, info->rows, (unsigned long long)m, info->cols, trf_codec_name(info->codec),
                    info->rows, info->cols, report->seconds, path_note);
}

static cli_exit print_json(const cli_options *options, const trf_layer_info *info, uint64_t m,
                           const matmul_report *report) {
    const int on_gpu = options->device == CLI_DEVICE_CUDA;
    cli_json_begin();
    json_t *root = json_object();
    json_object_set_new(root, "command", json_string(cmd_matmul.name));
    json_object_set_new(root, "input", cli_json_text(options->arguments[0]));
    json_object_set_new(root, "x", cli_json_text(options->arguments[1]));
    json_object_set_new(root, "output", cli_json_text(options->output));
    json_object_set_new(root, "seconds", json_real(report->seconds));
    json_object_set_new(root, "batch", json_integer((json_int_t)m));
    json_object_set_new(root, "codec", json_string(trf_codec_name(info->codec)));
    json_object_set_new(root, "rows", json_integer(info->rows));
    json_object_set_new(root, "cols", json_integer(info->cols));
    json_object_set_new(root, "device", json_string(on_gpu ? "cuda" : "cpu"));
    json_object_set_new(root, "device_name", on_gpu ? cli_json_text(report->device) : json_null());
    json_object_set_new(root, "path", json_string(trf_path_name(report->path)));
    json_object_set_new(root, "not_fused", report->reason ? cli_json_text(report->reason) : json_null());
    return cli_report_object(root);
}

/* context: NULL for the CPU. */
static cli_exit multiply(const cli_options *options, trf_context *context, const trf_layer *layer, const float *x,
                         uint64_t m) {
    trf_layer_info info;
    trf_layer_get_info(layer, &info);
    float *y = m <= SIZE_MAX / sizeof *y / info.rows ? malloc(m * info.rows * sizeof *y) : NULL;
    if (!y)
        return cli_fail(TRF_ERR_MEMORY, "out of memory for %llu x %u results", (unsigned long long)m, info.rows);

    matmul_report report = {0};
    cli_exit status = context ? multiply_on_cuda(options, context, x, m, y, &report)
                              : multiply_on_cpu(options, layer, x, m, y, &report);
    if (status == CLI_OK)
        status = write_product(options, y, m, info.rows);
    free(y);
    if (status == CLI_OK && options->json)
        return print_json(options, &info, m, &report);
    if (status == CLI_OK && !options->quiet)
        print_summary(options, &info, m, &report);
    return status;
}

/* Reports that a layer cannot be opened. A checkpoint in the place of one of its layers is a likely mistake. */
static cli_exit fail_layer(const char *path, const trf_error *err) {
    struct stat found;
    const int is_folder = stat(path, &found) == 0 && S_ISDIR(found.st_mode);
    if (!is_folder && err->status != TRF_ERR_MAGIC)
        return cli_report_error(err);
    return cli_fail(err->status, "%s; 'transfuse extract' writes a layer of a checkpoint as a .trf file", err->message);
}

static cli_exit multiply_files(const cli_options *options, trf_context *context) {
    cli_exit status = cli_file_check(options->output, options->force);
    if (status != CLI_OK)
        return status;

    const char *layer_path = options->arguments[0], *x_path = options->arguments[1];
    trf_error err = {0};
    trf_layer *layer = NULL;
    float *x = NULL;
    uint64_t m, cols;
    if (trf_layer_open(layer_path, &layer, &err))
        return fail_layer(layer_path, &err);
    trf_layer_info info;
    trf_layer_get_info(layer, &info);
    if (cli_read_npy(x_path, &x, &m, &cols, &err)) {
        status = cli_report_error(&err);
    } else if (cols != info.cols) {
        status = cli_fail(TRF_ERR_SHAPE, "%s: %llu columns, but the layer %s has %u", x_path, (unsigned long long)cols,
                          layer_path, info.cols);
    } else if (m < 1 || m > INT32_MAX) {
        status =
            cli_fail(TRF_ERR_SHAPE, "%s: %llu rows; 1 to 2147483647 can be multiplied", x_path, (unsigned long long)m);
    } else {
        status = multiply(options, context, layer, x, m);
    }
    free(x);
    trf_layer_free(layer);
    return status;
}

static int run(const cli_options *options) {
    trf_context *context;
    if (options->tuning && (options->device != CLI_DEVICE_CUDA || options->path != TRF_PATH_AUTO))
        return cli_usage_error(cmd_matmul.name, "--tuning goes with --device cuda, and without --path, only");
    if (options->layout != TRF_LAYOUT_CODED && options->device != CLI_DEVICE_CUDA)
        return cli_usage_error(cmd_matmul.name, "--layout %s goes with --device cuda only",
                               trf_layout_name(options->layout));
    if (options->path != TRF_PATH_AUTO && options->path != TRF_PATH_FUSED && options->device != CLI_DEVICE_CUDA)
        return cli_usage_error(cmd_matmul.name, "--path %s goes with --device cuda only", trf_path_name(options->path));
    const char *const inputs[] = {options->arguments[0], options->arguments[1], options->tuning};
    cli_exit status = cli_output_check(cmd_matmul.name, NULL, options->output);
    if (status == CLI_OK)
        status = cli_output_check_inputs(inputs, sizeof inputs / sizeof inputs[0], options->output);
    if (status != CLI_OK)
        return status;
    status = cli_open_device(options->device, &context);
    if (status == CLI_OK)
        status = cli_use_tuning(context, options->tuning);
    if (status == CLI_OK)
        status = multiply_files(options, context);
    trf_context_destroy(context);
    return status;
}

const cli_command cmd_matmul = {
    .name = "matmul",
    .summary = "multiply an array by a compressed layer",
    .help = "usage: transfuse matmul LAYER.trf X.npy -o Y.npy [OPTIONS]\n"
            "Y = X . W^T, without ever holding W whole, unless it is plain. X: F32 or F16, a\n"
            "row for each input; Y: F32. On a GPU, X is rounded to BF16 for bf16 weights and\n"
            "to F16 for all others.\n\n"
            "  -o, --output OUT      where to write\n"
            "  --device cpu|cuda     default: cpu\n"
            "  --layout LAYOUT       on a GPU: how W lies there: coded (default); plain:\n"
            "                        decoded once, bf16 and fp16; packed: in fields of fixed\n"
            "                        width, bf16 and fp8_e4m3; packed8: fp8_e4m3 alone\n"
            "  --path PATH           fused: decode while multiplying; on a GPU also two-step:\n"
            "                        decode to memory first; wide: while multiplying many\n"
            "                        rows, all codecs but bf16; dense: of plain layers,\n"
            "                        packed: of packed ones, in either case their only path.\n"
            "                        Default: fused; on a GPU by the layer and the number of\n"
            "                        rows\n"
            "  --tuning FILE         on a GPU: by the path that 'transfuse tune' found the\n"
            "                        fastest\n"
            "  -T, --threads N       threads; 0 (default): one for each core\n"
            "  -f, --force           replace OUT if it exists\n"
            "  -q, --quiet           print nothing but errors\n"
            "  --json                print the report for programs\n",
    .arguments = {"LAYER.trf", "X.npy"},
    .options = kOptions,
    .needs_output = 1,
    .run = run,
};
