/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_load_checkpoint.h"

#include "bench_memory.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_shape kShapes[] = {{14336, 4096}, {4096, 14336}, {4096, 4096}}, kTable = {32768, 4096};
static const uint64_t kCheckpointBytes = 3ull << 30; /* at least, without --layers */

enum {
    FEW_COPIES = 4 /* of each of --layers */
};

/* ---- the weights ---- */

static uint64_t weights_of(cli_shape shape) { return (uint64_t)shape.rows * shape.cols; }

static int was_fp8(const bench_checkpoint *c) { return c->options->bench_codecs >> CLI_BENCH_SCALED_FP8 & 1; }

static void choose_shapes(bench_checkpoint *c) {
    const cli_options *options = c->options;
    c->num_shapes = options->num_layers ? options->num_layers : (int)(sizeof kShapes / sizeof kShapes[0]);
    memcpy(c->shapes, options->num_layers ? options->layers : kShapes, (size_t)c->num_shapes * sizeof *c->shapes);
    c->table = options->num_layers ? options->layers[0] : kTable;
    trf_encode_options_init(&c->encode);
    c->encode.threads = options->threads;
    c->encode.verify = 0;
    if (was_fp8(c))
        c->encode.codec = TRF_CODEC_E4M3;
    if (options->has_favor)
        c->encode.favor = options->favor;
}

uint16_t *bench_checkpoint_weights(const bench_checkpoint *c, cli_shape shape) {
    const double sigma = c->options->sigmas.count ? c->options->sigmas.values[0] : 0.02;
    const uint64_t num_weights = weights_of(shape);
    const uint32_t most = (uint32_t)(c->num_drawn / shape.cols);
    const cli_shape first = {shape.rows < most ? shape.rows : most, shape.cols};
    uint16_t *made = bench_alloc(num_weights * sizeof *made);
    if (!made)
        return NULL;
    if (was_fp8(c))
        bench_make_scaled_fp8(c->drawn, first, sigma, made);
    else
        bench_make_source(c->drawn, first, sigma, TRF_DTYPE_BF16, made);
    for (uint64_t at = weights_of(first), copied; at < num_weights; at += copied) {
        copied = num_weights - at < weights_of(first) ? num_weights - at : weights_of(first);
        memcpy(made + at, made, copied * sizeof *made);
    }
    return made;
}

static int encode_shape(bench_checkpoint *c, int shape) {
    uint16_t *weights = bench_checkpoint_weights(c, c->shapes[shape]);
    const int failed =
        !weights || bench_encode(weights, TRF_DTYPE_BF16, c->shapes[shape], &c->encode, &c->blobs[shape]);
    free(weights);
    return failed ? -1 : 0;
}

int bench_checkpoint_encode(bench_checkpoint *c) {
    choose_shapes(c);
    for (int i = 0; i < c->num_shapes; i++)
        if (weights_of(c->shapes[i]) > c->num_drawn)
            c->num_drawn = weights_of(c->shapes[i]);
    c->drawn = bench_alloc(c->num_drawn * sizeof *c->drawn);
    if (!c->drawn)
        return -1;
    bench_draw(c->drawn, c->num_drawn, c->options->student_t);
    uint64_t sum = 0;
    for (int i = 0; i < c->num_shapes; i++) {
        if (encode_shape(c, i))
            return -1;
        sum += c->blobs[i].size;
        c->largest = c->blobs[i].size > c->largest ? c->blobs[i].size : c->largest;
    }
    assert(sum > 0);
    const int copies = c->options->num_layers ? FEW_COPIES : (int)((kCheckpointBytes + sum - 1) / sum);
    c->num_layers = copies * c->num_shapes;
    c->total = sum * (uint64_t)copies;
    return 0;
}

uint64_t bench_checkpoint_layer_bytes(const bench_checkpoint *c, int layer) {
    return c->blobs[layer % c->num_shapes].size;
}

/* ---- the file ---- */

static int fail_file(const bench_checkpoint *c, const char *doing) {
    cli_fail(TRF_ERR_IO, "bench: %s: %s: %s", c->path ? c->path : "a temporary folder", doing, strerror(errno));
    return -1;
}

int bench_checkpoint_is_stopped(cli_progress *progress) {
    if (!cli_progress_step(progress, NULL, 0, 0))
        return 0;
    cli_fail(TRF_ERR_CANCELLED, "bench: stopped");
    return 1;
}

void bench_checkpoint_name_layer(int layer, char name[32]) { snprintf(name, 32, "layers.%d.weight", layer); }

/* Makes the safetensors header, in which every blob is a U8 tensor, padded so that data begins at a multiple of 16.
 * @return malloc'd text, or NULL after a message. */
static char *make_header(const bench_checkpoint *c, size_t *bytes) {
    char *text = NULL, name[32];
    FILE *file = open_memstream(&text, bytes);
    uint64_t at = 0;
    for (int i = 0; file && i < c->num_layers; i++) {
        const uint64_t size = bench_checkpoint_layer_bytes(c, i);
        bench_checkpoint_name_layer(i, name);
        fprintf(file,
                "%s\"%s_trf\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                i ? "," : "{", name, size, at, at + size);
        at += size;
    }
    if (file) {
        fputc('}', file);
        fflush(file);
        for (size_t left = (16 - (8 + *bytes) % 16) % 16; left > 0; left--)
            fputc(' ', file);
    }
    if (!file || fclose(file)) {
        free(text);
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for a header");
        return NULL;
    }
    return text;
}

static int write_layers(const bench_checkpoint *c, cli_progress *progress, FILE *file) {
    size_t header_bytes;
    char *header = make_header(c, &header_bytes);
    if (!header)
        return -1;
    const uint64_t length = header_bytes; /* little-endian, like all that the library reads and writes */
    int failed = fwrite(&length, sizeof length, 1, file) != 1 || fwrite(header, header_bytes, 1, file) != 1;
    free(header);
    for (int i = 0; !failed && i < c->num_layers; i++) {
        const bench_blob *blob = &c->blobs[i % c->num_shapes];
        if (bench_checkpoint_is_stopped(progress))
            return -1;
        failed = fwrite(blob->bytes, blob->size, 1, file) != 1;
    }
    return failed ? fail_file(c, "cannot write") : 0;
}

/* Makes the folder, and sets folder (once it exists) and path. */
static int make_folder(bench_checkpoint *c) {
    const char *parent = getenv("TMPDIR");
    parent = parent && *parent ? parent : "/tmp";
    const size_t room = strlen(parent) + sizeof "/transfuse-bench-XXXXXX/model.safetensors";
    char *folder = bench_alloc(room);
    c->path = bench_alloc(room);
    if (!folder || !c->path) {
        free(folder);
        return -1;
    }
    snprintf(folder, room, "%s/transfuse-bench-XXXXXX", parent);
    snprintf(c->path, room, "%s", folder);
    if (!mkdtemp(folder)) {
        free(folder);
        return fail_file(c, "cannot create");
    }
    c->folder = folder;
    snprintf(c->path, room, "%s/model.safetensors", folder);
    return 0;
}

int bench_checkpoint_write(bench_checkpoint *c, cli_progress *progress) {
    trf_error err = {0};
    cli_progress_start(progress, c->options, "loading");
    if (make_folder(c))
        return -1;
    FILE *file = fopen(c->path, "wb");
    if (!file)
        return fail_file(c, "cannot create");
    int failed = write_layers(c, progress, file);
    if (fclose(file) && !failed)
        failed = fail_file(c, "cannot write");
    if (failed || !trf_checkpoint_open(c->path, &c->opened, &err))
        return failed;
    cli_report_error(&err);
    return -1;
}

void bench_checkpoint_remove(bench_checkpoint *c) {
    trf_checkpoint_close(c->opened);
    if (c->folder) {
        unlink(c->path);
        rmdir(c->folder);
    }
    free(c->folder);
    free(c->path);
    c->opened = NULL;
    c->folder = c->path = NULL;
}

void bench_checkpoint_free(bench_checkpoint *c) {
    for (int i = 0; i < c->num_shapes; i++)
        trf_free(c->blobs[i].bytes);
    free(c->drawn);
}
