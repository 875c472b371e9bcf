/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_sample.h"

#include "trf_decode.h"
#include "trf_threads.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 128
};

/* What a worker has to itself. */
typedef struct trf_sample_scratch {
    _Alignas(ALIGNMENT) uint8_t tile[TRF_MAX_TILE_BYTES];
    uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE];
    uint64_t exponents[256]; /* of the tiles that it has decoded, row offsets taken out */
    uint64_t zeros, weights;
} trf_sample_scratch;

typedef struct trf_sample {
    const trf_layer_feed *feed;
    trf_decode_table table;
    uint64_t tiles;              /* that are looked at */
    trf_sample_scratch *scratch; /* [workers] */
} trf_sample;

static void count_tile(const trf_blob_view *view, const trf_tile_shape *shape, trf_sample_scratch *counts) {
    for (uint32_t row = 0; row < shape->rows; row++) {
        const int32_t offset = view->row_offsets ? view->row_offsets[shape->row + row] : 0;
        for (uint32_t col = 0; col < shape->cols; col++) {
            const uint32_t weight = counts->elements[row * TRF_TILE_SIZE + col];
            const int32_t exponent = (int32_t)(weight >> 7 & 0xFF), left = exponent - offset;
            counts->zeros += (weight & 0x7FFF) == 0;
            if (exponent > 0 && exponent < 255 && left > 0 && left < 255)
                counts->exponents[left]++;
        }
    }
    counts->weights += (uint64_t)shape->rows * shape->cols;
}

/* A trf_parallel_fn. */
static trf_status count_one(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_sample *sample = context;
    const trf_layer_feed *feed = sample->feed;
    const trf_blob_view *view = feed->view;
    const uint64_t tile = index * view->num_tiles / sample->tiles;
    const trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
    trf_sample_scratch *scratch = &sample->scratch[worker];
    const uint8_t *bytes;
    trf_status status = feed->read(feed->reader, tile, 1, scratch->tile, &bytes, err);
    if (status != TRF_OK)
        return status;
    if (trf_decode_tile_best()(view, &sample->table, tile, bytes, scratch->elements, TRF_TILE_SIZE, NULL) != TRF_OK)
        return trf_layer_feed_fail_tile(feed, tile, err);
    count_tile(view, &shape, scratch);
    return TRF_OK;
}

/* Of what all workers have counted. */
static void choose_window(const trf_sample *sample, int workers, trf_packed_window *window) {
    trf_sample_scratch *all = &sample->scratch[0];
    for (int w = 1; w < workers; w++) {
        for (int exponent = 0; exponent < 256; exponent++)
            all->exponents[exponent] += sample->scratch[w].exponents[exponent];
        all->zeros += sample->scratch[w].zeros;
        all->weights += sample->scratch[w].weights;
    }
    const uint32_t zeroing = trf_packed_is_zeroing(all->zeros, all->weights);
    if (zeroing || !trf_packed_window_of_blob(sample->feed->view, window))
        *window = trf_choose_packed_window(all->exponents, zeroing);
}

static uint64_t tiles_to_look_at(uint64_t all) {
    uint64_t tiles = all / TRF_PACKED_TILES_A_SAMPLE;
    if (tiles > TRF_PACKED_MOST_SAMPLES)
        tiles = TRF_PACKED_MOST_SAMPLES;
    if (tiles < TRF_PACKED_LEAST_SAMPLES)
        tiles = TRF_PACKED_LEAST_SAMPLES;
    return tiles < all ? tiles : all;
}

trf_status trf_packed_sample_window(const trf_layer_feed *feed, trf_packed_window *window, trf_error *err) {
    const uint64_t looked_at = tiles_to_look_at(feed->view->num_tiles);
    trf_sample *sample = calloc(1, sizeof *sample);
    const int most = trf_thread_count(feed->threads), workers = (uint64_t)most < looked_at ? most : (int)looked_at;
    trf_sample_scratch *scratch = aligned_alloc(ALIGNMENT, (size_t)workers * sizeof *scratch);
    trf_status status = TRF_OK;
    if (sample && scratch) {
        for (int w = 0; w < workers; w++) {
            memset(scratch[w].exponents, 0, sizeof scratch[w].exponents);
            scratch[w].zeros = scratch[w].weights = 0;
        }
        sample->feed = feed;
        sample->tiles = looked_at;
        sample->scratch = scratch;
        trf_decode_table_init(&sample->table, feed->view);
        status = trf_parallel_for(workers, looked_at, count_one, sample, err);
        if (status == TRF_OK)
            choose_window(sample, workers, window);
    } else {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate buffers for %d workers", workers);
    }
    free(scratch);
    free(sample);
    return status;
}
