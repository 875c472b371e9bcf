/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a coded layer are looked up, those of a plain one counted where they lie: as a matrix with a larger stride.
 * What is on the device meanwhile is one allocation:
 *   histogram | the rows' numbers | their offsets | the rows
 * each at a multiple of 256 bytes. */
#include "trf_packed_sample_cuda.h"

#include "trf_cuda_call.h"
#include "trf_decode_rows.h"
#include "trf_device_cuda.h"
#include "trf_pack_launch.h"
#include "trf_plain_layer.h"
#include "trf_staging_cuda.h"

#include <cuda_runtime_api.h>
#include <string.h>

typedef struct trf_row_sample {
    const trf_device_layer *layer;
    uint32_t rows, step; /* row i is the layer's i * step */
    uint64_t ids_at, offsets_at, rows_at, bytes;
    uint8_t *memory;
} trf_row_sample;

static trf_row_sample sample_of(const trf_device_layer *layer) {
    trf_row_sample sample = {.layer = layer};
    const uint32_t all = layer->info.rows;
    sample.rows = all < TRF_PACKED_SAMPLE_ROWS ? all : TRF_PACKED_SAMPLE_ROWS;
    sample.step = all / sample.rows;
    sample.ids_at = trf_device_align(sizeof(trf_window_histogram));
    sample.offsets_at = sample.ids_at + trf_device_align(sizeof(int32_t) * sample.rows);
    sample.rows_at = sample.offsets_at + trf_device_align(sample.rows);
    sample.bytes = sample.rows_at;
    if (layer->layout->layout == TRF_LAYOUT_CODED)
        sample.bytes += sizeof(uint16_t) * sample.rows * layer->info.cols;
    return sample;
}

/* Decodes the rows, and collects their offsets. */
static int look_up(const trf_row_sample *sample, cudaStream_t stream) {
    const trf_device_layer *layer = sample->layer;
    int32_t ids[TRF_PACKED_SAMPLE_ROWS];
    const trf_row_lookup lookup = {sample->memory + sample->ids_at, sizeof *ids, sample->rows, TRF_DECODE_ELEMENTS,
                                   sample->memory + sample->rows_at};
    for (uint32_t i = 0; i < sample->rows; i++)
        ids[i] = (int32_t)(i * sample->step);
    int error = cudaMemcpyAsync(sample->memory + sample->ids_at, ids, sizeof *ids * sample->rows,
                                cudaMemcpyHostToDevice, stream); /* it has read them when it returns */
    if (!error && layer->view.row_offsets)
        error = cudaMemcpy2DAsync(sample->memory + sample->offsets_at, 1, layer->view.row_offsets + layer->shard.row,
                                  sample->step, 1, sample->rows, cudaMemcpyDeviceToDevice, stream);
    return error ? error : trf_launch_decode_rows(&layer->view, &layer->shard, &lookup, stream);
}

/* @return a cudaError_t. */
static int count(const trf_row_sample *sample, trf_window_histogram *found, cudaStream_t stream) {
    const trf_device_layer *layer = sample->layer;
    const uint32_t cols = layer->info.cols;
    const int is_plain = layer->layout->layout == TRF_LAYOUT_PLAIN;
    const trf_rows_to_pack rows = {is_plain ? trf_plain_weights(layer)
                                            : (const uint16_t *)(sample->memory + sample->rows_at),
                                   is_plain ? (uint64_t)sample->step * cols : cols, 0, sample->rows, cols};
    const int8_t *offsets = layer->view.row_offsets ? (const int8_t *)(sample->memory + sample->offsets_at) : NULL;
    trf_window_histogram *const histogram = (trf_window_histogram *)sample->memory;
    int error = cudaMemsetAsync(histogram, 0, sizeof *histogram, stream);
    if (!error && !is_plain)
        error = look_up(sample, stream);
    if (!error)
        error = trf_launch_window_histogram(&rows, offsets, histogram, stream);
    if (!error)
        error = cudaMemcpyAsync(found, histogram, sizeof *found, cudaMemcpyDeviceToHost, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is released */
    return error ? error : waited;
}

/* The head of a blob, as far as trf_packed_window_of_blob looks at it. */
static trf_blob_view head_of(const trf_device_layer *layer) {
    trf_blob_view head = {.header = layer->header};
    memcpy(head.extension.class_value, layer->view.class_value, sizeof head.extension.class_value);
    head.extension.exponent_offset = layer->view.exponent_offset;
    return head;
}

trf_status trf_cuda_sample_window(const trf_device_layer *layer, trf_packed_window *window, trf_error *err) {
    trf_row_sample sample = sample_of(layer);
    const trf_blob_view head = head_of(layer);
    trf_window_histogram found = {{0}, 0};
    trf_status status = trf_cuda_allocate_here(sample.bytes, (void **)&sample.memory, err);
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(count(&sample, &found, trf_cuda_copier_work_stream(layer->context->copier)),
                            "looking at a layer's weights", err);
    cudaFree(sample.memory);
    if (status != TRF_OK)
        return status;
    const uint32_t zeroing = trf_packed_is_zeroing(found.zeros, (uint64_t)sample.rows * layer->info.cols);
    if (zeroing || layer->layout->layout != TRF_LAYOUT_CODED || !trf_packed_window_of_blob(&head, window))
        *window = trf_choose_packed_window(found.exponents, zeroing);
    return TRF_OK;
}
