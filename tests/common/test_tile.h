/* SPDX-License-Identifier: Apache-2.0 */
/* A slow encoder of single tiles, written from FORMAT.md only for tests. It reaches every corner of the format, also
 * those that the real encoder has no reason to choose, and knows which elements must come out. */
#ifndef TEST_TILE_H
#define TEST_TILE_H

#include "test_weights.h"
#include "trf_validate.h"

typedef struct test_tile {
    trf_blob_view view; /* of a layer that has only this tile; not a whole blob */
    trf_tile_meta meta;
    uint16_t frequency[TRF_ALPHABET];
    int8_t row_offsets[TRF_TILE_SIZE], col_offsets[TRF_TILE_SIZE];
    float scales[TRF_TILE_SIZE]; /* of scaled FP8: a row's, or those of blocks of 16x16 or larger ones */
    uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE]; /* rows x cols, what decoding must give */
    uint8_t *bytes;                                   /* meta.data_size, allocated to exactly that size */
} test_tile;

/* What test_tile_make is told; everything else is random. */
typedef struct test_tile_request {
    uint32_t codec, class_bits, rows, cols, slab_cols;
    uint32_t raw_bits; /* of the int codec */
    uint32_t probability_bits, state_bits, predictor_mode;
    int32_t exponent_offset;
    uint32_t symbols;      /* that have a slot, 2 to 256 */
    double exception_rate; /* share of weights with a random exponent or code; missing symbols make more */
    int is_scaled_fp8;     /* codec is e4m3, and the elements are BF16 */
    int stored;
    uint32_t unused_words; /* in the middle of each slab's first lane pair: a tile that must be rejected */
} test_tile_request;

/* Makes a random request; the shape is random, too, with all kinds of edges. */
test_tile_request test_tile_random_request(test_rng *rng, uint32_t codec, uint32_t class_bits);

/* Codec and class bits by number, 0 to TEST_TILE_CODECS - 1. */
enum {
    TEST_TILE_SCALED_FP8 = 10, /* and 11 */
    TEST_TILE_CODECS = 12
};
test_tile_request test_tile_random_request_of(test_rng *rng, uint32_t codec_index);

/* What a test does with a request. */
typedef void test_tile_check(test_rng *rng, const test_tile_request *request);

/* Checks tiles of a codec; everything else is random. */
void test_tiles_at_random(uint32_t codec_index, int rounds, test_tile_check *check);

/* Checks tiles of a codec with every number of row blocks and of column steps, with and without slivers. */
void test_tiles_of_every_shape(uint32_t codec_index, test_tile_check *check);

/* Checks tiles of the int codec, with quads and with pairs. Calls with every raw_bits have all sets of planes. */
void test_tiles_of_int(uint32_t raw_bits, test_tile_check *check);

/* malloc'd; release with test_tile_free. */
test_tile *test_tile_make(test_rng *rng, const test_tile_request *request);
void test_tile_free(test_tile *tile);

/* Makes meta.checksum right again after a change of bytes. */
void test_tile_seal(test_tile *tile);

#endif
