/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_unpack.h"

#include "trf_convert.h"
#include "trf_matmul.h"
#include "trf_packed_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row's weights of one packed tile in the window's scale: four lanes have them, each in two registers of a step. */
static void read_tile_row(const trf_packed_view *view, uint32_t row, uint32_t tile,
                          uint16_t bits[TRF_PACKED_TILE_COLS]) {
    const trf_packed_place place = trf_packed_place_of(row, 0);
    for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++)
        for (uint32_t lane = place.lane; lane < place.lane + 4; lane++) {
            uint32_t a[4];
            trf_read_packed_step(view, place.band, tile, place.slab, step, lane, a);
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t reg = place.reg + i / 2 * 2, half = i % 2;
                bits[trf_packed_col_in_tile(step, lane, reg, half)] = (uint16_t)(a[reg] >> 16 * half);
            }
        }
}

void trf_unpack_row(const trf_packed_view *view, uint32_t row, uint16_t *weights) {
    const int32_t exponent = trf_packed_row_exponent(view, row);
    uint16_t bits[TRF_PACKED_TILE_COLS];
    for (uint32_t tile = 0; tile < view->tiles_per_band; tile++) {
        read_tile_row(view, row, tile, bits);
        const uint32_t first = tile * TRF_PACKED_TILE_COLS;
        for (uint32_t col = 0; col < TRF_PACKED_TILE_COLS && col < view->cols - first; col++) {
            int exact = 1; /* packing has seen to it */
            weights[first + col] = (uint16_t)trf_scale_bf16(bits[col], exponent, &exact);
        }
    }
}

void trf_unpack(const trf_packed_view *view, uint16_t *weights, size_t stride) {
    for (uint32_t row = 0; row < view->rows; row++)
        trf_unpack_row(view, row, weights + row * stride);
}

trf_status trf_multiply_packed(const trf_packed_view *view, const float *x, uint32_t m, float *y, trf_error *err) {
    const uint32_t padded = view->tiles_per_band * TRF_PACKED_TILE_COLS;
    float *w = calloc((size_t)padded * ((size_t)m + 1), sizeof *w); /* a row of W, then x, zeros behind its columns */
    float *sums = malloc(sizeof *sums * (m ? m : 1));
    uint16_t bits[TRF_PACKED_TILE_COLS];
    if (!w || !sums) {
        free(w);
        free(sums);
        return trf_fail(err, TRF_ERR_MEMORY, 0, "no memory for the product by a packed layer");
    }
    for (size_t i = 0; i < m; i++)
        memcpy(w + (i + 1) * padded, x + i * view->cols, view->cols * sizeof *x);
    for (uint32_t row = 0; row < view->rows; row++) {
        for (uint32_t tile = 0; tile < view->tiles_per_band; tile++) {
            read_tile_row(view, row, tile, bits);
            for (uint32_t col = 0; col < TRF_PACKED_TILE_COLS; col++)
                w[(size_t)tile * TRF_PACKED_TILE_COLS + col] = trf_bf16_to_f32(bits[col]);
        }
        trf_dot_rows_portable(w, padded, 1, w + padded, padded, m, padded, sums, 1);
        for (size_t i = 0; i < m; i++)
            y[i * view->rows + row] = ldexpf(sums[i], trf_packed_row_exponent(view, row));
    }
    free(w);
    free(sums);
    return TRF_OK;
}
