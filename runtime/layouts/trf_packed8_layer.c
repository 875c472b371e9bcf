/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed8_layer.h"

/* ---- requests ---- */

trf_pack8_request trf_pack8_request_of_shard(const trf_blob_view *view, const trf_shard_range *shard) {
    return (trf_pack8_request){
        .codec = view->header.codec,
        .dtype = view->header.source_dtype,
        .lies = TRF_LAYOUT_CODED,
        .rows = shard->rows,
        .cols = shard->cols,
        .row = shard->row,
        .col = shard->col,
        .granularity = view->extension.granularity,
        .scale_group_size = view->extension.scale_group_size,
        .scale_cols = view->scale_cols,
        .scales = view->scales,
    };
}

trf_pack8_request trf_pack8_request_of_layer(const trf_device_layer *from) {
    const trf_device_view *view = &from->view;
    return (trf_pack8_request){
        .codec = from->info.codec,
        .dtype = from->info.dtype,
        .lies = from->layout->layout,
        .rows = from->info.rows,
        .cols = from->info.cols,
        .row = from->shard.row,
        .col = from->shard.col,
        .granularity = view->granularity,
        .scale_group_size = view->scale_group_size,
        .scale_cols = view->scale_cols,
        .scales = view->scales,
    };
}

trf_pack8_request trf_pack8_request_of_dense(uint32_t rows, uint32_t cols, const float *scales,
                                             const trf_device_layer *like) {
    return (trf_pack8_request){
        .codec = TRF_CODEC_E4M3,
        .dtype = TRF_DTYPE_BF16,
        .lies = TRF_LAYOUT_CODED,
        .rows = rows,
        .cols = cols,
        .granularity = TRF_GRANULARITY_SCALE_BLOCK,
        .scale_group_size = TRF_FOUND_FP8_BLOCK,
        .scale_cols = (cols - 1) / TRF_FOUND_FP8_BLOCK + 1,
        .scales = scales,
        .like = like,
    };
}

int trf_pack8_is_fp8(const trf_pack8_request *request) {
    return request->lies == TRF_LAYOUT_CODED && request->codec == TRF_CODEC_E4M3 &&
           (request->dtype == TRF_DTYPE_BF16 || request->dtype == TRF_DTYPE_F8_E4M3);
}

int trf_is_coded_scaled_fp8(const trf_device_layer *layer) {
    return layer->layout->layout == TRF_LAYOUT_CODED && trf_is_scaled_fp8(layer->info.codec, layer->info.dtype);
}

/* Checks that weights that have the same constants have the same scale. tile_rows: so many rows have the same. */
static trf_status check_scales(const trf_pack8_request *request, uint32_t tile_rows, trf_error *err) {
    const uint32_t block = request->scale_group_size;
    const trf_packed8_part part = {.granularity = request->granularity,
                                   .scale_group_size = block,
                                   .row = request->row,
                                   .rows = request->rows,
                                   .col = request->col,
                                   .cols = request->cols};
    if (trf_packed8_scales_fit(&part, tile_rows))
        return TRF_OK;
    if (request->granularity != TRF_GRANULARITY_SCALE_BLOCK)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "its scales are those of rows: %ux%d weights have the same constants", tile_rows,
                        TRF_PACKED8_PAIR_COLS);
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                    "its scales are those of blocks of %ux%u weights, of which it begins at row %u and column %u: "
                    "%ux%d weights have the same constants",
                    block, block, request->row % block, request->col % block, tile_rows, TRF_PACKED8_PAIR_COLS);
}

static trf_status size_head(const trf_pack8_request *request, trf_packed8_head *head, trf_error *err) {
    *head = (trf_packed8_head){0};
    if (request->lies != TRF_LAYOUT_CODED)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "the layout 'packed8' is made of coded FP8: a %s layer has no codes and scales",
                        trf_layout_name(request->lies));
    if (!trf_pack8_is_fp8(request))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "the layout 'packed8' takes FP8 (E4M3, or BF16 that is E4M3 times scales), not the codec %s "
                        "of %s weights",
                        trf_codec_name((trf_codec)request->codec), trf_dtype_name((trf_dtype)request->dtype));
    trf_status status = check_scales(request, TRF_PACKED_TILE_ROWS, err);
    if (status == TRF_OK)
        status = trf_size_packed8(request->rows, request->cols, head, err);
    else
        status = trf_prefix_error(err, status, "the layer cannot be packed as FP8");
    return status;
}

trf_status trf_pack8_check(const trf_pack8_request *request, trf_error *err) {
    trf_packed8_head head;
    return size_head(request, &head, err);
}

trf_status trf_pack8_size_turns(const trf_pack8_request requests[2], trf_packed8_head *head, trf_error *err) {
    *head = (trf_packed8_head){0};
    trf_status status = check_scales(&requests[0], TRF_PACKED_TILE_ROWS / 2, err);
    if (status == TRF_OK)
        status = check_scales(&requests[1], TRF_PACKED_TILE_ROWS / 2, err);
    if (status != TRF_OK)
        return trf_prefix_error(err, status, "the layer cannot be packed as FP8");
    head->flags = TRF_PACKED8_IN_TURNS;
    return trf_size_packed8(2ull * requests[0].rows, requests[0].cols, head, err);
}

/* ---- one layout or the other ---- */

int trf_pack8_is_due(trf_device_layer *made, const trf_pack8_request *request) {
    trf_error error;
    if (made->layout->layout == TRF_LAYOUT_PACKED8)
        return 1;
    if (!trf_pack8_is_fp8(request) || made->is_to_be_bf16)
        return 0;
    if (trf_pack8_check(request, &error) == TRF_OK)
        return 1;
    trf_note_layout_reason(made, error.message);
    return 0;
}

int trf_pack8_looks(const trf_device_layer *made, const trf_device_layer *like) {
    return !made->is_to_be_bf16 && (!like || like->layout->layout == TRF_LAYOUT_PACKED8);
}

trf_status trf_pack8_judge_search(const trf_device_layer *made, const trf_found_fp8 *found, int *is_fp8,
                                  trf_error *err) {
    *is_fp8 = trf_found_fp8_is_fp8(found);
    if (*is_fp8 || made->layout->layout != TRF_LAYOUT_PACKED8)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                    "the layer cannot be packed as FP8: the weights are no codes times scales of %dx%d of them",
                    TRF_FOUND_FP8_BLOCK, TRF_FOUND_FP8_BLOCK);
}

trf_status trf_pack8_check_like(const trf_pack8_request *request, uint32_t flags, trf_error *err) {
    const uint32_t more = request->like ? flags & ~request->like->packed8.flags : 0;
    if (!more)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                    "the layer cannot be packed as FP8: it needs %s, and the other layer does without",
                    more & TRF_PACKED8_HAS_RECORDS ? "records" : "second constants");
}

int trf_pack8_falls_back(trf_device_layer *made, trf_status status, const trf_error *err) {
    if (status != TRF_ERR_UNSUPPORTED || made->layout->layout == TRF_LAYOUT_PACKED8 ||
        made->info.codec != TRF_CODEC_BF16) /* there is no packed BF16 layer of E4M3 without scales */
        return 0;
    trf_note_layout_reason(made, err->message);
    return 1;
}

/* ---- members of trf_layout_ops ---- */

trf_status trf_pack8_get_size(const trf_pack8_request *request, trf_layer_size *size, trf_error *err) {
    trf_packed8_head head;
    trf_status status = size_head(request, &head, err);
    if (status == TRF_OK)
        *size = (trf_layer_size){.buffer_bytes = head.common.buffer_bytes};
    return status;
}

trf_status trf_packed8_get_size(const trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                                trf_error *err) {
    const trf_pack8_request request = trf_pack8_request_of_shard(view, shard);
    return trf_pack8_get_size(&request, size, err);
}

trf_status trf_packed8_get_converted_size(const trf_device_layer *from, trf_layer_size *size, trf_error *err) {
    const trf_pack8_request request = trf_pack8_request_of_layer(from);
    return trf_pack8_get_size(&request, size, err);
}

trf_status trf_packed8_set_buffer(trf_device_layer *layer, const trf_packed8_head *head, const void *buffer,
                                  trf_error *err) {
    trf_set_device_layer_buffer(layer, buffer, head->common.buffer_bytes);
    layer->packed8 = trf_packed8_view_of(head, buffer);
    return trf_find_layout(layer->context, TRF_LAYOUT_PACKED8, &layer->layout, err);
}

trf_status trf_packed8_adopt(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err) {
    trf_packed8_head head;
    trf_status status = trf_read_layout_head(made->context, buffer, buffer_bytes, &head, sizeof head, err);
    if (status == TRF_OK)
        status = trf_check_packed8_head(&head, buffer_bytes, err);
    if (status == TRF_OK)
        status = trf_packed8_head_get_info(&head, &made->info, err);
    if (status != TRF_OK)
        return status;
    made->header = head.coded_header;
    return trf_packed8_set_buffer(made, &head, buffer, err);
}
