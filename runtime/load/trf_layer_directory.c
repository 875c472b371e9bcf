/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_layer_directory.h"

#include "trf_context.h"

#include <string.h>

trf_status trf_check_gpu_takes(const trf_blob_view *blob, trf_error *err) {
    const uint64_t blob_bytes = blob->header.blob_bytes;
    if (blob_bytes > TRF_DEVICE_MAX_BLOB_BYTES)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a blob of %llu bytes; on a device %llu are the limit",
                        (unsigned long long)blob_bytes, (unsigned long long)TRF_DEVICE_MAX_BLOB_BYTES);
    return TRF_OK;
}

trf_layer_directory_offsets trf_layer_directory_offsets_of(const trf_blob_view *view) {
    trf_layer_directory_offsets offsets;
    offsets.decode_table_offset = trf_device_align(trf_count_device_slabs(&view->header) * sizeof(trf_device_slab));
    offsets.scale_pairs_offset = offsets.decode_table_offset + (sizeof(uint32_t) << view->header.probability_bits);
    offsets.fault_offset =
        trf_device_align(offsets.scale_pairs_offset + trf_count_scale_pairs(view) * sizeof(uint32_t));
    offsets.directory_bytes = offsets.fault_offset + sizeof(trf_device_fault);
    return offsets;
}

trf_offloaded_layer_offsets trf_offloaded_layer_offsets_of(const trf_blob_view *view) {
    trf_offloaded_layer_offsets offsets;
    offsets.directory_offset = trf_device_align(view->header.blob_bytes);
    offsets.memory_bytes = offsets.directory_offset + trf_layer_directory_offsets_of(view).fault_offset;
    return offsets;
}

void trf_write_head_directory(const trf_blob_view *view, uint8_t *directory) {
    const trf_layer_directory_offsets offsets = trf_layer_directory_offsets_of(view);
    trf_decode_table table;
    trf_decode_table_init(&table, view);
    memcpy(directory + offsets.decode_table_offset, table.slots, sizeof(uint32_t) << view->header.probability_bits);
    trf_write_scale_pairs(view, (uint32_t *)(directory + offsets.scale_pairs_offset));
}

void trf_write_layer_directory(const trf_layer *layer, uint8_t *directory, trf_layer_traits *traits) {
    trf_describe_layer(layer, (trf_device_slab *)directory, traits);
    trf_write_head_directory(&layer->view, directory);
}

trf_status trf_keep_checksums(const trf_blob_view *blob, const uint8_t *directory, trf_kept_checksums *kept,
                              trf_error *err) {
    kept->head_bytes = blob->extension.data_offset;
    kept->directory_bytes = trf_layer_directory_offsets_of(blob).fault_offset;
    return trf_compute_data_checksum(directory, kept->directory_bytes, 1, &kept->directory, err);
}

trf_device_view trf_device_view_of_layer(const trf_blob_view *blob, const uint8_t *blob_dev,
                                         const uint8_t *directory_dev, trf_device_fault *fault_dev) {
    trf_device_view view = trf_device_view_of(blob, blob_dev);
    view.slabs = (const trf_device_slab *)directory_dev;
    view.decode_table = (const uint32_t *)(directory_dev + trf_layer_directory_offsets_of(blob).decode_table_offset);
    view.fault = fault_dev;
    return view;
}
