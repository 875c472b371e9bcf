/* SPDX-License-Identifier: Apache-2.0 */
#include "common/packed8_layer.h"

#include "common/expect.h"
#include "trf_packed8_form.h"
#include "trf_packed8_validate.h"
#include "trf_unpack8.h"

#include <check.h>
#include <stdlib.h>

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static float draw_scale(test_rng *rng, int kind) {
    const uint32_t bits = (117 + test_below(rng, 3)) << 23 | test_below(rng, 1 << 23);
    return trf_f32_from_bits(kind == SCALES_BF16 ? bits & 0xFFFF0000u : bits);
}

void packed8_layer_define_weights(packed8_layer *layer) {
    const size_t across = (layer->cols - 1) / layer->block_cols + 1;
    for (uint32_t row = 0; row < layer->rows; row++)
        for (uint32_t col = 0; col < layer->cols; col++) {
            const size_t at = (size_t)row * layer->cols + col;
            const float *table = layer->second_scales && row / 8 % 2 ? layer->second_scales : layer->scales;
            const float scale = table[row / layer->block_rows * across + col / layer->block_cols];
            layer->weights[at] = (uint16_t)trf_packed8_define_weight(layer->codes[at], scale);
        }
}

packed8_layer packed8_layer_make(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t block_rows, uint32_t block_cols,
                                 int scale_kind) {
    packed8_layer layer = {.rows = rows, .cols = cols, .block_rows = block_rows, .block_cols = block_cols};
    const size_t count = (size_t)rows * cols;
    layer.num_scales = ((size_t)(rows - 1) / block_rows + 1) * ((size_t)(cols - 1) / block_cols + 1);
    layer.codes = allocate(count);
    layer.weights = allocate(count * sizeof *layer.weights);
    layer.scales = allocate(layer.num_scales * sizeof *layer.scales);
    for (size_t i = 0; i < layer.num_scales; i++)
        layer.scales[i] = draw_scale(rng, scale_kind);
    for (size_t i = 0; i < count; i++)
        layer.codes[i] = (uint8_t)(test_below(rng, TRF_PACKED8_NAN_CODE) | test_below(rng, 2) << 7);
    packed8_layer_define_weights(&layer);
    return layer;
}

void packed8_layer_take_turns(packed8_layer *layer, test_rng *rng, int scale_kind) {
    layer->second_scales = allocate(layer->num_scales * sizeof *layer->second_scales);
    for (size_t i = 0; i < layer->num_scales; i++)
        layer->second_scales[i] = draw_scale(rng, scale_kind);
    packed8_layer_define_weights(layer);
}

void packed8_layer_free(packed8_layer *layer) {
    free(layer->codes);
    free(layer->weights);
    free(layer->scales);
    free(layer->second_scales);
    free(layer->packed);
}

trf_pack8_input packed8_layer_input(const packed8_layer *layer, int with_weights) {
    return (trf_pack8_input){layer->codes,        with_weights ? layer->weights : NULL,
                             layer->cols,         layer->rows,
                             layer->cols,         layer->scales,
                             layer->block_rows,   layer->block_cols,
                             layer->second_scales};
}

trf_status packed8_layer_pack(packed8_layer *layer, int with_weights, trf_error *err) {
    const trf_pack8_input input = packed8_layer_input(layer, with_weights);
    free(layer->packed);
    layer->packed = NULL;
    const trf_status status = trf_pack8_head(&input, &layer->head, err);
    if (status != TRF_OK)
        return status;
    layer->packed = aligned_alloc(TRF_PACKED_ALIGNMENT, layer->head.common.buffer_bytes);
    ck_assert_ptr_nonnull(layer->packed);
    ck_assert_int_eq(trf_pack8(&input, &layer->head, layer->packed, err), TRF_OK);
    return TRF_OK;
}

void packed8_layer_check(const packed8_layer *layer) {
    trf_error err;
    trf_packed8_view view;
    if (trf_validate_packed8(layer->packed, layer->head.common.buffer_bytes, &view, &err) != TRF_OK)
        ck_abort_msg("%s (byte %llu)", err.message, (unsigned long long)err.offset);
    uint16_t *row_weights = allocate(layer->cols * sizeof *row_weights);
    for (uint32_t row = 0; row < layer->rows; row++) {
        trf_unpack8_row(&view, row, row_weights);
        for (uint32_t col = 0; col < layer->cols; col++)
            if (row_weights[col] != layer->weights[(size_t)row * layer->cols + col])
                ck_abort_msg("weight (%u, %u) is %04x instead of %04x", row, col, row_weights[col],
                             layer->weights[(size_t)row * layer->cols + col]);
    }
    free(row_weights);
}

void packed8_find_classes(uint32_t ends[2 * PACKED8_CLASSES]) {
    uint32_t count = 0;
    uint16_t last[8] = {0};
    for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa++) {
        uint16_t made[8];
        const float scale = trf_f32_from_bits(0x3F800000u | mantissa);
        for (uint32_t i = 0; i < 8; i++)
            made[i] = (uint16_t)trf_packed8_define_weight(7 << 3 | i, scale);
        if (memcmp(made, last, sizeof made) == 0)
            continue;
        memcpy(last, made, sizeof made);
        EXPECT(count < 2 * PACKED8_CLASSES);
        if (mantissa)
            ends[count++] = mantissa - 1;
        ends[count++] = mantissa;
    }
    EXPECT(count == 2 * PACKED8_CLASSES - 1);
    ends[count] = (1u << 23) - 1;
}
