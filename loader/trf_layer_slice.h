/* SPDX-License-Identifier: Apache-2.0 */
/* Part of a layer as a layer of its own: whole tiles, with what they need of the head. */
#ifndef TRF_LAYER_SLICE_H
#define TRF_LAYER_SLICE_H

#include "trf_head.h"
#include "trf_read_tiles.h"
#include "trf_tile_selection.h"

/* A slice in the making: which tiles it has, and its head. */
typedef struct trf_slice {
    /* Set by the caller; view, selection and read_context outlive the slice. */
    const trf_blob_view *view; /* of the layer, no tile of which is larger than TRF_MAX_TILE_BYTES */
    const trf_tile_selection *selection;
    trf_read_tiles_fn *read;
    void *read_context;
    /* Set by trf_slice_open. */
    trf_header header; /* the slice's, as what follows */
    trf_extension extension;
    trf_tile_meta *metas; /* [num_tile_rows][num_tile_cols] */
    /* [2 * num_tile_rows]: data of tiles with zeros in them, of the first and the last column of tiles; NULL: as they
     * are */
    uint8_t **cleared;
    void *scales;        /* or NULL */
    int8_t *row_offsets; /* [rows] or NULL */
    trf_head_sections sections;
} trf_slice;

/* Lays the slice out. Scale groups and scale blocks may become smaller ones, so that one begins where the selection
 * does, and where it leaps. Infinities and NaNs of columns that are not used become zeros, so that x = 0 leaves them
 * out of a product; tiles that may have some are read for that. threads: as trf_thread_count takes it. Release with
 * trf_slice_close on success only. Errors: TRF_ERR_MEMORY; those of read; TRF_ERR_RANS (a tile that had to be decoded).
 * Offsets are of the layer's blob. */
trf_status trf_slice_open(trf_slice *slice, int threads, trf_error *err);
void trf_slice_close(trf_slice *slice);

/* Writes extension.data_offset bytes. The tiles' checksums are those of the tiles that have been read by
 * trf_slice_read, and 0 of others. */
void trf_slice_write_head(trf_slice *slice, uint8_t *head);

/* The layer's tile that is the slice's tile `tile`. */
uint64_t trf_slice_layer_tile(const trf_slice *slice, uint64_t tile);

/* For the slice's own tiles, which it leaves in the scratch, and whose checksums it notes; read_context: the trf_slice.
 */
trf_read_tiles_fn trf_slice_read;

#endif
