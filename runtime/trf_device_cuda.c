/* A GPU: contexts, and layers in its memory. A layer is one allocation:
 *   blob | slab directory | decode slots | fault word
 * each at a multiple of 256 bytes; zeros between. */
#include "trf_cuda_call.h"
#include "trf_decode_cuda.h"
#include "trf_device.h"
#include "trf_device_image.h"
#include "trf_layer_group.h"
#include "trf_linear_cuda.h"
#include "trf_nvtx.h"
#include "trf_offload.h"
#include "trf_stage_layer.h"
#include "trf_staging_cuda.h"
#include "trf_time_cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MIN_CAPABILITY = 80
};

/* ---- contexts ---- */

static trf_status find_device(int device, struct cudaDeviceProp *properties, trf_error *err) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET, "no CUDA device can be used: %s",
                        cudaGetErrorString(error));
    }
    if (device < 0 || device >= count)
        return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET, "there is no CUDA device %d; %d are there", device, count);
    trf_status status = trf_check_cuda(cudaGetDeviceProperties(properties, device), "looking at the device", err);
    if (status != TRF_OK)
        return status;
    if (10 * properties->major + properties->minor < MIN_CAPABILITY)
        return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET,
                        "CUDA device %d (%s) has compute capability %d.%d; %d.%d is needed", device, properties->name,
                        properties->major, properties->minor, MIN_CAPABILITY / 10, MIN_CAPABILITY % 10);
    return TRF_OK;
}

static void cuda_destroy(trf_context *context) {
    trf_device_scope scope;
    trf_enter_device(context->device, &scope, NULL);
    trf_gemm_destroy(context->gemm);
    trf_staging_destroy(context->staging);
    trf_cuda_copier_destroy(context->copier);
    trf_leave_device(&scope);
}

/* ---- memory ---- */

/* The device is current. */
static trf_status allocate_here(uint64_t bytes, void **memory, trf_error *err) {
    char doing[64];
    snprintf(doing, sizeof doing, "allocating %llu bytes of device memory", (unsigned long long)bytes);
    return trf_check_cuda(cudaMalloc(memory, bytes), doing, err);
}

static trf_status cuda_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = allocate_here(bytes, memory, err);
    trf_leave_device(&scope);
    return status;
}

static void cuda_release(const trf_context *context, void *memory) {
    trf_device_scope scope;
    trf_enter_device(context->device, &scope, NULL);
    cudaFree(memory);
    trf_leave_device(&scope);
}

/* Behind all that the device has been given before. */
static trf_status cuda_copy(const trf_context *context, void *to, const void *from, uint64_t bytes,
                            enum cudaMemcpyKind kind, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    cudaError_t error = cudaDeviceSynchronize();
    if (!error)
        error = cudaMemcpy(to, from, bytes, kind);
    if (!error) /* copies from pageable memory return before they have arrived */
        error = cudaStreamSynchronize(NULL);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "copying to or from the device", err);
}

static trf_status cuda_copy_rows(const trf_context *context, void *to, uint64_t to_pitch, const void *from,
                                 uint64_t from_pitch, uint64_t width, uint64_t rows, trf_stream stream,
                                 trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    cudaError_t error =
        from ? cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDeviceToDevice, stream)
             : cudaMemset2DAsync(to, to_pitch, 0, width, rows, stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "copying rows of x or y", err);
}

static trf_status cuda_upload(const trf_context *context, void *to, const void *from_host, uint64_t bytes,
                              trf_error *err) {
    return cuda_copy(context, to, from_host, bytes, cudaMemcpyHostToDevice, err);
}

static trf_status cuda_download(const trf_context *context, void *to_host, const void *from, uint64_t bytes,
                                trf_error *err) {
    return cuda_copy(context, to_host, from, bytes, cudaMemcpyDeviceToHost, err);
}

/* ---- layers ---- */

/* A layer's memory, which is allocated while its first tiles are read. */
typedef struct trf_layer_memory {
    uint64_t bytes;
    void *memory; /* NULL: none yet */
} trf_layer_memory;

/* A trf_target_fn. */
static uint8_t *allocate_layer(void *context, trf_error *err) {
    trf_layer_memory *layer = context;
    allocate_here(layer->bytes, &layer->memory, err);
    return layer->memory;
}

/* Copies the blob, and then what is made of it, to the device. tail: bytes behind the blob, all zero so far. */
static trf_status send_layer(trf_device_layer *made, const trf_layer_source *source, const trf_image_offsets *offsets,
                             uint8_t *tail, trf_layer_memory *memory, trf_error *err) {
    trf_staging *staging = made->context->staging;
    const uint64_t blob_bytes = source->view->header.blob_bytes;
    trf_device_slab *slabs = (trf_device_slab *)(tail + (offsets->slabs - blob_bytes));
    trf_decode_table table;
    trf_decode_table_init(&table, source->view);
    memcpy(tail + (offsets->slots - blob_bytes), table.slots,
           sizeof(uint32_t) << source->view->header.probability_bits);
    trf_status status = trf_staging_open(staging, err);
    if (status != TRF_OK)
        return status;
    status = trf_stage_layer(staging, source, allocate_layer, memory, slabs, &made->traits, err);
    if (status == TRF_OK)
        status =
            trf_staging_finish(staging, (uint8_t *)memory->memory + blob_bytes, tail, memory->bytes - blob_bytes, err);
    if (status != TRF_OK)
        trf_staging_drain(staging);
    return status;
}

/* device_layer: its context, device and info are set; the device is current. */
static trf_status fill_device_layer(trf_device_layer *device_layer, const trf_layer_source *source, trf_error *err) {
    const trf_image_offsets offsets = trf_image_offsets_of(&source->view->header);
    trf_layer_memory memory = {offsets.bytes + sizeof(trf_device_fault),
                               NULL}; /* the fault word stands behind the image */
    const uint64_t tail_bytes = memory.bytes - source->view->header.blob_bytes;
    uint8_t *tail = calloc(1, tail_bytes);
    if (!tail)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %llu bytes for a layer's slab directory",
                        (unsigned long long)tail_bytes);
    trf_status status = send_layer(device_layer, source, &offsets, tail, &memory, err);
    free(tail);
    if (status != TRF_OK) {
        cudaFree(memory.memory);
        return status;
    }
    uint8_t *const at = memory.memory;
    device_layer->memory = at;
    device_layer->memory_bytes = memory.bytes;
    device_layer->view = trf_view_of_image(source->view, at, (trf_device_fault *)(at + offsets.bytes));
    return TRF_OK;
}

static trf_status cuda_fill_layer(trf_device_layer *made, const trf_layer_source *source, trf_error *err) {
    const uint64_t blob_bytes = source->view->header.blob_bytes;
    if (blob_bytes > TRF_DEVICE_MAX_BLOB_BYTES)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a blob of %llu bytes; on a device %llu are the limit",
                        (unsigned long long)blob_bytes, (unsigned long long)TRF_DEVICE_MAX_BLOB_BYTES);
    trf_device_scope scope;
    trf_status status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("load");
    status = fill_device_layer(made, source, err);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

static void cuda_destroy_layer(trf_device_layer *layer) {
    trf_device_scope scope;
    trf_enter_device(layer->device, &scope, NULL);
    cudaDeviceSynchronize();
    cudaFree(layer->memory);
    trf_leave_device(&scope);
}

/* Reads the fault word once the device is idle, and the metadata of the tile that it names: from host memory if the
 * layer is offloaded. */
static cudaError_t read_fault(const trf_device_layer *layer, trf_device_fault *fault, trf_tile_meta *meta) {
    const trf_device_view *view = &layer->view;
    cudaError_t error = cudaDeviceSynchronize();
    if (!error)
        error = cudaMemcpy(fault, view->fault, sizeof *fault, cudaMemcpyDeviceToHost);
    const uint64_t tile = (uint64_t)fault->tile_high << 32 | fault->tile_low;
    if (!error && fault->set && layer->host)
        *meta = layer->host->view.tiles[tile];
    else if (!error && fault->set)
        error = cudaMemcpy(meta, view->tiles + tile, sizeof *meta, cudaMemcpyDeviceToHost);
    return error;
}

static trf_status cuda_check_layer(const trf_device_layer *device_layer, trf_error *err) {
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

/* ---- the device's operations ---- */

static const trf_device_ops trf_cuda_device_ops = {
    .destroy = cuda_destroy,
    .fill_layer = cuda_fill_layer,
    .destroy_layer = cuda_destroy_layer,
    .check_layer = cuda_check_layer,
    .decode = trf_cuda_decode,
    .decode_rows = trf_cuda_decode_rows,
    .plan = trf_cuda_plan,
    .linear = trf_cuda_linear,
    .decode_ahead = trf_cuda_decode_ahead,
    .apply_epilogue = trf_cuda_apply_epilogue,
    .time = trf_cuda_time,
    .timed_repeats = 9,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy_rows = cuda_copy_rows,
    .stack = &trf_cuda_stack_ops,
    .groups = &trf_cuda_group_ops,
};

/* All that needs CUDA at work. The device is current. */
static trf_status start_context(trf_context *made, trf_error *err) {
    /* Starts CUDA on the device here, where it can fail with a message of its own. */
    trf_status status = trf_check_cuda(cudaFree(NULL), "starting CUDA on the device", err);
    if (status == TRF_OK)
        status = trf_check_cuda((cudaError_t)trf_find_limits(&made->limits), "looking for what the device can do", err);
    if (status == TRF_OK)
        status = trf_gemm_create(&made->gemm, err);
    if (status == TRF_OK)
        status = trf_cuda_copier_create(made->device, &made->copier, err);
    if (status == TRF_OK)
        status = trf_staging_create(&trf_cuda_copy_engine, made->copier, &made->staging, err);
    return status;
}

trf_status trf_cuda_context_create(int device, trf_context **context, trf_error *err) {
    struct cudaDeviceProp properties;
    trf_device_scope scope;
    trf_status status = find_device(device, &properties, err);
    if (status != TRF_OK)
        return status;
    trf_context *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a context");
    made->ops = &trf_cuda_device_ops;
    made->device = device;
    made->cache_bytes = (uint64_t)properties.l2CacheSize;
    made->limits = (trf_device_limits){.multiprocessors = properties.multiProcessorCount,
                                       .shared_bytes = (int)properties.sharedMemPerBlockOptin,
                                       .capability = 10 * properties.major + properties.minor};
    snprintf(made->name, sizeof made->name, "%s", properties.name);
    status = trf_enter_device(device, &scope, err);
    if (status == TRF_OK) {
        status = start_context(made, err);
        trf_leave_device(&scope);
    }
    if (status != TRF_OK) {
        cuda_destroy(made);
        free(made);
        return status;
    }
    *context = made;
    return TRF_OK;
}
