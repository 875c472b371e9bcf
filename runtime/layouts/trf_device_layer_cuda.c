/* SPDX-License-Identifier: Apache-2.0 */
/* Coded layers in a GPU's memory. The library makes one allocation: blob | directory (trf_layer_directory.h), each at a
 * multiple of 256 bytes; or the directory alone, if the blob stays where it lies. */
#include "trf_cuda_call.h"
#include "trf_device_cuda.h"
#include "trf_layer_directory.h"
#include "trf_layer_feed.h"
#include "trf_nvtx.h"
#include "trf_staging_cuda.h"
#include "trf_upload_layer.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

trf_status trf_cuda_open_device_blob(const trf_context *context, const void *blob, uint64_t blob_bytes,
                                     const trf_load_options *options, trf_layer_feed *feed, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    /* Work that writes the blob may still be under way, on any stream. */
    status = trf_check_cuda(cudaDeviceSynchronize(), "waiting for a layer on the device", err);
    trf_leave_device(&scope);
    if (status != TRF_OK)
        return status;
    return trf_layer_feed_open_device(blob, blob_bytes, trf_cuda_copy_back, context->copier, options, feed, err);
}

trf_status trf_cuda_get_layer_size(const trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                                   trf_error *err) {
    (void)shard;
    trf_status status = trf_check_gpu_takes(view, err);
    if (status == TRF_OK)
        *size = (trf_layer_size){view->header.blob_bytes, trf_layer_directory_offsets_of(view).directory_bytes};
    return status;
}

/* Where a layer goes. The library allocates its part while the layer's first tiles are read. */
typedef struct trf_layer_target {
    trf_layer_size size;
    uint8_t *blob, *directory;     /* NULL until there is one */
    void *memory;                  /* what the library has allocated; NULL: nothing, or nothing yet */
    trf_cuda_find_memory_fn *find; /* NULL: the library allocates what is missing */
    void *find_context;
} trf_layer_target;

/* Asks `find` for what is missing. */
static trf_status ask_for_memory(trf_layer_target *target, trf_error *err) {
    trf_layer_memory memory = {0};
    trf_status status = target->find(target->find_context, &memory, err);
    if (status != TRF_OK)
        return status;
    target->blob = target->blob ? target->blob : memory.buffer;
    target->directory = memory.directory;
    return TRF_OK;
}

static trf_status complete_target(trf_layer_target *target, trf_error *err) {
    const uint64_t own_blob_bytes = target->blob ? 0 : trf_device_align(target->size.buffer_bytes);
    if (target->directory)
        return TRF_OK;
    if (target->find)
        return ask_for_memory(target, err);
    trf_status status = trf_cuda_allocate_here(own_blob_bytes + target->size.directory_bytes, &target->memory, err);
    if (status != TRF_OK)
        return status;
    target->blob = target->blob ? target->blob : target->memory;
    target->directory = (uint8_t *)target->memory + own_blob_bytes;
    return TRF_OK;
}

/* A trf_target_fn. */
static uint8_t *find_target(void *context, trf_error *err) {
    trf_layer_target *target = context;
    return complete_target(target, err) == TRF_OK ? target->blob : NULL;
}

/* Copies the blob to the device, unless it is there already, and then the directory. directory: memory of its size, all
 * zeros so far. */
static trf_status send_layer(trf_device_layer *made, trf_layer_feed *feed, uint8_t *directory, trf_layer_target *target,
                             trf_error *err) {
    trf_staging *staging = made->context->staging;
    const int in_place = feed->dev && feed->dev == target->blob;
    trf_write_head_directory(feed->view, directory);
    trf_status status = trf_staging_open(staging, err);
    if (status != TRF_OK)
        return status;
    status = trf_upload_layer(staging, feed, in_place ? NULL : find_target, target, (trf_device_slab *)directory,
                              &made->traits, err);
    if (status == TRF_OK)
        status = complete_target(target, err);
    if (status == TRF_OK)
        status = trf_staging_finish(staging, target->directory, directory, target->size.directory_bytes, err);
    if (status == TRF_OK)
        status = trf_keep_checksums(feed->view, directory, &made->kept, err);
    if (status != TRF_OK)
        trf_staging_drain(staging);
    return status;
}

/* The device is current. */
static trf_status fill_device_layer(trf_device_layer *layer, trf_layer_feed *feed, trf_layer_target *target,
                                    trf_error *err) {
    const uint64_t directory_bytes = target->size.directory_bytes;
    uint8_t *directory = calloc(1, directory_bytes);
    if (!directory)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %llu bytes for a layer's slab directory",
                        (unsigned long long)directory_bytes);
    trf_status status = send_layer(layer, feed, directory, target, err);
    free(directory);
    if (status != TRF_OK) {
        cudaFree(target->memory);
        return status;
    }
    const uint64_t fault_offset = trf_layer_directory_offsets_of(feed->view).fault_offset;
    layer->memory = target->memory;
    layer->memory_bytes = trf_device_align(target->size.buffer_bytes) + directory_bytes;
    layer->directory_bytes = directory_bytes;
    layer->view = trf_device_view_of_layer(feed->view, target->blob, target->directory,
                                           (trf_device_fault *)(target->directory + fault_offset));
    return TRF_OK;
}

trf_status trf_cuda_fill_layer_later(trf_device_layer *made, trf_layer_feed *feed, void *blob_dev,
                                     trf_cuda_find_memory_fn *find, void *context, trf_error *err) {
    trf_layer_target target = {.blob = blob_dev, .find = find, .find_context = context};
    trf_status status = trf_cuda_get_layer_size(feed->view, &feed->shard, &target.size, err);
    return status == TRF_OK ? fill_device_layer(made, feed, &target, err) : status;
}

trf_status trf_cuda_fill_layer(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                               trf_error *err) {
    trf_layer_target target = {.blob = memory->buffer, .directory = memory->directory};
    trf_device_scope scope;
    trf_status status = trf_cuda_get_layer_size(feed->view, &feed->shard, &target.size, err);
    if (status == TRF_OK)
        status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("load");
    status = fill_device_layer(made, feed, &target, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

/* If all memory is the caller's, the device is not called: the caller may be capturing a graph. */
void trf_cuda_destroy_layer(trf_device_layer *layer) {
    trf_device_scope scope;
    if (!layer->memory)
        return;
    trf_enter_device(layer->device, &scope, NULL);
    trf_pass_over_cuda(cudaDeviceSynchronize());
    cudaFree(layer->memory);
    trf_leave_device(&scope);
}

static cudaError_t wait_and_copy_fault(const trf_device_view *view, trf_device_fault *fault) {
    const cudaError_t error = cudaDeviceSynchronize();
    return error ? error : cudaMemcpy(fault, view->fault, sizeof *fault, cudaMemcpyDeviceToHost);
}

/* Reads the fault once the device is idle, and the metadata of the tile that it names; they stay as they are if the
 * fault itself is corrupt and there is no such tile. If the layer is offloaded, these come from host memory. */
static cudaError_t read_fault(const trf_device_layer *layer, trf_device_fault *fault, trf_tile_meta *meta) {
    const trf_device_view *view = &layer->view;
    cudaError_t error = wait_and_copy_fault(view, fault);
    if (!error && fault->set) /* a kernel that has begun since says that there is one before it says where */
        error = wait_and_copy_fault(view, fault);
    const uint64_t tile = (uint64_t)fault->tile_high << 32 | fault->tile_low;
    const int is_tile = tile < (uint64_t)view->num_tile_rows * view->num_tile_cols;
    if (!error && fault->set && is_tile && layer->host)
        *meta = layer->host->view.tiles[tile];
    else if (!error && fault->set && is_tile)
        error = cudaMemcpy(meta, view->tiles + tile, sizeof *meta, cudaMemcpyDeviceToHost);
    return error;
}

trf_status trf_cuda_check_layer(const trf_device_layer *device_layer, trf_error *err) {
    trf_device_scope scope;
    trf_device_fault fault = {0};
    trf_tile_meta meta = {0};
    trf_status status = trf_enter_device(device_layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(read_fault(device_layer, &fault, &meta), "asking a layer for faults", err);
    trf_leave_device(&scope);
    if (status == TRF_OK && fault.set)
        status = trf_fail(err, TRF_ERR_RANS, meta.data_offset, "tile %llu: a lane's stream does not end where it must",
                          (unsigned long long)((uint64_t)fault.tile_high << 32 | fault.tile_low));
    return status;
}
