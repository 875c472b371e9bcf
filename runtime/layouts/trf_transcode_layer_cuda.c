/* SPDX-License-Identifier: Apache-2.0 */
/* Each part of the layer has a fault of its own, since its tiles are numbered from its first one. */
#include "trf_transcode_layer_cuda.h"

#include "trf_cuda_call.h"
#include "trf_device_cuda.h"
#include "trf_staging_cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

static uint32_t count_parts(const trf_device_layer *layer, uint32_t tile_rows_each) {
    return (layer->view.num_tile_rows + tile_rows_each - 1) / tile_rows_each;
}

static trf_coded_part part_of(const trf_device_layer *layer, uint32_t number, uint32_t tile_rows_each,
                              trf_device_fault *faults) {
    const uint32_t first = number * tile_rows_each, tile_rows_left = layer->view.num_tile_rows - first;
    trf_coded_part part = {layer->view, layer->traits, first * TRF_TILE_SIZE};
    trf_device_view *view = &part.view;
    const uint32_t rows_left = view->rows - part.first_row, rows = tile_rows_each * TRF_TILE_SIZE;
    if (tile_rows_left <= tile_rows_each) {
        view->num_tile_rows = tile_rows_left;
        view->rows = rows_left;
    } else {
        view->num_tile_rows = tile_rows_each;
        view->rows = rows;
    }
    view->num_bands = (view->rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS;
    view->slabs += (uint64_t)(part.first_row / TRF_SLAB_ROWS) * view->num_panels;
    view->tiles += (uint64_t)first * view->num_tile_cols;
    if (view->row_offsets)
        view->row_offsets += part.first_row;
    view->scale_row = part.first_row;
    view->fault = faults + number;
    return part;
}

trf_status trf_cuda_note_fault(const trf_device_layer *layer, trf_device_fault found, trf_error *err) {
    trf_device_fault known;
    trf_status status = trf_cuda_copy_back(layer->context->copier, &known, layer->view.fault, sizeof known, err);
    if (status == TRF_OK && !known.set)
        status = trf_cuda_upload(layer->context, layer->view.fault, &found, sizeof found, err);
    return status == TRF_OK ? trf_cuda_check_layer(layer, err) : status;
}

static trf_status check_faults(const trf_device_layer *layer, uint32_t tile_rows_each,
                               const trf_device_fault *faults_dev, trf_error *err) {
    const uint32_t parts = count_parts(layer, tile_rows_each);
    trf_device_fault *faults = malloc(parts * sizeof *faults);
    if (!faults)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a layer's faults");
    trf_status status = trf_cuda_copy_back(layer->context->copier, faults, faults_dev, parts * sizeof *faults, err);
    for (uint32_t part = 0; status == TRF_OK && part < parts; part++)
        if (faults[part].set) {
            const uint64_t tile = (uint64_t)part * tile_rows_each * layer->view.num_tile_cols +
                                  ((uint64_t)faults[part].tile_high << 32 | faults[part].tile_low);
            status = trf_cuda_note_fault(layer, (trf_device_fault){1, (uint32_t)tile, (uint32_t)(tile >> 32)}, err);
        }
    free(faults);
    return status;
}

static trf_status take_parts(const trf_device_layer *layer, uint32_t tile_rows_each, trf_device_fault *faults,
                             trf_take_part_fn *take, void *context, trf_error *err) {
    const uint32_t parts = count_parts(layer, tile_rows_each);
    const cudaStream_t stream = trf_cuda_copier_work_stream(layer->context->copier);
    trf_status status =
        trf_check_cuda(cudaMemsetAsync(faults, 0, parts * sizeof *faults, stream), "converting a layer", err);
    for (uint32_t number = 0; status == TRF_OK && number < parts; number++) {
        const trf_coded_part part = part_of(layer, number, tile_rows_each, faults);
        status = take(context, &part, stream, err);
    }
    if (status == TRF_OK)
        status = take(context, NULL, stream, err);
    const cudaError_t error = cudaStreamSynchronize(stream); /* also after a failure: memory is released next */
    return status == TRF_OK ? trf_check_cuda(error, "converting a layer", err) : status;
}

trf_status trf_cuda_transcode_layer(const trf_device_layer *layer, uint32_t tile_rows_each, trf_take_part_fn *take,
                                    void *context, trf_error *err) {
    trf_device_fault *faults;
    trf_status status =
        trf_cuda_allocate_here(count_parts(layer, tile_rows_each) * sizeof *faults, (void **)&faults, err);
    if (status != TRF_OK)
        return status;
    status = take_parts(layer, tile_rows_each, faults, take, context, err);
    if (status == TRF_OK)
        status = check_faults(layer, tile_rows_each, faults, err);
    cudaFree(faults);
    return status;
}
