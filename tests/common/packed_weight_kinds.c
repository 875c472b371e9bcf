/* SPDX-License-Identifier: Apache-2.0 */
#include "packed_weight_kinds.h"

#include "trf_packed_form.h"

#include <stdlib.h>
#include <string.h>

enum {
    TEST_BASE = 112, /* every pattern has a place in its scale */
    POISON = 0xC3
};

/* ---- layers ---- */

static void fill_window(test_rng *rng, packed_layer *layer) {
    for (size_t i = 0; i < (size_t)layer->rows * layer->cols; i++) {
        const uint32_t random = (uint32_t)test_random(rng);
        layer->weights[i] = (uint16_t)((random & 0x807F) | (TEST_BASE + 1 + (random >> 16) % 15) << 7);
    }
}

static void add_zeros(test_rng *rng, packed_layer *layer, double share) {
    for (size_t i = 0; i < (size_t)layer->rows * layer->cols; i++)
        if (test_uniform(rng) < share)
            layer->weights[i] &= 0x8000;
}

static void add_outliers(test_rng *rng, packed_layer *layer) {
    static const uint16_t kBits[] = {0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x7FBF, 0x0001, 0x807F,
                                     0x0000, 0x8000, 0x4580, 0xC2F7, 0x2000, 0x9234, 0x0080};
    enum {
        COUNT = sizeof kBits / sizeof *kBits
    };
    const size_t weights = (size_t)layer->rows * layer->cols;
    for (size_t i = test_below(rng, 8000); i < weights; i += 1 + test_below(rng, 8000))
        layer->weights[i] = kBits[test_below(rng, COUNT)];
    layer->weights[0] = kBits[test_below(rng, COUNT)]; /* the first weight of a line, and the last one */
    layer->weights[weights - 1] = kBits[test_below(rng, COUNT)];
}

static void add_patterns(test_rng *rng, packed_layer *layer) {
    uint32_t pattern = (uint32_t)test_random(rng);
    for (size_t i = test_below(rng, 7000); i < (size_t)layer->rows * layer->cols; i += 1 + test_below(rng, 7000))
        layer->weights[i] = (uint16_t)(pattern += 40503); /* odd: all of them */
}

/* Fills tiles so that they must be stored. specials: with random bits; otherwise with large weights. */
static void add_stored(test_rng *rng, packed_layer *layer, int specials) {
    const uint32_t tiles = (layer->cols + TRF_PACKED_TILE_COLS - 1) / TRF_PACKED_TILE_COLS;
    for (uint32_t row = 0; row < layer->rows; row++)
        for (uint32_t col = 0; col < layer->cols; col++) {
            const uint64_t tile = (uint64_t)(row / TRF_PACKED_TILE_ROWS) * tiles + col / TRF_PACKED_TILE_COLS;
            uint16_t *weight = layer->weights + (size_t)row * layer->cols + col;
            if (tile % 20 == 19)
                *weight = specials ? (uint16_t)test_random(rng) : (uint16_t)(0x4600 + test_below(rng, 0x2000));
        }
}

static void scale_rows(test_rng *rng, packed_layer *layer) {
    for (uint32_t row = 0; row < layer->rows; row++) {
        layer->row_offsets[row] = (int8_t)((int32_t)test_below(rng, 81) - 40);
        for (uint32_t col = 0; col < layer->cols; col++) {
            uint16_t *weight = layer->weights + (size_t)row * layer->cols + col;
            int exact = 1;
            *weight = (uint16_t)trf_scale_bf16(*weight, layer->row_offsets[row], &exact);
        }
    }
}

/* Replaces weights that have no place in the window's scale by NaNs. */
static void make_packable(packed_layer *layer, trf_packed_window window) {
    for (size_t i = 0; i < (size_t)layer->rows * layer->cols; i++) {
        const int32_t offset = layer->row_offsets ? layer->row_offsets[i / layer->cols] : 0;
        int exact = 1;
        (void)trf_scale_bf16(layer->weights[i], TRF_PACKED_EXPONENT - (int32_t)window.base - offset, &exact);
        if (!exact)
            layer->weights[i] |= 0x7F81;
    }
}

packed_layer packed_layer_of_kind(test_rng *rng, uint32_t rows, uint32_t cols, packed_weight_kind kind,
                                  trf_packed_window *window) {
    const int scales = kind == PACKED_WEIGHTS_ROWS || kind == PACKED_WEIGHTS_ROWS_MIXED;
    const int mixed = kind == PACKED_WEIGHTS_ZEROS_MIXED || kind == PACKED_WEIGHTS_ROWS_MIXED;
    packed_layer layer = packed_layer_make(rows, cols, scales);
    const trf_packed_window patterns = {TEST_BASE, (uint32_t)test_random(rng) % 2};
    if (kind == PACKED_WEIGHTS_PATTERNS || kind == PACKED_WEIGHTS_STORED) {
        fill_window(rng, &layer);
        if (kind == PACKED_WEIGHTS_PATTERNS)
            add_patterns(rng, &layer);
        else
            add_stored(rng, &layer, 1);
        *window = patterns;
        return layer;
    }
    test_fill_normal(rng, layer.weights, TRF_DTYPE_BF16, (size_t)rows * cols, 0.02);
    if (kind == PACKED_WEIGHTS_ZEROS || mixed)
        add_zeros(rng, &layer, mixed ? 0.1 : 0.5);
    if (mixed)
        add_stored(rng, &layer, 0);
    if (scales)
        scale_rows(rng, &layer);
    if (kind == PACKED_WEIGHTS_OUTLIERS || mixed)
        add_outliers(rng, &layer);
    const trf_pack_input input = packed_layer_input(&layer);
    *window = trf_pack_window(&input);
    make_packable(&layer, *window);
    return layer;
}

/* ---- dense rows ---- */

dense_rows dense_rows_make(uint32_t rows, uint32_t cols, uint32_t weight_bytes, size_t shift, size_t more) {
    dense_rows dense = {.stride = cols + more, .shift = shift, .rows = rows, .cols = cols};
    dense.weight_bytes = weight_bytes;
    dense.bytes = weight_bytes * (shift + (rows ? (rows - 1) * dense.stride + cols : 0));
    if (posix_memalign(&dense.memory, 64, dense.bytes ? dense.bytes : 1))
        abort();
    memset(dense.memory, POISON, dense.bytes);
    dense.at = (uint8_t *)dense.memory + weight_bytes * shift;
    return dense;
}

dense_rows dense_rows_copy(const uint16_t *weights, uint32_t rows, uint32_t cols, size_t shift, size_t more) {
    dense_rows dense = dense_rows_make(rows, cols, 2, shift, more);
    for (uint32_t row = 0; row < rows; row++)
        memcpy((uint16_t *)dense.at + row * dense.stride, weights + (size_t)row * cols, 2 * (size_t)cols);
    return dense;
}

void dense_rows_free(dense_rows *dense) {
    free(dense->memory);
    dense->memory = NULL;
}

int dense_row_is(const dense_rows *dense, uint32_t row, const uint16_t *weights) {
    int is = 1;
    for (uint32_t col = 0; col < dense->cols; col++) {
        const uint64_t at = row * dense->stride + col;
        const uint32_t expected = weights ? weights[col] : 0x7FC0;
        is &= dense->weight_bytes == 2 ? ((const uint16_t *)dense->at)[at] == expected
                                       : ((const uint32_t *)dense->at)[at] == expected << 16;
    }
    return is;
}

int dense_rows_gaps_untouched(const dense_rows *dense) {
    const uint8_t *const bytes = dense->memory;
    const uint64_t row_bytes = dense->weight_bytes * dense->stride, begin = dense->weight_bytes * dense->shift;
    for (uint64_t i = 0; i < dense->bytes; i++)
        if ((i < begin || (i - begin) % row_bytes >= (uint64_t)dense->weight_bytes * dense->cols) && bytes[i] != POISON)
            return 0;
    return 1;
}
