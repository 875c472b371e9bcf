/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse tune */
#include "cli_file.h"
#include "cli_messages.h"
#include "cli_output.h"
#include "cli_progress.h"
#include "cli_report.h"
#include "cli_signals.h"

#include "transfuse/cpu.h"
#include "transfuse/device_memory.h"
#include "transfuse/tuning.h"

#include <stdlib.h>
#include <string.h>

static const cli_option_id kOptions[] = {
    CLI_OPT_OUTPUT, CLI_OPT_DEVICE, CLI_OPT_MAX_BATCH, CLI_OPT_LAYOUT, CLI_OPT_THREADS,
    CLI_OPT_FORCE,  CLI_OPT_QUIET,  CLI_OPT_PROGRESS,  CLI_OPT_JSON,   0};

/* One layer of each tuning key that the checkpoint has, on the device. */
typedef struct layer_set {
    const char *path;  /* of the checkpoint */
    trf_layout layout; /* that is asked for */
    trf_device_layer **layers;
    trf_layer_info *infos;
    uint32_t count;
} layer_set;

/* What was measured. */
typedef struct tuned {
    const trf_tuning *tuning;
    const layer_set *set;
    uint32_t max_batch;
    double seconds;
} tuned;

/* Whether products of both take the same time, as far as kernels are concerned. */
static int have_same_tuning_key(const trf_layer_info *a, const trf_layer_info *b) {
    return a->codec == b->codec && a->class_bits == b->class_bits && a->raw_bits == b->raw_bits && a->rows == b->rows &&
           a->cols == b->cols &&
           (a->granularity >= TRF_GRANULARITY_SCALE_GROUP) == (b->granularity >= TRF_GRANULARITY_SCALE_GROUP);
}

static int has_tuning_key_of(const layer_set *set, const trf_layer_info *info) {
    for (uint32_t i = 0; i < set->count; i++)
        if (have_same_tuning_key(&set->infos[i], info))
            return 1;
    return 0;
}

/* Loads a layer in the layout that was asked for or, if that does not take the layer, coded. Experts and layers of
 * other codecs are coded when they run, too. */
static trf_status load_layer(trf_context *context, trf_checkpoint *checkpoint, const trf_tensor_info *tensor,
                             layer_set *set, trf_error *err) {
    char name[4096];
    trf_load_options load;
    trf_load_options_init(&load);
    load.layout = tensor->num_dims == 3 ? TRF_LAYOUT_CODED : set->layout;
    const char *part = NULL;
    const int part_bytes = cli_find_part(set->path, tensor, &part); /* parts of a pipeline may have the same names */
    snprintf(name, sizeof name, "%.*s%s%s%s", part_bytes, part, part_bytes ? "/" : "", tensor->name,
             tensor->num_dims == 3 ? "[0]" : "");
    set->infos[set->count] = tensor->layer;
    trf_device_layer **const layer = &set->layers[set->count];
    trf_status status = trf_device_layer_load(context, checkpoint, name, &load, layer, err);
    if (status == TRF_ERR_UNSUPPORTED && load.layout != TRF_LAYOUT_CODED) {
        load.layout = TRF_LAYOUT_CODED;
        status = trf_device_layer_load(context, checkpoint, name, &load, layer, err);
    }
    set->count += status == TRF_OK;
    return status;
}

static trf_status load_layers(trf_context *context, trf_checkpoint *checkpoint, layer_set *set, trf_error *err) {
    const uint64_t tensors = trf_checkpoint_num_tensors(checkpoint);
    set->layers = calloc(tensors + 1, sizeof *set->layers);
    set->infos = calloc(tensors + 1, sizeof *set->infos);
    if (!set->layers || !set->infos) {
        *err = (trf_error){.status = TRF_ERR_MEMORY, .message = "out of memory for a list of layers"};
        return TRF_ERR_MEMORY;
    }
    for (uint64_t i = 0; i < tensors; i++) {
        trf_tensor_info tensor;
        trf_status status = trf_checkpoint_tensor(checkpoint, i, &tensor, err);
        if (status == TRF_OK && tensor.compressed && !has_tuning_key_of(set, &tensor.layer))
            status = load_layer(context, checkpoint, &tensor, set, err);
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

static void free_layers(layer_set *set) {
    for (uint32_t i = 0; i < set->count; i++)
        trf_device_layer_destroy(set->layers[i]);
    free(set->layers);
    free(set->infos);
}

/* What a plan chooses for a number of rows of x. */
typedef struct choice {
    trf_path path;            /* TRF_PATH_AUTO: the tuning has nothing */
    const char *kernel, *cut; /* of packed layers on a GPU, or NULL */
} choice;

/* Finds the choice by a tuning, which must be the context's. */
static choice find_choice(const trf_tuning *tuning, trf_device_layer *layer, uint32_t m) {
    choice found = {.path = trf_tuning_path(tuning, layer, m)};
    trf_plan_options options;
    trf_plan *plan;
    trf_plan_options_init(&options);
    options.m = m;
    options.x_dtype = options.y_dtype = TRF_DTYPE_BF16;
    if (found.path == TRF_PATH_PACKED && trf_plan_create(layer, &options, &plan, NULL) == TRF_OK) {
        trf_plan_get_kernel(plan, &found.kernel, &found.cut);
        trf_plan_destroy(plan);
    }
    return found;
}

static int is_same_text(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

static int is_same_choice(const choice *a, const choice *b) {
    return a->path == b->path && is_same_text(a->kernel, b->kernel) && is_same_text(a->cut, b->cut);
}

/* @return the first number of rows from m to max_batch for which the choice differs from *last, and stores that choice
 * in *last; 0 if there is none. */
static uint32_t find_next_choice(const trf_tuning *tuning, trf_device_layer *layer, uint32_t m, uint32_t max_batch,
                                 choice *last) {
    for (; m <= max_batch; m++) {
        const choice found = find_choice(tuning, layer, m);
        if (found.path == TRF_PATH_AUTO || is_same_choice(&found, last))
            continue;
        *last = found;
        return m;
    }
    return 0;
}

static trf_layout find_layout(trf_device_layer *layer) {
    trf_device_layer_info on_device;
    trf_device_layer_get_info(layer, &on_device);
    return on_device.layout;
}

/* Prints such as "1 fused, 48 wide, 384 two-step": from which of the measured batches on each path is chosen. */
static void print_layer(const trf_tuning *tuning, trf_device_layer *layer, const trf_layer_info *info,
                        uint32_t max_batch) {
    char text[4096];
    const trf_layout layout = find_layout(layer);
    choice last = {TRF_PATH_AUTO, NULL, NULL};
    size_t used =
        (size_t)snprintf(text, sizeof text, "  %s %ux%u, %s:", trf_codec_name(info->codec), info->rows, info->cols,
                         layout != TRF_LAYOUT_CODED ? trf_layout_name(layout)
                         : info->class_bits == 2    ? "quads"
                                                    : "pairs");
    uint32_t m = 0;
    for (int i = 0; (m = find_next_choice(tuning, layer, m + 1, max_batch, &last)) && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s %u %s%s%s%s%s", i ? "," : "", m,
                                 trf_path_name(last.path), last.kernel ? " " : "", last.kernel ? last.kernel : "",
                                 last.cut ? "/" : "", last.cut ? last.cut : "");
    cli_report_line(NULL, "%s", text);
}

static void print_summary(const cli_options *options, const tuned *tuned) {
    cli_report_line(NULL, "%s: batches to %u of %u layers, %.1f s", options->output, tuned->max_batch,
                    tuned->set->count, tuned->seconds);
    for (uint32_t i = 0; i < tuned->set->count; i++)
        print_layer(tuned->tuning, tuned->set->layers[i], &tuned->set->infos[i], tuned->max_batch);
}

static json_t *describe_layer(const trf_tuning *tuning, trf_device_layer *layer, const trf_layer_info *info,
                              uint32_t max_batch) {
    json_t *object = json_object(), *batches = json_array();
    choice last = {TRF_PATH_AUTO, NULL, NULL};
    json_object_set_new(object, "codec", json_string(trf_codec_name(info->codec)));
    json_object_set_new(object, "rows", json_integer(info->rows));
    json_object_set_new(object, "cols", json_integer(info->cols));
    json_object_set_new(object, "class_bits", json_integer(info->class_bits));
    json_object_set_new(object, "layout", json_string(trf_layout_name(find_layout(layer))));
    for (uint32_t m = 0; (m = find_next_choice(tuning, layer, m + 1, max_batch, &last));) {
        json_t *batch = json_object();
        json_object_set_new(batch, "from", json_integer(m));
        json_object_set_new(batch, "path", json_string(trf_path_name(last.path)));
        json_object_set_new(batch, "kernel", last.kernel ? json_string(last.kernel) : json_null());
        json_object_set_new(batch, "cut", last.cut ? json_string(last.cut) : json_null());
        json_array_append_new(batches, batch);
    }
    json_object_set_new(object, "batches", batches);
    return object;
}

static cli_exit print_json(const cli_options *options, const tuned *tuned) {
    cli_json_begin();
    json_t *root = json_object(), *layers = json_array();
    json_object_set_new(root, "command", json_string(cmd_tune.name));
    json_object_set_new(root, "input", cli_json_text(options->arguments[0]));
    json_object_set_new(root, "output", cli_json_text(options->output));
    json_object_set_new(root, "seconds", json_real(tuned->seconds));
    json_object_set_new(root, "device", json_string(options->device == CLI_DEVICE_CUDA ? "cuda" : "cpu"));
    json_object_set_new(root, "max_batch", json_integer(tuned->max_batch));
    for (uint32_t i = 0; i < tuned->set->count; i++)
        json_array_append_new(
            layers, describe_layer(tuned->tuning, tuned->set->layers[i], &tuned->set->infos[i], tuned->max_batch));
    json_object_set_new(root, "layers", layers);
    return cli_report_object(root);
}

static cli_exit measure(const cli_options *options, trf_context *context, const layer_set *set) {
    trf_tune_options tune;
    trf_tuning *tuning;
    trf_error err = {0};
    cli_progress progress;
    if (!set->count)
        return cli_fail(TRF_ERR_NOT_FOUND, "%s: no layer is compressed", options->arguments[0]);
    trf_tune_options_init(&tune);
    if (options->max_batch)
        tune.max_m = options->max_batch;
    tune.progress = cli_progress_count;
    tune.progress_context = &progress;
    cli_progress_start(&progress, options, "measuring");
    trf_status failed = trf_tuning_measure(set->layers, set->count, &tune, &tuning, &err);
    const double seconds = cli_progress_end(&progress);
    if (failed)
        return cli_report_error(&err);
    cli_signals_hold();
    failed = trf_tuning_write(tuning, options->output, options->force, &err);
    cli_signals_settle(failed);
    if (!failed)
        failed = trf_context_set_tuning(context, tuning, &err);
    const tuned done = {tuning, set, tune.max_m, seconds};
    cli_exit status = failed ? cli_report_error(&err) : CLI_OK;
    if (!failed && options->json)
        status = print_json(options, &done);
    else if (!failed && !options->quiet)
        print_summary(options, &done);
    trf_tuning_free(tuning);
    return status;
}

static int run(const cli_options *options) {
    trf_context *context;
    trf_checkpoint *checkpoint = NULL;
    layer_set set = {.path = options->arguments[0], .layout = options->layout};
    trf_error err = {0};
    cli_exit status = cli_output_check(cmd_tune.name, NULL, options->output);
    if (status == CLI_OK)
        status = cli_output_check_inputs(options->arguments, 1, options->output);
    if (status == CLI_OK)
        status = cli_file_check(options->output, options->force);
    if (status != CLI_OK)
        return status;
    trf_status failed = trf_context_create(options->device == CLI_DEVICE_CUDA ? 0 : TRF_DEVICE_CPU, &context, &err);
    if (failed)
        return cli_fail(err.status, "--device %s: %s", options->device == CLI_DEVICE_CUDA ? "cuda" : "cpu",
                        err.message);
    trf_context_set_threads(context, options->threads);
    failed = trf_checkpoint_open(options->arguments[0], &checkpoint, &err);
    if (!failed)
        failed = load_layers(context, checkpoint, &set, &err);
    status = failed ? cli_report_error(&err) : measure(options, context, &set);
    free_layers(&set);
    trf_checkpoint_close(checkpoint);
    trf_context_destroy(context);
    return status;
}

const cli_command cmd_tune = {
    .name = "tune",
    .summary = "measure which path is the fastest for a checkpoint's layers",
    .help = "usage: transfuse tune IN -o TUNING.json [OPTIONS]\n"
            "IN: a compressed checkpoint. One layer of each codec and shape is measured,\n"
            "batch by batch, by each path that takes it, and packed layers by the kernels\n"
            "that may be the fastest. 'matmul' and 'bench' take the file with --tuning,\n"
            "programs with trf_tuning_read. Nothing else should run on the device meanwhile.\n\n"
            "  -o, --output OUT      where to write\n"
            "  --device cpu|cuda     [cpu], which has one path\n"
            "  --max-batch M         batches of 1, 2, 3, 4, 6, 8, 12 ... to M, 1 to 1048576\n"
            "                        [8192]\n"
            "  --layout LAYOUT       coded, plain, packed, packed8: how layers are to lie in\n"
            "                        memory; those that cannot be are measured coded [coded]\n"
            "  -T, --threads N       on the CPU: threads; 0 (default): one for each core\n"
            "  -f, --force           replace OUT if it exists\n"
            "  -q, --quiet           print nothing but errors\n"
            "  --progress WHEN       auto (default: a line on a terminal, one every 30 s in a\n"
            "                        log), always, never\n"
            "  --json                print the report for programs\n",
    .arguments = {"IN"},
    .options = kOptions,
    .needs_output = 1,
    .run = run,
};
