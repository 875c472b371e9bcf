/* SPDX-License-Identifier: Apache-2.0 */
/* Making a blob's head: where its sections lie, and its checksum. FORMAT.md section 3. */
#ifndef TRF_HEAD_H
#define TRF_HEAD_H

#include "trf_validate.h"

/* The sections of a head that follow the tiles' metadata, in host memory. A section that is absent is NULL and has 0
 * bytes. */
typedef struct trf_head_sections {
    const void *scales;
    uint64_t scales_bytes;
    const int8_t *row_offsets; /* exponent offsets of the rows, [rows] */
    const int8_t *col_offsets; /* of the columns, [cols] */
} trf_head_sections;

/* Sets the extension's section offsets and sizes, data_offset among them. @return data_offset, which is the head's
 * size. */
uint64_t trf_lay_out_sections(trf_extension *extension, const trf_header *header, const trf_head_sections *sections);

/* Writes a head of extension->data_offset bytes whose sections have been placed, checksum included. The header's
 * head_checksum is set, too. */
void trf_write_head(trf_header *header, const trf_extension *extension, const uint16_t frequency[TRF_ALPHABET],
                    const trf_tile_meta *tiles, const trf_head_sections *sections, uint8_t *head);

#endif
