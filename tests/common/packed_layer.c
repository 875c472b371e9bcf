/* SPDX-License-Identifier: Apache-2.0 */
#include "packed_layer.h"

#include "trf_packed_reader.h"
#include "trf_packed_validate.h"
#include "trf_unpack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        abort();
    return memory;
}

packed_layer packed_layer_make(uint32_t rows, uint32_t cols, int with_row_offsets) {
    packed_layer layer = {.rows = rows, .cols = cols, .weights = allocate((size_t)rows * cols * 2)};
    if (with_row_offsets) {
        layer.row_offsets = allocate(rows);
        memset(layer.row_offsets, 0, rows);
    }
    return layer;
}

void packed_layer_free(packed_layer *layer) {
    free(layer->weights);
    free(layer->row_offsets);
    free(layer->packed);
    memset(layer, 0, sizeof *layer);
}

trf_pack_input packed_layer_input(const packed_layer *layer) {
    const trf_pack_input input = {.weights = layer->weights,
                                  .stride = layer->cols,
                                  .rows = layer->rows,
                                  .cols = layer->cols,
                                  .row_offsets = layer->row_offsets};
    return input;
}

trf_status packed_layer_pack(packed_layer *layer, const trf_packed_window *window, trf_error *err) {
    const trf_pack_input input = packed_layer_input(layer);
    const trf_packed_window suiting = window ? *window : trf_pack_window(&input);
    free(layer->packed);
    layer->packed = NULL;
    const trf_status status = trf_pack_head(&input, suiting, &layer->head, err);
    if (status != TRF_OK)
        return status;
    layer->packed = aligned_alloc(TRF_PACKED_ALIGNMENT, layer->head.common.buffer_bytes);
    if (!layer->packed)
        abort();
    memset(layer->packed, 0xA5, layer->head.common.buffer_bytes); /* packing must write all of it */
    if (trf_pack(&input, &layer->head, layer->packed, err) != TRF_OK)
        abort();
    return TRF_OK;
}

int packed_layer_is_right(const packed_layer *layer) {
    trf_packed_view view;
    trf_error err;
    if (trf_validate_packed(layer->packed, layer->head.common.buffer_bytes, &view, &err) != TRF_OK) {
        fprintf(stderr, "byte %llu: %s\n", (unsigned long long)err.offset, err.message);
        return 0;
    }
    const size_t weights = (size_t)layer->rows * layer->cols;
    uint16_t *unpacked = allocate(2 * weights), *row = allocate(2 * (size_t)layer->cols);
    trf_unpack(&view, unpacked, layer->cols);
    int right = memcmp(unpacked, layer->weights, 2 * weights) == 0;
    const uint32_t rows[] = {0, layer->rows / 2, layer->rows - 1};
    for (size_t i = 0; i < 3; i++) {
        const uint16_t *is = layer->weights + (size_t)rows[i] * layer->cols;
        trf_unpack_row(&view, rows[i], row);
        right &= memcmp(row, is, 2 * (size_t)layer->cols) == 0;
        for (uint32_t col = 0; col < layer->cols; col += 1 + col / 4)
            right &= trf_read_packed_weight(&view, rows[i], col) == is[col];
    }
    free(unpacked);
    free(row);
    return right;
}

void packed_layer_read_all(const void *packed) {
    const trf_packed_view view = trf_packed_view_of(packed, packed);
    uint16_t *weights = allocate(2 * (size_t)view.rows * view.cols);
    float *x = allocate(sizeof *x * view.cols), *y = allocate(sizeof *y * view.rows);
    for (uint32_t col = 0; col < view.cols; col++)
        x[col] = 1;
    trf_unpack(&view, weights, view.cols);
    if (trf_multiply_packed(&view, x, 1, y, NULL) != TRF_OK)
        abort();
    free(weights);
    free(x);
    free(y);
}
