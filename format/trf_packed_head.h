/* SPDX-License-Identifier: Apache-2.0 */
/* Making and reading the head of a packed layer, and choosing its window: format/PACKED.md. Host code. */
#ifndef TRF_PACKED_HEAD_H
#define TRF_PACKED_HEAD_H

#include "trf_packed.h"
#include "trf_validate.h"

/* ---- the window ---- */

/* The 16 exponent fields from `base` on. In a zeroing layer, the index of the first one stands for zeros. */
typedef struct trf_packed_window {
    uint32_t base; /* 1 to TRF_PACKED_MAX_BASE; zeroing: from 0 on */
    uint32_t zeroing;
} trf_packed_window;

/* Whether so many zeros among so many weights make a zeroing layer. */
TRF_HD uint32_t trf_packed_is_zeroing(uint64_t zeros, uint64_t weights) {
    return zeros > weights / TRF_PACKED_WEIGHTS_A_ZERO;
}

/* The window that has the most weights; among equal ones, the lowest. exponents: how many weights have each exponent
 * field, less their rows' offsets. The counts of 0 and 255 do not matter, nor do weights that an offset takes out of 1
 * to 254. The sum of the counts is below 2^63. */
trf_packed_window trf_choose_packed_window(const uint64_t exponents[256], uint32_t zeroing);

/* The rows whose weights choose the window: all rows of a layer, or TRF_PACKED_WINDOW_ROWS evenly spaced ones if it has
 * more. */
enum {
    TRF_PACKED_WINDOW_ROWS = 128
};
typedef struct trf_packed_window_rows {
    uint32_t count, step; /* of row i * step, i below count */
} trf_packed_window_rows;
trf_packed_window_rows trf_packed_window_rows_of(uint32_t rows); /* rows: not 0 */

/* ---- the head ---- */

/* Sets rows, cols, num_stored and all that follows from them: padded shape, numbers of lines and packed tiles, offsets,
 * common.buffer_bytes. rows and cols may be any numbers. Errors: TRF_ERR_ARGUMENT if one of them is 0 or beyond
 * TRF_PACKED_MAX_SIDE, or if num_stored is above 2^32 - 1 or the number of packed tiles. Nothing overflows below these
 * limits. */
trf_status trf_size_packed(uint64_t rows, uint64_t cols, int has_row_offsets, uint64_t num_stored,
                           trf_packed_head *head, trf_error *err);

/* Whether exception lines, packed tiles and stored tiles keep to TRF_PACKED_MAX_BITS. The head, the row offsets and
 * their padding are not counted: they are a few bytes, which do not matter in large layers. */
int trf_packed_pays(const trf_packed_head *head);

/* The most stored tiles with which a layer of so many packed tiles and lines still keeps to TRF_PACKED_MAX_BITS. */
uint64_t trf_packed_most_stored(const trf_packed_head *head);

/* Sets what a head says of the weights' form: codec, base, flags. */
void trf_packed_head_set_window(trf_packed_head *head, trf_packed_window window);

/* Notes in a head what its layer was packed from, and seals the head. coded: the coded layer's header. info: the coded
 * layer's own, with the shard's rows and columns. */
void trf_packed_head_set_coded(trf_packed_head *head, const trf_header *coded, const trf_layer_info *info);

/* Fills in the common fields of a head whose own fields are already written, checksum included. */
void trf_packed_head_seal(trf_packed_head *head);

/* Checks every field of a head, and that the sections lie where they must. bytes: how many bytes of the buffer there
 * are. Errors: as trf_layout_head_check; err->offset: the byte of the field. */
trf_status trf_check_packed_head(const trf_packed_head *head, uint64_t bytes, trf_error *err);

/* Sets *info to what trf_packed_head_set_coded was given. head: checked. Errors: TRF_ERR_HEADER if it was given
 * nothing, or something other than a blob of the bf16 codec. */
trf_status trf_packed_head_get_info(const trf_packed_head *head, trf_layer_info *info, trf_error *err);

/* The view of a layer whose head is checked. memory: where the buffer lies, host or device, 256-byte aligned (host:
 * 16). */
trf_packed_view trf_packed_view_of(const trf_packed_head *head, const void *memory);

#endif
