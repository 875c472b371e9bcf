/* SPDX-License-Identifier: Apache-2.0 */
/* For fuzz targets of layer blobs: a fuzzer would never find the checksums, and it is the code that runs after they
 * match that needs testing. */
#ifndef FUZZ_CHECKSUMS_H
#define FUZZ_CHECKSUMS_H

#include "trf_decode.h"

/* Recomputes the checksums of all tiles that lie inside the blob, then the head's. */
static void fuzz_mend_checksums(uint8_t *blob, size_t size) {
    uint64_t head_bytes;
    if (trf_blob_head_bytes(blob, size, size, &head_bytes, NULL) != TRF_OK || head_bytes > size)
        return;
    trf_header *header = (trf_header *)blob;
    uint64_t tiles = (uint64_t)header->num_tile_rows * header->num_tile_cols;
    trf_tile_meta *metas = (trf_tile_meta *)(blob + TRF_TILES_OFFSET);
    for (uint64_t t = 0; t < tiles; t++)
        if (metas[t].data_offset <= size && metas[t].data_size <= size - metas[t].data_offset)
            metas[t].checksum = trf_tile_checksum(blob + metas[t].data_offset, metas[t].data_size, t);
    header->head_checksum = trf_head_checksum(blob, head_bytes);
}

#endif
