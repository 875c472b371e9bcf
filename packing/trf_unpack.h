/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacks a packed layer in host memory, and multiplies by it. This is the reference for kernels. */
#ifndef TRF_UNPACK_H
#define TRF_UNPACK_H

#include "trf_error.h"
#include "trf_packed8.h"

/* All functions take a view whose head was checked. They stay inside the buffer whatever else it holds. Thread-safe. */

/* Writes the cols weights of a row, bit for bit what was packed. row: below view->rows. */
void trf_unpack_row(const trf_packed_view *view, uint32_t row, uint16_t *weights);

/* Writes all rows, `stride` weights from one row to the next. */
void trf_unpack(const trf_packed_view *view, uint16_t *weights, size_t stride);

/* ---- products ---- */

/* Computes y = x . W^T as kernels do: each element is an F32 sum of x times weights in the window's scale, and is then
 * multiplied by an exact power of two. A sum does not depend on the rows that it is computed with, nor on the thread.
 * x: [m][cols]. y: [m][rows]. Errors: TRF_ERR_MEMORY. */
trf_status trf_multiply_packed(const trf_packed_view *view, const float *x, uint32_t m, float *y, trf_error *err);

/* The columns, padded to whole packed tiles. */
static inline uint32_t trf_packed_padded_cols(const trf_packed_view *view) {
    return view->tiles_per_band * TRF_PACKED_TILE_COLS;
}

/* How many threads can work on a layer, and how many bytes of scratch memory so many need. */
int trf_packed_workers(const trf_packed_view *view, int threads);
uint64_t trf_packed_scratch_bytes(const trf_packed_view *view, int workers);

/* Computes the same product without allocating memory. x: [m][padded columns], with zeros after the last column.
 * scratch: trf_packed_scratch_bytes(view, workers), 4-byte aligned. */
trf_status trf_multiply_packed_padded(const trf_packed_view *view, const float *x, uint32_t m, float *y, int workers,
                                      float *scratch, trf_error *err);

/* Does the same for a packed FP8 layer, whose weights are in their own scale. Workers and scratch are those of
 * view->packed. */
trf_status trf_multiply_packed8_padded(const trf_packed8_view *view, const float *x, uint32_t m, float *y, int workers,
                                       float *scratch, trf_error *err);

#endif
