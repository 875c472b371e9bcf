/* SPDX-License-Identifier: Apache-2.0 */
/* The sampled rows of a coded layer are decoded. Those of dense weights are counted where they lie, as a matrix with a
 * larger stride. The device memory holds, each at a multiple of 256 bytes:
 *   histogram | the rows' numbers | their offsets | the rows
 * Dense weights need the histogram alone. */
#include "trf_packed_sample_cuda.h"

#include "trf_context.h"
#include "trf_cuda_call.h"
#include "trf_decode_rows.h"
#include "trf_packed_layer.h"
#include "trf_staging_cuda.h"

#include <cuda_runtime_api.h>

TRF_STATIC_ASSERT((int)sizeof(trf_window_histogram) <= (int)TRF_LOAD_SCRATCH_RESULT_BYTES, "a copy arrives there");

/* Offsets in the scratch memory. */
typedef struct sample_places {
    uint64_t ids_at, offsets_at, rows_at, bytes;
} sample_places;

static sample_places places_of(const trf_packed_window_rows *chosen, uint32_t cols) {
    sample_places places;
    places.ids_at = trf_device_align(sizeof(trf_window_histogram));
    places.offsets_at = places.ids_at + trf_device_align(sizeof(int32_t) * chosen->count);
    places.rows_at = places.offsets_at + trf_device_align(chosen->count);
    places.bytes = places.rows_at + sizeof(uint16_t) * chosen->count * cols;
    return places;
}

uint64_t trf_cuda_sample_bytes(const trf_device_layer *layer) {
    if (!layer)
        return sizeof(trf_window_histogram);
    const trf_packed_window_rows chosen = trf_packed_window_rows_of(layer->info.rows);
    return places_of(&chosen, layer->info.cols).bytes;
}

/* Counts the exponents of rows, waits for the counts, and chooses the window. offsets: device, or NULL. memory: of the
 * histogram. error: 0, or the error of what was queued before. */
static trf_status count(const trf_rows_to_pack *rows, const int8_t *offsets, const trf_load_scratch *scratch,
                        uint8_t *memory, int error, cudaStream_t stream, trf_packed_window *window, trf_error *err) {
    trf_window_histogram *const histogram = (trf_window_histogram *)memory;
    const trf_window_histogram *const found = (const trf_window_histogram *)scratch->results;
    if (!error)
        error = cudaMemsetAsync(histogram, 0, sizeof *histogram, stream);
    if (!error)
        error = trf_launch_window_histogram(rows, offsets, histogram, stream);
    if (!error)
        error = cudaMemcpyAsync(scratch->results, histogram, sizeof *histogram, cudaMemcpyDeviceToHost, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is used for something else */
    trf_status status = trf_check_cuda(error ? error : waited, "looking at a layer's weights", err);
    if (status == TRF_OK)
        *window = trf_choose_packed_window(found->exponents,
                                           trf_packed_is_zeroing(found->zeros, (uint64_t)rows->num_rows * rows->cols));
    return status;
}

/* ---- dense weights ---- */

trf_status trf_cuda_sample_rows(const trf_context *context, const trf_rows_to_pack *rows, trf_stream written,
                                const trf_load_scratch *scratch, trf_packed_window *window, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(context->copier);
    const trf_packed_window_rows chosen = trf_packed_window_rows_of(rows->num_rows);
    const trf_rows_to_pack looked_at = {rows->weights, rows->stride * chosen.step, 0, chosen.count, rows->cols};
    int error = cudaEventRecord(scratch->arrived, written);
    if (!error)
        error = cudaStreamWaitEvent(stream, scratch->arrived, 0);
    return count(&looked_at, NULL, scratch, scratch->memory, error, stream, window, err);
}

/* ---- coded layers ---- */

/* Queues the decoding of the rows, and the copies of their offsets. @return a cudaError_t. */
static int look_up(const trf_device_layer *layer, const trf_packed_window_rows *chosen, const sample_places *places,
                   uint8_t *memory, cudaStream_t stream) {
    int32_t ids[TRF_PACKED_WINDOW_ROWS];
    const trf_row_lookup lookup = {memory + places->ids_at, sizeof *ids, chosen->count, TRF_DECODE_ELEMENTS,
                                   memory + places->rows_at};
    for (uint32_t i = 0; i < chosen->count; i++)
        ids[i] = (int32_t)(i * chosen->step);
    int error = cudaMemcpyAsync(memory + places->ids_at, ids, sizeof *ids * chosen->count, cudaMemcpyHostToDevice,
                                stream); /* it has read them when it returns */
    const int8_t *const offsets = trf_layer_row_offsets(layer);
    if (!error && offsets)
        error = cudaMemcpy2DAsync(memory + places->offsets_at, 1, offsets + layer->shard.row, chosen->step, 1,
                                  chosen->count, cudaMemcpyDeviceToDevice, stream);
    return error ? error : trf_launch_decode_rows(&layer->view, &layer->shard, &lookup, stream);
}

trf_status trf_cuda_sample_window(const trf_device_layer *layer, const trf_load_scratch *scratch, uint8_t *memory,
                                  trf_packed_window *window, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(layer->context->copier);
    const uint32_t cols = layer->info.cols;
    const trf_packed_window_rows chosen = trf_packed_window_rows_of(layer->info.rows);
    const sample_places places = places_of(&chosen, cols);
    const trf_rows_to_pack rows = {(const uint16_t *)(memory + places.rows_at), cols, 0, chosen.count, cols};
    const int error = look_up(layer, &chosen, &places, memory, stream);
    return count(&rows, trf_layer_row_offsets(layer) ? (const int8_t *)(memory + places.offsets_at) : NULL, scratch,
                 memory, error, stream, window, err);
}
