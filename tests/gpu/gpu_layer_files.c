/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_layer_files.h"

#include <stdlib.h>
#include <string.h>

gpu_layer_file gpu_write_layer_file(const char *name, const gpu_recipe *recipe, gpu_shape shape, trf_favor favor) {
    test_rng rng = {shape.rows + 7 * (uint64_t)shape.cols};
    trf_error err = {0};
    trf_layer *layer;
    trf_layer_info info;
    gpu_layer_file file = {fixture_path("%s.trf", name), shape.rows, shape.cols, 0, 0, recipe->dtype, NULL, 0};
    void *blob = gpu_encode(&rng, recipe, favor, 0, shape, GPU_WEIGHTS_NORMAL, name, &file.blob_bytes);
    gpu_check(trf_layer_from_memory(blob, file.blob_bytes, &layer, &err), TRF_OK, &err, name);
    trf_layer_get_info(layer, &info);
    file.tiles = info.tiles;
    file.weights_bytes = (uint64_t)shape.rows * shape.cols * trf_dtype_bytes(recipe->dtype);
    file.weights = gpu_malloc(file.weights_bytes);
    gpu_check(trf_layer_decode(layer, file.weights, file.weights_bytes, 0, &err), TRF_OK, &err, name);
    trf_layer_free(layer);
    fixture_write(file.path, blob, file.blob_bytes);
    free(blob);
    return file;
}

gpu_layer_file gpu_write_large_file(void) {
    static const gpu_shape large = {2300, 5000}, quick = {2300, 3000};
    return gpu_write_layer_file("large", &kGpuRecipes[0], test_quick() ? quick : large, TRF_FAVOR_SPEED);
}

trf_load_options gpu_load_options(int threads) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.threads = threads;
    return options;
}

trf_status gpu_load(trf_context *context, const char *path, const trf_load_options *options, trf_device_layer **layer,
                    trf_error *err) {
    trf_checkpoint *checkpoint;
    trf_status status = trf_checkpoint_open(path, &checkpoint, err);
    if (status != TRF_OK)
        return status;
    status = trf_device_layer_load(context, checkpoint, "weight", options, layer, err);
    trf_checkpoint_close(checkpoint);
    return status;
}

int gpu_has_weights_of_file(const trf_device_layer *layer, const gpu_layer_file *layer_file) {
    cudaStream_t stream;
    trf_error err = {0};
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void *on_device, *found = gpu_malloc(layer_file->weights_bytes);
    CUDA(cudaMalloc(&on_device, layer_file->weights_bytes));
    gpu_check(trf_device_layer_decode(layer, TRF_DECODE_SOURCE, on_device, layer_file->weights_bytes, stream, &err),
              TRF_OK, &err, layer_file->path);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(found, on_device, layer_file->weights_bytes, cudaMemcpyDeviceToHost));
    const int right = memcmp(found, layer_file->weights, layer_file->weights_bytes) == 0;
    CUDA(cudaFree(on_device));
    CUDA(cudaStreamDestroy(stream));
    free(found);
    return right && trf_device_layer_check(layer, &err) == TRF_OK;
}

void gpu_check_load(const gpu_layer_file *layer_file, int threads) {
    const trf_load_options options = gpu_load_options(threads);
    trf_device_layer *layer;
    trf_error err = {0};
    gpu_check(gpu_load(gpu_context, layer_file->path, &options, &layer, &err), TRF_OK, &err, layer_file->path);
    if (!gpu_has_weights_of_file(layer, layer_file))
        ck_abort_msg("%s: wrong weights with %d threads", layer_file->path, threads);
    trf_device_layer_destroy(layer);
}
