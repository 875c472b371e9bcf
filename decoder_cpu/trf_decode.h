/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding tiles on the CPU: the scalar reference decoder (the oracle) and the SIMD decoders behind one choice. */
#ifndef TRF_DECODE_H
#define TRF_DECODE_H

#include "trf_validate.h"

/* The slots of a layer's frequency table, trf_slot_entry each. */
typedef struct trf_decode_table {
    uint32_t slots[TRF_MAX_SLOTS];
} trf_decode_table;

/* Fills the table. view: opened. It cannot fail, since a validated frequency table sums to 2^p. */
void trf_decode_table_init(trf_decode_table *table, const trf_blob_view *view);

/* Decodes one tile into elements (FORMAT.md section 1: bit patterns, or signed codes; those of scaled FP8 are BF16),
 * row-major, h x w as the tile has
 * them, `stride` elements from row to row; stride >= w. tile_bytes: the tile's data_size bytes, 16-byte aligned,
 * already checked with trf_blob_check_tile. For any checked tile all decoders give the same elements and the same
 * status. Errors: TRF_ERR_RANS if a lane's rANS stream does not end where it must (err->offset: the tile's). The
 * contents of elements are then unspecified, but nothing outside the tile's h x w elements is written. Thread-safe. */
typedef trf_status trf_decode_tile_fn(const trf_blob_view *view, const trf_decode_table *table, uint64_t tile,
                                      const uint8_t *tile_bytes, uint16_t *elements, size_t stride, trf_error *err);

trf_decode_tile_fn trf_decode_tile_ref; /* scalar, written for clarity */

/* The decoder for trf_cpu_simd's instruction set: AVX-512 (with VBMI), else AVX2, else the reference. */
trf_decode_tile_fn *trf_decode_tile_best(void);
const char *trf_decode_tile_best_name(void); /* "avx512", "avx2" or "scalar" */

/* Turns decoded elements of a tile into values of the layer's source dtype. elements: as trf_decode_tile_fn; values:
 * row-major, value_stride *elements* from row to row. Values are exact for lossless codecs: copies of the elements,
 * narrowed where an element has 8 bits, or BF16 widened where the source of the bf16 codec was F32. With the int codec
 * and scales they are code times scale, rounded once. */
void trf_elements_to_dtype(const trf_blob_view *view, uint64_t tile, const uint16_t *elements, size_t stride,
                           void *values, size_t value_stride);

/* The same, but gives F32 values whatever the source's dtype: floats are widened, and code times scale is rounded once
 * to F32. If `unscaled` is set, the int codec with scales gives the codes themselves (the matmul scales sums). */
void trf_elements_to_f32(const trf_blob_view *view, uint64_t tile, const uint16_t *elements, size_t stride,
                         float *values, size_t value_stride, int unscaled);

#endif
