/* Contexts, and layers in device memory. A layer is one allocation:
 *   blob | slab directory | decode slots | fault word
 * each at a multiple of 256 bytes; zeros between. */
#include "trf_context.h"
#include "trf_cuda_call.h"
#include "trf_device_directory.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MIN_CAPABILITY = 80,
    PART_ALIGNMENT = 256 /* what cudaMalloc gives */
};

/* ---- contexts ---- */

static trf_status trf_find_device(int device, struct cudaDeviceProp *properties, trf_error *err) {
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

trf_status trf_context_create(int device, trf_context **context, trf_error *err) {
    struct cudaDeviceProp properties;
    trf_device_scope scope;
    trf_status status = trf_find_device(device, &properties, err);
    if (status != TRF_OK)
        return status;
    trf_context *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a context");
    made->device = device;
    made->limits = (trf_device_limits){.multiprocessors = properties.multiProcessorCount,
                                       .shared_bytes = (int)properties.sharedMemPerBlockOptin,
                                       .capability = 10 * properties.major + properties.minor};
    snprintf(made->name, sizeof made->name, "%s", properties.name);
    status = trf_enter_device(device, &scope, err);
    if (status == TRF_OK) {
        /* Starts CUDA on the device here, where it can fail with a message of its own. */
        status = trf_check_cuda(cudaFree(NULL), "starting CUDA on the device", err);
        if (status == TRF_OK)
            status = trf_check_cuda((cudaError_t)trf_find_clusters(&made->limits), "looking for clusters", err);
        if (status == TRF_OK)
            status = trf_gemm_create(&made->gemm, err);
        trf_leave_device(&scope);
    }
    if (status != TRF_OK) {
        free(made);
        return status;
    }
    *context = made;
    return TRF_OK;
}

void trf_context_destroy(trf_context *context) {
    if (!context)
        return;
    trf_device_scope scope;
    int entered = trf_enter_device(context->device, &scope, NULL) == TRF_OK;
    trf_gemm_destroy(context->gemm);
    if (entered)
        trf_leave_device(&scope);
    free(context);
}

const char *trf_context_device_name(const trf_context *context) { return context->name; }

/* ---- layers ---- */

/* Where the parts of a layer lie, as offsets from its first byte. The blob is at 0. */
typedef struct trf_device_layout {
    uint64_t slabs, slots, fault, bytes;
} trf_device_layout;

static uint64_t trf_align_part(uint64_t bytes) {
    return (bytes + PART_ALIGNMENT - 1) & ~(uint64_t)(PART_ALIGNMENT - 1);
}

static trf_device_layout trf_lay_out(const trf_header *header) {
    trf_device_layout layout;
    layout.slabs = trf_align_part(header->blob_bytes);
    layout.slots = layout.slabs + trf_align_part(trf_count_device_slabs(header) * sizeof(trf_device_slab));
    layout.fault = layout.slots + trf_align_part(sizeof(uint32_t) << header->probability_bits);
    layout.bytes = layout.fault + sizeof(trf_device_fault);
    return layout;
}

/* A host view's pointer into the blob as one into its copy; NULL stays NULL. */
static const void *trf_moved(const trf_layer *layer, const void *host, const uint8_t *blob_dev) {
    return host ? blob_dev + ((const uint8_t *)host - layer->blob) : NULL;
}

static trf_device_view trf_view_on_device(const trf_layer *layer, const trf_device_layout *layout,
                                          const uint8_t *memory_dev) {
    const trf_blob_view *view = &layer->view;
    const trf_header *header = &view->header;
    const trf_extension *extension = &view->extension;
    trf_device_view made = {
        .blob = memory_dev,
        .blob_bytes = header->blob_bytes,
        .slabs = (const trf_device_slab *)(memory_dev + layout->slabs),
        .slots = (const uint32_t *)(memory_dev + layout->slots),
        .tiles = trf_moved(layer, view->tiles, memory_dev),
        .scales = trf_moved(layer, view->scales, memory_dev),
        .row_offsets = trf_moved(layer, view->row_offsets, memory_dev),
        .col_offsets = trf_moved(layer, view->col_offsets, memory_dev),
        .fault = (trf_device_fault *)(memory_dev + layout->fault),
        .rows = header->rows,
        .cols = header->cols,
        .num_tiles_row = header->num_tiles_row,
        .num_tiles_col = header->num_tiles_col,
        .slab_cols = header->slab_cols,
        .num_slab_cols = trf_count_slab_cols(header),
        .num_bands = (header->rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS,
        .codec = header->codec,
        .source_dtype = header->source_dtype,
        .class_bits = header->class_bits,
        .raw_bits = header->raw_bits,
        .probability_bits = header->probability_bits,
        .state_bits = header->state_bits,
        .stored_bytes = header->stored_bytes,
        .granularity = extension->granularity,
        .scale_dtype = extension->scale_dtype,
        .group_size = extension->group_size,
        .scale_cols = view->scale_cols,
        .scale_exponent = extension->scale_exponent,
        .exponent_offset = extension->exponent_offset,
        .num_planes = view->num_planes,
    };
    memcpy(made.plane_width, view->plane_width, sizeof made.plane_width);
    memcpy(made.class_value, extension->class_value, sizeof made.class_value);
    return made;
}

/* Copies the blob and what stands behind it. tail: the latter, from layout->slabs on. */
static trf_status trf_upload(const trf_layer *layer, const trf_device_layout *layout, const uint8_t *tail,
                             uint8_t *memory_dev, trf_error *err) {
    const uint64_t blob_bytes = layer->view.header.blob_bytes;
    cudaError_t error = cudaMemcpy(memory_dev, layer->blob, blob_bytes, cudaMemcpyHostToDevice);
    if (!error && layout->slabs > blob_bytes)
        error = cudaMemset(memory_dev + blob_bytes, 0, layout->slabs - blob_bytes);
    if (!error)
        error = cudaMemcpy(memory_dev + layout->slabs, tail, layout->bytes - layout->slabs, cudaMemcpyHostToDevice);
    if (!error) /* copies from pageable memory return before they have arrived, and the layer's first user may have any stream */
        error = cudaStreamSynchronize(NULL);
    return trf_check_cuda(error, "copying a layer to the device", err);
}

/* device_layer: its context, device and info are set; the device is current. */
static trf_status trf_fill_device_layer(trf_device_layer *device_layer, const trf_layer *layer, trf_error *err) {
    const trf_device_layout layout = trf_lay_out(&layer->view.header);
    uint8_t *tail = calloc(1, layout.bytes - layout.slabs);
    if (!tail)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %llu bytes for a layer's slab directory",
                        (unsigned long long)(layout.bytes - layout.slabs));
    trf_describe_for_device(layer, (trf_device_slab *)tail, &device_layer->facts);
    memcpy(tail + (layout.slots - layout.slabs), layer->table.slots,
           sizeof(uint32_t) << layer->view.header.probability_bits);
    void *memory = NULL;
    trf_status status = trf_check_cuda(cudaMalloc(&memory, layout.bytes), "allocating a layer on the device", err);
    if (status == TRF_OK)
        status = trf_upload(layer, &layout, tail, memory, err);
    free(tail);
    if (status != TRF_OK) {
        cudaFree(memory);
        return status;
    }
    device_layer->memory = memory;
    device_layer->memory_bytes = layout.bytes;
    device_layer->view = trf_view_on_device(layer, &layout, memory);
    return TRF_OK;
}

trf_status trf_device_layer_create(trf_context *context, const trf_layer *layer, trf_device_layer **device_layer,
                                   trf_error *err) {
    if (!context || !layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer on a device needs a context and a layer");
    if (layer->view.header.blob_bytes > TRF_DEVICE_MAX_BLOB_BYTES)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a blob of %llu bytes; on a device %llu are the limit",
                        (unsigned long long)layer->view.header.blob_bytes,
                        (unsigned long long)TRF_DEVICE_MAX_BLOB_BYTES);
    trf_device_layer *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a layer");
    static atomic_uint layers;
    trf_device_scope scope;
    made->context = context;
    made->device = context->device;
    made->serial = atomic_fetch_add(&layers, 1) + 1; /* a plan of zeros is no layer's */
    trf_blob_describe(&layer->view, &made->info);
    trf_status status = trf_enter_device(made->device, &scope, err);
    if (status == TRF_OK) {
        status = trf_fill_device_layer(made, layer, err);
        trf_leave_device(&scope);
    }
    if (status != TRF_OK) {
        free(made);
        return status;
    }
    *device_layer = made;
    return TRF_OK;
}

void trf_device_layer_destroy(trf_device_layer *device_layer) {
    if (!device_layer)
        return;
    trf_device_scope scope;
    if (trf_enter_device(device_layer->device, &scope, NULL) == TRF_OK) {
        cudaDeviceSynchronize();
        cudaFree(device_layer->memory);
        trf_leave_device(&scope);
    }
    free(device_layer);
}

void trf_device_layer_get_info(const trf_device_layer *device_layer, trf_layer_info *info) {
    *info = device_layer->info;
}

uint64_t trf_device_layer_bytes(const trf_device_layer *device_layer) { return device_layer->memory_bytes; }

/* Reads the fault word once the device is idle, and the metadata of the tile that it names. */
static cudaError_t trf_read_fault(const trf_device_view *view, trf_device_fault *fault, trf_tile_meta *meta) {
    cudaError_t error = cudaDeviceSynchronize();
    if (!error)
        error = cudaMemcpy(fault, view->fault, sizeof *fault, cudaMemcpyDeviceToHost);
    if (!error && fault->set)
        error = cudaMemcpy(meta, view->tiles + ((uint64_t)fault->tile_high << 32 | fault->tile_low), sizeof *meta,
                           cudaMemcpyDeviceToHost);
    return error;
}

trf_status trf_device_layer_check(const trf_device_layer *device_layer, trf_error *err) {
    trf_device_scope scope;
    trf_device_fault fault = {0};
    trf_tile_meta meta = {0};
    trf_status status = trf_enter_device(device_layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(trf_read_fault(&device_layer->view, &fault, &meta), "asking a layer for faults", err);
    trf_leave_device(&scope);
    if (status == TRF_OK && fault.set)
        status =
            trf_fail(err, TRF_ERR_STREAM, meta.data_offset, "tile %llu: a lane's stream does not end where it must",
                     (unsigned long long)((uint64_t)fault.tile_high << 32 | fault.tile_low));
    return status;
}
