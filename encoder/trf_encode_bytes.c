/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory encoding may take. The figures are upper bounds of what the other files of this folder allocate;
 * tests/unit/test_limits.c measures that they are. */
#include "trf_encode.h"

#include "trf_blob.h"
#include "trf_encode_tile.h"
#include "trf_find_fp8.h"
#include "trf_threads.h"
#include "trf_validate.h"

enum {
    CHUNK_COLS = 4096,        /* at most: a worker has the elements of so many columns of a strip, and their source */
    SAMPLE_WEIGHTS = 1 << 19, /* at least, or four blocks of 16 rows */
    SAMPLE_COLS = 1 << 18,    /* at most */
    FIXED_BYTES = 16 << 20,   /* histograms, tables and a quantizer's sample, whatever the layer's size */
    SCALE_REGION_BYTES = 32   /* of a quantizer: absmax, magnitude, table, and two sums */
};

static uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/* @return the most scales that a quantizer or a search for FP8 has. */
static uint64_t count_scales(const trf_source *source, const trf_encode_options *options) {
    const uint64_t rows = source->rows, cols = source->cols, size = options->scale_group_size;
    if (options->codec != TRF_CODEC_INT || size == 0)
        return rows + divide_up(rows, TRF_FP8_BLOCK) * divide_up(cols, TRF_FP8_BLOCK);
    return (options->granularity == TRF_GRANULARITY_SCALE_BLOCK ? divide_up(rows, size) : rows) * divide_up(cols, size);
}

uint64_t trf_encode_bytes(const trf_source *source, const trf_encode_options *options) {
    const uint64_t rows = source->rows, cols = source->cols,
                   tiles = divide_up(rows, TRF_TILE_SIZE) * divide_up(cols, TRF_TILE_SIZE),
                   weights = TRF_TILE_SIZE * (cols < CHUNK_COLS ? cols : (uint64_t)CHUNK_COLS),
                   block = TRF_FRAGMENT_SIZE * (cols < SAMPLE_COLS ? cols : (uint64_t)SAMPLE_COLS),
                   sampled = (4 * block > SAMPLE_WEIGHTS ? 4 * block : (uint64_t)SAMPLE_WEIGHTS) + block,
                   threads = (uint64_t)trf_thread_count(options->threads), workers = threads < tiles ? threads : tiles,
                   scales = count_scales(source, options);
    /* A buffer of what has been coded grows to twice what it holds, beside the old one. */
    const uint64_t worker = sizeof(trf_tile_scratch) + weights * (sizeof(float) + sizeof(uint16_t)) + 3 * 4 * weights +
                            4 * (uint64_t)TRF_MAX_TILE_BYTES + 2 * TRF_TILE_SIZE * TRF_TILE_SIZE;
    const uint64_t search = trf_find_fp8_bytes(source->rows, options->threads);
    /* The tiles' metadata, scales and offsets are there once more in the head. */
    return FIXED_BYTES + sampled * sizeof(uint16_t) + 2 * block * sizeof(float) + search + workers * worker +
           2 * tiles * sizeof(trf_tile_meta) + scales * SCALE_REGION_BYTES + 2 * (rows + cols);
}
