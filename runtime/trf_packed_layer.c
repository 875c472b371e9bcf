/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_layer.h"

#include "trf_tuning.h"

#include <string.h>

trf_pack_request trf_pack_request_of_shard(const trf_blob_view *view, const trf_shard_range *shard) {
    return (trf_pack_request){view->header.codec, shard->rows, shard->cols, view->row_offsets != NULL};
}

/* Layers of other layouts than the coded one have no row offsets in their view. */
trf_pack_request trf_pack_request_of_layer(const trf_device_layer *from) {
    const trf_layer_info *info = &from->info;
    return (trf_pack_request){info->codec, info->rows, info->cols, from->view.row_offsets != NULL};
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

static trf_status get_size(const trf_pack_request *request, trf_layer_size *size, trf_error *err) {
    trf_packed_head head;
    trf_status status = trf_packed_size_most(request, &head, err);
    if (status == TRF_OK)
        *size = (trf_layer_size){.buffer_bytes = head.common.buffer_bytes};
    return status;
}

trf_status trf_packed_get_size(const trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                               trf_error *err) {
    const trf_pack_request request = trf_pack_request_of_shard(view, shard);
    return get_size(&request, size, err);
}

trf_status trf_packed_get_converted_size(const trf_device_layer *from, trf_layer_size *size, trf_error *err) {
    const trf_pack_request request = trf_pack_request_of_layer(from);
    return get_size(&request, size, err);
}

trf_status trf_packed_get_matrix_size(const trf_device_matrix *matrix, trf_layer_size *size, trf_error *err) {
    const trf_pack_request request = {TRF_CODEC_BF16, matrix->rows, matrix->cols, 0};
    return get_size(&request, size, err);
}

void trf_packed_set_buffer(trf_device_layer *layer, const trf_packed_head *head, const void *buffer) {
    layer->shard = (trf_shard_range){.rows = layer->info.rows, .cols = layer->info.cols};
    layer->view = (trf_device_view){.buffer = buffer,
                                    .buffer_bytes = head->common.buffer_bytes,
                                    .rows = layer->info.rows,
                                    .cols = layer->info.cols,
                                    .codec = layer->info.codec,
                                    .source_dtype = layer->info.dtype};
    layer->packed = trf_packed_view_of(head, buffer);
    layer->memory_bytes = head->common.buffer_bytes;
}

trf_status trf_packed_adopt(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err) {
    const trf_context *context = made->context;
    trf_packed_head head;
    if (buffer_bytes < sizeof head)
        return trf_fail(err, TRF_ERR_TRUNCATED, buffer_bytes, "a buffer of %llu bytes, which has no room for its head",
                        (unsigned long long)buffer_bytes);
    trf_status status = context->ops->download(context, &head, buffer, sizeof head, err);
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

trf_status trf_packed_take_path(trf_plan *plan, trf_path path, trf_error *err) {
    if (path != TRF_PATH_AUTO && path != TRF_PATH_PACKED)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a packed layer has no %s path", trf_path_name(path));
    plan->path = TRF_PATH_PACKED;
    plan->reason = "the layer is packed";
    return TRF_OK;
}

void trf_packed_set_partition(trf_plan *plan, const trf_packed_partition *partition) {
    plan->partition.packed = *partition;
    plan->kernel = trf_packed_kernel_name(partition->shape);
    plan->cut = partition->shape == TRF_PACKED_GENERAL ? NULL : trf_packed_cut_name(partition->cut);
    plan->device_workspace_bytes = partition->workspace_bytes;
    plan->workspace_bytes = plan->device_workspace_offset + partition->workspace_bytes;
}

/* @return 0 where the context's tuning has nothing for the plan that runs, else 1. */
static int choose_tuned(const trf_plan *plan, trf_packed_partition *partition) {
    const trf_device_layer *layer = plan->layer;
    const trf_context *context = layer->context;
    const trf_tuning_key key = trf_tuning_key_of(layer);
    const uint32_t m = plan->tiles_product.m;
    trf_tuned_kernel kernel;
    return context->tuning && trf_tuned_packed(context->tuning, &key, m, &kernel) &&
           trf_packed_choose_shape(&layer->packed, &context->limits, m, kernel.shape, kernel.cut, partition);
}

trf_status trf_packed_choose_partition(trf_plan *plan, trf_error *err) {
    const trf_device_layer *layer = plan->layer;
    trf_packed_partition partition;
    if (choose_tuned(plan, &partition))
        plan->reason = "the layer is packed, and the context's tuning has its kernel";
    else if (!trf_packed_choose(&layer->packed, &layer->context->limits, plan->tiles_product.m, &partition))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "the packed path does not take this product: %u rows of x are too many", plan->tiles_product.m);
    trf_packed_set_partition(plan, &partition);
    return TRF_OK;
}
