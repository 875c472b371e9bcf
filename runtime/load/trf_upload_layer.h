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

/* Where a layer's tiles go part by part: device memory that holds some parts at a time. */
typedef struct trf_part_buffers {
    uint64_t tiles_each;   /* of a part; the last one may have fewer */
    uint8_t *memory;       /* device */
    uint64_t buffer_bytes; /* of each of them: as large as the largest part */
    uint32_t buffers;      /* at least 2, which parts go to in turns */
    /* Takes a part, of which all copies have begun, to its buffer's first byte. Called once for each, in order, by any
     * thread, one at a time. Copies to the buffer of the part before may begin when it returns. traits: of the part. */
    trf_status (*take)(void *context, uint32_t part, const trf_layer_traits *traits, trf_error *err);
    void *context;
} trf_part_buffers;

/* The same for the tiles alone, in parts. When it returns all parts have been taken. slabs: of the whole layer, as
 * above; a part's are complete when it is taken. Errors: as above, and those of take, after which no part
 * is taken. */
trf_status trf_upload_in_parts(trf_staging *staging, const trf_layer_feed *feed, const trf_part_buffers *buffers,
                               trf_device_slab *slabs, trf_error *err);

#endif
