/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of an FP8 checkpoint, on their way to elements of scaled FP8 and back. A code's element is what FORMAT.md
 * says, section 3; the codes of NaNs have the elements 0x7FC0 and 0xFFC0. Within one scale no two codes have the same
 * element, so codes come back. */
#ifndef TRF_FP8_WEIGHTS_H
#define TRF_FP8_WEIGHTS_H

#include "trf_blob_reader.h"
#include "trf_fp8_codes.h"

/* Makes the elements of codes: rows x cols of them from (row, col) of the layer. codes, elements: [rows][cols]. */
void trf_fp8_elements(const trf_fp8_scales *scales, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                      const uint8_t *codes, uint16_t *elements);

/* Finds the codes of elements. elements: [rows][cols], overwritten; codes: [rows][cols], may not overlap elements.
 * @return the number of elements for which there are codes, in their order, before the first that has none. */
uint64_t trf_fp8_codes(const trf_fp8_scales *scales, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                       uint16_t *elements, uint8_t *codes);

/* Memory for rectangles; all zeros in the beginning. */
typedef struct trf_fp8_buffer {
    void *bytes;
    uint64_t capacity;
} trf_fp8_buffer;

void trf_fp8_buffer_free(trf_fp8_buffer *buffer);

/* @return the bytes of the buffer that a rectangle needs. */
static inline uint64_t trf_fp8_buffer_bytes(const trf_rectangle *rectangle) {
    return (uint64_t)rectangle->rows * rectangle->cols * (sizeof(uint16_t) + 1);
}

/* Turns a decoded rectangle of scaled FP8 into the codes that the source has. view: of the blob. *codes: the rectangle
 * with values of one byte, which are the buffer's. Errors: TRF_ERR_FORMAT (an element that is no code times its scale;
 * the message names row and column), TRF_ERR_MEMORY. */
trf_status trf_fp8_rectangle(const trf_blob_view *view, const trf_rectangle *rectangle, trf_fp8_buffer *buffer,
                             trf_rectangle *codes, trf_error *err);

#endif
