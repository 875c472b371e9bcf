/* SPDX-License-Identifier: Apache-2.0 */
/* What the host finds out about a layer while it goes to a device. No CUDA in here. */
#ifndef TRF_SLAB_DIRECTORY_H
#define TRF_SLAB_DIRECTORY_H

#include "trf_device_view.h"
#include "trf_layer.h"
#include "trf_layer_traits.h"

/* Largest blob whose slabs a trf_device_slab can place. */
#define TRF_DEVICE_MAX_BLOB_BYTES ((uint64_t)TRF_TILE_ALIGNMENT << 32)

/* Panels in a layer: entries of a band in its slab directory. */
uint32_t trf_count_panels(const trf_header *header);

/* Entries of a layer's slab directory: bands of 32 rows times panels. */
uint64_t trf_count_device_slabs(const trf_header *header);

/* A layer whose blob has been copied to blob_dev, or lies there: all of its view but slabs, decode_table and fault.
 * view: of the blob's head on the host. */
trf_device_view trf_device_view_of(const trf_blob_view *view, const uint8_t *blob_dev);

/* What the head alone says: traits to which those of all tiles are to be added. */
void trf_describe_head(const trf_blob_view *view, trf_layer_traits *traits);

/* Fills a tile's entries among slabs[trf_count_device_slabs], which were zero, and adds to *traits, which begins as
 * TRF_NO_TRAITS where tiles are described side by side. tile_bytes: of a tile that has been checked, 16-byte aligned;
 * of a blob of at most TRF_DEVICE_MAX_BLOB_BYTES. */
void trf_describe_tile(const trf_blob_view *view, uint64_t tile, const uint8_t *tile_bytes, trf_device_slab *slabs,
                       trf_layer_traits *traits);
#define TRF_NO_TRAITS ((trf_layer_traits){.exceptions_fit_fragments = 1})
void trf_traits_add(trf_layer_traits *traits, const trf_layer_traits *tiles);

/* All of it for a layer in memory: fills slabs[trf_count_device_slabs] and *traits. layer: validated, of at most
 * TRF_DEVICE_MAX_BLOB_BYTES. */
void trf_describe_layer(const trf_layer *layer, trf_device_slab *slabs, trf_layer_traits *traits);

#endif
