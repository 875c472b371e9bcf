/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse info */
#include "cli_json.h"
#include "cli_messages.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const cli_option_id kOptions[] = {CLI_OPT_JSON, 0};

typedef struct totals {
    uint64_t tensors, compressed, source_bytes, bytes, compressed_source_bytes, compressed_bytes, compressed_weights;
} totals;

static const char *const kGranularityNames[] = {"none", "tensor", "channel", "scale-group", "scale-block"};

static const char *granularity_name(trf_granularity granularity) {
    return (unsigned)granularity <= TRF_GRANULARITY_SCALE_BLOCK ? kGranularityNames[granularity] : "?";
}

static uint64_t count_weights(const trf_tensor_info *tensor) {
    uint64_t weights = 1;
    for (uint32_t i = 0; i < tensor->num_dims; i++)
        weights *= tensor->shape[i];
    return weights;
}

static void add_to_totals(totals *sum, const trf_tensor_info *tensor) {
    sum->tensors++;
    sum->source_bytes += tensor->source_bytes;
    sum->bytes += tensor->bytes;
    if (tensor->compressed) {
        sum->compressed++;
        sum->compressed_source_bytes += tensor->source_bytes;
        sum->compressed_bytes += tensor->bytes;
        sum->compressed_weights += count_weights(tensor);
    }
}

/* "4096x1024", "scalar". */
static const char *shape_text(const trf_tensor_info *tensor, char *buffer, size_t buffer_bytes) {
    size_t used = 0;
    snprintf(buffer, buffer_bytes, "scalar");
    for (uint32_t i = 0; i < tensor->num_dims && used < buffer_bytes; i++)
        used += (size_t)snprintf(buffer + used, buffer_bytes - used, "%s%" PRIu64, i ? "x" : "", tensor->shape[i]);
    return buffer;
}

static json_t *describe_tensor(const trf_tensor_info *tensor) {
    const trf_layer_info *layer = &tensor->layer;
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->num_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    uint64_t weights = count_weights(tensor);

    json_t *object = json_object();
    json_object_set_new(object, "name", cli_json_text(tensor->name));
    json_object_set_new(object, "file", cli_json_text(tensor->file));
    json_object_set_new(object, "file_offset", json_integer((json_int_t)tensor->file_offset));
    json_object_set_new(object, "dtype", cli_json_text(tensor->dtype));
    json_object_set_new(object, "shape", shape);
    json_object_set_new(object, "source_bytes", json_integer((json_int_t)tensor->source_bytes));
    json_object_set_new(object, "bytes", json_integer((json_int_t)tensor->bytes));
    json_object_set_new(object, "bits_per_weight",
                        weights ? json_real(8 * cli_ratio(tensor->bytes, weights)) : json_null());
    json_object_set_new(object, "compressed", json_boolean(tensor->compressed));
    json_object_set_new(object, "codec", tensor->compressed ? json_string(trf_codec_name(layer->codec)) : json_null());
    if (!tensor->compressed)
        return object;

    json_object_set_new(object, "blobs", json_integer((json_int_t)tensor->blobs));
    json_object_set_new(object, "class_bits", json_integer(layer->class_bits));
    json_object_set_new(object, "raw_bits", json_integer(layer->raw_bits));
    json_object_set_new(object, "probability_bits", json_integer(layer->probability_bits));
    json_object_set_new(object, "state_bits", json_integer(layer->state_bits));
    json_object_set_new(object, "slab_cols", json_integer(layer->slab_cols));
    json_object_set_new(object, "granularity", json_string(granularity_name(layer->granularity)));
    json_object_set_new(object, "scale_group_size", json_integer(layer->scale_group_size));
    json_object_set_new(object, "predictor_modes", json_integer(layer->predictor_modes));
    json_object_set_new(object, "tiles", json_integer((json_int_t)layer->tiles));
    json_object_set_new(object, "stored_tiles", json_integer((json_int_t)layer->stored_tiles));
    json_object_set_new(object, "exceptions", json_integer((json_int_t)layer->exceptions));
    return object;
}

static cli_exit print_json(const char *path, const trf_tensor_info *tensors, const totals *sum) {
    cli_json_begin();
    json_t *list = json_array();
    for (uint64_t i = 0; i < sum->tensors; i++)
        json_array_append_new(list, describe_tensor(&tensors[i]));
    json_t *root = json_object();
    json_object_set_new(root, "file", cli_json_text(path));
    json_object_set_new(root, "tensors", list);
    json_object_set_new(root, "num_tensors", json_integer((json_int_t)sum->tensors));
    json_object_set_new(root, "compressed_tensors", json_integer((json_int_t)sum->compressed));
    json_object_set_new(root, "source_bytes", json_integer((json_int_t)sum->source_bytes));
    json_object_set_new(root, "bytes", json_integer((json_int_t)sum->bytes));
    const trf_status status = cli_json_write(root, JSON_INDENT(2), stdout);
    return status == TRF_OK ? CLI_OK
                            : cli_fail(status, "standard output: the listing could not be written%s",
                                       status == TRF_ERR_MEMORY ? ": out of memory" : "");
}

/* @return columns that a UTF-8 text takes on a terminal, near enough: its characters. */
static size_t count_characters(const char *text) {
    size_t count = 0;
    for (; *text; text++)
        count += ((unsigned char)*text & 0xC0) != 0x80;
    return count;
}

static int name_width(const trf_tensor_info *tensors, uint64_t count) {
    size_t widest = 6;
    for (uint64_t i = 0; i < count; i++) {
        size_t length = count_characters(tensors[i].name);
        widest = length > widest ? length : widest;
    }
    return widest < 80 ? (int)widest : 80;
}

static void print_row(const trf_tensor_info *tensor, int width) {
    char name[1024], dtype[32], shape[96], source[16], size[16];
    cli_printable(tensor->name, name, sizeof name);
    width += (int)(strlen(name) - count_characters(name)); /* printf counts bytes */
    printf("%-*s  %-8s %14s  %9s  %9s", width, name, cli_printable(tensor->dtype, dtype, sizeof dtype),
           shape_text(tensor, shape, sizeof shape), cli_size_text(tensor->source_bytes, source),
           cli_size_text(tensor->bytes, size));
    const trf_layer_info *layer = &tensor->layer;
    if (tensor->compressed) {
        printf("  %7.3f  %-8s %5u %5u %5u %10" PRIu64, 8 * cli_ratio(tensor->bytes, count_weights(tensor)),
               trf_codec_name(layer->codec), layer->class_bits, layer->probability_bits, layer->predictor_modes,
               layer->exceptions);
    }
    putchar('\n');
}

static void print_table(const trf_tensor_info *tensors, const totals *sum) {
    char from[16], to[16];
    int width = name_width(tensors, sum->tensors);
    printf("%-*s  %-8s %14s  %9s  %9s  %7s  %-8s %5s %5s %5s %10s\n", width, "tensor", "dtype", "shape", "source",
           "size", "bits", "codec", "class", "prob", "modes", "exceptions");
    for (uint64_t i = 0; i < sum->tensors; i++)
        print_row(&tensors[i], width);
    printf("\n%" PRIu64 " tensors, %s of source, %s here, ratio %.3f\n", sum->tensors,
           cli_size_text(sum->source_bytes, from), cli_size_text(sum->bytes, to),
           cli_ratio(sum->source_bytes, sum->bytes));
    if (sum->compressed) {
        printf("%" PRIu64 " compressed, %s -> %s, ratio %.3f, %.3f bits a weight\n", sum->compressed,
               cli_size_text(sum->compressed_source_bytes, from), cli_size_text(sum->compressed_bytes, to),
               cli_ratio(sum->compressed_source_bytes, sum->compressed_bytes),
               8 * cli_ratio(sum->compressed_bytes, sum->compressed_weights));
    }
}

static int run(const cli_options *options) {
    const char *path = options->arguments[0];
    trf_error err = {0};
    trf_checkpoint *checkpoint;
    if (trf_checkpoint_open(path, &checkpoint, &err))
        return cli_report_error(&err);

    cli_exit status = CLI_OK;
    totals sum = {0};
    uint64_t count = trf_checkpoint_num_tensors(checkpoint);
    trf_tensor_info *tensors = calloc(count ? count : 1, sizeof *tensors);
    if (!tensors)
        status = cli_fail(TRF_ERR_MEMORY, "%s: out of memory for %" PRIu64 " tensors", path, count);
    for (uint64_t i = 0; status == CLI_OK && i < count; i++) {
        if (trf_checkpoint_tensor(checkpoint, i, &tensors[i], &err))
            status = cli_report_error(&err);
        else
            add_to_totals(&sum, &tensors[i]);
    }
    if (status == CLI_OK && options->json)
        status = print_json(path, tensors, &sum);
    else if (status == CLI_OK)
        print_table(tensors, &sum);
    free(tensors);
    trf_checkpoint_close(checkpoint);
    return status;
}

const cli_command cmd_info = {
    .name = "info",
    .summary = "list the tensors of a checkpoint",
    .help = "usage: transfuse info IN [--json]\n"
            "IN: a checkpoint, compressed or not, or a .trf file.\n\n"
            "  --json                everything, for programs\n\n"
            "bits: a weight, all counted. class: bits of a weight's class, 2 (four weights a step) or 4 (two).\n"
            "prob: probability bits, how finely frequencies are expressed. modes: predictor modes of the tiles.\n"
            "exceptions: weights kept apart.\n",
    .arguments = {"IN"},
    .options = kOptions,
    .run = run,
};
