#include "trf_device_image.h"

#include "trf_context.h"

#include <string.h>

trf_image_offsets trf_image_offsets_of(const trf_header *header) {
    trf_image_offsets offsets;
    offsets.slabs = trf_device_align(header->blob_bytes);
    offsets.slots = offsets.slabs + trf_device_align(trf_count_device_slabs(header) * sizeof(trf_device_slab));
    offsets.bytes = offsets.slots + trf_device_align(sizeof(uint32_t) << header->probability_bits);
    return offsets;
}

void trf_write_image_tail(const trf_layer *layer, uint8_t *tail, trf_layer_traits *traits) {
    const trf_image_offsets offsets = trf_image_offsets_of(&layer->view.header);
    trf_describe_layer(layer, (trf_device_slab *)tail, traits);
    memcpy(tail + (offsets.slots - offsets.slabs), layer->table.slots,
           sizeof(uint32_t) << layer->view.header.probability_bits);
}

trf_device_view trf_view_of_image(const trf_blob_view *blob, const uint8_t *memory_dev, trf_device_fault *fault_dev) {
    const trf_image_offsets offsets = trf_image_offsets_of(&blob->header);
    trf_device_view view = trf_device_view_of(blob, memory_dev);
    view.slabs = (const trf_device_slab *)(memory_dev + offsets.slabs);
    view.slots = (const uint32_t *)(memory_dev + offsets.slots);
    view.fault = fault_dev;
    return view;
}
