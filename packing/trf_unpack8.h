/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacks a packed FP8 layer in host memory. This is the reference for kernels. */
#ifndef TRF_UNPACK8_H
#define TRF_UNPACK8_H

#include "trf_packed8.h"

/* Both functions take a view whose head was checked. They stay inside the buffer whatever else it holds.
 * Thread-safe. */

/* Writes the cols BF16 weights of a row, bit for bit those that were packed. row: below view->packed.rows. */
void trf_unpack8_row(const trf_packed8_view *view, uint32_t row, uint16_t *weights);

/* Writes all rows, `stride` weights from one row to the next. */
void trf_unpack8(const trf_packed8_view *view, uint16_t *weights, size_t stride);

#endif
