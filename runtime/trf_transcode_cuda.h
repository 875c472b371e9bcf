/* SPDX-License-Identifier: Apache-2.0 */
/* Coded layers that become something else on a GPU. While they are loaded some rows of tiles at a time are uploaded,
 * checked as ever, and handed to what decodes them. No more than two such parts (of 16 MiB, or one row of tiles) are
 * on the device at a time, and the slab directory. Layers that are on the device are handed over likewise, where they
 * lie.
 */
#ifndef TRF_TRANSCODE_CUDA_H
#define TRF_TRANSCODE_CUDA_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer_feed.h"
#include "trf_layer_traits.h"
#include "trf_load_scratch_cuda.h"

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

/* What takes the parts of a feed. The device is current in all its functions. */
typedef struct trf_part_taker {
    trf_take_part_fn *take;
    void *context; /* of all functions */
    /* Called before all else. memory: of the load scratch's, memory_bytes that are the taker's until transcoding has
     * ended, as `taker_event` is, and of `results` the first TRF_TAKER_RESULT_BYTES. NULL: it needs none. */
    trf_status (*begin)(void *context, const trf_load_scratch *scratch, uint8_t *memory, trf_error *err);
    uint64_t memory_bytes;
    /* As trf_part_buffers (trf_upload_layer.h) has them. */
    uint64_t preparations;
    trf_status (*prepare)(void *context, uint64_t number, trf_error *err);
    void (*end)(void *context); /* after a success: all that was queued is done, `scratch` is still there. Or NULL */
} trf_part_taker;
enum {
    TRF_TAKER_RESULT_BYTES = 256
};

/* Hands all parts of a feed to a taker, one after the other, and waits until what it has queued is done. The device,
 * which is the context's, is current. What the taker needs may be released after a failure, too. Errors: those of the
 * feed and of the taker; TRF_ERR_RANS (a tile does not decode; as trf_layer_feed_fail wants it), TRF_ERR_CANCELLED,
 * TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_cuda_transcode(const trf_context *context, trf_layer_feed *feed, const trf_part_taker *taker,
                              trf_error *err);

/* The same for a coded layer of no stack, in parts of so many rows of tiles. context: take's. Errors: those of take;
 * TRF_ERR_RANS, and the layer's fault is set then; TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_cuda_transcode_layer(const trf_device_layer *layer, uint32_t tile_rows_each, trf_take_part_fn *take,
                                    void *context, trf_error *err);

#endif
