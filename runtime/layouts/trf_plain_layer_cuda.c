/* SPDX-License-Identifier: Apache-2.0 */
/* Plain layers in a GPU's memory. A part of a coded layer (trf_transcode_cuda.h) is decoded to its place in the dense
 * matrix. If the shard cuts tiles, it is decoded to memory of its own, from which the shard's rows and columns are
 * copied. */
#include "trf_plain_layer_cuda.h"

#include "trf_cuda_call.h"
#include "trf_decode_launch.h"
#include "trf_decoded_bits.h"
#include "trf_device_cuda.h"
#include "trf_nvtx.h"
#include "trf_pack_launch.h"
#include "trf_plain_layer.h"
#include "trf_plain_rows.h"
#include "trf_staging_cuda.h"
#include "trf_transcode_layer_cuda.h"
#include "trf_unpack8_launch.h"
#include "trf_verify_layer_cuda.h"

#include <cuda_runtime_api.h>

/* ---- loading ---- */

typedef struct trf_plain_target {
    const trf_shard_range *shard;
    uint16_t *weights; /* [shard->rows][shard->cols] */
    uint16_t *part;    /* a part's rows and columns; NULL: the shard is all of the feed's tiles */
} trf_plain_target;

/* Copies the shard's share of a decoded part to its place. cols: of the part. */
static cudaError_t copy_from_part(const trf_plain_target *target, uint32_t first_row, uint32_t rows, uint32_t cols,
                                  cudaStream_t stream) {
    const trf_shard_range *shard = target->shard;
    const uint32_t begin = first_row > shard->row ? first_row : shard->row, shard_end = shard->row + shard->rows,
                   end = first_row + rows < shard_end ? first_row + rows : shard_end;
    if (begin >= end)
        return cudaSuccess;
    return cudaMemcpy2DAsync(
        target->weights + (size_t)(begin - shard->row) * shard->cols, sizeof *target->weights * shard->cols,
        target->part + (size_t)(begin - first_row) * cols + shard->col, sizeof *target->part * cols,
        sizeof *target->part * shard->cols, end - begin, cudaMemcpyDeviceToDevice, stream);
}

/* A trf_take_part_fn. */
static trf_status decode_part(void *context, const trf_coded_part *part, trf_stream stream, trf_error *err) {
    const trf_plain_target *target = context;
    if (!part) /* after the last part */
        return TRF_OK;
    const trf_device_view *view = &part->view;
    uint16_t *const to = target->part ? target->part : target->weights + (size_t)part->first_row * view->cols;
    int error = trf_launch_decode_layer(view, &part->traits, TRF_DECODE_ELEMENTS, to, stream);
    if (!error && target->part)
        error = copy_from_part(target, part->first_row, view->rows, view->cols, stream);
    return trf_check_cuda(error, "decoding a part of a layer", err);
}

/* Completes the head of a buffer that is complete otherwise. */
static trf_status add_checksum(const trf_device_layer *made, uint8_t *buffer, trf_error *err) {
    return trf_cuda_add_data_checksum(made->context, buffer, trf_plain_buffer_bytes(made->info.rows, made->info.cols),
                                      err);
}

/* Fills the layer's buffer from a feed. The device is current. The head is written last, so a buffer that has a head is
 * complete. */
static trf_status fill_buffer(const trf_device_layer *made, trf_layer_feed *feed, uint8_t *buffer, trf_error *err) {
    const trf_context *context = made->context;
    const trf_header *header = &feed->view->header;
    const int is_cut = feed->shard.rows != header->rows || feed->shard.cols != header->cols;
    trf_plain_target target = {&feed->shard, (uint16_t *)(buffer + TRF_PLAIN_WEIGHTS_OFFSET), NULL};
    trf_plain_head head;
    trf_status status = TRF_OK;
    if (is_cut)
        status = trf_cuda_allocate_here(sizeof(uint16_t) * trf_most_part_rows(feed->view) * header->cols,
                                        (void **)&target.part, err);
    if (status == TRF_OK)
        status = trf_cuda_transcode(context, feed, decode_part, &target, err);
    cudaFree(target.part);
    if (status != TRF_OK)
        return status;
    trf_plain_head_write(&made->header, &made->info, &head);
    status = trf_staging_finish(context->staging, buffer, &head, sizeof head, err);
    if (status == TRF_OK)
        return add_checksum(made, buffer, err);
    trf_staging_drain(context->staging); /* the memory may be the caller's */
    return status;
}

/* ---- converting ---- */

enum {
    PART_TILE_ROWS = 16 /* for a shard that cuts tiles: enough for all multiprocessors */
};

static trf_status decode_coded(const trf_device_layer *from, uint16_t *weights, trf_error *err) {
    const trf_device_view *view = &from->view;
    const int is_cut = trf_shard_cuts_rows(from) || trf_shard_cuts_cols(from);
    const uint32_t rows = PART_TILE_ROWS * TRF_TILE_SIZE, part_rows = view->rows < rows ? view->rows : rows;
    trf_plain_target target = {&from->shard, weights, NULL};
    trf_status status = TRF_OK;
    if (is_cut)
        status = trf_cuda_allocate_here(sizeof(uint16_t) * part_rows * view->cols, (void **)&target.part, err);
    if (status == TRF_OK)
        status =
            trf_cuda_transcode_layer(from, is_cut ? PART_TILE_ROWS : view->num_tile_rows, decode_part, &target, err);
    cudaFree(target.part);
    return status;
}

static trf_status unpack(const trf_device_layer *from, uint16_t *weights, trf_error *err) {
    const cudaStream_t stream = trf_cuda_copier_work_stream(from->context->copier);
    const trf_unpack_target target = {weights, from->info.cols, TRF_PLAIN_WEIGHT_BYTES};
    const int error = from->layout->layout == TRF_LAYOUT_PACKED8
                          ? trf_launch_unpack8(&from->packed8, 0, from->info.rows, &target, stream)
                          : trf_launch_unpack(&from->packed, 0, from->info.rows, &target, stream);
    const int waited = cudaStreamSynchronize(stream); /* after a failure, too: the caller's memory is given back */
    return trf_check_cuda(error ? error : waited, "unpacking a layer", err);
}

/* Does what fill_buffer does, from a device layer. */
static trf_status convert_buffer(const trf_device_layer *made, const trf_device_layer *from, uint8_t *buffer,
                                 trf_error *err) {
    uint16_t *const weights = (uint16_t *)(buffer + TRF_PLAIN_WEIGHTS_OFFSET);
    const cudaStream_t stream = trf_cuda_copier_work_stream(made->context->copier);
    trf_plain_head head;
    trf_status status =
        from->layout->layout == TRF_LAYOUT_CODED ? decode_coded(from, weights, err) : unpack(from, weights, err);
    if (status != TRF_OK)
        return status;
    trf_plain_head_write(&made->header, &made->info, &head);
    /* On the stream of the kernel that adds the checksum to the head. */
    status = trf_check_cuda(cudaMemcpyAsync(buffer, &head, sizeof head, cudaMemcpyHostToDevice, stream),
                            "converting a layer", err);
    return status == TRF_OK ? add_checksum(made, buffer, err) : status;
}

/* ---- memory for loads and conversions ---- */

/* What a buffer is filled from: a feed, or a layer. */
typedef struct trf_plain_input {
    trf_layer_feed *feed;
    const trf_device_layer *layer;
} trf_plain_input;

/* Makes the layer. bytes: of its buffer. */
static trf_status make_plain(trf_device_layer *made, const trf_plain_input *input, const trf_layer_memory *memory,
                             uint64_t bytes, trf_error *err) {
    uint8_t *buffer = memory->buffer;
    trf_device_scope scope;
    trf_status status = trf_enter_device(made->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push(input->feed ? "load" : "convert");
    if (!buffer) {
        status = trf_cuda_allocate_here(bytes, &made->memory, err);
        buffer = made->memory;
    }
    if (status == TRF_OK)
        status =
            input->feed ? fill_buffer(made, input->feed, buffer, err) : convert_buffer(made, input->layer, buffer, err);
    if (status == TRF_OK)
        trf_plain_set_buffer(made, buffer);
    else
        cudaFree(made->memory);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return status;
}

trf_status trf_cuda_fill_plain_layer(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                                     trf_error *err) {
    const trf_plain_input input = {.feed = feed};
    return make_plain(made, &input, memory, trf_plain_buffer_bytes(feed->shard.rows, feed->shard.cols), err);
}

trf_status trf_cuda_convert_to_plain(trf_device_layer *made, const trf_device_layer *from,
                                     const trf_layer_memory *memory, trf_error *err) {
    const trf_plain_input input = {.layer = from};
    return make_plain(made, &input, memory, trf_plain_buffer_bytes(made->info.rows, made->info.cols), err);
}

/* Loading has checked the data. The device may fail nevertheless. */
trf_status trf_cuda_check_plain_layer(const trf_device_layer *layer, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = trf_check_cuda(cudaDeviceSynchronize(), "asking a layer for faults", err);
    trf_leave_device(&scope);
    return status;
}

/* ---- decoding ---- */

static trf_plain_rows_request rows_of(const trf_device_layer *layer, trf_decode_as as, void *to) {
    const trf_device_view *view = &layer->view;
    return (trf_plain_rows_request){.weights = trf_plain_weights(layer),
                                    .rows = view->rows,
                                    .cols = view->cols,
                                    .codec = view->codec,
                                    .count = view->rows,
                                    .weight_bytes = trf_decoded_weight_bytes(view, as),
                                    .missing = trf_decoded_corrupt_bits(view, as),
                                    .to = to};
}

trf_status trf_cuda_decode_plain(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                                 trf_error *err) {
    const trf_plain_rows_request rows = rows_of(layer, as, weights);
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("decode");
    const int error =
        trf_plain_is_copied(layer, as)
            ? (int)cudaMemcpyAsync(weights, rows.weights, layer->view.buffer_bytes - TRF_PLAIN_WEIGHTS_OFFSET,
                                   cudaMemcpyDeviceToDevice, stream)
            : trf_launch_plain_rows(&rows, stream);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding a layer", err);
}

trf_status trf_cuda_decode_plain_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                      trf_error *err) {
    trf_plain_rows_request rows = rows_of(layer, request->as, request->rows);
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    rows.ids = request->row_ids;
    rows.id_bytes = request->id_bytes;
    rows.count = request->count;
    const int error = trf_launch_plain_rows(&rows, stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding rows", err);
}
