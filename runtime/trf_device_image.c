#include "trf_device_image.h"

#include "trf_context.h"

#include <string.h>

trf_image_layout trf_lay_out_image(const trf_header *header) {
    trf_image_layout layout;
    layout.slabs = trf_align_part(header->blob_bytes);
    layout.slots = layout.slabs + trf_align_part(trf_count_device_slabs(header) * sizeof(trf_device_slab));
    layout.bytes = layout.slots + trf_align_part(sizeof(uint32_t) << header->probability_bits);
    return layout;
}

void trf_write_image_tail(const trf_layer *layer, uint8_t *tail, trf_device_facts *facts) {
    const trf_image_layout layout = trf_lay_out_image(&layer->view.header);
    trf_describe_for_device(layer, (trf_device_slab *)tail, facts);
    memcpy(tail + (layout.slots - layout.slabs), layer->table.slots,
           sizeof(uint32_t) << layer->view.header.probability_bits);
}

trf_device_view trf_view_of_image(const trf_blob_view *blob, const uint8_t *memory_dev, trf_device_fault *fault_dev) {
    const trf_image_layout layout = trf_lay_out_image(&blob->header);
    trf_device_view view = trf_device_view_of(blob, memory_dev);
    view.slabs = (const trf_device_slab *)(memory_dev + layout.slabs);
    view.slots = (const uint32_t *)(memory_dev + layout.slots);
    view.fault = fault_dev;
    return view;
}
