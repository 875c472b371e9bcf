/* SPDX-License-Identifier: Apache-2.0 */
/* Uploading a layer: from its feed through staging buffers to a device, read, checked and described by several threads
 * while what they have finished is copied. */
#ifndef TRF_UPLOAD_LAYER_H
#define TRF_UPLOAD_LAYER_H

#include "trf_device_view.h"
#include "trf_layer_feed.h"
#include "trf_layer_traits.h"
#include "trf_staging.h"

/* Where a layer goes: device memory of the blob's size, asked for once by the caller's thread, while others read the
 * first tiles already: an allocation takes about as long as copying 8 MiB. @return NULL after filling *err. */
typedef uint8_t *trf_target_fn(void *context, trf_error *err);

/* Copies the blob to the target, and describes it: slabs, as trf_count_device_slabs says and zero before, and *traits.
 * staging: open. target: NULL: nothing is copied; the tiles, which lie where they are to be, are only read, checked and
 * described. What has been sent may still be under way when this returns: trf_staging_finish or, after a failure,
 * trf_staging_drain waits for it. Offsets of errors are the feed's. Errors: those of the feed, the engine and the
 * target; TRF_ERR_CANCELLED, TRF_ERR_MEMORY. */
trf_status trf_upload_layer(trf_staging *staging, trf_layer_feed *feed, trf_target_fn *target, void *context,
                            trf_device_slab *slabs, trf_layer_traits *traits, trf_error *err);

/* Tiles [first, end) of a layer. */
typedef struct trf_tile_range {
    uint64_t first, end;
} trf_tile_range;

/* The same for some of a layer's tiles alone, which lie side by side at `to` then: what is sent is they, and nothing of
 * the head. slabs: of the whole layer, as above; *traits: those of these tiles. Errors: as above. */
trf_status trf_upload_tiles(trf_staging *staging, trf_layer_feed *feed, const trf_tile_range *tiles, uint8_t *to,
                            trf_device_slab *slabs, trf_layer_traits *traits, trf_error *err);

#endif
