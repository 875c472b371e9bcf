/* SPDX-License-Identifier: Apache-2.0 */
/* The plain layout: a head, and after it the weights of a 16-bit float codec as they are, row-major [rows][cols]
 * without padding, each the codec's element (BF16, F16). */
#ifndef TRF_PLAIN_HEAD_H
#define TRF_PLAIN_HEAD_H

#include "trf_layout_head.h"

enum {
    TRF_PLAIN_VERSION = 2,
    TRF_PLAIN_WEIGHT_BYTES = 2,
    TRF_PLAIN_WEIGHTS_OFFSET = TRF_LAYOUT_HEAD_BYTES
};

typedef struct trf_plain_head {
    trf_layout_head_common common;
    uint32_t rows, cols;
    uint8_t weight_dtype;        /* trf_dtype: BF16 or F16 */
    uint8_t reserved0[7];        /* zeros, as reserved1 */
    uint64_t coded_stored_tiles; /* of the coded layer that this one was, or of the shard's tiles of it ... */
    uint64_t coded_exceptions;
    trf_header coded_header; /* ... and its first 64 bytes, which say how it was encoded */
    uint8_t reserved1[112];
    trf_data_checksum data;
} trf_plain_head;
TRF_STATIC_ASSERT(sizeof(trf_plain_head) == TRF_LAYOUT_HEAD_BYTES, "weights begin at 256");
TRF_STATIC_ASSERT(offsetof(trf_plain_head, coded_header) == 64, "plain head");
TRF_STATIC_ASSERT(offsetof(trf_plain_head, data) == TRF_DATA_CHECKSUM_OFFSET, "plain head");

/* The dtype of a codec's weights in the plain layout; TRF_DTYPE_NONE if the codec has no plain layout. */
trf_dtype trf_plain_dtype(uint32_t codec);

/* Bytes of a whole buffer. */
static inline uint64_t trf_plain_buffer_bytes(uint32_t rows, uint32_t cols) {
    return TRF_PLAIN_WEIGHTS_OFFSET + (uint64_t)TRF_PLAIN_WEIGHT_BYTES * rows * cols;
}

/* Writes a head. coded: the header of the layer that is loaded, whose codec has a plain layout. info: that layer's own,
 * with the shard's rows and columns. */
void trf_plain_head_write(const trf_header *coded, const trf_layer_info *info, trf_plain_head *head);

/* Checks a head; *info becomes what trf_plain_head_write was given. Errors: as trf_layout_head_check. */
trf_status trf_plain_head_read(const trf_plain_head *head, uint64_t buffer_bytes, trf_layer_info *info, trf_error *err);

#endif
