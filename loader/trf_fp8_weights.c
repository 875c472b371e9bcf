/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_fp8_weights.h"

#include "trf_packed8_form.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAN_MAGNITUDE = 0x7F,
    NAN_ELEMENT = 0x7FC0
};

static void scale_run(const uint8_t *codes, uint32_t count, float scale, uint16_t *elements) {
    for (uint32_t i = 0; i < count; i++)
        elements[i] = (uint16_t)trf_packed8_define_weight(codes[i], scale);
}

void trf_fp8_elements(const trf_fp8_scales *scales, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                      const uint8_t *codes, uint16_t *elements) {
    const uint32_t size = scales->scale_group_size ? scales->scale_group_size : 1;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0, end; c < cols; c = end) {
            const uint32_t left = scales->scale_group_size ? size - (col + c) % size : cols;
            const size_t at = (size_t)r * cols + c;
            end = left < cols - c ? c + left : cols;
            scale_run(codes + at, end - c,
                      scales->values[trf_scale_table_index(scales->granularity, size, scales->scale_cols,
                                                           (uint64_t)row + r, col + c)],
                      elements + at);
        }
}

uint64_t trf_fp8_codes(const trf_fp8_scales *scales, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                       uint16_t *elements, uint8_t *codes) {
    const uint64_t count = (uint64_t)rows * cols;
    /* NaNs are noted first: once codes take the place of elements, they look like any other element without a code. */
    for (uint64_t i = 0; i < count; i++)
        codes[i] = (elements[i] & 0x7FFF) == NAN_ELEMENT ? (uint8_t)(elements[i] >> 8 | NAN_MAGNITUDE) : 0;
    trf_find_fp8_codes(scales, row, rows, col, cols, elements, cols);
    for (uint64_t i = 0; i < count; i++) {
        if (codes[i]) /* a NaN */
            continue;
        if ((elements[i] & 0x7F) == TRF_FP8_NO_CODE)
            return i;
        codes[i] = (uint8_t)elements[i];
    }
    return count;
}

void trf_fp8_buffer_free(trf_fp8_buffer *buffer) {
    free(buffer->bytes);
    *buffer = (trf_fp8_buffer){0};
}

trf_status trf_fp8_rectangle(const trf_blob_view *view, const trf_rectangle *rectangle, trf_fp8_buffer *buffer,
                             trf_rectangle *codes, trf_error *err) {
    const trf_fp8_scales scales = {.granularity = (trf_granularity)view->extension.granularity,
                                   .scale_group_size = view->extension.scale_group_size,
                                   .scale_cols = view->scale_cols,
                                   .count = view->num_scales,
                                   .values = (float *)view->scales}; /* they are only read */
    const uint64_t count = (uint64_t)rectangle->rows * rectangle->cols, bytes = trf_fp8_buffer_bytes(rectangle);
    if (bytes > buffer->capacity) {
        trf_fp8_buffer_free(buffer);
        if (!(buffer->bytes = malloc(bytes)))
            return trf_fail_memory(err, bytes);
        buffer->capacity = bytes;
    }
    uint16_t *elements = buffer->bytes;
    uint8_t *values = (uint8_t *)(elements + count);
    memcpy(elements, rectangle->values, count * sizeof *elements);
    const uint64_t found =
        trf_fp8_codes(&scales, rectangle->row, rectangle->rows, rectangle->col, rectangle->cols, elements, values);
    *codes = *rectangle;
    codes->values = values;
    if (found == count)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                    "row %" PRIu64 ", column %" PRIu64
                    ": not an FP8 code times its scale, though the kept source header "
                    "says that weights are F8_E4M3",
                    rectangle->row + found / rectangle->cols, rectangle->col + found % rectangle->cols);
}
