/* Layers in a GPU's memory. A layer is one allocation:
 *   blob | slab directory | decode slots | fault word
 * each at a multiple of 256 bytes; zeros between. */
#include "trf_cuda_call.h"
#include "trf_device_cuda.h"
#include "trf_device_image.h"
#include "trf_layer_source.h"
#include "trf_nvtx.h"
#include "trf_stage_layer.h"
#include "trf_staging_cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

/* A layer's memory, which is allocated while its first tiles are read. */
typedef struct trf_layer_memory {
    uint64_t bytes;
    void *memory; /* NULL: none yet */
} trf_layer_memory;

/* A trf_target_fn. */
static uint8_t *allocate_layer(void *context, trf_error *err) {
    trf_layer_memory *layer = context;
    trf_cuda_allocate_here(layer->bytes, &layer->memory, err);
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

trf_status trf_cuda_fill_layer(trf_device_layer *made, const trf_layer_source *source, trf_error *err) {
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

void trf_cuda_destroy_layer(trf_device_layer *layer) {
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
