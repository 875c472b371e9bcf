/* SPDX-License-Identifier: Apache-2.0 */
/* Layers on devices: the public functions. They check arguments; the operations of the layer's layout do the rest. */
#include "trf_device_layer.h"

#include "trf_context.h"
#include "trf_struct.h"

#include <stdio.h>
#include <stdlib.h>

void trf_device_layer_destroy(trf_device_layer *device_layer) {
    if (!device_layer)
        return;
    device_layer->layout->destroy(device_layer);
    free(device_layer);
}

void trf_device_layer_get_info(const trf_device_layer *device_layer, trf_device_layer_info *info) {
    *info = (trf_device_layer_info){
        .layer = device_layer->info,
        .layout = device_layer->layout->layout,
        .memory_bytes = device_layer->memory_bytes,
        .plans = atomic_load(&device_layer->num_plans),
    };
}

const char *trf_device_layer_get_layout_reason(const trf_device_layer *device_layer) {
    return device_layer->layout_reason;
}

void trf_note_layout_reason(trf_device_layer *layer, const char *reason) {
    snprintf(layer->layout_reason, sizeof layer->layout_reason, "%.255s", reason);
}

trf_status trf_device_layer_check(const trf_device_layer *device_layer, trf_error *err) {
    if (!device_layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no layer to check");
    return device_layer->layout->check(device_layer, err);
}

/* ---- decoding ---- */

trf_status trf_check_decode_as(const trf_device_layer *layer, trf_decode_as as, trf_error *err) {
    if (!layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no layer to decode");
    if (as < TRF_DECODE_SOURCE || as > TRF_DECODE_F16)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "weights cannot be decoded as %d", (int)as);
    return TRF_OK;
}

uint64_t trf_decoded_weight_bytes_of_info(const trf_layer_info *info, trf_decode_as as) {
    return as == TRF_DECODE_SOURCE ? trf_dtype_bytes(info->dtype) : 2;
}

/* rows: how many are decoded. alignment: what weights needs. */
trf_status trf_check_decode_target(const trf_layer_info *info, trf_decode_as as, uint64_t rows, const void *weights,
                                   uint64_t weights_bytes, uint64_t alignment, trf_error *err) {
    if (!weights || (uintptr_t)weights % alignment)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "decoded weights need %llu-byte aligned device memory",
                        (unsigned long long)alignment);
    if ((as == TRF_DECODE_BF16 && info->codec == TRF_CODEC_FP16) ||
        (as == TRF_DECODE_F16 && trf_element_codec(info->codec, info->dtype) == TRF_CODEC_BF16))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "weights of codec %s are not decoded as %s",
                        trf_codec_name(info->codec), as == TRF_DECODE_BF16 ? "BF16" : "F16");
    const uint64_t value_bytes = trf_decoded_weight_bytes_of_info(info, as);
    if (weights_bytes % value_bytes || weights_bytes / value_bytes != rows * info->cols)
        return trf_fail(err, TRF_ERR_SHAPE, TRF_NO_OFFSET, "a buffer of %llu bytes for %llux%u weights of %llu bytes",
                        (unsigned long long)weights_bytes, (unsigned long long)rows, info->cols,
                        (unsigned long long)value_bytes);
    return TRF_OK;
}

trf_status trf_device_layer_decode(const trf_device_layer *device_layer, trf_decode_as as, void *weights,
                                   uint64_t weights_bytes, trf_stream stream, trf_error *err) {
    trf_status status = trf_check_decode_as(device_layer, as, err);
    if (status == TRF_OK)
        status =
            trf_check_decode_target(&device_layer->info, as, device_layer->info.rows, weights, weights_bytes, 16, err);
    if (status == TRF_OK && (trf_shard_cuts_rows(device_layer) || trf_shard_cuts_cols(device_layer)))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "a shard that does not begin and end with tiles of %d is not decoded", TRF_TILE_SIZE);
    return status == TRF_OK ? device_layer->layout->decode(device_layer, as, weights, stream, err) : status;
}

/* ---- rows ---- */

void trf_row_request_init(trf_row_request *request) { *request = (trf_row_request){.struct_bytes = sizeof *request}; }

static trf_status check_request(const trf_device_layer *layer, const trf_row_request *request, trf_error *err) {
    const uint32_t id_bytes = request->id_bytes;
    trf_status status = trf_check_decode_as(layer, request->as, err);
    if (status != TRF_OK)
        return status;
    if (id_bytes != 4 && id_bytes != 8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "row ids of %u bytes, neither 4 nor 8", id_bytes);
    if (request->count == 0)
        return TRF_OK;
    if (!request->row_ids || (uintptr_t)request->row_ids % id_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "row ids need %u-byte aligned device memory", id_bytes);
    return trf_check_decode_target(&layer->info, request->as, request->count, request->rows, request->rows_bytes,
                                   trf_decoded_weight_bytes_of_info(&layer->info, request->as), err);
}

trf_status trf_decode_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                           trf_error *err) {
    static const trf_struct_type type = {"trf_row_request", sizeof *request,
                                         TRF_STRUCT_BYTES(trf_row_request, rows_bytes)};
    trf_row_request taken;
    if (!layer || !request)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "rows are decoded of a layer, by a request");
    trf_row_request_init(&taken);
    trf_status status = trf_take_struct(&type, &taken, request, err);
    if (status == TRF_OK)
        status = check_request(layer, &taken, err);
    if (status != TRF_OK || taken.count == 0)
        return status;
    return layer->layout->decode_rows(layer, &taken, stream, err);
}

void trf_set_device_layer_buffer(trf_device_layer *layer, const void *buffer, uint64_t buffer_bytes) {
    layer->shard = (trf_shard_range){.rows = layer->info.rows, .cols = layer->info.cols};
    layer->view = (trf_device_view){.buffer = buffer,
                                    .buffer_bytes = buffer_bytes,
                                    .rows = layer->info.rows,
                                    .cols = layer->info.cols,
                                    .codec = layer->info.codec,
                                    .source_dtype = layer->info.dtype};
    layer->memory_bytes = buffer_bytes;
}

trf_status trf_read_layout_head(const trf_context *context, const void *buffer, uint64_t buffer_bytes, void *head,
                                size_t head_bytes, trf_error *err) {
    if (buffer_bytes < head_bytes)
        return trf_fail(err, TRF_ERR_TRUNCATED, buffer_bytes, "a buffer of %llu bytes, which has no room for its head",
                        (unsigned long long)buffer_bytes);
    return context->ops->download(context, head, buffer, head_bytes, err);
}
