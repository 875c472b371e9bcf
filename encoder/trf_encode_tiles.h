/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding all tiles of a layer, or only every so-many-th tile span, on several threads, and writing them in order. */
#ifndef TRF_ENCODE_TILES_H
#define TRF_ENCODE_TILES_H

#include "trf_elements.h"
#include "trf_encode_tile.h"

typedef struct trf_tile_pass {
    const trf_tile_encoder *encoder;
    const trf_element_source *from;
    const trf_sink *sink;         /* NULL: only count bytes */
    const trf_progress *progress; /* or NULL */
    int threads;
    int verify;           /* decode each tile and compare; needs metas */
    uint32_t span_stride; /* encode each span_stride-th span of tiles only; 1 = all */
    /* results */
    trf_tile_meta *metas; /* [num_tiles], the caller's, filled; or NULL */
    uint64_t data_bytes, weights, exceptions;
    uint32_t predictor_modes; /* that tiles really use */
    trf_energy energy;
} trf_tile_pass;

/* Spans of tiles that a pass is made of: at most 16 neighbouring tiles of a row of tiles. */
uint64_t trf_count_tile_spans(const trf_header *header);

/* Runs the pass. data_offset: where tile 0 goes in the blob. Errors: TRF_ERR_MEMORY, _CANCELLED, _MISMATCH (naming
 * tile, row and column), source's and sink's. */
trf_status trf_encode_tiles(trf_tile_pass *pass, uint64_t data_offset, trf_error *err);

#endif
