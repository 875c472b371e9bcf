/* A layer as it lies in a GPU's memory: blob | slab directory | decode slots, each at a multiple of 256 bytes; zeros
 * between. No CUDA in here. */
#ifndef TRF_DEVICE_IMAGE_H
#define TRF_DEVICE_IMAGE_H

#include "trf_slab_directory.h"

/* Offsets from the first byte. The blob is at 0. */
typedef struct trf_image_offsets {
    uint64_t slabs, slots;
    uint64_t bytes; /* a multiple of 256 */
} trf_image_offsets;

trf_image_offsets trf_image_offsets_of(const trf_header *header);

/* Writes what stands behind the blob, from offsets.slabs on: offsets.bytes - offsets.slabs bytes, zeros before. layer:
 * as trf_describe_layer. */
void trf_write_image_tail(const trf_layer *layer, uint8_t *tail, trf_layer_traits *traits);

/* The view of an image of `blob` at memory_dev. */
trf_device_view trf_view_of_image(const trf_blob_view *blob, const uint8_t *memory_dev, trf_device_fault *fault_dev);

#endif
