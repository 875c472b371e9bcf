/* SPDX-License-Identifier: Apache-2.0 */
/* Transcodes coded layers on a GPU while they are loaded. A part is a few rows of tiles, of 16 MiB or else one row of
 * tiles. Parts are uploaded, checked as always, and handed to what decodes them. At most two parts are on the device at
 * a time, and the slab directory. */
#ifndef TRF_TRANSCODE_CUDA_H
#define TRF_TRANSCODE_CUDA_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer_feed.h"
#include "trf_layer_traits.h"

/* A part: whole rows of tiles of what a feed loads, or of a layer, seen as a layer of their own. */
typedef struct trf_coded_part {
    trf_device_view view;
    trf_layer_traits traits;
    uint32_t first_row; /* counted in what the feed loads, or in the layer's tiles; a multiple of 256 */
} trf_coded_part;

/* Queues on `stream` all that is made from a part, which is on the device when that work runs. It is called for each
 * part, in order, one call at a time, by any thread, and once more with NULL after the last part. The part is still
 * there during the next call, which must wait for any work that it queues itself for the part before. That work may
 * only use slabs that were decoded before, since no fault comes of it. The device is current. */
typedef trf_status trf_take_part_fn(void *context, const trf_coded_part *part, trf_stream stream, trf_error *err);

/* @return the most rows that a part has. */
uint32_t trf_most_part_rows(const trf_blob_view *view);

/* Hands all parts of a feed to `take`, one after the other, and waits until the work that it has queued is done. of:
 * the context that loads, whose device is current. context: take's. What `take` uses may be released when this returns,
 * also after a failure. Errors: those of the feed and of take; TRF_ERR_RANS if a tile does not decode (reported as
 * trf_layer_feed_fail does), TRF_ERR_CANCELLED, TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_cuda_transcode(const trf_context *of, trf_layer_feed *feed, trf_take_part_fn *take, void *context,
                              trf_error *err);

#endif
