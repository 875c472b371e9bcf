/* Part of a layer as a layer of its own: whole tiles, with what they need of the head. */
#ifndef TRF_LAYER_SLICE_H
#define TRF_LAYER_SLICE_H

#include "trf_layer.h"

/* Tiles [row, row_end) x [col, col_end), at least one of each. */
typedef struct trf_tile_range {
    uint32_t row, row_end, col, col_end;
} trf_tile_range;

/* Columns [begin, end) of the layer. */
typedef struct trf_col_range {
    uint32_t begin, end;
} trf_col_range;

/* Makes a blob of these tiles, in memory of the slice's own. layer: opened; these tiles have been checked. Scales a group or block may get smaller groups, so that they
 * begin where the slice does. used: columns whose weights matter, from the range's first tiles to its last ones; infinities and NaNs of others become zeros, so that x = 0 leaves
 * them out of a product. Release with trf_layer_free. Errors: TRF_ERR_MEMORY, TRF_ERR_STREAM (a tile that had to be decoded for that; offset: in the layer's blob). */
trf_status trf_layer_slice(const trf_layer *layer, trf_tile_range range, trf_col_range used, trf_layer **slice,
                           trf_error *err);

#endif
