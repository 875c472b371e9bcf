/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of the trf_fp8_codes_fn functions, compiled once for each instruction set by the files that define
 * TRF_FP8_CODES (the function's name) and include it.
 *
 * A weight divided by its scale lies within 2^-8 of the number of its code, if it has one, and codes are 2^-5 apart at
 * least; so the nearest code is the only candidate, whichever way the quotient is rounded. Whether it gives the weight
 * decides. */
#include "trf_fp8_codes.h"
#include "trf_number_formats.h"

void TRF_FP8_CODES(uint16_t *weights, uint32_t count, float scale) {
    const float inverse = 1 / scale;
    const uint32_t largest = 0x43E00000u, normal = 0x3C800000u; /* 448 and 2^-6, the least normal number */
    for (uint32_t i = 0; i < count; i++) {                      /* without branches, so that it vectorizes */
        const uint32_t weight = weights[i];
        const uint32_t exact = trf_f32_bits(trf_f32_from_bits((weight & 0x7FFFu) << 16) * inverse);
        const uint32_t quotient = exact < largest ? exact : largest; /* an infinity or a NaN becomes 448, too */
        const uint32_t as_normal = ((quotient + 0x7FFFFu) >> 20) - (120u << 3);
        const uint32_t as_denormal = (uint32_t)(int32_t)(trf_f32_from_bits(quotient) * 0x1p9f + 0.5f);
        const uint32_t mask = -(uint32_t)(quotient < normal);
        const uint32_t code = (weight >> 8 & 0x80u) | (as_denormal & mask) | (as_normal & ~mask);
        const uint32_t is_code = -(uint32_t)(trf_scale_fp8(code, scale) == weight);
        weights[i] = (uint16_t)((code & is_code) | (TRF_FP8_NO_CODE & ~is_code));
    }
}
