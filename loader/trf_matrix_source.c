/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_matrix_source.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

trf_status trf_matrix_read(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols, void *dst,
                           trf_error *err) {
    const trf_matrix_source *matrix = context;
    uint64_t line = num_cols * matrix->weight_bytes;
    uint64_t offset = matrix->offset + row * matrix->row_bytes + col * matrix->weight_bytes;
    if (line == matrix->row_bytes)
        return trf_file_read(matrix->file, offset, dst, num_rows * line, err);
    trf_status status = TRF_OK;
    for (uint32_t r = 0; r < num_rows && status == TRF_OK; r++)
        status = trf_file_read(matrix->file, offset + r * matrix->row_bytes, (uint8_t *)dst + r * line, line, err);
    return status;
}

static trf_status fail_code(const trf_matrix_source *matrix, uint64_t row, uint64_t col, trf_error *err) {
    const uint64_t offset = matrix->offset + row * matrix->row_bytes + col;
    return trf_fail(err, TRF_ERR_UNSUPPORTED, offset,
                    "the FP8 weight at byte %" PRIu64 " (row %" PRIu64 ", column %" PRIu64
                    ") would not come back from its product with its scale",
                    offset, row, col);
}

trf_status trf_matrix_read_fp8(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols,
                               void *dst, trf_error *err) {
    const trf_matrix_source *matrix = context;
    const uint64_t count = (uint64_t)num_rows * num_cols;
    uint8_t *codes = malloc(count * (2 + sizeof(uint16_t)));
    if (!codes)
        return trf_fail_memory(err, count * (2 + sizeof(uint16_t)));
    uint16_t *elements = (uint16_t *)codes;
    uint8_t *back = (uint8_t *)(elements + count), *read = back + count;
    trf_status status = trf_matrix_read(context, row, num_rows, col, num_cols, read, err);
    if (status == TRF_OK) {
        trf_fp8_elements(matrix->scales, row, num_rows, col, num_cols, read, dst);
        memcpy(elements, dst, count * sizeof *elements);
        uint64_t same = trf_fp8_codes(matrix->scales, row, num_rows, col, num_cols, elements, back);
        if (same == count && memcmp(back, read, count) != 0)
            for (same = 0; back[same] == read[same];)
                same++;
        if (same != count || memcmp(back, read, count) != 0)
            status = fail_code(matrix, row + same / num_cols, col + same % num_cols, err);
    }
    free(codes);
    return status;
}
