/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_torch_manage.h"

#include "trf_torch_registry.h"

#include <utility>

namespace {

thread_local std::string adoption_error;

trf_load_options options_for_blob(int device) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.blob_is_on_device = device != TRF_DEVICE_CPU;
    return options;
}

} // namespace

trf_status trf_torch_measure(int device, const void *blob, uint64_t blob_bytes, uint64_t *directory_bytes,
                             trf_error *err) {
    trf_context *context;
    trf_status status = trf_torch::find_context(device, &context, err);
    if (status != TRF_OK)
        return status;
    const trf_load_options options = options_for_blob(device);
    trf_layer_size size;
    status = trf_device_layer_get_size(context, blob, blob_bytes, &options, &size, err);
    if (status == TRF_OK)
        *directory_bytes = size.directory_bytes;
    return status;
}

trf_status trf_torch_adopt(int device, void *blob, uint64_t blob_bytes, void *directory, uint64_t directory_bytes,
                           trf_error *err) {
    trf_context *context;
    trf_status status = trf_torch::find_context(device, &context, err);
    if (status != TRF_OK)
        return status;
    trf_load_options options = options_for_blob(device);
    if (device != TRF_DEVICE_CPU)
        options.memory = {blob, blob_bytes, directory, directory_bytes};
    trf_device_layer *made = nullptr;
    status = trf_device_layer_create(context, blob, blob_bytes, &options, &made, err);
    if (status == TRF_OK)
        status = trf_torch::insert_layer(device, blob, blob_bytes, made, err);
    if (status != TRF_OK)
        trf_device_layer_destroy(made);
    return status;
}

int trf_torch_find(int device, const void *blob, trf_layer_info *info) {
    const trf_torch::found_layer found = trf_torch::find_layer(device, blob);
    if (found.layer)
        *info = found.layer->info;
    return found.layer != nullptr;
}

void trf_torch_forget(int device, const void *blob) { trf_torch::forget_layer(device, blob); }

uint64_t trf_torch_count(void) { return trf_torch::count_layers(); }

void trf_torch_set_adoption_error(const char *message) { adoption_error = message; }

namespace trf_torch {

std::string take_adoption_error() {
    return std::exchange(adoption_error, "this blob is unknown, and transfuse::adopt did not take it");
}

} // namespace trf_torch
