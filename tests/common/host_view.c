/* SPDX-License-Identifier: Apache-2.0 */
#include "host_view.h"

#include "trf_slab_directory.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Fills in the entries of one tile's slabs. */
static void list_slabs(host_view *host, const trf_blob_view *from, uint64_t tile) {
    const trf_tile_meta *meta = &from->tiles[tile];
    const trf_tile_shape shape = trf_tile_shape_of(&from->header, tile, meta->coding);
    for (uint32_t s = 0; s < shape.num_slabs; s++) {
        const uint64_t band = (shape.row + trf_slab_row(&shape, s)) / TRF_SLAB_ROWS;
        const uint32_t panel = (shape.col + trf_slab_col(&shape, s)) / from->header.slab_cols;
        trf_device_slab *slab = &host->slabs[band * host->view.num_panels + panel];
        const trf_slab_location location =
            trf_locate_slab(&shape, host->view.buffer + meta->data_offset, s, from->header.raw_bits);
        slab->raw_offset_128 = (uint32_t)((meta->data_offset + location.raw) / 128);
        slab->rans_offset_16 = (uint16_t)((location.rans_streams - location.raw) / 16);
        slab->rans_size_16 = (uint16_t)((location.end - location.rans_streams) / 16);
    }
}

static void copy_fields(trf_device_view *view, const trf_blob_view *from) {
    const trf_header *header = &from->header;
    const trf_extension *extension = &from->extension;
    view->tiles = from->tiles;
    view->scales = from->scales;
    view->row_offsets = from->row_offsets;
    view->col_offsets = from->col_offsets;
    view->rows = header->rows;
    view->cols = header->cols;
    view->num_tile_rows = header->num_tile_rows;
    view->num_tile_cols = header->num_tile_cols;
    view->slab_cols = header->slab_cols;
    view->num_panels = (header->cols + header->slab_cols - 1) / header->slab_cols;
    view->num_bands = (header->rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS;
    view->codec = header->codec;
    view->source_dtype = header->source_dtype;
    view->class_bits = header->class_bits;
    view->raw_bits = header->raw_bits;
    view->probability_bits = header->probability_bits;
    view->state_bits = header->state_bits;
    view->stored_element_bytes = header->stored_element_bytes;
    view->granularity = extension->granularity;
    view->scale_dtype = extension->scale_dtype;
    view->scale_group_size = extension->scale_group_size;
    view->scale_cols = from->scale_cols;
    view->scale_exponent = extension->scale_exponent;
    view->exponent_offset = extension->exponent_offset;
    view->num_planes = from->num_planes;
    memcpy(view->plane_width, from->plane_width, sizeof view->plane_width);
    memcpy(view->class_value, extension->class_value, sizeof view->class_value);
}

host_view *host_view_make(const trf_blob_view *from, const uint8_t *blob, uint64_t blob_bytes) {
    host_view *host = calloc(1, sizeof *host);
    ck_assert_ptr_nonnull(host);
    copy_fields(&host->view, from);
    host->slabs = calloc((size_t)host->view.num_bands * host->view.num_panels, sizeof *host->slabs);
    host->decode_table = calloc((1u << from->header.probability_bits) + trf_count_scale_pairs(from), sizeof(uint32_t));
    ck_assert(host->slabs && host->decode_table);
    trf_write_scale_pairs(from, host->decode_table + (1u << from->header.probability_bits));
    host->view.buffer = blob;
    host->view.buffer_bytes = blob_bytes;
    host->view.slabs = host->slabs;
    host->view.decode_table = host->decode_table;
    host->view.fault = &host->fault;
    for (uint32_t s = 0, slot = 0; s < TRF_ALPHABET; s++)
        for (uint32_t bias = 0; bias < from->frequency[s]; bias++)
            host->decode_table[slot++] = trf_slot_entry(from->frequency[s], bias, s);
    for (uint64_t t = 0; t < from->num_tiles; t++)
        if (from->tiles[t].coding == TRF_TILE_CODED)
            list_slabs(host, from, t);
    return host;
}

void host_view_free(host_view *host) {
    free(host->slabs);
    free(host->decode_table);
    free(host);
}
