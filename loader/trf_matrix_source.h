/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a source's file, as the encoder asks for them. */
#ifndef TRF_MATRIX_SOURCE_H
#define TRF_MATRIX_SOURCE_H

#include "trf_file.h"
#include "trf_fp8_weights.h"

/* The weights of one matrix, in the source file. */
typedef struct trf_matrix_source {
    const trf_file *file;
    uint64_t offset;
    uint64_t row_bytes, weight_bytes;
    const trf_fp8_scales *scales; /* of FP8 weights that are read as elements of scaled FP8 */
} trf_matrix_source;

/* Reads a part of a matrix, as a trf_source does. context: the trf_matrix_source. Errors: TRF_ERR_IO, _TRUNCATED. */
trf_status trf_matrix_read(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols, void *dst,
                           trf_error *err);

/* Reads FP8 weights as elements of scaled FP8, and checks that the codes come back from these. Errors: also
 * TRF_ERR_UNSUPPORTED, _MEMORY. */
trf_status trf_matrix_read_fp8(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols,
                               void *dst, trf_error *err);

#endif
