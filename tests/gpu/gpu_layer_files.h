/* SPDX-License-Identifier: Apache-2.0 */
/* Layers in files of their own, for tests of loading. Use them between fixture_begin and fixture_end. */
#ifndef GPU_LAYER_FILES_H
#define GPU_LAYER_FILES_H

#include "common/checkpoint_fixture.h"
#include "gpu_layers.h"

/* A .trf file with one layer, and what it decodes to. */
typedef struct gpu_layer_file {
    const char *path;
    uint32_t rows, cols;
    uint64_t tiles, blob_bytes;
    trf_dtype dtype;
    void *weights; /* malloc'd */
    uint64_t weights_bytes;
} gpu_layer_file;

/* Encodes a layer and writes it to a file. name: the file's, without .trf. */
gpu_layer_file gpu_write_layer_file(const char *name, const gpu_recipe *recipe, gpu_shape shape, trf_favor favor);

/* The same for a layer that fills several staging buffers of 4 MiB. */
gpu_layer_file gpu_write_large_file(void);

/* The default options, except for threads. */
trf_load_options gpu_load_options(int threads);

/* trf_device_layer_load of the file's layer. */
trf_status gpu_load(trf_context *context, const char *path, const trf_load_options *options, trf_device_layer **layer,
                    trf_error *err);

/* Decodes at once, on a stream that waits for no other. @return whether the weights are those of the file. */
int gpu_has_weights_of_file(const trf_device_layer *layer, const gpu_layer_file *layer_file);

/* Loads the file's layer to gpu_context, which must succeed, and frees it. */
void gpu_check_load(const gpu_layer_file *layer_file, int threads);

#endif
