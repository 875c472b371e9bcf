/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a layer blob: runs the validator and, if it accepts them, every decoder. Checksums are corrected
 * first. */
#include "common/decoders.h"
#include "fuzz_mutate_blob.h"
#include "trf_row_reader.h"
#include "trf_slab_directory.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* @return where a row of a coded tile crosses its slab s, as the tile's own slab table says. */
static trf_row_crossing crossing_of(const trf_device_view *view, const trf_blob_view *from, uint64_t tile, uint32_t row,
                                    uint32_t j, const uint8_t *tile_bytes) {
    const trf_tile_meta *meta = &from->tiles[tile];
    const trf_tile_shape shape = trf_tile_shape_of(&from->header, tile, meta->coding);
    trf_row_crossing crossing =
        trf_row_crossing_of(view, shape, shape.row + row, (shape.col + j * shape.slab_cols) / shape.slab_cols);
    const trf_slab_location location =
        trf_locate_slab(&shape, tile_bytes, row / TRF_SLAB_ROWS * shape.slabs_across + j, from->header.raw_bits);
    crossing.raw = meta->data_offset + location.raw;
    crossing.rans_streams = meta->data_offset + location.rans_streams;
    crossing.rans_bytes = location.end - location.rans_streams;
    return crossing;
}

/* Decodes some coded rows of a checked tile, one by one. elements: the tile's, if it decodes; else NULL. */
static void try_rows(const trf_device_view *view, const trf_blob_view *from, uint64_t tile, const uint8_t *tile_bytes,
                     const uint16_t *elements) {
    const trf_tile_shape shape = trf_tile_shape_of(&from->header, tile, from->tiles[tile].coding);
    uint16_t row[TRF_TILE_SIZE];
    for (uint32_t r = 0; r < shape.coded_rows; r += 7)
        for (uint32_t j = 0; j < shape.slabs_across; j++) {
            const trf_row_crossing crossing = crossing_of(view, from, tile, r, j, tile_bytes);
            const trf_row_target target = {
                .to = row, .col = shape.col, .cols = shape.coded_cols, .as = TRF_DECODE_ELEMENTS, .weight_bytes = 2};
            int good = 1;
            for (uint32_t quarter = 0; quarter < TRF_ROW_LANES; quarter++)
                good &= trf_row_decode_lane(view, view->decode_table, view->class_value, &crossing, quarter, &target);
            if (elements && (!good || memcmp(row + crossing.col, elements + r * TRF_TILE_SIZE + crossing.col,
                                             2 * crossing.coded_cols)))
                abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    void *blob;
    trf_blob_view view;
    trf_error err;
    if (posix_memalign(&blob, 16, size ? size : 1))
        return 0;
    memcpy(blob, data, size);
    fuzz_mend_checksums(blob, size);
    if (trf_blob_open(blob, size, size, &view, &err) == TRF_OK) {
        static trf_decode_table table;
        decoder decoders[3];
        uint32_t num_decoders = find_decoders(decoders);
        uint16_t *elements = malloc(2 * TRF_TILE_SIZE * TRF_TILE_SIZE),
                 *again = malloc(2 * TRF_TILE_SIZE * TRF_TILE_SIZE);
        float *values = malloc(4 * TRF_TILE_SIZE * TRF_TILE_SIZE);
        trf_decode_table_init(&table, &view);
        trf_device_view device = trf_device_view_of(&view, blob);
        device.decode_table = table.slots;
        for (uint64_t t = 0; elements && again && values && t < view.num_tiles; t++) {
            const uint8_t *tile = (const uint8_t *)blob + view.tiles[t].data_offset;
            trf_tile_shape shape = trf_tile_shape_of(&view.header, t, view.tiles[t].coding);
            if (trf_blob_check_tile(&view, t, tile, &err) != TRF_OK)
                continue;
            trf_status status = trf_decode_tile_ref(&view, &table, t, tile, elements, TRF_TILE_SIZE, &err);
            for (uint32_t d = 1; d < num_decoders; d++) {
                if (status != decoders[d].decode(&view, &table, t, tile, again, TRF_TILE_SIZE, &err))
                    abort();
                for (uint32_t r = 0; r < shape.rows && status == TRF_OK; r++)
                    if (memcmp(elements + r * TRF_TILE_SIZE, again + r * TRF_TILE_SIZE, 2 * shape.cols))
                        abort();
            }
            try_rows(&device, &view, t, tile, status == TRF_OK ? elements : NULL);
            if (status != TRF_OK)
                continue;
            trf_elements_to_dtype(&view, t, elements, TRF_TILE_SIZE, values, TRF_TILE_SIZE);
            trf_elements_to_f32(&view, t, elements, TRF_TILE_SIZE, values, TRF_TILE_SIZE, 0);
        }
        free(elements);
        free(again);
        free(values);
    }
    free(blob);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    return fuzz_mutate_blob_input(data, size, max_size, seed);
}
