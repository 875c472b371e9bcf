/* SPDX-License-Identifier: Apache-2.0 */
#define TRF_FP8_CODES trf_fp8_codes_portable
#include "trf_fp8_codes_body.h"

#include "trf_cpu.h"
#include "trf_validate.h"

static trf_fp8_codes_fn *choose_function(void) {
#ifdef TRF_HAVE_X86_SIMD
    if (trf_cpu_simd() == TRF_SIMD_AVX512)
        return trf_fp8_codes_avx512;
    if (trf_cpu_simd() == TRF_SIMD_AVX2)
        return trf_fp8_codes_avx2;
#endif
    return trf_fp8_codes_portable;
}

void trf_find_fp8_codes(const trf_fp8_scales *scales, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                        uint16_t *weights, size_t stride) {
    trf_fp8_codes_fn *find_codes = choose_function();
    const int in_blocks = scales->scale_group_size != 0;
    const uint32_t size = in_blocks ? scales->scale_group_size : 1;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0, end; c < cols; c = end) {
            const uint32_t left = in_blocks ? size - (col + c) % size : cols;
            end = left < cols - c ? c + left : cols;
            const uint64_t at =
                trf_scale_table_index(scales->granularity, size, scales->scale_cols, (uint64_t)row + r, col + c);
            find_codes(weights + r * stride + c, end - c, scales->values[at]);
        }
}
