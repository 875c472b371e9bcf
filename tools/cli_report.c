/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_report.h"

#include "cli_messages.h"

#include "transfuse/checkpoints.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- notes ---- */

static void keep_note(cli_run *run, const char *line) {
    char **grown = realloc(run->notes, (run->num_notes + 1) * sizeof *grown);
    char *copy = strdup(line);
    if (grown)
        run->notes = grown;
    if (grown && copy) {
        grown[run->num_notes++] = copy;
        return;
    }
    free(copy);
    run->lost_a_note = 1;
}

/* A trf_note_fn; context: the cli_run. */
static void take_note(void *context, const char *line) {
    cli_run *const run = context;
    char text[2048];
    cli_printable(line, text, sizeof text);
    if (!run->options->quiet) {
        cli_progress_wipe(&run->progress);
        fprintf(stderr, "transfuse: note: %s\n", text);
    }
    keep_note(run, text);
}

/* Takes the warning that the library has in the report but did not pass on as a note. */
static void take_warning(cli_run *run) {
    char line[sizeof run->report.warning];
    for (const char *at = run->report.warning; *at; at += *at == '\n') {
        const size_t length = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, at);
        if (length)
            take_note(run, line);
        at += length;
    }
}

/* ---- the run ---- */

trf_limits cli_limits(const cli_options *options) {
    trf_limits limits;
    trf_limits_init(&limits);
    limits.max_output_bytes = options->max_output_bytes;
    limits.max_memory_bytes = options->max_memory_bytes;
    return limits;
}

void cli_run_begin(cli_run *run, const cli_options *options, const char *command, const char *verb) {
    *run = (cli_run){.options = options, .command = command};
    trf_checkpoint_options_init(&run->library);
    run->limits = cli_limits(options);
    run->library.limits = &run->limits;
    run->library.encode.threads = options->threads;
    run->library.overwrite = options->force;
    run->library.skip_extra = options->skip_extra;
    run->library.progress = cli_progress_step;
    run->library.progress_context = &run->progress;
    run->library.note = take_note;
    run->library.note_context = run;
    cli_progress_start(&run->progress, options, verb);
}

void cli_run_end(cli_run *run, trf_status failed) {
    run->seconds = cli_progress_end(&run->progress);
    if (!failed && !run->num_notes && !run->lost_a_note)
        take_warning(run);
}

int cli_run_wants_summary(const cli_run *run) { return !run->options->quiet && !run->options->json; }

cli_unchecked cli_run_unchecked(const cli_run *run) {
    const trf_checkpoint_report *r = &run->report;
    if (run->options->against)
        return (cli_unchecked){0};
    return (cli_unchecked){r->tensors - r->compressed_tensors,
                           r->source_bytes - r->compressed_source_bytes - r->side_table_bytes};
}

void cli_run_free(cli_run *run) {
    for (size_t i = 0; i < run->num_notes; i++)
        free(run->notes[i]);
    free(run->notes);
}

/* ---- the summary ---- */

const char *cli_count_text(uint64_t count, const char *noun, char *buffer) {
    snprintf(buffer, CLI_COUNT_BYTES, "%llu %s%s", (unsigned long long)count, noun, count == 1 ? "" : "s");
    return buffer;
}

void cli_report_files(const trf_checkpoint_report *r) {
    char size[16], count[CLI_COUNT_BYTES];
    if (r->extra_files) {
        cli_report_line("not compressed", "%s with weights, carried over, %s",
                        cli_count_text(r->extra_files, "file", count), cli_size_text(r->extra_bytes, size));
    }
    if (r->skipped_files) {
        cli_report_line("left out", "%s, %s", cli_count_text(r->skipped_files, "file", count),
                        cli_size_text(r->skipped_bytes, size));
    }
}

void cli_report_fp8(const uint64_t tensors[TRF_GRANULARITY_SCALE_BLOCK + 1], uint64_t compressed) {
    static const char *const scales[TRF_GRANULARITY_SCALE_BLOCK + 1] = {
        [TRF_GRANULARITY_TENSOR] = "one scale",
        [TRF_GRANULARITY_CHANNEL] = "a scale a row",
        [TRF_GRANULARITY_SCALE_BLOCK] = "128x128",
    };
    const char *label = "BF16 that was";
    for (int i = 0; i <= TRF_GRANULARITY_SCALE_BLOCK; i++)
        if (scales[i] && tensors[i]) {
            cli_report_line(label, "FP8 E4M3 x %s, in %llu of %llu tensors", scales[i], (unsigned long long)tensors[i],
                            (unsigned long long)compressed);
            label = "";
        }
}

void cli_report_source_fp8(const cli_source_fp8 *fp8) {
    const char *label = "FP8 weights";
    char block[48], count[CLI_COUNT_BYTES];
    snprintf(block, sizeof block, "scales of %llux%llu", (unsigned long long)fp8->block,
             (unsigned long long)fp8->block);
    const char *const scales[TRF_GRANULARITY_SCALE_BLOCK + 1] = {
        [TRF_GRANULARITY_TENSOR] = "one scale",
        [TRF_GRANULARITY_CHANNEL] = "a scale a row",
        [TRF_GRANULARITY_SCALE_BLOCK] = block,
    };
    for (int i = 0; i <= TRF_GRANULARITY_SCALE_BLOCK; i++)
        if (scales[i] && fp8->weights[i]) {
            cli_report_line(label, "FP8 E4M3 with %s, in %llu of %llu tensors", scales[i],
                            (unsigned long long)fp8->weights[i], (unsigned long long)fp8->compressed);
            label = "";
        }
    if (!*label)
        cli_report_line("", "loaded as BF16 weights; activations are not quantized");
    if (fp8->scales)
        cli_report_line("scales", "%s, kept for decompressing", cli_count_text(fp8->scales, "tensor", count));
    if (fp8->unused_scales)
        cli_report_line("", "%s of activations or of a KV cache: not used",
                        cli_count_text(fp8->unused_scales, "tensor", count));
}

/* @return what would compress tensors that were left for a reason, or "". */
static const char *way_out(trf_left_reason reason) {
    switch (reason) {
    case TRF_LEFT_EMBEDDING:
    case TRF_LEFT_TIED:
        return "; --embeddings takes them";
    case TRF_LEFT_F32:
        return "; --codec bf16 rounds it";
    default:
        return "";
    }
}

void cli_report_left(const trf_checkpoint_report *r) {
    int is_printed[TRF_LEFT_COUNT] = {0};
    const char *label = "left as it was";
    for (int round = 0; round < TRF_LEFT_COUNT; round++) {
        int largest = -1;
        for (int i = 0; i < TRF_LEFT_COUNT; i++) {
            if (r->left[i].tensors && !is_printed[i] && (largest < 0 || r->left[i].bytes > r->left[largest].bytes))
                largest = i;
        }
        if (largest < 0)
            return;
        char size[16], count[CLI_COUNT_BYTES];
        is_printed[largest] = 1;
        cli_report_line(label, "%s, %s: %s%s", cli_count_text(r->left[largest].tensors, "tensor", count),
                        cli_size_text(r->left[largest].bytes, size), trf_left_reason_text((trf_left_reason)largest),
                        way_out((trf_left_reason)largest));
        label = "";
    }
}

/* ---- parts of a pipeline ---- */

int cli_find_part(const char *path, const trf_tensor_info *tensor, const char **part) {
    size_t root = strlen(path);
    while (root > 1 && path[root - 1] == '/')
        root--;
    if (strncmp(tensor->file, path, root) != 0)
        return 0;
    *part = tensor->file + root + strspn(tensor->file + root, "/");
    const char *slash = strchr(*part, '/');
    return slash ? (int)(slash - *part) : 0;
}

/* ---- JSON ---- */

cli_exit cli_report_object(json_t *root) {
    const trf_status status = cli_json_write(root, JSON_INDENT(2), stdout);
    return status == TRF_OK ? CLI_OK
                            : cli_fail(status, "standard output: the report could not be written%s",
                                       status == TRF_ERR_MEMORY ? ": out of memory" : "");
}

static void set_count(json_t *object, const char *name, uint64_t count) {
    json_object_set_new(object, name, json_integer((json_int_t)count));
}

static json_t *describe_left(const trf_checkpoint_report *r) {
    static const char *const names[TRF_LEFT_COUNT] = {
        [TRF_LEFT_NO_MATRIX] = "no_matrix",
        [TRF_LEFT_SMALL] = "small",
        [TRF_LEFT_EMBEDDING] = "embedding",
        [TRF_LEFT_TIED] = "tied",
        [TRF_LEFT_F32] = "f32",
        [TRF_LEFT_DTYPE] = "dtype",
        [TRF_LEFT_SIDE_TABLE] = "side_table",
        [TRF_LEFT_EXCLUDED] = "excluded",
        [TRF_LEFT_NOT_SMALLER] = "not_smaller",
        [TRF_LEFT_ADAPTER] = "adapter",
    };
    json_t *left = json_object();
    for (int i = 0; i < TRF_LEFT_COUNT; i++) {
        json_t *reason = json_object();
        set_count(reason, "tensors", r->left[i].tensors);
        set_count(reason, "bytes", r->left[i].bytes);
        json_object_set_new(reason, "reason", cli_json_text(trf_left_reason_text((trf_left_reason)i)));
        json_object_set_new(left, names[i], reason);
    }
    return left;
}

static void describe_counts(json_t *root, const trf_checkpoint_report *r) {
    const struct {
        const char *name;
        uint64_t count;
    } counts[] = {
        {"tensors", r->tensors},
        {"compressed_tensors", r->compressed_tensors},
        {"source_bytes", r->source_bytes},
        {"output_bytes", r->output_bytes},
        {"compressed_source_bytes", r->compressed_source_bytes},
        {"compressed_bytes", r->compressed_bytes},
        {"compressed_weights", r->compressed_weights},
        {"rounded_tensors", r->rounded_tensors},
        {"widened_tensors", r->widened_tensors},
        {"models", r->models},
        {"source_file_bytes", r->source_file_bytes},
        {"output_file_bytes", r->output_file_bytes},
        {"extra_files", r->extra_files},
        {"extra_bytes", r->extra_bytes},
        {"skipped_files", r->skipped_files},
        {"skipped_bytes", r->skipped_bytes},
        {"compared_files", r->compared_files},
        {"added_files", r->added_files},
        {"side_tables", r->side_tables},
        {"unused_side_tables", r->unused_side_tables},
        {"side_table_bytes", r->side_table_bytes},
        {"differing_tensors", r->differing_tensors},
        {"peak_buffer_bytes", r->peak_buffer_bytes},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        set_count(root, counts[i].name, counts[i].count);
}

static json_t *describe_fp8(const trf_checkpoint_report *r) {
    json_t *tensors = json_object();
    set_count(tensors, "tensor", r->scaled_fp8_tensors[TRF_GRANULARITY_TENSOR]);
    set_count(tensors, "channel", r->scaled_fp8_tensors[TRF_GRANULARITY_CHANNEL]);
    set_count(tensors, "scale-block:128", r->scaled_fp8_tensors[TRF_GRANULARITY_SCALE_BLOCK]);
    return tensors;
}

static json_t *describe_source_fp8(const trf_checkpoint_report *r) {
    json_t *tensors = json_object();
    set_count(tensors, "tensor", r->source_fp8_tensors[TRF_GRANULARITY_TENSOR]);
    set_count(tensors, "channel", r->source_fp8_tensors[TRF_GRANULARITY_CHANNEL]);
    set_count(tensors, "scale-block", r->source_fp8_tensors[TRF_GRANULARITY_SCALE_BLOCK]);
    set_count(tensors, "block_size", r->source_fp8_block);
    return tensors;
}

static void set_path(json_t *root, const char *name, const char *path) {
    json_object_set_new(root, name, path ? cli_json_text(path) : json_null());
}

static json_t *describe_device_check(const cli_device_check *check) {
    json_t *object = json_object();
    json_object_set_new(object, "name", cli_json_text(check->device));
    set_count(object, "layers", check->layers);
    set_count(object, "coded", check->coded);
    set_count(object, "bytes", check->bytes);
    json_object_set_new(object, "seconds", json_real(check->seconds));
    return object;
}

static json_t *describe_run(const cli_run *run, int is_compressing) {
    const cli_options *const options = run->options;
    json_t *root = json_object(), *notes = json_array();
    json_object_set_new(root, "command", json_string(run->command));
    set_path(root, "input", options->arguments[0]);
    if (strcmp(run->command, "verify") == 0)
        set_path(root, "against", options->against);
    else
        set_path(root, "output", options->output);
    if (strcmp(run->command, "verify") == 0) {
        const cli_unchecked unchecked = cli_run_unchecked(run);
        json_object_set_new(root, "verdict", json_string(run->report.compressed_tensors ? "ok" : "nothing_compressed"));
        set_count(root, "unchecked_tensors", unchecked.tensors);
        set_count(root, "unchecked_bytes", unchecked.bytes);
        json_object_set_new(root, "device", run->device_check ? describe_device_check(run->device_check) : json_null());
    }
    if (is_compressing)
        json_object_set_new(root, "dry_run", json_boolean(options->dry_run));
    json_object_set_new(root, "seconds", json_real(run->seconds));
    if (is_compressing)
        json_object_set_new(root, "scaled_fp8_tensors", describe_fp8(&run->report));
    if (is_compressing)
        json_object_set_new(root, "source_fp8_tensors", describe_source_fp8(&run->report));
    describe_counts(root, &run->report);
    const double rms = run->report.relative_rms_error;
    json_object_set_new(root, "relative_rms_error", isfinite(rms) ? json_real(rms) : json_null());
    if (is_compressing)
        json_object_set_new(root, "left", describe_left(&run->report));
    json_object_set_new(root, "warning", cli_json_text(run->report.warning));
    for (size_t i = 0; i < run->num_notes; i++)
        json_array_append_new(notes, cli_json_text(run->notes[i]));
    json_object_set_new(root, "notes", notes);
    return root;
}

cli_exit cli_report_json(const cli_run *run) {
    if (!run->options->json)
        return CLI_OK;
    cli_json_begin();
    json_t *root = describe_run(run, strcmp(run->command, "compress") == 0);
    if (run->lost_a_note) {
        json_decref(root);
        root = NULL;
    }
    return cli_report_object(root);
}
