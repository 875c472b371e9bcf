/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a layer in host memory from what a feed loads. */
#ifndef TRF_LAYER_FROM_FEED_H
#define TRF_LAYER_FROM_FEED_H

#include "trf_layer.h"
#include "trf_layer_feed.h"

/* Checks all tiles of a feed, and makes a layer of them. to: 16-byte aligned memory for the blob, of
 * view->header.blob_bytes, which must outlive the layer; if that is the feed's own blob, it is only checked. If `to` is
 * NULL, the layer has its own memory: if a file's whole blob is loaded and begins at a multiple of 16, the file is
 * mapped, and must stay as it is; otherwise the blob is copied to new memory. Release with trf_layer_free; the feed may
 * be closed before. Offsets of errors are those that trf_layer_feed_fail completes. Errors: those of the feed;
 * TRF_ERR_IO (the file cannot be mapped), TRF_ERR_TRUNCATED, TRF_ERR_CANCELLED, TRF_ERR_MEMORY. */
trf_status trf_layer_from_feed(trf_layer_feed *feed, void *to, trf_layer **layer, trf_error *err);

#endif
