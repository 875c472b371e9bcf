/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_corrupt.h"

#include <stdlib.h>
#include <string.h>

static void seal(uint8_t *blob, uint64_t tile) {
    trf_header header;
    trf_extension extension;
    trf_tile_meta meta;
    memcpy(&header, blob, sizeof header);
    memcpy(&extension, blob + TRF_EXTENSION_OFFSET, sizeof extension);
    uint8_t *at = blob + TRF_TILES_OFFSET + tile * sizeof meta;
    memcpy(&meta, at, sizeof meta);
    meta.checksum = trf_tile_checksum(blob + meta.data_offset, meta.data_size, tile);
    memcpy(at, &meta, sizeof meta);
    header.head_checksum = trf_head_checksum(blob, extension.data_offset);
    memcpy(blob, &header, sizeof header);
}

/* @return where a slab's rANS streams end, counted from the tile's first byte. */
static uint32_t slab_end(const uint8_t *blob, const trf_tile_meta *meta, const trf_tile_shape *shape, uint32_t slab,
                         uint32_t raw_bits) {
    return trf_locate_slab(shape, blob + meta->data_offset, slab, raw_bits).end;
}

/* Flips one bit somewhere in the tile's rANS streams. @return the slab in which it lies if only decoding can detect it;
 * else -1, and the bit is as it was. */
static int try_bit(test_rng *rng, uint8_t *blob, uint64_t blob_bytes, const trf_blob_view *view, uint64_t tile,
                   void *decoded, uint64_t decoded_bytes) {
    const trf_tile_meta *meta = &view->tiles[tile];
    const trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, meta->coding);
    const uint32_t begin = trf_find_tile_sections(&shape, view->header.raw_bits).rans_streams;
    const uint32_t end = slab_end(blob, meta, &shape, shape.num_slabs - 1, view->header.raw_bits);
    uint32_t at = begin + test_below(rng, end - begin), bit = 1u << test_below(rng, 8);
    blob[meta->data_offset + at] ^= (uint8_t)bit;
    seal(blob, tile);
    trf_layer *layer = NULL;
    trf_status status = trf_layer_from_memory(blob, blob_bytes, &layer, NULL);
    if (status == TRF_OK)
        status = trf_layer_decode(layer, decoded, decoded_bytes, 1, NULL);
    else
        status = TRF_ERR_TILE; /* validation detected it, whatever it was */
    trf_layer_free(layer);
    if (status == TRF_ERR_RANS)
        for (uint32_t s = 0; s < shape.num_slabs; s++)
            if (at < slab_end(blob, meta, &shape, s, view->header.raw_bits))
                return (int)s;
    blob[meta->data_offset + at] ^= (uint8_t)bit;
    seal(blob, tile);
    return -1;
}

gpu_corrupt_layer gpu_corrupt(test_rng *rng, const gpu_layer *intact, uint64_t tile) {
    gpu_corrupt_layer c = {.tile = tile};
    const uint64_t decoded_bytes =
        (uint64_t)intact->info.rows * intact->info.cols * trf_dtype_bytes(intact->info.dtype);
    void *decoded = gpu_malloc(decoded_bytes), *blob;
    int slab = -1;
    EXPECT(posix_memalign(&blob, 16, intact->blob_bytes) == 0);
    memcpy(blob, intact->blob, intact->blob_bytes);
    for (int i = 0; i < 200 && slab < 0; i++)
        slab = try_bit(rng, blob, intact->blob_bytes, &intact->view, tile, decoded, decoded_bytes);
    if (slab < 0)
        ck_abort_msg("%s: no bit of tile %llu breaks a stream", intact->name, (unsigned long long)tile);
    free(decoded);
    c.shape = trf_tile_shape_of(&intact->view.header, tile, TRF_TILE_CODED);
    const trf_slab_shape slab_shape = trf_slab_shape_at(&c.shape, (uint32_t)slab);
    c.first_row = c.shape.row + trf_slab_row(&c.shape, (uint32_t)slab);
    c.first_col = c.shape.col + trf_slab_col(&c.shape, (uint32_t)slab);
    c.rows = TRF_FRAGMENT_SIZE * slab_shape.row_blocks;
    c.cols = TRF_FRAGMENT_SIZE * slab_shape.steps;
    c.layer = gpu_layer_of_blob(intact->name, blob, intact->blob_bytes);
    return c;
}
