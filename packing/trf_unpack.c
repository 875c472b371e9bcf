/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_unpack.h"

#include "trf_matmul.h"
#include "trf_number_formats.h"
#include "trf_packed8_reader.h"
#include "trf_threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Reads a row's weights of one packed tile, in the window's scale. Four lanes have them, each in two registers of a
 * step. */
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
            int exact = 1; /* packing has made sure of it */
            weights[first + col] = (uint16_t)trf_scale_bf16(bits[col], exponent, &exact);
        }
    }
}

void trf_unpack(const trf_packed_view *view, uint16_t *weights, size_t stride) {
    for (uint32_t row = 0; row < view->rows; row++)
        trf_unpack_row(view, row, weights + row * stride);
}

/* ---- products ---- */

typedef struct trf_packed_product {
    const trf_packed_view *view;
    const trf_packed8_view *view8; /* of a packed FP8 layer, whose part `view` is then; or NULL */
    const float *x;                /* [m][padded columns] */
    uint32_t m;
    float *y;       /* [m][view->rows] */
    float *scratch; /* for each worker the rows of W of a packed slab: [TRF_PACKED_SLAB_ROWS][padded columns] */
} trf_packed_product;

/* Widens a packed slab of one packed tile to F32, in the window's scale. w: the slab's rows, `stride` apart. */
static void widen_slab(const trf_packed_product *product, uint32_t band, uint32_t slab, uint32_t tile, float *w,
                       size_t stride) {
    for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++)
        for (uint32_t lane = 0; lane < TRF_LANES; lane++) {
            uint32_t a[4];
            if (product->view8)
                trf_read_packed8_step(product->view8, band, tile, slab, step, lane, a);
            else
                trf_read_packed_step(product->view, band, tile, slab, step, lane, a);
            for (uint32_t reg = 0; reg < 4; reg++) {
                float *const row = w + trf_packed_row_in_tile(0, lane, reg) * stride;
                const uint32_t col = tile * TRF_PACKED_TILE_COLS + trf_packed_col_in_tile(step, lane, reg, 0);
                row[col] = trf_bf16_to_f32((uint16_t)a[reg]);
                row[col + 1] = trf_bf16_to_f32((uint16_t)(a[reg] >> 16));
            }
        }
}

/* A trf_parallel_fn. index: which 16 rows. */
static trf_status multiply_slab(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_packed_product *product = context;
    const trf_packed_view *view = product->view;
    const uint32_t padded = trf_packed_padded_cols(view), first = (uint32_t)index * TRF_PACKED_SLAB_ROWS;
    const uint32_t left = view->rows - first, rows = left < TRF_PACKED_SLAB_ROWS ? left : TRF_PACKED_SLAB_ROWS;
    float *const w = product->scratch + (size_t)worker * TRF_PACKED_SLAB_ROWS * padded;
    (void)err;
    for (uint32_t tile = 0; tile < view->tiles_per_band; tile++)
        widen_slab(product, (uint32_t)(index / TRF_PACKED_SLABS), (uint32_t)(index % TRF_PACKED_SLABS), tile, w,
                   padded);
    trf_dot_rows_portable(w, padded, rows, product->x, padded, product->m, padded, product->y + first, view->rows);
    for (size_t i = 0; i < product->m; i++)
        for (uint32_t row = first; row < first + rows; row++) {
            float *const sum = product->y + i * view->rows + row;
            *sum = ldexpf(*sum, trf_packed_row_exponent(view, row));
        }
    return TRF_OK;
}

static uint64_t count_slabs(const trf_packed_view *view) {
    return ((uint64_t)view->rows + TRF_PACKED_SLAB_ROWS - 1) / TRF_PACKED_SLAB_ROWS;
}

int trf_packed_workers(const trf_packed_view *view, int threads) {
    const int most = trf_thread_count(threads);
    return (uint64_t)most < count_slabs(view) ? most : (int)count_slabs(view);
}

uint64_t trf_packed_scratch_bytes(const trf_packed_view *view, int workers) {
    return (uint64_t)workers * TRF_PACKED_SLAB_ROWS * trf_packed_padded_cols(view) * sizeof(float);
}

trf_status trf_multiply_packed_padded(const trf_packed_view *view, const float *x, uint32_t m, float *y, int workers,
                                      float *scratch, trf_error *err) {
    trf_packed_product product = {view, NULL, x, m, y, scratch};
    return trf_parallel_for(workers, count_slabs(view), multiply_slab, &product, err);
}

trf_status trf_multiply_packed8_padded(const trf_packed8_view *view, const float *x, uint32_t m, float *y, int workers,
                                       float *scratch, trf_error *err) {
    trf_packed_product product = {&view->packed, view, x, m, y, scratch};
    return trf_parallel_for(workers, count_slabs(&view->packed), multiply_slab, &product, err);
}

trf_status trf_multiply_packed(const trf_packed_view *view, const float *x, uint32_t m, float *y, trf_error *err) {
    const size_t padded = trf_packed_padded_cols(view);
    float *wide = calloc(padded * ((size_t)m + 1), sizeof *wide), *scratch = malloc(trf_packed_scratch_bytes(view, 1));
    trf_status status =
        wide && scratch ? TRF_OK
                        : trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for the product by a packed layer");
    for (size_t i = 0; status == TRF_OK && i < m; i++)
        memcpy(wide + i * padded, x + i * view->cols, view->cols * sizeof *x);
    if (status == TRF_OK)
        status = trf_multiply_packed_padded(view, wide, m, y, 1, scratch, err);
    free(wide);
    free(scratch);
    return status;
}
