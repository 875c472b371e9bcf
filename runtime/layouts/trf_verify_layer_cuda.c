/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels compute the checksums where the layer lies (decoder_gpu/trf_integrity_launch.h). The host gets some words of
 * them, and the head. */
#include "trf_verify_layer_cuda.h"

#include "trf_cuda_call.h"
#include "trf_integrity_launch.h"
#include "trf_layout_head.h"
#include "trf_load_scratch_cuda.h"
#include "trf_nvtx.h"
#include "trf_staging_cuda.h"
#include "trf_verify_layer.h"

#include <cuda_runtime_api.h>
#include <string.h>

int trf_cuda_queue_data_checksum(const trf_context *context, void *buffer, uint64_t buffer_bytes, trf_stream stream) {
    uint8_t *const bytes = buffer;
    return trf_launch_sum_data(bytes + TRF_LAYOUT_HEAD_BYTES, buffer_bytes - TRF_LAYOUT_HEAD_BYTES,
                               (trf_data_checksum *)(bytes + TRF_DATA_CHECKSUM_OFFSET),
                               (uint32_t)context->limits.multiprocessors, stream);
}

trf_status trf_cuda_add_data_checksum(const trf_context *context, void *buffer, uint64_t buffer_bytes, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    const cudaStream_t stream = trf_cuda_copier_work_stream(context->copier);
    const int error = trf_cuda_queue_data_checksum(context, buffer, buffer_bytes, stream),
              waited = cudaStreamSynchronize(stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error ? error : waited, "computing a layer's checksum", err);
}

/* What kernels have found, on the device and then on the host. */
typedef struct trf_verify_results {
    uint64_t wrong;             /* of a blob: trf_launch_check_blob */
    trf_data_checksum computed; /* of a directory, or of a buffer's data */
    uint64_t reserved;
    uint64_t head[TRF_LAYOUT_HEAD_BYTES / sizeof(uint64_t)]; /* a buffer's */
} trf_verify_results;
TRF_STATIC_ASSERT((int)sizeof(trf_verify_results) <= (int)TRF_LOAD_SCRATCH_RESULT_BYTES, "there is a place for a copy");

/* Queues the kernels for a layer. @return a cudaError_t. */
typedef int trf_queue_checks_fn(const trf_device_layer *layer, trf_verify_results *results_dev, trf_stream stream);

/* Waits for the device, whose work may still be writing the layer, runs the kernels, and gets what they have found. The
 * device is current. */
static trf_status run_checks(const trf_device_layer *layer, trf_queue_checks_fn *queue, const trf_load_scratch *scratch,
                             trf_verify_results *results, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(layer->context->copier);
    trf_verify_results *const results_dev = (trf_verify_results *)scratch->memory;
    int error = cudaDeviceSynchronize();
    if (!error)
        error = cudaMemsetAsync(results_dev, 0, sizeof *results_dev, stream);
    if (!error)
        error = queue(layer, results_dev, stream);
    if (!error)
        error = cudaMemcpyAsync(scratch->results, results_dev, sizeof *results_dev, cudaMemcpyDeviceToHost, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: the scratch is given back */
    memcpy(results, scratch->results, sizeof *results);
    return trf_check_cuda(error ? error : waited, "verifying a layer", err);
}

static trf_status find_results(const trf_device_layer *layer, trf_queue_checks_fn *queue, trf_verify_results *results,
                               trf_error *err) {
    trf_load_scratches *scratches = layer->context->load_scratches;
    trf_load_scratch *scratch;
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("verify");
    status = trf_load_scratch_take(scratches, sizeof *results, &scratch, err);
    if (status == TRF_OK) {
        status = run_checks(layer, queue, scratch, results, err);
        trf_load_scratch_give_back(scratches, scratch);
    }
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

/* ---- coded layers ---- */

static int queue_blob(const trf_device_layer *layer, trf_verify_results *results_dev, trf_stream stream) {
    const trf_device_view *view = &layer->view;
    const trf_blob_to_check blob = {view->buffer, view->buffer_bytes, layer->kept.head_bytes, view->tiles,
                                    (uint64_t)view->num_tile_rows * view->num_tile_cols};
    const int error = trf_launch_check_blob(&blob, &results_dev->wrong, stream);
    return error ? error
                 : trf_launch_sum_data(view->slabs, layer->kept.directory_bytes, &results_dev->computed,
                                       (uint32_t)layer->context->limits.multiprocessors, stream);
}

/* Says which tile has changed. The head has not, so that it can be asked where the tile lies. */
static trf_status fail_tile(const trf_device_layer *layer, uint64_t tile, trf_error *err) {
    trf_tile_meta meta;
    trf_status status = trf_cuda_copy_back(layer->context->copier, &meta, layer->view.tiles + tile, sizeof meta, err);
    if (status != TRF_OK)
        return status;
    return trf_fail(err, TRF_ERR_CHECKSUM, meta.data_offset,
                    "tile %llu has changed in memory: its checksum is not 0x%016llX", (unsigned long long)tile,
                    (unsigned long long)meta.checksum);
}

/* An offloaded layer is checked where it is copied from. */
trf_status trf_cuda_verify_blob(const trf_device_layer *layer, trf_error *err) {
    trf_verify_results results;
    if (layer->host)
        return trf_verify_host_layer(layer->host, 0, err);
    trf_status status = find_results(layer, queue_blob, &results, err);
    if (status != TRF_OK)
        return status;
    if (results.wrong && ~results.wrong)
        return fail_tile(layer, ~results.wrong - 1, err);
    if (results.wrong)
        return trf_fail(err, TRF_ERR_CHECKSUM, offsetof(trf_header, head_checksum),
                        "the head of a coded layer has changed in memory: it has another checksum");
    if (trf_data_checksums_differ(results.computed, layer->kept.directory))
        return trf_fail(err, TRF_ERR_CHECKSUM, TRF_NO_OFFSET,
                        "the directory of a coded layer, which says where its slabs lie, has changed in memory");
    return TRF_OK;
}

/* ---- layouts with a head ---- */

static int queue_buffer(const trf_device_layer *layer, trf_verify_results *results_dev, trf_stream stream) {
    const trf_device_view *view = &layer->view;
    const int error =
        trf_launch_sum_data(view->buffer + TRF_LAYOUT_HEAD_BYTES, view->buffer_bytes - TRF_LAYOUT_HEAD_BYTES,
                            &results_dev->computed, (uint32_t)layer->context->limits.multiprocessors, stream);
    return error ? error
                 : (int)cudaMemcpyAsync(results_dev->head, view->buffer, sizeof results_dev->head,
                                        cudaMemcpyDeviceToDevice, stream);
}

trf_status trf_cuda_verify_buffer(const trf_device_layer *layer, trf_error *err) {
    trf_verify_results results;
    trf_status status = find_results(layer, queue_buffer, &results, err);
    return status == TRF_OK ? trf_judge_buffer(layer, results.head, results.computed, err) : status;
}
