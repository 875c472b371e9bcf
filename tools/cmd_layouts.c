/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse layouts */
#include "cli_messages.h"
#include "cli_report.h"

#include "transfuse/device_memory.h"
#include "transfuse/layouts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const cli_option_id kOptions[] = {CLI_OPT_MEMORY,  CLI_OPT_BATCH_SHARES, CLI_OPT_GPUS,
                                         CLI_OPT_CONTEXT, CLI_OPT_CARD,         CLI_OPT_TUNING,
                                         CLI_OPT_JSON,    CLI_OPT_VERBOSE,      0};

/* What CUDA and a framework take before there is any model, as `doctor` counts it. */
static const uint64_t kMarginBytes = (uint64_t)1 << 30;

/* A question, and what was found. */
typedef struct plan {
    const cli_options *options;
    uint32_t gpus;
    trf_layout_set *set;
    trf_layout_set_info info;
    trf_tuning *tuning;
    trf_layouts_options library;
    trf_layout *layouts; /* [info.num_layers] */
    trf_layouts_choice choice;
} plan;

/* @return what each GPU's memory holds besides the layers. */
static uint64_t fixed_bytes(const plan *of) { return kMarginBytes + of->info.other_bytes + of->info.cache_bytes; }

static double share_of(const plan *of, int batch) {
    double sum = 0;
    for (int i = 0; i < of->options->num_batches; i++)
        sum += of->options->shares[i];
    return of->options->shares[batch] / sum;
}

/* ---- finding it ---- */

static cli_exit read_set(plan *of) {
    const char *path = of->options->arguments[0];
    trf_layout_set_options options;
    trf_checkpoint *checkpoint;
    trf_error err = {0};
    trf_layout_set_options_init(&options);
    options.gpus = of->gpus;
    options.context_tokens = of->options->context_tokens;
    if (trf_checkpoint_open(path, &checkpoint, &err))
        return cli_report_error(&err);
    const trf_status status = trf_layout_set_read(checkpoint, &options, &of->set, &err);
    trf_checkpoint_close(checkpoint);
    if (status != TRF_OK)
        return cli_report_error(&err);
    trf_layout_set_get_info(of->set, &of->info);
    return of->info.num_layers
               ? CLI_OK
               : cli_fail(TRF_ERR_UNSUPPORTED, "%s: no tensor of it may be coded, packed or plain", path);
}

/* Says that nothing fits, and what would. */
static cli_exit fail_memory(const plan *of, const char *why) {
    char memory[16], fixed[16], cache[16], other[16];
    return cli_fail(TRF_ERR_MEMORY,
                    "%s does not fit: of %s %s go to the KV cache (%s), tensors that stay as they are (%s), CUDA and "
                    "the framework; %s",
                    of->options->arguments[0], cli_size_text(of->options->memory_bytes, memory),
                    cli_size_text(fixed_bytes(of), fixed), cli_size_text(of->info.cache_bytes, cache),
                    cli_size_text(of->info.other_bytes, other), why);
}

static cli_exit choose(plan *of) {
    const cli_options *options = of->options;
    trf_error err = {0};
    if (options->tuning && trf_tuning_read(options->tuning, &of->tuning, &err))
        return cli_report_error(&err);
    of->layouts = calloc(of->info.num_layers, sizeof *of->layouts);
    if (!of->layouts)
        return cli_fail(TRF_ERR_MEMORY, "out of memory for %" PRIu32 " layers", of->info.num_layers);
    trf_layouts_options_init(&of->library);
    if (options->memory_bytes > fixed_bytes(of))
        of->library.memory_bytes = options->memory_bytes - fixed_bytes(of);
    of->library.batches = options->batches;
    of->library.shares = options->shares;
    of->library.num_batches = (uint32_t)options->num_batches;
    of->library.card = options->card;
    of->library.tuning = of->tuning;
    const trf_status status = trf_layouts_choose(trf_layout_set_layers(of->set), of->info.num_layers, &of->library,
                                                 of->layouts, &of->choice, &err);
    if (status == TRF_ERR_MEMORY)
        return fail_memory(of, err.message);
    if (status == TRF_ERR_DEVICE) {
        cli_fail(status, "%s: %s", options->tuning, err.message);
        return CLI_FAILED; /* a file for another device, as in cli_use_tuning */
    }
    return status == TRF_OK ? CLI_OK : cli_report_error(&err);
}

/* ---- JSON ---- */

static json_t *describe_layer(const trf_layout_layer *layer, trf_layout layout) {
    json_t *object = json_object(), *bytes = json_object();
    for (int l = 0; l < TRF_LAYOUTS; l++)
        if (layer->layouts >> l & 1)
            json_object_set_new(bytes, trf_layout_name((trf_layout)l), json_integer((json_int_t)layer->bytes[l]));
    json_object_set_new(object, "name", cli_json_text(layer->name));
    json_object_set_new(object, "layout", json_string(trf_layout_name(layout)));
    json_object_set_new(object, "codec", json_string(trf_codec_name(layer->codec)));
    json_object_set_new(object, "rows", json_integer(layer->rows));
    json_object_set_new(object, "cols", json_integer(layer->cols));
    json_object_set_new(object, "experts", json_integer(layer->experts));
    json_object_set_new(object, "routed", json_integer(layer->routed));
    json_object_set_new(object, "is_lookup", json_boolean(layer->is_lookup));
    json_object_set_new(object, "packed_is_fp8", json_boolean(layer->packed_is_fp8));
    json_object_set_new(object, "bytes", bytes);
    return object;
}

static json_t *describe_batches(const plan *of) {
    json_t *list = json_array();
    for (int i = 0; i < of->options->num_batches; i++) {
        json_t *object = json_object();
        json_object_set_new(object, "batch", json_integer(of->options->batches[i]));
        json_object_set_new(object, "share", json_real(share_of(of, i)));
        json_array_append_new(list, object);
    }
    return list;
}

static cli_exit print_json(const plan *of) {
    const trf_layouts_choice *choice = &of->choice;
    cli_json_begin();
    json_t *root = json_object(), *layers = json_array();
    for (uint32_t i = 0; i < of->info.num_layers; i++)
        json_array_append_new(layers, describe_layer(&trf_layout_set_layers(of->set)[i], of->layouts[i]));
    const struct {
        const char *name;
        uint64_t value;
    } integers[] = {{"gpus", of->gpus},
                    {"memory_bytes", of->options->memory_bytes},
                    {"margin_bytes", kMarginBytes},
                    {"other_bytes", of->info.other_bytes},
                    {"context_tokens", of->options->context_tokens},
                    {"cache_bytes", of->info.cache_bytes},
                    {"layer_bytes", choice->memory_bytes},
                    {"least_memory_bytes", choice->least_bytes + fixed_bytes(of)}};
    const struct {
        const char *name;
        double value;
    } times[] = {{"microseconds", choice->microseconds},
                 {"least_microseconds", choice->least_microseconds},
                 {"plain_microseconds", choice->plain_microseconds},
                 {"one_gb_microseconds", choice->one_gb_microseconds}};
    json_object_set_new(root, "command", json_string(cmd_layouts.name));
    json_object_set_new(root, "input", cli_json_text(of->options->arguments[0]));
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
        json_object_set_new(root, integers[i].name, json_integer((json_int_t)integers[i].value));
    json_object_set_new(root, "batches", describe_batches(of));
    json_object_set_new(root, "times_of", cli_json_text(choice->card));
    json_object_set_new(root, "is_own_card", json_boolean(choice->is_own_card));
    json_object_set_new(root, "tuning", of->options->tuning ? cli_json_text(of->options->tuning) : json_null());
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        json_object_set_new(root, times[i].name, json_real(times[i].value));
    json_object_set_new(root, "is_estimated", json_boolean(of->info.is_estimated));
    json_object_set_new(root, "layers", layers);
    return cli_report_object(root);
}

/* ---- text ---- */

enum {
    NAME_BYTES = 256
};

/* Copies a name with each number between dots replaced by '*', so that alike layers of a model have one. */
static const char *generalize(const char *name, char *buffer) {
    char text[NAME_BYTES];
    size_t used = 0;
    for (const char *at = name; *at && used + 1 < NAME_BYTES;) {
        const size_t digits = (at == name || at[-1] == '.') ? strspn(at, "0123456789") : 0;
        const int is_number = digits && (at[digits] == '.' || !at[digits]);
        text[used++] = is_number ? '*' : *at;
        at += is_number ? digits : 1;
    }
    text[used] = 0;
    return cli_printable(text, buffer, NAME_BYTES);
}

enum {
    SHOWN_LAYOUTS = TRF_LAYOUT_PACKED8 + 1 /* what PACKED gives, too */
};

/* Layers that are alike, and what was chosen for how many of them. */
typedef struct kind {
    char name[NAME_BYTES];
    const trf_layout_layer *first;
    uint32_t counts[SHOWN_LAYOUTS];
    uint64_t bytes;
} kind;

/* @return how a layer for which a layout was chosen will lie. */
static trf_layout shown_layout(const trf_layout_layer *layer, trf_layout chosen) {
    return chosen == TRF_LAYOUT_PACKED && layer->packed_is_fp8 ? TRF_LAYOUT_PACKED8 : chosen;
}

static uint32_t find_kinds(const plan *of, int is_alone, kind *kinds) {
    const trf_layout_layer *layers = trf_layout_set_layers(of->set);
    uint32_t count = 0;
    for (uint32_t i = 0; i < of->info.num_layers; i++) {
        char name[NAME_BYTES];
        uint32_t k = is_alone ? count : 0;
        if (is_alone)
            cli_printable(layers[i].name, name, sizeof name);
        else
            generalize(layers[i].name, name);
        while (k < count && (strcmp(kinds[k].name, name) != 0 || kinds[k].first->rows != layers[i].rows ||
                             kinds[k].first->cols != layers[i].cols))
            k++;
        if (k == count) {
            memset(&kinds[k], 0, sizeof kinds[k]);
            memcpy(kinds[k].name, name, sizeof name);
            kinds[k].first = &layers[i];
            count++;
        }
        kinds[k].counts[shown_layout(&layers[i], of->layouts[i])]++;
        kinds[k].bytes += layers[i].bytes[of->layouts[i]];
    }
    return count;
}

/* "32 packed, 1 coded"; of one layer "packed". */
static const char *counts_text(const kind *of, char *buffer, size_t bytes) {
    size_t used = 0;
    uint32_t all = 0;
    for (int l = 0; l < SHOWN_LAYOUTS; l++)
        all += of->counts[l];
    buffer[0] = 0;
    for (int l = 0; l < SHOWN_LAYOUTS; l++) {
        char number[16] = "";
        if (all > 1)
            snprintf(number, sizeof number, "%" PRIu32 " ", of->counts[l]);
        if (of->counts[l] && used < bytes)
            used += (size_t)snprintf(buffer + used, bytes - used, "%s%s%s", used ? ", " : "", number,
                                     trf_layout_name((trf_layout)l));
    }
    return buffer;
}

static void print_kind(const kind *of) {
    char size[16], text[96], shape[64];
    const trf_layout_layer *layer = of->first;
    if (layer->experts)
        snprintf(shape, sizeof shape, "%" PRIu32 " experts of %" PRIu32 "x%" PRIu32, layer->experts, layer->rows,
                 layer->cols);
    else
        snprintf(shape, sizeof shape, "%" PRIu32 "x%" PRIu32, layer->rows, layer->cols);
    cli_report_line(NULL, "  %10s  %s: %s, %s", cli_size_text(of->bytes, size), counts_text(of, text, sizeof text),
                    of->name, shape);
}

static cli_exit print_layers(const plan *of) {
    kind *kinds = calloc(of->info.num_layers, sizeof *kinds);
    if (!kinds)
        return cli_fail(TRF_ERR_MEMORY, "out of memory for %" PRIu32 " layers", of->info.num_layers);
    const uint32_t count = find_kinds(of, of->options->verbose, kinds);
    for (uint32_t k = 0; k < count; k++)
        print_kind(&kinds[k]);
    free(kinds);
    return CLI_OK;
}

static void print_memory(const plan *of) {
    char size[16];
    const uint64_t taken = fixed_bytes(of) + of->choice.memory_bytes;
    cli_report_line(NULL, "%s of %s:", cli_size_text(of->options->memory_bytes, size),
                    of->gpus > 1 ? "each GPU, which has its part of every layer" : "the GPU");
    cli_report_line(NULL, "  %10s  layers, and what coded ones share", cli_size_text(of->choice.memory_bytes, size));
    cli_report_line(NULL, "  %10s  tensors that stay as they are", cli_size_text(of->info.other_bytes, size));
    cli_report_line(NULL, "  %10s  %s", cli_size_text(of->info.cache_bytes, size),
                    of->info.cache_bytes ? "KV cache in BF16, if every layer keeps each token"
                                         : "KV cache: none is counted (--context)");
    cli_report_line(NULL, "  %10s  CUDA and the framework, assumed", cli_size_text(kMarginBytes, size));
    cli_report_line(NULL, "  %10s  left, for activations", cli_size_text(of->options->memory_bytes - taken, size));
    if (of->info.is_estimated)
        cli_report_line(NULL, "What coded layers take is estimated from samples.");
}

static void print_times(const plan *of) {
    const trf_layouts_choice *choice = &of->choice;
    char batches[512];
    size_t used = 0;
    for (int i = 0; i < of->options->num_batches && used < sizeof batches; i++)
        used += (size_t)snprintf(batches + used, sizeof batches - used, "%s%" PRIu32 " (%.0f %%)", i ? ", " : "",
                                 of->options->batches[i], 100 * share_of(of, i));
    cli_report_line(NULL, "batches: %s", batches);
    cli_report_line(NULL, "times: %s%s%s", of->options->tuning ? "the tuning's, and what it lacks " : "", choice->card,
                    choice->is_own_card ? (of->options->card || of->options->tuning ? "" : "; --card names another")
                                        : ", since other cards were not measured; transfuse tune does that");
    cli_report_line(
        NULL, "expected: %.0f us of products a step, %.3f times as fast as plain (%.0f us)", choice->microseconds,
        choice->microseconds > 0 ? choice->plain_microseconds / choice->microseconds : 1, choice->plain_microseconds);
    cli_report_line(NULL, "1 GB more would save %.0f us (%.2f %%)", choice->one_gb_microseconds,
                    choice->microseconds > 0 ? 100 * choice->one_gb_microseconds / choice->microseconds : 0);
}

static int run(const cli_options *options) {
    cli_options filled = *options;
    plan of = {.options = &filled, .gpus = options->gpus ? options->gpus : 1};
    if (!options->memory_bytes)
        return cli_usage_error(cmd_layouts.name,
                               "--memory is missing: how much of each GPU's memory the model may take");
    if (!options->num_batches) {
        filled.batches[0] = filled.num_batches = 1;
        filled.shares[0] = 1;
    }
    cli_exit status = read_set(&of);
    if (status == CLI_OK)
        status = choose(&of);
    if (status == CLI_OK && options->json)
        status = print_json(&of);
    else if (status == CLI_OK) {
        status = print_layers(&of);
        print_memory(&of);
        print_times(&of);
    }
    trf_tuning_free(of.tuning);
    trf_layout_set_free(of.set);
    free(of.layouts);
    return status;
}

const cli_command cmd_layouts = {
    .name = "layouts",
    .summary = "choose each layer's layout within a memory",
    .help = "usage: transfuse layouts IN --memory SIZE [OPTIONS]\n"
            "IN: a model, compressed or not. Chooses coded, packed or plain for each layer, so\n"
            "that the products of a step are expected to take the least time and everything\n"
            "fits; packed8 is packed FP8. Nothing is loaded, and no GPU is needed.\n\n"
            "  --memory SIZE         of each GPU, for all that is counted, such as 80G\n"
            "  --batch LIST          rows of x of a step, and how often they come: 1,32 or\n"
            "                        1:0.8,32:0.2 (default 1)\n"
            "  --gpus N              GPUs that share every layer (tensor parallel; default 1)\n"
            "  --context N           tokens, of all requests together, that the KV cache has\n"
            "                        to hold (default: no cache is counted)\n"
            "  --card NAME           whose times to take, H100 or H200 (default H200)\n"
            "  --tuning FILE         times that 'transfuse tune' measured on the card\n"
            "  --json                everything, for programs\n"
            "  -v, --verbose         each layer by itself\n",
    .arguments = {"IN"},
    .options = kOptions,
    .run = run,
};
