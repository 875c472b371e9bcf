/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes all tiles of a layer, or only every so-many-th span of tiles, on several threads, and writes them in
 * order. */
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

/* How many spans of tiles a pass has. A span is at most 16 neighbouring tiles of a row of tiles. */
uint64_t trf_count_tile_spans(const trf_header *header);

/* Runs the pass. data_offset: where tile 0 goes in the blob. Errors: TRF_ERR_MEMORY, _CANCELLED, _MISMATCH (the message
 * names tile, row and column), the source's and the sink's. */
trf_status trf_encode_tiles(trf_tile_pass *pass, uint64_t data_offset, trf_error *err);

#endif
