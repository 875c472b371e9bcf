/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a layer's weights as the elements of a codec: FORMAT.md section 1. */
#ifndef TRF_ELEMENTS_H
#define TRF_ELEMENTS_H

#include "trf_encode.h"
#include "trf_fp8_codes.h"
#include "trf_quantize.h"

/* quantizer: for the int codec on float weights, with its step set; else NULL. scales: of scaled FP8, else NULL. */
typedef struct trf_element_source {
    const trf_source *source;
    trf_codec codec;
    const trf_quantizer *quantizer;
    const trf_fp8_scales *scales;
} trf_element_source;

/* Sums of squares: of the weights, and of what the codec changed in them. */
typedef struct trf_energy {
    double weights, error;
} trf_energy;

/* @return whether the source's bytes are the elements: 16-bit floats under their lossless codec. */
static inline int trf_source_holds_elements(const trf_element_source *from) {
    return from->codec != TRF_CODEC_INT && trf_dtype_bytes(from->source->dtype) == 2;
}

/* Reads the rectangle of rows x cols weights from (row, col) into elements, row-major [rows][cols]. scratch: room for
 * rows * cols weights of the source's dtype; it may be NULL if the source's bytes are the elements. Adds to *energy if
 * the codec is lossy. */
trf_status trf_read_elements(const trf_element_source *from, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                             void *scratch, uint16_t *elements, trf_energy *energy, trf_error *err);

/* The same, but gives what is split: of scaled FP8 codes in place of elements. */
trf_status trf_read_codes(const trf_element_source *from, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                          void *scratch, uint16_t *elements, trf_energy *energy, trf_error *err);

#endif
