/* SPDX-License-Identifier: Apache-2.0 */
/* The window of a layer that is packed on a device, where nobody on the host sees its weights. */
#ifndef TRF_PACKED_SAMPLE_H
#define TRF_PACKED_SAMPLE_H

#include "trf_layer_feed.h"
#include "trf_packed_head.h"

/* Of n tiles n / 128 are looked at, at least 4 (or all of fewer), and at most 64: each of them is read a second time,
 * and decoded, while the host is what a load waits for. */
enum {
    TRF_PACKED_SAMPLE_ONE_TILE_IN = 128,
    TRF_PACKED_SAMPLE_LEAST_TILES = 4,
    TRF_PACKED_SAMPLE_MOST_TILES = 64
};

typedef struct trf_packed_sample trf_packed_sample;

/* Begins to look for the window by some tiles of a feed of the bf16 codec, which outlives the sample: of n tiles, if k
 * are looked at, by those with the numbers i * n / k, so that the same blob has the same window each time. Release with
 * trf_packed_sample_destroy. Errors: TRF_ERR_MEMORY. */
trf_status trf_packed_sample_create(const trf_layer_feed *feed, trf_packed_sample **sample, trf_error *err);
void trf_packed_sample_destroy(trf_packed_sample *sample); /* NULL is allowed */

uint64_t trf_packed_sample_tiles(const trf_packed_sample *sample); /* how many are looked at: k */

/* Looks at one of them, 0 to k - 1: decodes it on the host and counts the weights of every second row. Thread-safe. A
 * failure is kept for trf_packed_sample_choose. bytes: TRF_MAX_TILE_BYTES, elements: a tile's; both 4096-byte aligned,
 * and nothing is in them afterwards. */
void trf_packed_sample_look(trf_packed_sample *sample, uint64_t number, uint8_t *bytes, uint16_t *elements);

/* Chooses the window, when all have been looked at. The blob's own row offsets are taken out. If the weights have many
 * zeros, it is the zeroing window that most of them have; else that of the blob's classes, where those are a window
 * (trf_packed_window_of_blob), or again the one that most have. Errors, of the first tile that had one: those of the
 * feed; TRF_ERR_RANS (as trf_layer_feed_fail wants it). */
trf_status trf_packed_sample_choose(const trf_packed_sample *sample, trf_packed_window *window, trf_error *err);

#endif
