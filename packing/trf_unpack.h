/* SPDX-License-Identifier: Apache-2.0 */
/* What a packed layer in host memory is worth: its weights again, and the product by it. The reference for kernels. */
#ifndef TRF_UNPACK_H
#define TRF_UNPACK_H

#include "trf_error.h"
#include "trf_packed.h"

/* All take a view whose head was checked; whatever else is in the buffer, they stay inside it. Thread-safe. */

/* Writes the cols weights of a row, bit for bit what was packed. row: below view->rows. */
void trf_unpack_row(const trf_packed_view *view, uint32_t row, uint16_t *weights);

/* All rows, `stride` weights from one to the next. */
void trf_unpack(const trf_packed_view *view, uint16_t *weights, size_t stride);

/* ---- products ---- */

/* y = x . W^T as kernels compute it: a sum in F32 of window-scaled weights times x, then an exact power of two. The
 * sums are the same whatever rows they are computed with, and by whom. x: [m][cols]. y: [m][rows]. Errors:
 * TRF_ERR_MEMORY. */
trf_status trf_multiply_packed(const trf_packed_view *view, const float *x, uint32_t m, float *y, trf_error *err);

/* Columns, padded to whole packed tiles. */
static inline uint32_t trf_packed_padded_cols(const trf_packed_view *view) {
    return view->tiles_per_band * TRF_PACKED_TILE_COLS;
}

/* How many threads can be at work on a layer, and the bytes that so many need to themselves. */
int trf_packed_workers(const trf_packed_view *view, int threads);
uint64_t trf_packed_scratch_bytes(const trf_packed_view *view, int workers);

/* The same product without allocating. x: [m][padded columns], zeros behind the last column. scratch: 4-byte aligned,
 * of trf_packed_scratch_bytes(view, workers). */
trf_status trf_multiply_packed_padded(const trf_packed_view *view, const float *x, uint32_t m, float *y, int workers,
                                      float *scratch, trf_error *err);

#endif
