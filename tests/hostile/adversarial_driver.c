/* SPDX-License-Identifier: Apache-2.0 */
/* Makes calls of the library for run_adversarial.py: one process for hundreds of files.
 *
 * Each line of the input is a call: its name and its arguments, with tabs between. Each is answered by a line: the
 * status's name, the offset of the error or -1, and the message. All calls use one thread and the CPU. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../tools/cli_file.c"
#include "../../tools/cli_float.c"
#include "../../tools/cli_messages.c"
#include "../../tools/cli_npy.c"
#include "../../tools/cli_signals.c"

#include "transfuse/device_memory.h"
#include "transfuse/layouts.h"
#include "transfuse/tuning.h"

enum {
    MOST_ARGUMENTS = 6
};

/* What happens to a file when a call first tells its progress, and which user makes the next call. */
static struct {
    char path[PATH_MAX];
    long bytes;
    int is_other_user;
} armed;

static int change_size(void *context, const char *tensor, uint64_t done, uint64_t total) {
    (void)context, (void)tensor, (void)done, (void)total;
    if (armed.path[0] && truncate(armed.path, armed.bytes) != 0)
        abort();
    armed.path[0] = 0;
    return 0;
}

static trf_checkpoint_options options_of(const char *words) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    options.overwrite = words && strstr(words, "overwrite");
    options.store_only = words && strstr(words, "store");
    options.resume = words && strstr(words, "resume");
    options.progress = change_size;
    return options;
}

/* Opens a checkpoint, and asks for all of its tensors, as `transfuse info` does. */
static trf_status call_open(char **a, trf_error *err) {
    trf_checkpoint *checkpoint;
    trf_tensor_info info;
    trf_status status = trf_checkpoint_open(a[0], &checkpoint, err);
    if (status != TRF_OK)
        return status;
    for (uint64_t i = 0; i < trf_checkpoint_num_tensors(checkpoint) && status == TRF_OK; i++)
        status = trf_checkpoint_tensor(checkpoint, i, &info, err);
    trf_checkpoint_close(checkpoint);
    return status;
}

static trf_status call_verify(char **a, trf_error *err) {
    const trf_checkpoint_options options = options_of(NULL);
    return trf_verify_checkpoint(a[0], a[1], &options, NULL, err);
}

static trf_status call_compress(char **a, trf_error *err) {
    const trf_checkpoint_options options = options_of(a[2]);
    return trf_compress_checkpoint(a[0], a[1], &options, NULL, err);
}

static trf_status call_decompress(char **a, trf_error *err) {
    const trf_checkpoint_options options = options_of(a[2]);
    return trf_decompress_checkpoint(a[0], a[1], &options, NULL, err);
}

static trf_status call_extract(char **a, trf_error *err) { return trf_extract_layer(a[0], a[1], a[2], 0, err); }

/* Opens a .trf file and decodes it. */
static trf_status call_layer(char **a, trf_error *err) {
    trf_layer *layer;
    trf_layer_info info;
    trf_status status = trf_layer_open(a[0], &layer, err);
    if (status != TRF_OK)
        return status;
    trf_layer_get_info(layer, &info);
    const uint64_t bytes = (uint64_t)info.rows * info.cols * trf_dtype_bytes(info.dtype);
    void *weights = malloc(bytes);
    status = weights ? trf_layer_decode(layer, weights, bytes, 1, err) : TRF_ERR_MEMORY;
    free(weights);
    trf_layer_free(layer);
    return status;
}

static trf_context *cpu(void) {
    static trf_context *context;
    trf_error err;
    if (!context && trf_context_create(TRF_DEVICE_CPU, &context, &err) != TRF_OK)
        abort();
    return context;
}

/* Loads a tensor as a layer on the CPU, and decodes it. */
static trf_status call_load(char **a, trf_error *err) {
    trf_checkpoint *checkpoint;
    trf_device_layer *layer = NULL;
    trf_device_layer_info info;
    trf_status status = trf_checkpoint_open(a[0], &checkpoint, err);
    if (status != TRF_OK)
        return status;
    status = trf_device_layer_load(cpu(), checkpoint, a[1], NULL, &layer, err);
    trf_checkpoint_close(checkpoint);
    if (status != TRF_OK)
        return status;
    trf_device_layer_get_info(layer, &info);
    const uint64_t bytes = (uint64_t)info.layer.rows * info.layer.cols * trf_dtype_bytes(info.layer.dtype);
    void *weights = aligned_alloc(64, (bytes + 63) / 64 * 64);
    status = weights ? trf_device_layer_decode(layer, TRF_DECODE_SOURCE, weights, bytes, NULL, err) : TRF_ERR_MEMORY;
    free(weights);
    trf_device_layer_destroy(layer);
    return status;
}

static trf_status call_layouts(char **a, trf_error *err) {
    trf_checkpoint *checkpoint;
    trf_layout_set *set;
    trf_layout_set_options options;
    trf_layout_set_options_init(&options);
    options.context_tokens = 1000;
    trf_status status = trf_checkpoint_open(a[0], &checkpoint, err);
    if (status != TRF_OK)
        return status;
    status = trf_layout_set_read(checkpoint, &options, &set, err);
    if (status == TRF_OK)
        trf_layout_set_free(set);
    trf_checkpoint_close(checkpoint);
    return status;
}

static trf_status call_tuning(char **a, trf_error *err) {
    trf_tuning *tuning;
    trf_status status = trf_tuning_read(a[0], &tuning, err);
    if (status == TRF_OK)
        trf_tuning_free(tuning);
    return status;
}

static trf_status call_npy(char **a, trf_error *err) {
    float *values;
    uint64_t rows, cols;
    trf_status status = cli_read_npy(a[0], &values, &rows, &cols, err);
    if (status == TRF_OK)
        free(values);
    else
        cli_printable(err->message, err->message, sizeof err->message); /* as the command does */
    return status;
}

static trf_layout layout_of(const char *name) {
    trf_layout layout = TRF_LAYOUT_CODED;
    while (strcmp(trf_layout_name(layout), name) != 0)
        layout = (trf_layout)(layout + 1);
    return layout;
}

/* @return the file's bytes in aligned memory of just their size. */
static void *read_buffer(const char *path, uint64_t *bytes) {
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0)
        abort();
    *bytes = (uint64_t)info.st_size;
    void *buffer = NULL;
    if (posix_memalign(&buffer, 256, *bytes + !*bytes) != 0 || fread(buffer, 1, *bytes, file) != *bytes)
        abort();
    fclose(file);
    return buffer;
}

/* Takes a file as the buffer of a layer, as one that was saved from device memory. Arguments: file, layout. */
static trf_status call_buffer(char **a, trf_error *err) {
    trf_load_options options;
    trf_device_layer *layer;
    uint64_t bytes;
    void *buffer = read_buffer(a[0], &bytes);
    trf_load_options_init(&options);
    options.layout = layout_of(a[1]);
    options.buffer_is_on_device = 1; /* memory of the CPU is its own */
    trf_status status = trf_device_layer_create(cpu(), buffer, bytes, &options, &layer, err);
    if (status == TRF_OK) {
        status = trf_device_layer_verify(layer, err);
        trf_device_layer_destroy(layer);
    }
    free(buffer);
    return status;
}

/* Writes the buffer of a layer that is made of a .trf file. Arguments: .trf file, layout, file. */
static trf_status call_save_buffer(char **a, trf_error *err) {
    trf_load_options options;
    trf_device_layer *layer = NULL;
    trf_layer_size size;
    uint64_t bytes;
    void *blob = read_buffer(a[0], &bytes), *memory = NULL;
    FILE *file = fopen(a[2], "wb");
    trf_load_options_init(&options);
    options.layout = layout_of(a[1]);
    trf_status status = trf_device_layer_get_size(cpu(), blob, bytes, &options, &size, err);
    if (status == TRF_OK && posix_memalign(&memory, 256, size.buffer_bytes) != 0)
        abort();
    options.memory.buffer = memory, options.memory.buffer_bytes = size.buffer_bytes;
    if (status == TRF_OK)
        status = trf_device_layer_create(cpu(), blob, bytes, &options, &layer, err);
    if (status == TRF_OK) {
        trf_device_layer_info info;
        trf_device_layer_get_info(layer, &info);
        fwrite(memory, 1, info.memory_bytes, file);
        trf_device_layer_destroy(layer);
    }
    fclose(file);
    free(memory);
    free(blob);
    return status;
}

/* Cuts a file, or makes it longer, as soon as the next call tells its progress. Arguments: file, bytes. */
static trf_status call_arm(char **a, trf_error *err) {
    (void)err;
    snprintf(armed.path, sizeof armed.path, "%s", a[0]);
    armed.bytes = atol(a[1]);
    return TRF_OK;
}

/* The next call is made by a user who may not read all files. */
static trf_status call_as_other_user(char **a, trf_error *err) {
    (void)a, (void)err;
    armed.is_other_user = 1;
    return TRF_OK;
}

static const struct {
    const char *name;
    trf_status (*call)(char **arguments, trf_error *err);
    int arguments; /* at least */
} kCalls[] = {{"open", call_open, 1},         {"verify", call_verify, 1},
              {"compress", call_compress, 2}, {"decompress", call_decompress, 2},
              {"extract", call_extract, 3},   {"layer", call_layer, 1},
              {"load", call_load, 2},         {"layouts", call_layouts, 1},
              {"tuning", call_tuning, 1},     {"npy", call_npy, 1},
              {"buffer", call_buffer, 2},     {"save_buffer", call_save_buffer, 3},
              {"arm", call_arm, 2},           {"as_other_user", call_as_other_user, 0}};

static void answer(char **words, int count) {
    enum {
        OTHER_USER = 65534
    };
    trf_error err = {.offset = TRF_NO_OFFSET};
    for (size_t i = 0; i < sizeof kCalls / sizeof *kCalls; i++) {
        if (strcmp(kCalls[i].name, words[0]) != 0 || count - 1 < kCalls[i].arguments)
            continue;
        const int is_other = armed.is_other_user && geteuid() == 0;
        if (armed.is_other_user)
            armed.is_other_user = 0;
        if (is_other && seteuid(OTHER_USER) != 0)
            abort();
        const trf_status status = kCalls[i].call(words + 1, &err);
        if (is_other && seteuid(0) != 0)
            abort();
        printf("%s\t%lld\t%s\n", trf_status_name(status),
               status == TRF_OK || err.offset == TRF_NO_OFFSET ? -1 : (long long)err.offset,
               status == TRF_OK ? "" : err.message);
        fflush(stdout);
        return;
    }
    abort();
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, stdin)) > 0) {
        char *words[MOST_ARGUMENTS + 1] = {NULL}, *rest = line;
        int count = 0;
        line[length - 1] = 0;
        while (count < MOST_ARGUMENTS && (words[count] = strsep(&rest, "\t")))
            count++;
        answer(words, count);
    }
    free(line);
    trf_context_destroy(cpu());
    return 0;
}
