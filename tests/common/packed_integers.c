/* SPDX-License-Identifier: Apache-2.0 */
#include "common/packed_integers.h"

#include "trf_number_formats.h"

#include <check.h>
#include <math.h>

static double draw(test_rng *rng, const packed_layer *layer, uint32_t row, uint32_t col, int kind) {
    double value = (double)(1 + test_below(rng, 31)) / 64;
    if (kind & WITH_ZEROS && test_below(rng, 3) == 0)
        value = 0;
    if (kind & WITH_OUTLIERS && (test_below(rng, 3000) == 0 || row + col == 0))
        value = 1024;
    if (kind & WITH_STORED && layer->cols > 1000 && col / 32 % 30 == 1 && test_below(rng, 40) == 0)
        value = 1024;
    return kind & WITH_OFFSETS ? ldexp(value, layer->row_offsets[row]) : value;
}

packed_layer packed_integers_make(test_rng *rng, uint32_t rows, uint32_t cols, int kind) {
    packed_layer layer = packed_layer_make(rows, cols, (kind & WITH_OFFSETS) != 0);
    trf_error err;
    for (uint32_t row = 0; kind & WITH_OFFSETS && row < rows; row++)
        layer.row_offsets[row] = (int8_t)((int32_t)test_below(rng, 7) - 3);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t col = 0; col < cols; col++) {
            const float value = (float)draw(rng, &layer, row, col, kind);
            layer.weights[(size_t)row * cols + col] =
                (uint16_t)(trf_f32_to_bf16(value) | (test_below(rng, 2) ? 0x8000 : 0));
        }
    ck_assert_msg(packed_layer_pack(&layer, NULL, &err) == TRF_OK, "%s", err.message);
    return layer;
}
