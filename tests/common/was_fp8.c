/* SPDX-License-Identifier: Apache-2.0 */
#include "was_fp8.h"

#include "common/test_calls.h"
#include "trf_number_formats.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

enum {
    BLOCK = 128
};

/* The code of a normally distributed number. */
static uint32_t draw_code(test_rng *rng) {
    const double magnitude = fmin(fabs(30 * test_normal(rng)), 448);
    uint32_t code = 0;
    for (uint32_t step = 64; step; step /= 2)
        if (code + step < 0x7F && trf_e4m3_to_f32((uint8_t)(code + step)) <= magnitude)
            code += step;
    return code | 0x80 * test_below(rng, 2);
}

uint16_t *was_fp8_make(test_rng *rng, trf_granularity granularity, uint32_t rows, uint32_t cols) {
    const uint32_t across = granularity == TRF_GRANULARITY_SCALE_BLOCK ? (cols + BLOCK - 1) / BLOCK : 1;
    const uint32_t down = granularity == TRF_GRANULARITY_TENSOR    ? 1
                          : granularity == TRF_GRANULARITY_CHANNEL ? rows
                                                                   : (rows + BLOCK - 1) / BLOCK;
    const uint32_t rows_each = granularity == TRF_GRANULARITY_CHANNEL ? 1 : BLOCK;
    float *scales = malloc(sizeof *scales * down * across);
    uint16_t *weights = malloc(sizeof *weights * rows * cols);
    ck_assert(scales && weights);
    for (uint32_t i = 0; i < down * across; i++)
        scales[i] = ldexpf(1.0f + (float)test_below(rng, 1 << 23) * 0x1p-23f, -(int)test_below(rng, 12));
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t col = 0; col < cols; col++) {
            const uint32_t at = (down > 1 ? row / rows_each : 0) * across + (across > 1 ? col / BLOCK : 0);
            weights[(size_t)row * cols + col] = (uint16_t)trf_scale_fp8(draw_code(rng), scales[at]);
        }
    for (uint32_t row = 0; row < rows; row += 3)
        weights[(size_t)row * cols + test_below(rng, cols)] ^= 1;
    free(scales);
    return weights;
}

void was_fp8_encode(const uint16_t *weights, trf_favor favor, uint32_t rows, uint32_t cols, void **blob,
                    uint64_t *blob_bytes) {
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, rows, cols);
    trf_encode_options options;
    trf_error err = {0};
    trf_encode_options_init(&options);
    options.codec = TRF_CODEC_E4M3;
    options.favor = favor;
    ck_assert_msg(trf_encode_layer(&matrix, &options, blob, blob_bytes, NULL, &err) == TRF_OK, "%s", err.message);
}
