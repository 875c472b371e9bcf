/* SPDX-License-Identifier: Apache-2.0 */
/* The sampled rows of a coded layer are decoded. Those of dense weights are counted where they lie, as a matrix with a
 * larger stride. The device memory holds, each at a multiple of 256 bytes:
 *   counts | the rows' numbers | their offsets | the rows
 * and for dense weights
 *   counts | scales of FP8 | their constants */
#include "trf_packed_sample_cuda.h"

#include "trf_context.h"
#include "trf_cuda_call.h"
#include "trf_decode_rows.h"
#include "trf_device_cuda.h"
#include "trf_packed_layer.h"
#include "trf_staging_cuda.h"

#include <cuda_runtime_api.h>

/* What kernels count. */
typedef struct sample_counts {
    trf_window_histogram histogram;
    trf_found_fp8 found;
} sample_counts;
TRF_STATIC_ASSERT((int)sizeof(sample_counts) <= (int)TRF_LOAD_SCRATCH_RESULT_BYTES, "a copy arrives there");

enum {
    SCALES_AT = TRF_LOAD_SCRATCH_RESULT_BYTES /* in the scratch's memory: what packing writes before it is smaller */
};

/* Offsets in the scratch memory. */
typedef struct sample_places {
    uint64_t ids_at, offsets_at, rows_at, bytes;
} sample_places;

static sample_places places_of(const trf_packed_window_rows *chosen, uint32_t cols) {
    sample_places places;
    places.ids_at = trf_device_align(sizeof(sample_counts));
    places.offsets_at = places.ids_at + trf_device_align(sizeof(int32_t) * chosen->count);
    places.rows_at = places.offsets_at + trf_device_align(chosen->count);
    places.bytes = places.rows_at + sizeof(uint16_t) * chosen->count * cols;
    return places;
}

uint64_t trf_cuda_sample_bytes(const trf_device_layer *layer) {
    const trf_packed_window_rows chosen = trf_packed_window_rows_of(layer->info.rows);
    return places_of(&chosen, layer->info.cols).bytes;
}

uint64_t trf_cuda_sample_rows_bytes(uint32_t rows, uint32_t cols) {
    return SCALES_AT + trf_found_fp8_blocks(rows, cols) * (sizeof(float) + sizeof(uint32_t));
}

/* What is counted, and with which memory. */
typedef struct sample {
    trf_rows_to_pack rows; /* that choose the window */
    const int8_t *offsets; /* of these rows, device, or NULL */
    trf_rows_to_pack all;  /* the rows in which FP8 is looked for, if there is a search */
    trf_fp8_search *search;
    uint32_t multiprocessors;
    const trf_load_scratch *scratch;
    uint8_t *memory; /* of the counts */
} sample;

/* Counts the exponents of rows, looks for FP8, waits for both, and chooses the window. error: 0, or the error of what
 * was queued before. */
static trf_status count(const sample *of, int error, cudaStream_t stream, trf_packed_window *window, trf_error *err) {
    sample_counts *const counts = (sample_counts *)of->memory;
    const sample_counts *const found = (const sample_counts *)of->scratch->results;
    if (!error)
        error = cudaMemsetAsync(counts, 0, sizeof *counts, stream);
    if (!error)
        error = trf_launch_window_histogram(&of->rows, of->offsets, &counts->histogram, stream);
    if (!error && of->search)
        error = trf_launch_find_fp8(&of->all, of->scratch->constants, &of->search->to, &counts->found, 0,
                                    of->multiprocessors, stream);
    if (!error)
        error = cudaMemcpyAsync(of->scratch->results, counts, sizeof *counts, cudaMemcpyDeviceToHost, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is used for something else */
    trf_status status = trf_check_cuda(error ? error : waited, "looking at a layer's weights", err);
    if (status != TRF_OK)
        return status;
    const trf_window_histogram *const histogram = &found->histogram;
    *window = trf_choose_packed_window(
        histogram->exponents, trf_packed_is_zeroing(histogram->zeros, (uint64_t)of->rows.num_rows * of->rows.cols));
    if (of->search)
        of->search->found = found->found;
    return TRF_OK;
}

/* ---- dense weights ---- */

/* Makes the table that the search needs, if the scratch has none yet. */
static trf_status find_sets(trf_load_scratch *scratch, cudaStream_t stream, trf_error *err) {
    const size_t bytes = TRF_MANTISSA_SETS * sizeof(trf_find_fp8_set);
    if (scratch->constants)
        return TRF_OK;
    trf_status status = trf_cuda_allocate_here(bytes, &scratch->constants, err);
    if (status != TRF_OK)
        return status;
    cudaError_t error = cudaMemcpyAsync(scratch->constants, trf_find_fp8_sets(), bytes, cudaMemcpyHostToDevice, stream);
    if (!error)
        error = cudaStreamSynchronize(stream);
    if (error) {
        cudaFree(scratch->constants);
        scratch->constants = NULL;
    }
    return trf_check_cuda(error, "looking at a layer's weights", err);
}

trf_status trf_cuda_sample_rows(const trf_context *context, const trf_rows_to_pack *rows, trf_stream written,
                                trf_load_scratch *scratch, trf_fp8_search *search, trf_packed_window *window,
                                trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(context->copier);
    const trf_packed_window_rows chosen = trf_packed_window_rows_of(rows->num_rows);
    const sample of = {
        .rows = {rows->weights, rows->stride * chosen.step, 0, chosen.count, rows->cols},
        .all = *rows,
        .search = search,
        .multiprocessors = (uint32_t)context->limits.multiprocessors,
        .scratch = scratch,
        .memory = scratch->memory,
    };
    if (search) {
        trf_status status = find_sets(scratch, stream, err);
        if (status != TRF_OK)
            return status;
        search->to.scales = (float *)(scratch->memory + SCALES_AT);
        search->to.pairs = (uint32_t *)(search->to.scales + trf_found_fp8_blocks(rows->num_rows, rows->cols));
    }
    int error = cudaEventRecord(scratch->arrived, written);
    if (!error)
        error = cudaStreamWaitEvent(stream, scratch->arrived, 0);
    return count(&of, error, stream, window, err);
}

trf_status trf_cuda_search_all(const trf_context *context, const trf_rows_to_pack *rows,
                               const trf_load_scratch *scratch, trf_fp8_search *search, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(context->copier);
    trf_found_fp8 *const found = (trf_found_fp8 *)scratch->memory;
    int error = cudaMemsetAsync(found, 0, sizeof *found, stream);
    if (!error)
        error = trf_launch_find_fp8(rows, scratch->constants, &search->to, found, 1,
                                    (uint32_t)context->limits.multiprocessors, stream);
    if (!error)
        error = cudaMemcpyAsync(scratch->results, found, sizeof *found, cudaMemcpyDeviceToHost, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: memory is used for something else */
    search->found = *(const trf_found_fp8 *)scratch->results;
    return trf_check_cuda(error ? error : waited, "looking at a layer's weights", err);
}

/* ---- coded layers ---- */

/* Queues the decoding of the rows, and the copies of their offsets. ids: where their numbers go, until the stream has
 * been waited for. @return a cudaError_t. */
static int look_up(const trf_device_layer *layer, const trf_packed_window_rows *chosen, const sample_places *places,
                   uint8_t *memory, cudaStream_t stream, int32_t ids[TRF_PACKED_WINDOW_ROWS]) {
    const trf_row_lookup lookup = {memory + places->ids_at, sizeof *ids, chosen->count, TRF_DECODE_ELEMENTS,
                                   memory + places->rows_at};
    for (uint32_t i = 0; i < chosen->count; i++)
        ids[i] = (int32_t)(i * chosen->step);
    int error =
        cudaMemcpyAsync(memory + places->ids_at, ids, sizeof *ids * chosen->count, cudaMemcpyHostToDevice, stream);
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
    const sample of = {
        .rows = {(const uint16_t *)(memory + places.rows_at), cols, 0, chosen.count, cols},
        .offsets = trf_layer_row_offsets(layer) ? (const int8_t *)(memory + places.offsets_at) : NULL,
        .scratch = scratch,
        .memory = memory,
    };
    int32_t ids[TRF_PACKED_WINDOW_ROWS];
    const int error = look_up(layer, &chosen, &places, memory, stream, ids);
    return count(&of, error, stream, window, err);
}
