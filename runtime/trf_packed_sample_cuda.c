/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a coded layer are looked up, dense ones counted where they lie: as a matrix with a larger stride. What is on
 * the device meanwhile is of a load scratch:
 *   histogram | the rows' numbers | their offsets | the rows
 * each at a multiple of 256 bytes; of dense weights the histogram alone. */
#include "trf_packed_sample_cuda.h"

#include "trf_context.h"
#include "trf_cuda_call.h"
#include "trf_decode_rows.h"
#include "trf_device_cuda.h"
#include "trf_load_scratch_cuda.h"
#include "trf_plain_layer.h"
#include "trf_staging_cuda.h"

#include <cuda_runtime_api.h>

TRF_STATIC_ASSERT((int)sizeof(trf_window_histogram) <= (int)TRF_LOAD_SCRATCH_RESULT_BYTES, "a copy arrives there");

/* Where things lie in the scratch. */
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

/* Counts rows, and waits for what they came to. offsets: device, or NULL. @return a cudaError_t. */
static int count(const trf_rows_to_pack *rows, const int8_t *offsets, const trf_load_scratch *scratch,
                 cudaStream_t stream) {
    trf_window_histogram *const histogram = (trf_window_histogram *)scratch->memory;
    int error = cudaMemsetAsync(histogram, 0, sizeof *histogram, stream);
    if (!error)
        error = trf_launch_window_histogram(rows, offsets, histogram, stream);
    if (!error)
        error = cudaMemcpyAsync(scratch->results, histogram, sizeof *histogram, cudaMemcpyDeviceToHost, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is given back */
    return error ? error : waited;
}

/* The window, once rows have been counted; and gives the scratch back. error: what that came to. */
static trf_status choose(const trf_context *context, trf_load_scratch *scratch, int error, uint64_t weights,
                         trf_packed_window *window, trf_error *err) {
    const trf_window_histogram *found = (const trf_window_histogram *)scratch->results;
    trf_status status = trf_check_cuda(error, "looking at a layer's weights", err);
    if (status == TRF_OK)
        *window = trf_choose_packed_window(found->exponents, trf_packed_is_zeroing(found->zeros, weights));
    trf_load_scratch_give_back(context->load_scratches, scratch);
    return status;
}

/* ---- dense weights ---- */

trf_status trf_cuda_sample_rows(const trf_context *context, const trf_rows_to_pack *rows, trf_stream written,
                                trf_packed_window *window, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(context->copier);
    const trf_packed_window_rows chosen = trf_packed_window_rows_of(rows->num_rows);
    const trf_rows_to_pack looked_at = {rows->weights, rows->stride * chosen.step, 0, chosen.count, rows->cols};
    trf_load_scratch *scratch;
    trf_status status = trf_load_scratch_take(context->load_scratches, sizeof(trf_window_histogram), &scratch, err);
    if (status != TRF_OK)
        return status;
    int error = cudaEventRecord(scratch->arrived, written);
    if (!error)
        error = cudaStreamWaitEvent(stream, scratch->arrived, 0);
    if (!error)
        error = count(&looked_at, NULL, scratch, stream);
    return choose(context, scratch, error, (uint64_t)chosen.count * rows->cols, window, err);
}

/* ---- coded layers ---- */

/* Decodes the rows, and collects their offsets. @return a cudaError_t. */
static int look_up(const trf_device_layer *layer, const trf_packed_window_rows *chosen, const sample_places *places,
                   uint8_t *memory, cudaStream_t stream) {
    int32_t ids[TRF_PACKED_WINDOW_ROWS];
    const trf_row_lookup lookup = {memory + places->ids_at, sizeof *ids, chosen->count, TRF_DECODE_ELEMENTS,
                                   memory + places->rows_at};
    for (uint32_t i = 0; i < chosen->count; i++)
        ids[i] = (int32_t)(i * chosen->step);
    int error = cudaMemcpyAsync(memory + places->ids_at, ids, sizeof *ids * chosen->count, cudaMemcpyHostToDevice,
                                stream); /* it has read them when it returns */
    if (!error && layer->view.row_offsets)
        error = cudaMemcpy2DAsync(memory + places->offsets_at, 1, layer->view.row_offsets + layer->shard.row,
                                  chosen->step, 1, chosen->count, cudaMemcpyDeviceToDevice, stream);
    return error ? error : trf_launch_decode_rows(&layer->view, &layer->shard, &lookup, stream);
}

trf_status trf_cuda_sample_window(const trf_device_layer *layer, trf_packed_window *window, trf_error *err) {
    const trf_context *context = layer->context;
    const cudaStream_t stream = trf_cuda_copier_work_stream(context->copier);
    const uint32_t cols = layer->info.cols;
    if (layer->layout->layout == TRF_LAYOUT_PLAIN) {
        const trf_rows_to_pack all = {trf_plain_weights(layer), cols, 0, layer->info.rows, cols};
        return trf_cuda_sample_rows(context, &all, stream, window, err);
    }
    const trf_packed_window_rows chosen = trf_packed_window_rows_of(layer->info.rows);
    const sample_places places = places_of(&chosen, cols);
    trf_load_scratch *scratch;
    trf_status status = trf_load_scratch_take(context->load_scratches, places.bytes, &scratch, err);
    if (status != TRF_OK)
        return status;
    uint8_t *const memory = scratch->memory;
    const trf_rows_to_pack rows = {(const uint16_t *)(memory + places.rows_at), cols, 0, chosen.count, cols};
    int error = look_up(layer, &chosen, &places, memory, stream);
    if (error)
        cudaStreamSynchronize(stream); /* memory is given back */
    else
        error = count(&rows, layer->view.row_offsets ? (const int8_t *)(memory + places.offsets_at) : NULL, scratch,
                      stream);
    return choose(context, scratch, error, (uint64_t)chosen.count * cols, window, err);
}
