/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_unpack8.h"

#include "trf_packed8_reader.h"

/* Writes a row's weights of one packed tile, as far as the layer has them. Four lanes have them, each in two registers
 * of a step. */
static void unpack_tile_row(const trf_packed8_view *view, uint32_t row, uint32_t tile, uint16_t *weights) {
    const trf_packed_place place = trf_packed_place_of(row, 0);
    for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++)
        for (uint32_t lane = place.lane; lane < place.lane + 4; lane++) {
            uint32_t a[4];
            trf_read_packed8_step(view, place.band, tile, place.slab, step, lane, a);
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t reg = place.reg + i / 2 * 2, half = i % 2;
                const uint64_t col =
                    (uint64_t)tile * TRF_PACKED_TILE_COLS + trf_packed_col_in_tile(step, lane, reg, half);
                if (col < view->packed.cols)
                    weights[col] = (uint16_t)(a[reg] >> 16 * half);
            }
        }
}

void trf_unpack8_row(const trf_packed8_view *view, uint32_t row, uint16_t *weights) {
    for (uint32_t tile = 0; tile < view->packed.tiles_per_band; tile++)
        unpack_tile_row(view, row, tile, weights);
}

void trf_unpack8(const trf_packed8_view *view, uint16_t *weights, size_t stride) {
    for (uint32_t row = 0; row < view->packed.rows; row++)
        trf_unpack8_row(view, row, weights + row * stride);
}
