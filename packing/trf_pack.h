/* SPDX-License-Identifier: Apache-2.0 */
/* Packing a layer on the CPU: the reference for what packing on a device writes, byte for byte. format/PACKED.md has
 * the layout. */
#ifndef TRF_PACK_H
#define TRF_PACK_H

#include "trf_packed_head.h"

#include <stddef.h>

/* Dense BF16 weights, host memory. */
typedef struct trf_pack_input {
    const uint16_t *weights; /* [rows][stride], of which the first cols of each row */
    size_t stride;
    uint32_t rows, cols;
    const int8_t *row_offsets; /* [rows] or NULL: what is taken out of the exponents of each row */
} trf_pack_input;

/* The window by the weights of the rows that trf_packed_window_rows_of names, zeroing or not. */
trf_packed_window trf_pack_window(const trf_pack_input *from);

/* Makes the head of the packed layer: how large it is, what is in it. window: as trf_pack_window or another
 * gives it. Errors: TRF_ERR_UNSUPPORTED, with the reason in the message, for a layer that is not packable: a weight is
 * no BF16 in the window's scale (err->offset: of its first byte among rows * cols weights), or the layer would have
 * more than TRF_PACKED_MAX_BITS bits a weight; TRF_ERR_ARGUMENT (shape); TRF_ERR_MEMORY. */
trf_status trf_pack_head(const trf_pack_input *from, trf_packed_window window, trf_packed_head *head, trf_error *err);

/* Writes all head->common.buffer_bytes of a packed layer, head included. head: from trf_pack_head for the same input;
 * trf_packed_head_set_coded may have said more, and trf_size_packed may have made room for more stored tiles, which
 * become zeros.
 * packed: 16-byte aligned; unspecified on failure, but nothing outside of it is written. Errors: TRF_ERR_MEMORY;
 * TRF_ERR_MISMATCH if the weights are others than the head was made for. */
trf_status trf_pack(const trf_pack_input *from, const trf_packed_head *head, void *packed, trf_error *err);

#endif
