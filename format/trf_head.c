/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_head.h"

#include <string.h>

static uint64_t head_tiles(const trf_header *header) { return (uint64_t)header->num_tile_rows * header->num_tile_cols; }

uint64_t trf_lay_out_sections(trf_extension *extension, const trf_header *header, const trf_head_sections *sections) {
    trf_extension *x = extension;
    uint64_t end = TRF_TILES_OFFSET + head_tiles(header) * sizeof(trf_tile_meta);
    const uint64_t sizes[3] = {sections->scales_bytes, sections->row_offsets ? header->rows : 0,
                               sections->col_offsets ? header->cols : 0};
    uint64_t *const fields[3][2] = {{&x->scales_offset, &x->scales_bytes},
                                    {&x->row_offsets_offset, &x->row_offsets_bytes},
                                    {&x->col_offsets_offset, &x->col_offsets_bytes}};
    x->frequency_offset = TRF_FREQUENCY_OFFSET;
    x->tiles_offset = TRF_TILES_OFFSET;
    for (int i = 0; i < 3; i++) {
        *fields[i][0] = sizes[i] ? trf_align(end) : 0;
        *fields[i][1] = sizes[i];
        if (sizes[i])
            end = trf_align(end) + sizes[i];
    }
    return x->data_offset = trf_tile_align(end);
}

void trf_write_head(trf_header *header, const trf_extension *extension, const uint16_t frequency[TRF_ALPHABET],
                    const trf_tile_meta *tiles, const trf_head_sections *sections, uint8_t *head) {
    memset(head, 0, extension->data_offset);
    memcpy(head, header, sizeof *header);
    memcpy(head + TRF_EXTENSION_OFFSET, extension, sizeof *extension);
    memcpy(head + TRF_FREQUENCY_OFFSET, frequency, TRF_FREQUENCY_BYTES);
    memcpy(head + TRF_TILES_OFFSET, tiles, head_tiles(header) * sizeof *tiles);
    if (extension->scales_bytes)
        memcpy(head + extension->scales_offset, sections->scales, extension->scales_bytes);
    if (extension->row_offsets_bytes)
        memcpy(head + extension->row_offsets_offset, sections->row_offsets, extension->row_offsets_bytes);
    if (extension->col_offsets_bytes)
        memcpy(head + extension->col_offsets_offset, sections->col_offsets, extension->col_offsets_bytes);
    header->head_checksum = trf_head_checksum(head, extension->data_offset);
    memcpy(head + offsetof(trf_header, head_checksum), &header->head_checksum, sizeof header->head_checksum);
}
