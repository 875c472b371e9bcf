/* SPDX-License-Identifier: Apache-2.0 */
/* The head of a layer's buffer in device memory: 256 bytes that say what the buffer is, so that whoever keeps the bytes
 * can hand them back (trf_load_options, buffer_is_on_device). Every layout has one but the coded layout, whose buffers
 * begin as a blob does. Buffers with such a head are never on disk. Each layout has a head of its own, which begins
 * with trf_layout_head_common and ends with the checksum of what follows it (trf_data_checksum.h). */
#ifndef TRF_LAYOUT_HEAD_H
#define TRF_LAYOUT_HEAD_H

#include "transfuse.h"
#include "trf_blob.h"
#include "trf_data_checksum.h"
#include "trf_error.h"

enum {
    TRF_LAYOUT_MAGIC = 0x4C465254, /* "TRFL" */
    TRF_LAYOUT_HEAD_BYTES = 256,
    TRF_DATA_CHECKSUM_OFFSET = TRF_LAYOUT_HEAD_BYTES - 16 /* a trf_data_checksum */
};

typedef struct trf_layout_head_common {
    uint32_t magic;
    uint16_t layout;  /* trf_layout */
    uint16_t version; /* of that layout's head, and of what follows it */
    uint32_t head_bytes;
    uint32_t reserved;
    uint64_t buffer_bytes; /* head included */
    uint64_t checksum;     /* XXH3-64 of the head, with this and the trf_data_checksum as 0 */
} trf_layout_head_common;
TRF_STATIC_ASSERT(sizeof(trf_layout_head_common) == 32, "a layout's own fields begin at 32");
TRF_STATIC_ASSERT(offsetof(trf_layout_head_common, buffer_bytes) == 16, "layout head");

/* Whether bytes begin with a layout's head, valid or not. */
static inline int trf_is_layout_head(const trf_layout_head_common *head) { return head->magic == TRF_LAYOUT_MAGIC; }

/* XXH3-64 of a head of TRF_LAYOUT_HEAD_BYTES whose two checksums are ignored. */
uint64_t trf_layout_head_checksum(const trf_layout_head_common *head);

/* Fills in the common fields of a head whose own fields are already written. The data's checksum stays as it is. head:
 * TRF_LAYOUT_HEAD_BYTES, 8-byte aligned. */
void trf_layout_head_finish(trf_layout_head_common *head, trf_layout layout, uint16_t version, uint64_t buffer_bytes);

/* The checksum of the data that a head of TRF_LAYOUT_HEAD_BYTES keeps. */
static inline trf_data_checksum *trf_layout_head_data(void *head) {
    return (trf_data_checksum *)((uint8_t *)head + TRF_DATA_CHECKSUM_OFFSET);
}

/* What a blob's header says of a layer that was loaded from it, whole or as a shard of `rows` rows and `cols` columns.
 * The header does not say how many stored tiles and exceptions there are; both are set to 0. */
trf_layer_info trf_layout_coded_info(const trf_header *coded, uint32_t rows, uint32_t cols);

/* The header that a coded layer of the codec bf16 would have, as far as it is known without coding. */
trf_header trf_layout_bf16_header(uint32_t rows, uint32_t cols);

/* A field of a head that follows from others: what it is, what it should be, and its offset in the head. */
typedef struct trf_layout_head_field {
    uint64_t is, should, offset;
    const char *name;
} trf_layout_head_field;

/* Errors: TRF_ERR_HEADER for the first field that is not what it should be. */
trf_status trf_layout_head_check_fields(const trf_layout_head_field *fields, size_t count, trf_error *err);

/* Checks that bytes [first, end) of a head, which are reserved, are zeros. Errors: TRF_ERR_HEADER. */
trf_status trf_layout_head_check_reserved(const void *head, size_t first, size_t end, trf_error *err);

/* Checks the common fields of a head; buffer_bytes: how many bytes of the buffer there are. Errors: TRF_ERR_TRUNCATED,
 * _MAGIC, _VERSION, _HEADER (also for the head of another layout), _CHECKSUM; offsets count from the buffer's first
 * byte. */
trf_status trf_layout_head_check(const trf_layout_head_common *head, trf_layout layout, uint16_t version,
                                 uint64_t buffer_bytes, trf_error *err);

#endif
