/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse info */
#include "cli_messages.h"
#include "cli_report.h"
#include "cli_terminal.h"

#include "transfuse/checkpoints.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const cli_option_id kOptions[] = {CLI_OPT_JSON, CLI_OPT_VERBOSE, CLI_OPT_MAX_MEMORY, 0};

typedef struct totals {
    uint64_t tensors, compressed, bare_blobs, source_bytes, bytes, compressed_source_bytes, compressed_bytes,
        compressed_weights;
    uint64_t scaled_fp8[TRF_GRANULARITY_SCALE_BLOCK + 1]; /* by granularity */
    cli_source_fp8 source_fp8;
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
    sum->bare_blobs += tensor->is_bare_blob != 0;
    sum->source_bytes += tensor->source_bytes;
    sum->bytes += tensor->bytes;
    if (tensor->compressed) {
        sum->compressed++;
        sum->compressed_source_bytes += tensor->source_bytes;
        sum->compressed_bytes += tensor->bytes;
        sum->compressed_weights += count_weights(tensor);
        if (tensor->layer.codec != TRF_CODEC_E4M3 || tensor->layer.dtype != TRF_DTYPE_BF16)
            return;
        if (strcmp(tensor->dtype, "F8_E4M3") == 0) {
            sum->source_fp8.weights[tensor->layer.granularity]++;
            if (tensor->layer.scale_group_size)
                sum->source_fp8.block = tensor->layer.scale_group_size;
        } else {
            sum->scaled_fp8[tensor->layer.granularity]++;
        }
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

static json_t *describe_part(const char *path, const trf_tensor_info *tensor) {
    char name[256];
    const char *part;
    const int length = cli_find_part(path, tensor, &part);
    if (!length)
        return json_null();
    snprintf(name, sizeof name, "%.*s", length, part);
    return cli_json_text(name);
}

static json_t *describe_tensor(const char *path, const trf_tensor_info *tensor) {
    const trf_layer_info *layer = &tensor->layer;
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->num_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    uint64_t weights = count_weights(tensor);

    json_t *object = json_object();
    json_object_set_new(object, "name", cli_json_text(tensor->name));
    json_object_set_new(object, "part", describe_part(path, tensor));
    json_object_set_new(object, "file", cli_json_text(tensor->file));
    json_object_set_new(object, "file_offset", json_integer((json_int_t)tensor->file_offset));
    json_object_set_new(object, "dtype", cli_json_text(tensor->dtype));
    json_object_set_new(object, "shape", shape);
    json_object_set_new(object, "source_bytes", json_integer((json_int_t)tensor->source_bytes));
    json_object_set_new(object, "bytes", json_integer((json_int_t)tensor->bytes));
    json_object_set_new(object, "bits_per_weight",
                        weights ? json_real(8 * cli_ratio(tensor->bytes, weights)) : json_null());
    json_object_set_new(object, "compressed", json_boolean(tensor->compressed));
    if (tensor->is_bare_blob)
        json_object_set_new(object, "is_bare_blob", json_true());
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
        json_array_append_new(list, describe_tensor(path, &tensors[i]));
    json_t *root = json_object();
    json_object_set_new(root, "command", json_string(cmd_info.name));
    json_object_set_new(root, "input", cli_json_text(path));
    json_object_set_new(root, "file", cli_json_text(path)); /* the same, under its first name */
    json_object_set_new(root, "tensors", list);
    json_object_set_new(root, "num_tensors", json_integer((json_int_t)sum->tensors));
    json_object_set_new(root, "compressed_tensors", json_integer((json_int_t)sum->compressed));
    json_object_set_new(root, "source_bytes", json_integer((json_int_t)sum->source_bytes));
    json_object_set_new(root, "bytes", json_integer((json_int_t)sum->bytes));
    json_object_set_new(root, "side_tables", json_integer((json_int_t)sum->source_fp8.scales));
    json_object_set_new(root, "unused_side_tables", json_integer((json_int_t)sum->source_fp8.unused_scales));
    return cli_report_object(root);
}

/* ---- the table ---- */

typedef enum column {
    COLUMN_TENSOR,
    COLUMN_DTYPE,
    COLUMN_SHAPE,
    COLUMN_SOURCE,
    COLUMN_SIZE,
    COLUMN_BITS,
    COLUMN_CODEC,
    COLUMN_CLASS,
    COLUMN_PROB,
    COLUMN_MODES,
    COLUMN_EXCEPTIONS,
    NUM_COLUMNS
} column;

static const char *const kTitles[NUM_COLUMNS] = {"tensor", "dtype", "shape", "source", "size",      "bits",
                                                 "codec",  "class", "prob",  "modes",  "exceptions"};

/* Columns that are dropped first if there is too little room. Those from kFirstNeeded on are dropped only to make room
 * for a cut name. */
static const column kDropped[] = {COLUMN_EXCEPTIONS, COLUMN_MODES, COLUMN_PROB,  COLUMN_CLASS, COLUMN_SOURCE,
                                  COLUMN_BITS,       COLUMN_CODEC, COLUMN_DTYPE, COLUMN_SHAPE};
enum {
    kNumDropped = sizeof kDropped / sizeof kDropped[0],
    kFirstNeeded = 5,
    kGap = 2,          /* columns between two */
    kShortestName = 16 /* names are not cut below it while something else can be dropped */
};

/* Widths in characters; 0: the column is not printed. */
typedef struct layout {
    size_t widths[NUM_COLUMNS];
} layout;

typedef struct row {
    char cells[NUM_COLUMNS][1024];
} row;

static void fill_row(const char *path, const trf_tensor_info *tensor, row *row) {
    enum {
        BYTES = sizeof row->cells[0]
    };
    char name[BYTES];
    const char *part = "";
    const int part_bytes = cli_find_part(path, tensor, &part);
    memset(row, 0, sizeof *row);
    snprintf(name, BYTES, "%.*s%s%s", part_bytes, part, part_bytes ? "/" : "", tensor->name);
    cli_printable(name, row->cells[COLUMN_TENSOR], BYTES);
    cli_printable(tensor->dtype, row->cells[COLUMN_DTYPE], BYTES);
    shape_text(tensor, row->cells[COLUMN_SHAPE], BYTES);
    cli_size_text(tensor->source_bytes, row->cells[COLUMN_SOURCE]);
    cli_size_text(tensor->bytes, row->cells[COLUMN_SIZE]);
    if (!tensor->compressed)
        return;
    const trf_layer_info *layer = &tensor->layer;
    snprintf(row->cells[COLUMN_BITS], BYTES, "%.3f", 8 * cli_ratio(tensor->bytes, count_weights(tensor)));
    snprintf(row->cells[COLUMN_CODEC], BYTES, "%s", trf_codec_name(layer->codec));
    snprintf(row->cells[COLUMN_CLASS], BYTES, "%u", (unsigned)layer->class_bits);
    snprintf(row->cells[COLUMN_PROB], BYTES, "%u", (unsigned)layer->probability_bits);
    snprintf(row->cells[COLUMN_MODES], BYTES, "%u", (unsigned)layer->predictor_modes);
    snprintf(row->cells[COLUMN_EXCEPTIONS], BYTES, "%" PRIu64, layer->exceptions);
}

static size_t table_width(const layout *layout) {
    size_t width = 0;
    for (int c = 0; c < NUM_COLUMNS; c++)
        width += layout->widths[c] ? layout->widths[c] + (c ? kGap : 0) : 0;
    return width;
}

/* Drops columns, and then cuts names if that is allowed, until the table fits. */
static void fit_table(layout *layout) {
    int may_cut;
    const size_t columns = (size_t)cli_table_columns(&may_cut), name = layout->widths[COLUMN_TENSOR];
    const size_t shortest = name < kShortestName ? name : kShortestName;
    for (int i = 0; i < kFirstNeeded && table_width(layout) > columns; i++)
        layout->widths[kDropped[i]] = 0;
    for (int i = kFirstNeeded; may_cut && i < kNumDropped && table_width(layout) - name + shortest > columns; i++)
        layout->widths[kDropped[i]] = 0;
    const size_t rest = table_width(layout) - name;
    if (may_cut && name + rest > columns)
        layout->widths[COLUMN_TENSOR] = rest + 5 < columns ? columns - rest : 5;
}

static void print_row(row *row, const layout *layout) {
    size_t pending = 0; /* spaces, which are printed only where something follows */
    for (int c = 0; c < NUM_COLUMNS; c++) {
        if (!layout->widths[c])
            continue;
        cli_cut_middle(row->cells[c], layout->widths[c]);
        const int is_left = c == COLUMN_TENSOR || c == COLUMN_DTYPE || c == COLUMN_CODEC;
        const size_t characters = cli_count_characters(row->cells[c]);
        const size_t fill = layout->widths[c] > characters ? layout->widths[c] - characters : 0;
        if (characters)
            printf("%*s%s", (int)(pending + (is_left ? 0 : fill)), "", row->cells[c]);
        pending = (characters ? (is_left ? fill : 0) : pending + layout->widths[c]) + kGap;
    }
    putchar('\n');
}

static void print_totals(const totals *sum) {
    char from[16], to[16];
    putchar('\n');
    cli_report_line(NULL, "%" PRIu64 " tensors, %s of source, %s here, ratio %.3f", sum->tensors,
                    cli_size_text(sum->source_bytes, from), cli_size_text(sum->bytes, to),
                    cli_ratio(sum->source_bytes, sum->bytes));
    if (sum->bare_blobs)
        cli_report_line(NULL,
                        "%" PRIu64 " of them begin as compressed tensors, and neither names nor file say so, as where "
                        "a state dict was written to a file: save the model with save_pretrained",
                        sum->bare_blobs);
    if (sum->compressed) {
        cli_report_line(NULL, "%" PRIu64 " compressed, %s -> %s, ratio %.3f, %.3f bits a weight", sum->compressed,
                        cli_size_text(sum->compressed_source_bytes, from), cli_size_text(sum->compressed_bytes, to),
                        cli_ratio(sum->compressed_source_bytes, sum->compressed_bytes),
                        8 * cli_ratio(sum->compressed_bytes, sum->compressed_weights));
        cli_report_fp8(sum->scaled_fp8, sum->compressed);
    }
    cli_report_source_fp8(&sum->source_fp8);
}

static void print_table(const cli_options *options, const trf_tensor_info *tensors, const totals *sum) {
    layout layout;
    row row;
    for (int c = 0; c < NUM_COLUMNS; c++)
        layout.widths[c] = strlen(kTitles[c]);
    for (uint64_t i = 0; i < sum->tensors; i++) {
        fill_row(options->arguments[0], &tensors[i], &row);
        for (int c = 0; c < NUM_COLUMNS; c++) {
            const size_t characters = cli_count_characters(row.cells[c]);
            layout.widths[c] = characters > layout.widths[c] ? characters : layout.widths[c];
        }
    }
    if (!options->verbose)
        fit_table(&layout);
    for (int c = 0; c < NUM_COLUMNS; c++)
        snprintf(row.cells[c], sizeof row.cells[c], "%s", kTitles[c]);
    print_row(&row, &layout);
    for (uint64_t i = 0; i < sum->tensors; i++) {
        fill_row(options->arguments[0], &tensors[i], &row);
        print_row(&row, &layout);
    }
    print_totals(sum);
}

static int run(const cli_options *options) {
    const char *path = options->arguments[0];
    trf_error err = {0};
    trf_checkpoint *checkpoint;
    const trf_limits limits = cli_limits(options);
    if (trf_checkpoint_open_within(path, &limits, &checkpoint, &err))
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
    trf_checkpoint_count_side_tables(checkpoint, &sum.source_fp8.scales, &sum.source_fp8.unused_scales);
    sum.source_fp8.compressed = sum.compressed;
    if (status == CLI_OK && options->json)
        status = print_json(path, tensors, &sum);
    else if (status == CLI_OK)
        print_table(options, tensors, &sum);
    free(tensors);
    trf_checkpoint_close(checkpoint);
    return status;
}

const cli_command cmd_info = {
    .name = "info",
    .summary = "list the tensors of a checkpoint",
    .help = "usage: transfuse info IN [OPTIONS]\n"
            "IN: a checkpoint, compressed or not, or a .trf file. The table has as many\n"
            "columns as fit the terminal, or $COLUMNS, or else 80; long names are cut in the\n"
            "middle on a terminal, or if $COLUMNS is set, and never in a pipe. Names of a\n"
            "pipeline's tensors begin with their part, as in vae/NAME.\n\n"
            "  --json                everything, for programs\n"
            "  --max-memory SIZE     fail before files make it take more memory\n"
            "  -v, --verbose         the whole table, however wide\n\n"
            "bits: a weight, all counted. class: bits of a weight's class, 2 (four weights a\n"
            "step) or 4 (two). prob: probability bits, how finely frequencies are expressed.\n"
            "modes: predictor modes of the tiles. exceptions: weights kept apart.\n",
    .arguments = {"IN"},
    .options = kOptions,
    .run = run,
};
