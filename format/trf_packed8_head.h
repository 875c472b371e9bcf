/* SPDX-License-Identifier: Apache-2.0 */
/* Making and reading the head of a packed FP8 layer: format/PACKED.md. Host code. */
#ifndef TRF_PACKED8_HEAD_H
#define TRF_PACKED8_HEAD_H

#include "trf_packed8.h"

#include "trf_error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets rows, cols, codec and all that follows from them: padded shape, numbers of lines and packed tiles, offsets,
 * common.buffer_bytes. Nothing else is written. rows and cols may be any numbers. Errors: TRF_ERR_ARGUMENT if one of
 * them is 0 or beyond TRF_PACKED_MAX_SIDE. Nothing overflows below that. */
trf_status trf_size_packed8(uint64_t rows, uint64_t cols, trf_packed8_head *head, trf_error *err);

/* Rows and columns of a layer of FP8 weights that become a packed layer, and what kind of scales the layer has. */
typedef struct trf_packed8_part {
    uint32_t granularity, scale_group_size;
    uint64_t row, rows, col, cols;
} trf_packed8_part;

/* @return whether weights of the part that would have the same constants, TRF_PACKED8_PAIR_COLS columns of `tile_rows`
 * rows, have one scale. */
int trf_packed8_scales_fit(const trf_packed8_part *part, uint32_t tile_rows);

/* @return whether a scale has a pair of constants (trf_packed8_find_pair, which takes longer). */
int trf_packed8_has_pair(float scale);

/* Fills in the common fields of a head whose own fields are already written, checksum included. */
void trf_packed8_head_seal(trf_packed8_head *head);

/* Notes in a head what its layer was packed from, and seals the head. coded: the header of the layer's elements: of
 * E4M3 codes, or of BF16 weights. info: the layer's own, with the shard's rows and columns. */
void trf_packed8_head_set_coded(trf_packed8_head *head, const trf_header *coded, const trf_layer_info *info);

/* Gives the info of a layer whose head has been checked. Errors: TRF_ERR_HEADER (what trf_packed8_head_set_coded did
 * not write). */
trf_status trf_packed8_head_get_info(const trf_packed8_head *head, trf_layer_info *info, trf_error *err);

/* Checks every field of a head, and that the sections lie where they must. bytes: how many bytes of the buffer there
 * are. Errors: as trf_layout_head_check; err->offset: the byte of the field. */
trf_status trf_check_packed8_head(const trf_packed8_head *head, uint64_t bytes, trf_error *err);

/* The view of a layer whose head is checked. memory: where the buffer lies, host or device, 256-byte aligned (host:
 * 16). */
trf_packed8_view trf_packed8_view_of(const trf_packed8_head *head, const void *memory);

#ifdef __cplusplus
}
#endif

#endif
