/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_layer.h"

#include "trf_packed8_layer.h"

#include <string.h>

trf_pack_request trf_pack_request_of_shard(const trf_blob_view *view, const trf_shard_range *shard) {
    const uint32_t codec = view->header.codec, dtype = view->header.source_dtype;
    return (trf_pack_request){trf_element_codec(codec, dtype), shard->rows, shard->cols,
                              trf_element_row_offsets(codec, dtype, view->row_offsets) != NULL};
}

/* Only layers of the coded layout have row offsets in their view. */
trf_pack_request trf_pack_request_of_layer(const trf_device_layer *from) {
    const trf_layer_info *info = &from->info;
    return (trf_pack_request){trf_element_codec(info->codec, info->dtype), info->rows, info->cols,
                              trf_layer_row_offsets(from) != NULL};
}

const int8_t *trf_feed_row_offsets(const trf_layer_feed *feed) {
    const trf_header *header = &feed->view->header;
    return trf_element_row_offsets(header->codec, header->source_dtype, feed->view->row_offsets);
}

const int8_t *trf_layer_row_offsets(const trf_device_layer *from) {
    return trf_element_row_offsets(from->info.codec, from->info.dtype, from->view.row_offsets);
}

trf_status trf_packed_size_most(const trf_pack_request *request, trf_packed_head *head, trf_error *err) {
    memset(head, 0, sizeof *head);
    if (request->codec != TRF_CODEC_BF16)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "the layout 'packed' does not take the codec %s yet, but bf16",
                        trf_codec_name((trf_codec)request->codec));
    trf_status status = trf_size_packed(request->rows, request->cols, request->has_row_offsets, 0, head, err);
    if (status == TRF_OK) {
        const uint64_t most = trf_packed_most_stored(head);
        status = trf_size_packed(request->rows, request->cols, request->has_row_offsets,
                                 most < UINT32_MAX ? most : UINT32_MAX, head, err);
    }
    return status == TRF_OK ? TRF_OK : trf_packed_fail(status, err);
}

/* request8: the same as one for packed FP8, or NULL. E4M3 without scales is packed in no other way, and its size is
 * known; scaled FP8 may become packed BF16, which takes more memory. */
static trf_status get_size(const trf_pack_request *request, const trf_pack8_request *request8, trf_layer_size *size,
                           trf_error *err) {
    trf_packed_head head;
    if (request8 && trf_pack8_is_fp8(request8) && request->codec != TRF_CODEC_BF16)
        return trf_pack8_get_size(request8, size, err);
    trf_status status = trf_packed_size_most(request, &head, err);
    if (status == TRF_OK)
        *size = (trf_layer_size){.buffer_bytes = head.common.buffer_bytes};
    return status;
}

trf_status trf_packed_get_size(const trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                               trf_error *err) {
    const trf_pack_request request = trf_pack_request_of_shard(view, shard);
    const trf_pack8_request request8 = trf_pack8_request_of_shard(view, shard);
    return get_size(&request, &request8, size, err);
}

trf_status trf_packed_get_converted_size(const trf_device_layer *from, trf_layer_size *size, trf_error *err) {
    const trf_pack_request request = trf_pack_request_of_layer(from);
    const trf_pack8_request request8 = trf_pack8_request_of_layer(from);
    return get_size(&request, &request8, size, err);
}

trf_status trf_packed_get_matrix_size(const trf_device_matrix *matrix, trf_layer_size *size, trf_error *err) {
    const trf_pack_request request = {TRF_CODEC_BF16, matrix->rows, matrix->cols, 0};
    return get_size(&request, NULL, size, err);
}

void trf_packed_set_buffer(trf_device_layer *layer, const trf_packed_head *head, const void *buffer) {
    trf_set_device_layer_buffer(layer, buffer, head->common.buffer_bytes);
    layer->packed = trf_packed_view_of(head, buffer);
}

trf_status trf_packed_adopt(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err) {
    trf_packed_head head;
    trf_status status = trf_read_layout_head(made->context, buffer, buffer_bytes, &head, sizeof head, err);
    if (status == TRF_OK)
        status = trf_check_packed_head(&head, buffer_bytes, err);
    if (status == TRF_OK)
        status = trf_packed_head_get_info(&head, &made->info, err);
    if (status == TRF_OK) {
        made->header = head.coded_header;
        trf_packed_set_buffer(made, &head, buffer);
    }
    return status;
}

trf_packed_window trf_packed_window_of_view(const trf_packed_view *view) {
    return (trf_packed_window){(uint32_t)view->base, view->zeroing};
}

trf_status trf_packed_choose_stored(const trf_packed_head *head, uint64_t needed, uint64_t stored_room,
                                    const trf_packed_view *like, uint64_t *room, trf_error *err) {
    const uint64_t most = trf_packed_most_stored(head);
    *room = like ? like->num_stored : most - needed > stored_room ? needed + stored_room : most;
    if (needed > *room)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "packed like the other layer, %llu tiles would have to be stored, and that has room for %llu",
                        (unsigned long long)needed, (unsigned long long)*room);
    return TRF_OK;
}

trf_status trf_packed_fail(trf_status status, trf_error *err) {
    if (err)
        err->offset = TRF_NO_OFFSET;
    return status == TRF_ERR_UNSUPPORTED ? trf_prefix_error(err, status, "the layer cannot be packed") : status;
}
