/* SPDX-License-Identifier: Apache-2.0 */
/* The window of a layer that is packed on a device, where nobody on the host sees its weights. */
#ifndef TRF_PACKED_SAMPLE_H
#define TRF_PACKED_SAMPLE_H

#include "trf_layer_feed.h"
#include "trf_packed_head.h"

/* Of n tiles n / 64 are looked at, at least 8 (or all of fewer), and at most 64: each of them is read a second time,
 * and decoded, while the host is what a load waits for. */
enum {
    TRF_PACKED_TILES_A_SAMPLE = 64,
    TRF_PACKED_LEAST_SAMPLES = 8,
    TRF_PACKED_MOST_SAMPLES = 64
};

/* Finds the window by some tiles of a feed of the bf16 codec, decoded on the host: of n tiles, if k are looked at,
 * those with the numbers i * n / k, so that the same blob has the same window each time. The blob's own row offsets are
 * taken out. If they have many zeros, it is the zeroing window that most of them have; else that of the blob's classes,
 * where those are a window (trf_packed_window_of_blob), or again the one that most have. Errors: those of the feed;
 * TRF_ERR_RANS (as trf_layer_feed_fail wants it), TRF_ERR_MEMORY. */
trf_status trf_packed_sample_window(const trf_layer_feed *feed, trf_packed_window *window, trf_error *err);

#endif
