#include "trf_weights.h"

#include "trf_convert.h"

#include <math.h>

enum {
    TRF_WIDEN_COUNT = 4096
};

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

trf_status trf_weights_energy(const trf_file *file, uint64_t offset, uint64_t bytes, trf_dtype dtype, uint8_t *buffer,
                              size_t buffer_bytes, double *energy, trf_error *err) {
    float wide[TRF_WIDEN_COUNT];
    size_t width = trf_dtype_bytes(dtype);
    buffer_bytes -= buffer_bytes % width;
    *energy = 0;
    while (bytes) {
        size_t part = bytes < buffer_bytes ? (size_t)bytes : buffer_bytes;
        trf_status status = trf_file_read(file, offset, buffer, part, err);
        if (status != TRF_OK)
            return status;
        for (size_t i = 0; i < part / width; i += TRF_WIDEN_COUNT) {
            size_t count = part / width - i < TRF_WIDEN_COUNT ? part / width - i : TRF_WIDEN_COUNT;
            trf_weights_to_f32(dtype, buffer + i * width, count, wide);
            for (size_t k = 0; k < count; k++)
                *energy += isfinite(wide[k]) ? (double)wide[k] * wide[k] : 0;
        }
        offset += part, bytes -= part;
    }
    return TRF_OK;
}
