/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses which tiles of a layer a load takes: all of them, or those that a shard touches. */
#ifndef TRF_TILE_SELECTION_H
#define TRF_TILE_SELECTION_H

#include "trf_shard_range.h"
#include "trf_validate.h"

typedef struct trf_tile_selection {
    uint32_t *tile_rows;    /* [num_tile_rows], malloc'd: rows of tiles, in the order in which they are joined */
    uint32_t num_tile_rows; /* at least 1 */
    uint32_t tile_col, tile_col_end; /* columns of tiles [tile_col, tile_col_end), at least one */
    uint32_t used_col, used_col_end; /* columns of the layer that are used: [used_col, used_col_end) */
    int is_whole;                    /* all tiles, in order, and all columns of them */
} trf_tile_selection;

/* Selects the tiles that the options ask for. *shard: where the shard lies in these tiles. Release with
 * trf_tile_selection_free on success only. Errors: TRF_ERR_ARGUMENT (a range that the layer does not have, or that is
 * empty; rows twice; borders that are no multiples of 16), TRF_ERR_UNSUPPORTED (several row ranges that begin or end
 * inside of tiles), TRF_ERR_MEMORY. */
trf_status trf_select_tiles(const trf_header *header, const trf_load_options *options, trf_tile_selection *selection,
                            trf_shard_range *shard, trf_error *err);
void trf_tile_selection_free(trf_tile_selection *selection);

#endif
