/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads a layer from its feed, through staging buffers, to a device. Several threads read, check and describe it
 * while what they have finished is copied. */
#ifndef TRF_UPLOAD_LAYER_H
#define TRF_UPLOAD_LAYER_H

#include "trf_device_view.h"
#include "trf_layer_feed.h"
#include "trf_layer_traits.h"
#include "trf_staging.h"

/* @return where a layer goes: device memory of the blob's size; NULL after filling *err. The caller's thread calls this
 * once, while other threads already read the first tiles: an allocation takes about as long as copying 8 MiB. */
typedef uint8_t *trf_target_fn(void *context, trf_error *err);

/* Copies the blob to the target, and describes it: fills slabs[trf_count_device_slabs], which are zero before, and
 * *traits. staging is open. If target is NULL, nothing is copied: the tiles lie where they are to be, and are only
 * read, checked and described. What has been sent may still be under way when this returns; trf_staging_finish or,
 * after a failure, trf_staging_drain waits for it. Offsets of errors are the feed's. Errors: those of the feed, the
 * engine and the target; TRF_ERR_CANCELLED, TRF_ERR_MEMORY. */
trf_status trf_upload_layer(trf_staging *staging, trf_layer_feed *feed, trf_target_fn *target, void *context,
                            trf_device_slab *slabs, trf_layer_traits *traits, trf_error *err);

/* Where a layer's tiles go part by part: device memory that holds some of the parts at a time. */
typedef struct trf_part_buffers {
    uint64_t tiles_each;   /* of a part; the last one may have fewer */
    uint8_t *memory;       /* device */
    uint64_t buffer_bytes; /* of each buffer: the size of the largest part */
    uint32_t buffers;      /* at least 2; parts use them in turns */
    /* Takes a part. All copies of its tiles to its buffer, from the first byte on, have begun. It is called once for
     * each part, in order, by any thread, one call at a time. Copies to the buffer of the part before may begin when it
     * returns. traits: of the part. */
    trf_status (*take)(void *context, uint32_t part, const trf_layer_traits *traits, trf_error *err);
    void *context;
} trf_part_buffers;

/* Uploads the tiles alone, in parts. All parts have been taken when it returns. slabs: of the whole layer, as above; a
 * part's are complete when it is taken. Errors: as above, and those of take, after which no part is taken any more. */
trf_status trf_upload_in_parts(trf_staging *staging, const trf_layer_feed *feed, const trf_part_buffers *buffers,
                               trf_device_slab *slabs, trf_error *err);

#endif
