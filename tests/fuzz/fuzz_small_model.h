/* SPDX-License-Identifier: Apache-2.0 */
/* A small model for fuzz targets of the files around weights: model.safetensors with three tensors. Everything here
 * ends the program on failure. */
#ifndef FUZZ_SMALL_MODEL_H
#define FUZZ_SMALL_MODEL_H

#include "fuzz_folder.h"

#include "transfuse.h"
#include "trf_checkpoint_file.h"

#include <string.h>
#include <sys/stat.h>

static inline void fuzz_expect(trf_status status, const trf_error *err) {
    if (status == TRF_OK)
        return;
    fprintf(stderr, "%s: %s\n", trf_status_name(status), err->message);
    abort();
}

/* Writes the model's file: BF16 weights of 48x64, FP8 ones of the same shape with a scale, and a bias. */
static inline void fuzz_write_small_model(const char *path) {
    enum {
        WEIGHTS = 48 * 64,
        DATA_BYTES = 3 * WEIGHTS + 4 + 32
    };
    static const char header[] = "{\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[48,64],\"data_offsets\":[0,6144]},"
                                 "\"b.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[48,64],\"data_offsets\":[6144,9216]},"
                                 "\"b.weight_scale\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9216,9220]},"
                                 "\"a.bias\":{\"dtype\":\"F16\",\"shape\":[16],\"data_offsets\":[9220,9252]}}";
    const uint64_t header_bytes = sizeof header - 1;
    static uint8_t file[8 + sizeof header - 1 + DATA_BYTES];
    uint8_t *data = file + 8 + header_bytes;
    memcpy(file, &header_bytes, 8);
    memcpy(file + 8, header, header_bytes);
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        const uint32_t mixed = i * 0x9E3779B1u;
        const uint16_t weight = (uint16_t)((mixed >> 16 & 0x807F) | (112 + (mixed >> 12) % 9) << 7);
        memcpy(data + 2 * i, &weight, 2);
        data[2 * WEIGHTS + i] = (uint8_t)((mixed >> 16 & 0x87) | (3 + (mixed >> 11) % 5) << 3);
    }
    memcpy(data + 3 * WEIGHTS, &(float){0x1p-9f}, 4);
    memset(data + 3 * WEIGHTS + 4, 0x3C, 32);
    fuzz_write(path, file, sizeof file);
}

/* Makes a folder with the model, where there is nothing. */
static inline void fuzz_make_model_folder(const char *path) {
    char file[160];
    if (mkdir(path, 0700) != 0)
        abort();
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    fuzz_write_small_model(file);
}

/* The options with which fuzz targets work on checkpoints. */
static inline trf_checkpoint_options fuzz_checkpoint_options(void) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    options.overwrite = 1;
    options.store_only = 1;
    return options;
}

#endif
