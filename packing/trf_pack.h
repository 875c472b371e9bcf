/* SPDX-License-Identifier: Apache-2.0 */
/* Packs a layer on the CPU. This is the reference for what packing on a device writes, byte for byte. format/PACKED.md
 * has the layout. */
#ifndef TRF_PACK_H
#define TRF_PACK_H

#include "trf_packed_head.h"

#include <stddef.h>

/* Dense BF16 weights, host memory. */
typedef struct trf_pack_input {
    const uint16_t *weights; /* [rows][stride]; the first cols of each row count */
    size_t stride;
    uint32_t rows, cols;
    const int8_t *row_offsets; /* [rows] or NULL: what is subtracted from the exponents of each row */
} trf_pack_input;

/* Chooses the window, zeroing or not, by the weights of the rows that trf_packed_window_rows_of names. */
trf_packed_window trf_pack_window(const trf_pack_input *from);

/* Makes the head of the packed layer, which says how large it is and what is in it. window: from trf_pack_window or
 * chosen otherwise. Errors: TRF_ERR_UNSUPPORTED, with the reason in the message, if the layer cannot be packed: because
 * a weight is no BF16 in the window's scale (err->offset: its first byte among rows * cols weights), or because the
 * layer would have more than TRF_PACKED_MAX_BITS bits a weight; TRF_ERR_ARGUMENT (shape); TRF_ERR_MEMORY. */
trf_status trf_pack_head(const trf_pack_input *from, trf_packed_window window, trf_packed_head *head, trf_error *err);

/* Writes all head->common.buffer_bytes of a packed layer, head included. head: from trf_pack_head for the same input;
 * trf_packed_head_set_coded may have added to it, and trf_size_packed may have made room for more stored tiles, which
 * become zeros. packed: 16-byte aligned; its contents are unspecified on failure, but nothing outside of it is written.
 * Errors: TRF_ERR_MEMORY; TRF_ERR_MISMATCH if the head was made for other weights. */
trf_status trf_pack(const trf_pack_input *from, const trf_packed_head *head, void *packed, trf_error *err);

#endif
