/* What the host finds out about a layer while it goes to a device. No CUDA in here. */
#ifndef TRF_DEVICE_DIRECTORY_H
#define TRF_DEVICE_DIRECTORY_H

#include "trf_device_layer.h"
#include "trf_layer.h"

/* Largest blob whose slabs a trf_device_slab can place. */
#define TRF_DEVICE_MAX_BLOB_BYTES ((uint64_t)TRF_TILE_ALIGNMENT << 32)

/* Columns of slabs in a layer: entries of a band in its slab directory. */
uint32_t trf_count_slab_cols(const trf_header *header);

/* Entries of a layer's slab directory: bands of 32 rows times columns of slabs. */
uint64_t trf_count_device_slabs(const trf_header *header);

/* A layer whose blob has been copied to blob_dev, or lies there: all of its view but slabs, slots and fault. */
trf_device_view trf_device_view_of(const trf_layer *layer, const uint8_t *blob_dev);

/* Fills slabs[trf_count_device_slabs] and *facts. layer: validated, of at most TRF_DEVICE_MAX_BLOB_BYTES. */
void trf_describe_for_device(const trf_layer *layer, trf_device_slab *slabs, trf_device_facts *facts);

#endif
