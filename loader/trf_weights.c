/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_weights.h"

#include "trf_number_formats.h"

#include <string.h>

void trf_weights_to_f32(trf_dtype dtype, const void *values, size_t count, float *out) {
    const uint8_t *bytes = values;
    const uint16_t *halves = values;
    switch (dtype) {
    case TRF_DTYPE_F32:
        memcpy(out, values, count * sizeof *out);
        break;
    case TRF_DTYPE_F16:
        for (size_t i = 0; i < count; i++)
            out[i] = trf_f16_to_f32(halves[i]);
        break;
    case TRF_DTYPE_BF16:
        for (size_t i = 0; i < count; i++)
            out[i] = trf_bf16_to_f32(halves[i]);
        break;
    case TRF_DTYPE_F8_E4M3:
        for (size_t i = 0; i < count; i++)
            out[i] = trf_e4m3_to_f32(bytes[i]);
        break;
    case TRF_DTYPE_F8_E5M2:
        for (size_t i = 0; i < count; i++)
            out[i] = trf_e5m2_to_f32(bytes[i]);
        break;
    default:
        for (size_t i = 0; i < count; i++)
            out[i] = (int8_t)bytes[i];
    }
}
