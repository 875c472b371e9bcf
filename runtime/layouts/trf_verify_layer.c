/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_verify_layer.h"

#include "transfuse/device_memory.h"
#include "trf_context.h"
#include "trf_layout_head.h"
#include "trf_threads.h"

#include <string.h>

trf_status trf_device_layer_verify(const trf_device_layer *layer, trf_error *err) {
    if (!layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no layer to verify");
    return layer->layout->verify(layer, err);
}

/* ---- layouts with a head ---- */

trf_status trf_judge_buffer(const trf_device_layer *layer, const void *head, trf_data_checksum computed,
                            trf_error *err) {
    const trf_layout_head_common *const common = head;
    const char *const layout = trf_layout_name(layer->layout->layout);
    const uint64_t checksum = trf_layout_head_checksum(common),
                   bytes = layer->view.buffer_bytes - TRF_LAYOUT_HEAD_BYTES;
    if (checksum != common->checksum)
        return trf_fail(err, TRF_ERR_CHECKSUM, offsetof(trf_layout_head_common, checksum),
                        "the head of a %s layer has changed in memory: its checksum is 0x%016llX, computed 0x%016llX",
                        layout, (unsigned long long)common->checksum, (unsigned long long)checksum);
    const trf_data_checksum kept = *(const trf_data_checksum *)((const uint8_t *)head + TRF_DATA_CHECKSUM_OFFSET);
    if (!trf_data_checksums_differ(kept, computed))
        return TRF_OK;
    const uint64_t page = trf_find_changed_page(kept, computed, bytes),
                   at = TRF_LAYOUT_HEAD_BYTES + page * TRF_DATA_PAGE_BYTES;
    if (page == UINT64_MAX)
        return trf_fail(
            err, TRF_ERR_CHECKSUM, TRF_NO_OFFSET,
            "the data of a %s layer have changed in memory, in several places: their checksum is 0x%016llX, "
            "computed 0x%016llX",
            layout, (unsigned long long)kept.sum, (unsigned long long)computed.sum);
    return trf_fail(err, TRF_ERR_CHECKSUM, at,
                    "the data of a %s layer have changed in memory, in the %d bytes from %llu on: their checksum is "
                    "0x%016llX, computed 0x%016llX",
                    layout, TRF_DATA_PAGE_BYTES, (unsigned long long)at, (unsigned long long)kept.sum,
                    (unsigned long long)computed.sum);
}

trf_status trf_cpu_verify_buffer(const trf_device_layer *layer, trf_error *err) {
    trf_data_checksum computed;
    trf_status status = trf_compute_data_checksum(layer->view.buffer + TRF_LAYOUT_HEAD_BYTES,
                                                  layer->view.buffer_bytes - TRF_LAYOUT_HEAD_BYTES,
                                                  layer->context->threads, &computed, err);
    return status == TRF_OK ? trf_judge_buffer(layer, layer->view.buffer, computed, err) : status;
}

/* ---- coded layers ---- */

/* A trf_parallel_fn; index: a tile. */
static trf_status verify_tile(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_layer *layer = context;
    const trf_tile_meta *meta = &layer->view.tiles[index];
    const uint64_t checksum = trf_tile_checksum(layer->blob + meta->data_offset, meta->data_size, index);
    (void)worker;
    if (checksum == meta->checksum)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_CHECKSUM, meta->data_offset,
                    "tile %llu has changed in memory: its checksum is 0x%016llX, computed 0x%016llX",
                    (unsigned long long)index, (unsigned long long)meta->checksum, (unsigned long long)checksum);
}

trf_status trf_verify_host_layer(const trf_layer *layer, int threads, trf_error *err) {
    const trf_blob_view *view = &layer->view;
    const uint64_t kept = ((const trf_header *)(const void *)layer->blob)->head_checksum,
                   checksum = trf_head_checksum(layer->blob, view->extension.data_offset);
    trf_decode_table table;
    if (checksum != kept)
        return trf_fail(err, TRF_ERR_CHECKSUM, offsetof(trf_header, head_checksum),
                        "the head of a coded layer has changed in memory: its checksum is 0x%016llX, computed "
                        "0x%016llX",
                        (unsigned long long)kept, (unsigned long long)checksum);
    trf_decode_table_init(&table, view);
    if (memcmp(table.slots, layer->table.slots, sizeof(uint32_t) << view->header.probability_bits) != 0)
        return trf_fail(err, TRF_ERR_CHECKSUM, TRF_NO_OFFSET,
                        "the decode table of a coded layer has changed in memory");
    return trf_parallel_for(threads, view->num_tiles, verify_tile, (void *)layer, err);
}

trf_status trf_cpu_verify_blob(const trf_device_layer *layer, trf_error *err) {
    return trf_verify_host_layer(layer->host, layer->context->threads, err);
}
