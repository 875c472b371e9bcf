/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_elements.h"

#include "trf_number_formats.h"

static void round_to_bf16(const float *from, size_t n, uint16_t *elements, trf_energy *energy) {
    double weights = 0, error = 0;
    for (size_t i = 0; i < n; i++) {
        elements[i] = trf_f32_to_bf16(from[i]);
        const uint32_t magnitude = trf_f32_bits(from[i]) & 0x7FFFFFFFu;
        if (magnitude < 0x7F800000u) { /* finite; what rounds to Inf has an infinite error */
            double difference = (double)from[i] - (double)trf_bf16_to_f32(elements[i]);
            weights += (double)from[i] * (double)from[i];
            error += difference * difference;
        }
    }
    energy->weights += weights;
    energy->error += error;
}

trf_status trf_read_elements(const trf_element_source *from, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                             void *scratch, uint16_t *elements, trf_energy *energy, trf_error *err) {
    const trf_source *source = from->source;
    size_t n = (size_t)rows * cols;
    int holds_elements = trf_source_holds_elements(from);
    trf_status status = source->read(source->context, row, rows, col, cols, holds_elements ? elements : scratch, err);
    if (status != TRF_OK || holds_elements)
        return status;
    if (from->quantizer) {
        trf_quantizer_codes(from->quantizer, row, rows, col, cols, scratch, (int16_t *)elements, &energy->weights,
                            &energy->error);
    } else if (source->dtype == TRF_DTYPE_F32) {
        round_to_bf16(scratch, n, elements, energy);
    } else if (source->dtype == TRF_DTYPE_I8) {
        for (size_t i = 0; i < n; i++)
            elements[i] = (uint16_t)((const int8_t *)scratch)[i];
    } else {
        for (size_t i = 0; i < n; i++)
            elements[i] = ((const uint8_t *)scratch)[i];
    }
    return TRF_OK;
}

trf_status trf_read_codes(const trf_element_source *from, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                          void *scratch, uint16_t *elements, trf_energy *energy, trf_error *err) {
    trf_status status = trf_read_elements(from, row, rows, col, cols, scratch, elements, energy, err);
    if (status == TRF_OK && from->scales)
        trf_find_fp8_codes(from->scales, row, rows, col, cols, elements, cols);
    return status;
}
