/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a layer: what the host finds out about it while it is copied to a device. No CUDA in here. */
#ifndef TRF_SLAB_DIRECTORY_H
#define TRF_SLAB_DIRECTORY_H

#include "trf_device_view.h"
#include "trf_layer.h"
#include "trf_layer_traits.h"

/* The largest blob in which a trf_device_slab can locate slabs. */
#define TRF_DEVICE_MAX_BLOB_BYTES ((uint64_t)TRF_TILE_ALIGNMENT << 32)

/* @return the number of a layer's panels, which is the number of entries for each band in its slab directory. */
uint32_t trf_count_panels(const trf_header *header);

/* @return the number of entries of a layer's slab directory: its bands of 32 rows times its panels. */
uint64_t trf_count_device_slabs(const trf_header *header);

/* @return the number of pairs of a layer (trf_scale_pairs_of): that of its scales if it is scaled FP8, else 0. */
uint64_t trf_count_scale_pairs(const trf_blob_view *view);

/* Fills pairs[trf_count_scale_pairs]. Those of scales that fused products do not take are of no use. It takes about 0.7
 * us a scale. */
void trf_write_scale_pairs(const trf_blob_view *view, uint32_t *pairs);

/* @return the view of a layer whose blob is or will be at blob_dev. slabs, decode_table and fault are not set. view: of
 * the blob's head on the host. */
trf_device_view trf_device_view_of(const trf_blob_view *view, const uint8_t *blob_dev);

/* Sets *traits to what the head alone says. The traits of all tiles are then added to it. */
void trf_describe_head(const trf_blob_view *view, trf_layer_traits *traits);

/* Fills a tile's entries in slabs[trf_count_device_slabs], which were zero, and adds the tile's traits to *traits.
 * Where several threads describe tiles at the same time, each begins with TRF_NO_TRAITS. tile_bytes: a tile that has
 * been checked, 16-byte aligned, in a blob of at most TRF_DEVICE_MAX_BLOB_BYTES. */
void trf_describe_tile(const trf_blob_view *view, uint64_t tile, const uint8_t *tile_bytes, trf_device_slab *slabs,
                       trf_layer_traits *traits);
#define TRF_NO_TRAITS ((trf_layer_traits){.exceptions_fit_fragments = 1})
void trf_traits_add(trf_layer_traits *traits, const trf_layer_traits *tiles);

/* Describes a whole layer in memory: fills slabs[trf_count_device_slabs] and *traits. layer: validated, of at most
 * TRF_DEVICE_MAX_BLOB_BYTES. */
void trf_describe_layer(const trf_layer *layer, trf_device_slab *slabs, trf_layer_traits *traits);

#endif
