/* SPDX-License-Identifier: Apache-2.0 */
/* Coded layers that become something else on a GPU. While they are loaded some rows of tiles at a time are uploaded,
 * checked as ever, and handed to what decodes them. No more than two such parts (of 16 MiB, or one row of tiles) are
 * on the device at a time, and the slab directory. */
#ifndef TRF_TRANSCODE_CUDA_H
#define TRF_TRANSCODE_CUDA_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer_feed.h"
#include "trf_layer_traits.h"

/* Whole rows of tiles of what a feed loads, or of a layer, as a layer of their own. */
typedef struct trf_coded_part {
    trf_device_view view;
    trf_layer_traits traits;
    uint32_t first_row; /* in what the feed loads, or in the layer's tiles; a multiple of 256 */
} trf_coded_part;

/* Queues on `stream` all that is made of a part, which is there when that runs. Called for each part, in order, one
 * call at a time, by any thread, and once more behind them, with NULL. What is queued for a part by its own call may
 * run later; the part is still there in the next call, which has to wait for what it queues for the part before, from
 * slabs that were decoded already: no fault comes of it. The device is current. */
typedef trf_status trf_take_part_fn(void *context, const trf_coded_part *part, trf_stream stream, trf_error *err);

/* Rows that a part has at most. */
uint32_t trf_most_part_rows(const trf_blob_view *view);

/* Hands all parts of a feed to `take`, one after the other, and waits until what it has queued is done. of: the context
 * that loads, whose device is current; context: take's. What `take` needs may be released after a failure, too. Errors:
 * those of the feed and of take; TRF_ERR_RANS (a tile does not decode; as trf_layer_feed_fail wants it),
 * TRF_ERR_CANCELLED, TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_cuda_transcode(const trf_context *of, trf_layer_feed *feed, trf_take_part_fn *take, void *context,
                              trf_error *err);

#endif
