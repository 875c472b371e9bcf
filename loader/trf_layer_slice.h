/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a layer as a layer of its own: whole tiles, with the parts of the head that they need. */
#ifndef TRF_LAYER_SLICE_H
#define TRF_LAYER_SLICE_H

#include "trf_head.h"
#include "trf_read_tiles.h"
#include "trf_tile_selection.h"

/* A slice that is being made: which tiles it has, and its head. */
typedef struct trf_slice {
    /* Set by the caller; view, selection and read_context outlive the slice. */
    const trf_blob_view *view; /* of the layer, no tile of which is larger than TRF_MAX_TILE_BYTES */
    const trf_tile_selection *selection;
    trf_read_tiles_fn *read;
    void *read_context;
    /* Set by trf_slice_open. */
    trf_header header; /* the slice's, as all that follows */
    trf_extension extension;
    trf_tile_meta *metas; /* [num_tile_rows][num_tile_cols] */
    /* [2 * num_tile_rows]: data of tiles in the first and the last column of tiles, in which weights became zeros;
     * NULL: the tile is as it was */
    uint8_t **cleared;
    void *scales;        /* or NULL */
    int8_t *row_offsets; /* [rows] or NULL */
    trf_head_sections sections;
} trf_slice;

/* Lays the slice out. Scale groups and scale blocks may become smaller, so that one begins where the selection begins,
 * and where it skips rows. Infinities and NaNs of columns that are not used become zeros, so that x = 0 leaves them out
 * of a product; tiles that may have some are read for that. threads: as trf_thread_count takes it. Release with
 * trf_slice_close on success only. Errors: TRF_ERR_MEMORY; those of read; TRF_ERR_RANS (a tile that had to be decoded).
 * Offsets are in the layer's blob. */
trf_status trf_slice_open(trf_slice *slice, int threads, trf_error *err);
void trf_slice_close(trf_slice *slice);

/* Writes the head, of extension.data_offset bytes. Tiles that trf_slice_read has read have their checksums in it; the
 * checksums of others are 0. */
void trf_slice_write_head(trf_slice *slice, uint8_t *head);

/* @return the number in the layer of the slice's tile `tile`. */
uint64_t trf_slice_layer_tile(const trf_slice *slice, uint64_t tile);

/* Reads the slice's own tiles to the scratch, and notes their checksums. read_context: the trf_slice. */
trf_read_tiles_fn trf_slice_read;

#endif
