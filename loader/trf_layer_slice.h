/* Part of a layer as a layer of its own: whole tiles, with what they need of the head. */
#ifndef TRF_LAYER_SLICE_H
#define TRF_LAYER_SLICE_H

#include "trf_head.h"
#include "trf_layer_source.h"

/* Tiles [row, row_end) x [col, col_end), at least one of each. */
typedef struct trf_tile_range {
    uint32_t row, row_end, col, col_end;
} trf_tile_range;

/* Columns [begin, end) of the layer. */
typedef struct trf_col_range {
    uint32_t begin, end;
} trf_col_range;

/* A slice in the making: which tiles it has, and its head. */
typedef struct trf_slice {
    /* Set by the caller; view and reader outlive the slice. */
    const trf_blob_view *view; /* of the layer, no tile of which is larger than TRF_MAX_TILE_BYTES */
    trf_tile_range range;
    trf_col_range used; /* columns whose weights matter, from the range's first tiles to its last ones */
    trf_read_tiles_fn *read;
    void *reader;
    /* Set by trf_slice_open. */
    trf_header header; /* the slice's, as what follows */
    trf_extension extension;
    trf_tile_meta *metas; /* [num_tile_rows][num_tile_cols] */
    uint8_t **
        /* [2 * num_tile_rows]: data of tiles with zeros in them, of the first and the last column of tiles; NULL: as
         * they are */
        cleared;
    void *scales; /* or NULL */
    trf_head_sections sections;
} trf_slice;

/* Lays the slice out. Scales a group or block may get smaller groups, so that they begin where the slice does.
 * Infinities and NaNs of columns that are not used become zeros, so that x = 0 leaves them out of a product; tiles that
 * may have some are read for that. threads: as trf_thread_count takes it. Release with trf_slice_close on success only.
 * Errors: TRF_ERR_MEMORY; those of read; TRF_ERR_RANS (a tile that had to be decoded). Offsets are of the layer's
 * blob. */
trf_status trf_slice_open(trf_slice *slice, int threads, trf_error *err);
void trf_slice_close(trf_slice *slice);

/* Writes extension.data_offset bytes, with the tiles' checksums as they are in metas: 0 after trf_slice_open. */
void trf_slice_write_head(trf_slice *slice, uint8_t *head);

/* For the slice's own tiles, which it leaves in the scratch; reader: the trf_slice. */
trf_read_tiles_fn trf_slice_read;

/* Makes a blob of these tiles, in memory of the slice's own. layer: opened; these tiles have been checked. Release with
 * trf_layer_free. Errors: as trf_slice_open. */
trf_status trf_layer_slice(const trf_layer *layer, trf_tile_range range, trf_col_range used, int threads,
                           trf_layer **slice, trf_error *err);

#endif
