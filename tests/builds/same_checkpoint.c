/* SPDX-License-Identifier: Apache-2.0 */
/* A small checkpoint with tensors of every kind, compressed and decompressed. */
#include "same_bytes.h"

#include "made_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct made_tensor {
    const char *name;
    trf_dtype dtype;
    made_kind kind;
    uint32_t matrices, rows, cols; /* matrices: 0 for a tensor of two dimensions */
} made_tensor;

static const made_tensor kTensors[] = {
    {"model.embed_tokens.weight", TRF_DTYPE_BF16, MADE_TRAINED, 0, 128, 96},
    {"model.layers.0.self_attn.q_proj.weight", TRF_DTYPE_BF16, MADE_ROWS, 0, 300, 272},
    {"model.layers.0.self_attn.k_proj.weight", TRF_DTYPE_F16, MADE_ROWS, 0, 160, 96},
    {"model.layers.0.self_attn.v_proj.weight", TRF_DTYPE_F8_E4M3, MADE_BELL, 0, 64, 256},
    {"model.layers.0.mlp.up_proj.weight", TRF_DTYPE_BF16, MADE_FP8_BLOCKS, 0, 256, 272},
    {"model.layers.0.mlp.down_proj.weight", TRF_DTYPE_F32, MADE_BELL, 0, 96, 128},
    {"model.layers.1.mlp.experts.gate_up_proj", TRF_DTYPE_BF16, MADE_COLS, 3, 64, 96},
    {"model.norm.weight", TRF_DTYPE_BF16, MADE_TRAINED, 0, 1, 15},
};

enum {
    NUM_TENSORS = sizeof kTensors / sizeof kTensors[0]
};

static uint32_t matrices_of(const made_tensor *tensor) { return tensor->matrices ? tensor->matrices : 1; }

static size_t bytes_of(const made_tensor *tensor) {
    return (size_t)matrices_of(tensor) * tensor->rows * tensor->cols * trf_dtype_bytes(tensor->dtype);
}

static FILE *open_file(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    if (!file) {
        perror(path);
        exit(1);
    }
    return file;
}

static void close_file(FILE *file, const char *path) {
    if (ferror(file) || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void write_text(const char *path, const char *text) {
    FILE *file = open_file(path, "wb");
    fputs(text, file);
    close_file(file, path);
}

static void write_tensors(const char *path) {
    char header[4096] = "{";
    size_t length = 1, at = 0;
    for (uint32_t t = 0; t < NUM_TENSORS; t++) {
        const made_tensor *tensor = &kTensors[t];
        char shape[64];
        snprintf(shape, sizeof shape, tensor->matrices ? "%u,%u,%u" : "%.0u%u,%u", tensor->matrices, tensor->rows,
                 tensor->cols);
        length +=
            (size_t)snprintf(header + length, sizeof header - length,
                             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", t ? "," : "",
                             tensor->name, trf_dtype_name(tensor->dtype), shape, at, at + bytes_of(tensor));
        at += bytes_of(tensor);
    }
    header[length++] = '}';
    while (length % 8)
        header[length++] = ' ';
    const uint64_t header_bytes = length;
    FILE *file = open_file(path, "wb");
    fwrite(&header_bytes, sizeof header_bytes, 1, file);
    fwrite(header, 1, length, file);
    for (uint32_t t = 0; t < NUM_TENSORS; t++) {
        const made_tensor *tensor = &kTensors[t];
        void *weights = malloc(bytes_of(tensor));
        same_check(weights ? TRF_OK : TRF_ERR_MEMORY, path, &(trf_error){0});
        made_fill(weights, tensor->dtype, tensor->kind, matrices_of(tensor) * tensor->rows, tensor->cols, 400 + t);
        fwrite(weights, 1, bytes_of(tensor), file);
        free(weights);
    }
    close_file(file, path);
}

static void print_file(const char *folder, const char *name, const char *kind) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = open_file(path, "rb");
    struct stat info;
    fstat(fileno(file), &info);
    void *bytes = malloc((size_t)info.st_size + 1);
    if (!bytes || fread(bytes, 1, (size_t)info.st_size, file) != (size_t)info.st_size) {
        perror(path);
        exit(1);
    }
    same_print(bytes, (uint64_t)info.st_size, kind, name);
    free(bytes);
    close_file(file, path);
}

static void print_folder(const char *folder, const char *kind) {
    print_file(folder, "config.json", kind);
    print_file(folder, "model.safetensors", kind);
}

void same_checkpoint(const char *folder) {
    static const struct {
        const char *name;
        trf_codec codec;
        trf_favor favor;
        double bits;
    } kWays[] = {{"speed", TRF_CODEC_AUTO, TRF_FAVOR_SPEED, 0},
                 {"size", TRF_CODEC_AUTO, TRF_FAVOR_SIZE, 0},
                 {"int", TRF_CODEC_INT, TRF_FAVOR_SIZE, 4.5}};
    char source[4000], path[4096], out[4000];
    snprintf(source, sizeof source, "%s/source", folder);
    if (mkdir(source, 0777) != 0) {
        perror(source);
        exit(1);
    }
    snprintf(path, sizeof path, "%s/config.json", source);
    write_text(path, "{\"model_type\": \"llama\", \"torch_dtype\": \"bfloat16\", \"rms_norm_eps\": 1e-05}\n");
    snprintf(path, sizeof path, "%s/model.safetensors", source);
    write_tensors(path);
    print_folder(source, "source");
    for (uint32_t i = 0; i < sizeof kWays / sizeof kWays[0]; i++) {
        trf_checkpoint_options options;
        trf_error err = {0};
        trf_checkpoint_options_init(&options);
        options.encode.threads = same_threads;
        options.encode.codec = kWays[i].codec;
        options.encode.favor = kWays[i].favor;
        options.encode.bits = kWays[i].bits;
        snprintf(out, sizeof out, "%s/%s", folder, kWays[i].name);
        same_check(trf_compress_checkpoint(source, out, &options, NULL, &err), kWays[i].name, &err);
        print_folder(out, kWays[i].name);
        snprintf(path, sizeof path, "%s/%s_back", folder, kWays[i].name);
        same_check(trf_decompress_checkpoint(out, path, &options, NULL, &err), kWays[i].name, &err);
        print_folder(path, "back");
    }
}
