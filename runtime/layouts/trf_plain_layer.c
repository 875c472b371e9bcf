/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_plain_layer.h"

#include "trf_decoded_bits.h"

static trf_status get_size(uint32_t codec, uint32_t rows, uint32_t cols, trf_layer_size *size, trf_error *err) {
    if (trf_plain_dtype(codec) == TRF_DTYPE_NONE)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "the layout 'plain' does not take the codec %s yet, but bf16 and fp16",
                        trf_codec_name((trf_codec)codec));
    *size = (trf_layer_size){.buffer_bytes = trf_plain_buffer_bytes(rows, cols)};
    return TRF_OK;
}

trf_status trf_plain_get_size(const trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                              trf_error *err) {
    return get_size(trf_element_codec(view->header.codec, view->header.source_dtype), shard->rows, shard->cols, size,
                    err);
}

trf_status trf_plain_get_converted_size(const trf_device_layer *from, trf_layer_size *size, trf_error *err) {
    return get_size(trf_element_codec(from->info.codec, from->info.dtype), from->info.rows, from->info.cols, size, err);
}

void trf_plain_set_buffer(trf_device_layer *layer, const void *buffer) {
    const uint64_t bytes = trf_plain_buffer_bytes(layer->info.rows, layer->info.cols);
    trf_set_device_layer_buffer(layer, buffer, bytes);
}

trf_status trf_plain_adopt(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err) {
    trf_plain_head head;
    trf_status status = trf_read_layout_head(made->context, buffer, buffer_bytes, &head, sizeof head, err);
    if (status == TRF_OK)
        status = trf_plain_head_read(&head, buffer_bytes, &made->info, err);
    if (status == TRF_OK) {
        made->header = head.coded_header;
        trf_plain_set_buffer(made, buffer);
    }
    return status;
}

int trf_plain_is_copied(const trf_device_layer *layer, trf_decode_as as) {
    return trf_decoded_weight_bytes(&layer->view, as) == TRF_PLAIN_WEIGHT_BYTES;
}
