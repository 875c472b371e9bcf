/* SPDX-License-Identifier: Apache-2.0 */
/* Packs a layer of FP8 weights on the CPU. This is the reference for what packing on a device writes, byte for byte.
 * format/PACKED.md has the layout. */
#ifndef TRF_PACK8_H
#define TRF_PACK8_H

#include "trf_packed8_head.h"

#include <stddef.h>

/* E4M3 codes and their scales, host memory. */
typedef struct trf_pack8_input {
    const uint8_t *codes; /* [rows][stride]; the first cols of each row count */
    /* The BF16 weights themselves, likewise, or NULL: they are what codes and scales make (trf_packed8_define_weight).
     * A weight that is something else becomes a record. */
    const uint16_t *weights;
    size_t stride;
    uint32_t rows, cols;
    /* A scale for each block of block_rows x block_cols weights, [block rows][block columns], row-major. A block that
     * does not end with the layer has a multiple of 64 rows and of 128 columns. */
    const float *scales;
    uint32_t block_rows, block_cols; /* not 0 */
    /* NULL, or those of rows 8 to 15 of each 16 rows, likewise: rows of gate and up take turns, and the layer is packed
     * in turns (TRF_PACKED8_IN_TURNS). */
    const float *second_scales;
} trf_pack8_input;

/* Makes the head of the packed layer, which says how large it is and what is in it. Errors: TRF_ERR_UNSUPPORTED, with
 * the reason in the message, if the layer cannot be packed so: because of its blocks, of a scale that has no constants
 * (err->offset: its first byte), or because 64 rows x 1,024 columns need more than trf_packed8_max_records;
 * TRF_ERR_ARGUMENT (shape). */
trf_status trf_pack8_head(const trf_pack8_input *from, trf_packed8_head *head, trf_error *err);

/* Writes all head->common.buffer_bytes of a packed layer, head included. head: from trf_pack8_head for the same input.
 * packed: 16-byte aligned; its contents are unspecified on failure, but nothing outside of it is written. Errors:
 * TRF_ERR_MISMATCH if the head was made for other weights. */
trf_status trf_pack8(const trf_pack8_input *from, const trf_packed8_head *head, void *packed, trf_error *err);

#endif
