/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding one tile with a finished trf_tile_encoder. */
#ifndef TRF_ENCODE_TILE_H
#define TRF_ENCODE_TILE_H

#include "trf_fp8_codes.h"
#include "trf_rans.h"
#include "trf_slab_split.h"
#include "trf_validate.h"

/* All that the tiles of a layer share. Read-only while tiles are encoded. */
typedef struct trf_tile_encoder {
    trf_header header;       /* final but for blob_bytes and head_checksum */
    trf_extension extension; /* final but for exception_count */
    double exception_cost;   /* of an exception when classes and model are chosen, in bits */
    trf_symbol_model model;
    trf_symbol_encoding symbols[TRF_ALPHABET];
    uint8_t missing[TRF_ALPHABET]; /* 1 for a symbol that has a replacement */
    trf_split_rule rule;
    trf_split_slab_fn *split;
    const trf_fp8_scales *scales; /* of scaled FP8, or NULL; its maker's */
    int8_t *row_offsets;          /* [rows] or NULL; owned by the encoder's maker */
    int8_t *col_offsets;          /* [cols] or NULL */
} trf_tile_encoder;

/* Fills in what follows from classes and model: rule, symbols, header and extension fields. The caller has set
 * header.codec, rows, cols, class_bits, probability_bits, state_bits, slab_cols, source_dtype, stored_element_bytes,
 * predictor_modes; extension.exponent_offset. */
void trf_tile_encoder_finish(trf_tile_encoder *encoder, const trf_classes *classes);

/* Puts the weights of one or two row blocks into lane order: FORMAT.md section 6. rows: points at the slab's first
 * weight. */
void trf_arrange_lanes(const uint16_t *rows, size_t stride, trf_slab_shape shape, uint16_t *lanes);

/* Scratch of one worker. */
typedef struct trf_tile_scratch {
    trf_slab_buffers buffers;
    trf_coded_lanes lanes;
    uint16_t offsets_by_row[TRF_MAX_SLAB_WEIGHTS]; /* exponent offsets of a slab, row by row, before lane order */
    uint16_t codes_by_row[TRF_MAX_SLAB_WEIGHTS];   /* the same of its codes, with scaled FP8 */
} trf_tile_scratch;

/* Writes the sum of row and column offset of every weight of a slab to scratch->buffers.offset, in lane order. row,
 * col: the place of its first weight in the layer. */
void trf_arrange_exponent_offsets(const trf_tile_encoder *encoder, uint32_t row, uint32_t col, trf_slab_shape shape,
                                  trf_tile_scratch *scratch);

/* Encodes tile `tile` from its elements (row-major, `stride` elements from row to row) into out (TRF_MAX_TILE_BYTES,
 * 16-byte aligned). Fills in *meta except for data_offset. The tile is coded or stored, whichever is smaller. */
void trf_encode_tile(const trf_tile_encoder *encoder, uint64_t tile, const uint16_t *elements, size_t stride,
                     trf_tile_scratch *scratch, uint8_t *out, trf_tile_meta *meta);

#endif
