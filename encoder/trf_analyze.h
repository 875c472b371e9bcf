/* SPDX-License-Identifier: Apache-2.0 */
/* Analyzes a sample of a layer to decide how to encode it: predictor mode, exponent offset, classes, frequencies. */
#ifndef TRF_ANALYZE_H
#define TRF_ANALYZE_H

#include "trf_elements.h"
#include "trf_encode_tile.h"

/* A sample: excerpts of 16 rows, spread evenly over the layer. A small layer's sample is the whole layer. */
typedef struct trf_sample {
    uint32_t num_excerpts;
    uint32_t excerpt_cols; /* a multiple of 16, the same for all excerpts; 0 if rows or columns are fewer than 16 */
    uint32_t *row, *col;   /* of each excerpt's first weight */
    uint16_t *element;     /* [num_excerpts][16][excerpt_cols]; of scaled FP8 codes */
    int full_width;        /* every excerpt has all columns but a sliver */
} trf_sample;

/* Reads the sample. For the int codec on floats the quantizer's step must be set. Errors: TRF_ERR_MEMORY, the
 * source's. */
trf_status trf_sample_read(trf_sample *sample, const trf_element_source *from, trf_error *err);
void trf_sample_free(trf_sample *sample);

/* Completes encoder from a sample: extension.exponent_offset, header.predictor_modes, row_offsets and col_offsets
 * (malloc'd, NULL without a mode), classes, model. Set before: header.codec, rows, cols, class_bits, probability_bits,
 * state_bits, slab_cols, source_dtype, stored_element_bytes. allow_predictor: 0 keeps predictor_modes and
 * exponent_offset at 0. *entropy_bits: order-0 entropy of exponents or codes plus sign and mantissa bits. Errors:
 * TRF_ERR_MEMORY, the source's. */
trf_status trf_analyze(trf_tile_encoder *encoder, const trf_sample *sample, const trf_element_source *from,
                       int allow_predictor, double *entropy_bits, trf_error *err);

#endif
