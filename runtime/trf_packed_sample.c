/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_sample.h"

#include "trf_decode.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXPONENTS = 256,
    COUNTED_ROWS = 2, /* one in so many */
    HISTOGRAMS = 4    /* one exponent has a third of all weights: an addition need not wait for the one before */
};

struct trf_packed_sample {
    const trf_layer_feed *feed;
    trf_decode_table table;
    uint64_t tiles;                /* that are looked at */
    pthread_mutex_t lock;          /* over what follows */
    uint64_t exponents[EXPONENTS]; /* of the tiles that have been decoded, row offsets taken out */
    uint64_t zeros, weights;
    uint64_t failed; /* lowest number of a tile that has failed, or UINT64_MAX */
    trf_error failure;
};

/* What a tile comes to. */
typedef struct tile_counts {
    uint64_t exponents[EXPONENTS];
    uint64_t zeros, weights;
} tile_counts;

/* Of rows of one offset the first one, the third, and so on: counting takes longer than decoding. */
static void count_rows(const uint16_t *elements, uint32_t rows, uint32_t cols, int32_t offset, tile_counts *counts) {
    uint32_t found[HISTOGRAMS][EXPONENTS] = {{0}}, counted = 0;
    for (uint32_t row = 0; row < rows; row += COUNTED_ROWS, counted++) {
        const uint16_t *weights = elements + (size_t)row * TRF_TILE_SIZE;
        uint32_t col = 0;
        for (; col + HISTOGRAMS <= cols; col += HISTOGRAMS)
            for (uint32_t h = 0; h < HISTOGRAMS; h++)
                found[h][weights[col + h] >> 7 & 0xFF]++;
        for (; col < cols; col++)
            found[0][weights[col] >> 7 & 0xFF]++;
    }
    uint32_t small = 0; /* zeros and denormals */
    for (uint32_t h = 0; h < HISTOGRAMS; h++)
        small += found[h][0];
    for (uint32_t row = 0; small && row < rows; row += COUNTED_ROWS)
        for (uint32_t col = 0; col < cols; col++)
            counts->zeros += (elements[(size_t)row * TRF_TILE_SIZE + col] & 0x7FFF) == 0;
    for (int32_t exponent = 1; exponent < EXPONENTS - 1; exponent++) {
        const int32_t left = exponent - offset;
        for (uint32_t h = 0; left > 0 && left < EXPONENTS - 1 && h < HISTOGRAMS; h++)
            counts->exponents[left] += found[h][exponent];
    }
    counts->weights += (uint64_t)counted * cols;
}

static void count_tile(const trf_blob_view *view, const trf_tile_shape *shape, const uint16_t *elements,
                       tile_counts *counts) {
    const int8_t *offsets = view->row_offsets ? view->row_offsets + shape->row : NULL;
    for (uint32_t row = 0, end; row < shape->rows; row = end) {
        for (end = row + 1; end < shape->rows && (!offsets || offsets[end] == offsets[row]);)
            end++;
        count_rows(elements + (size_t)row * TRF_TILE_SIZE, end - row, shape->cols, offsets ? offsets[row] : 0, counts);
    }
}

static trf_status decode_tile(const trf_packed_sample *sample, uint64_t number, uint8_t *bytes, uint16_t *elements,
                              tile_counts *counts, trf_error *err) {
    const trf_layer_feed *feed = sample->feed;
    const trf_blob_view *view = feed->view;
    const uint64_t tile = number * view->num_tiles / sample->tiles;
    const trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
    const uint8_t *from;
    trf_status status = feed->read(feed->read_context, tile, 1, bytes, &from, err);
    if (status != TRF_OK)
        return status;
    if (trf_decode_tile_best()(view, &sample->table, tile, from, elements, TRF_TILE_SIZE, NULL) != TRF_OK)
        return trf_layer_feed_fail_tile(feed, tile, err);
    count_tile(view, &shape, elements, counts);
    return TRF_OK;
}

void trf_packed_sample_look(trf_packed_sample *sample, uint64_t number, uint8_t *bytes, uint16_t *elements) {
    tile_counts counts = {{0}, 0, 0};
    trf_error failure = {.offset = TRF_NO_OFFSET};
    const trf_status status = decode_tile(sample, number, bytes, elements, &counts, &failure);
    pthread_mutex_lock(&sample->lock);
    if (status != TRF_OK && number < sample->failed) {
        sample->failed = number;
        sample->failure = failure;
        sample->failure.status = status;
    }
    for (int exponent = 0; exponent < EXPONENTS; exponent++)
        sample->exponents[exponent] += counts.exponents[exponent];
    sample->zeros += counts.zeros;
    sample->weights += counts.weights;
    pthread_mutex_unlock(&sample->lock);
}

trf_status trf_packed_sample_choose(const trf_packed_sample *sample, trf_packed_window *window, trf_error *err) {
    if (sample->failed != UINT64_MAX) {
        if (err)
            *err = sample->failure;
        return sample->failure.status;
    }
    const uint32_t zeroing = trf_packed_is_zeroing(sample->zeros, sample->weights);
    if (zeroing || !trf_packed_window_of_blob(sample->feed->view, window))
        *window = trf_choose_packed_window(sample->exponents, zeroing);
    return TRF_OK;
}

static uint64_t tiles_to_look_at(uint64_t all) {
    uint64_t tiles = all / TRF_PACKED_SAMPLE_ONE_TILE_IN;
    if (tiles > TRF_PACKED_SAMPLE_MOST_TILES)
        tiles = TRF_PACKED_SAMPLE_MOST_TILES;
    if (tiles < TRF_PACKED_SAMPLE_LEAST_TILES)
        tiles = TRF_PACKED_SAMPLE_LEAST_TILES;
    return tiles < all ? tiles : all;
}

uint64_t trf_packed_sample_tiles(const trf_packed_sample *sample) { return sample->tiles; }

trf_status trf_packed_sample_create(const trf_layer_feed *feed, trf_packed_sample **sample, trf_error *err) {
    trf_packed_sample *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a sample of a layer's weights");
    made->feed = feed;
    made->tiles = tiles_to_look_at(feed->view->num_tiles);
    made->failed = UINT64_MAX;
    trf_decode_table_init(&made->table, feed->view);
    if (pthread_mutex_init(&made->lock, NULL) != 0) {
        free(made);
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    }
    *sample = made;
    return TRF_OK;
}

void trf_packed_sample_destroy(trf_packed_sample *sample) {
    if (!sample)
        return;
    pthread_mutex_destroy(&sample->lock);
    free(sample);
}
