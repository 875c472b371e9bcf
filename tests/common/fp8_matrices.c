/* SPDX-License-Identifier: Apache-2.0 */
#include "common/fp8_matrices.h"

#include "trf_number_formats.h"

#include <math.h>
#include <stdlib.h>

/* ---- codes ---- */

double fp8_code_value(uint32_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -magnitude : magnitude;
}

uint16_t fp8_scaled(uint32_t code, float scale) {
    return trf_f64_to_bf16((double)(float)(fp8_code_value(code) * (double)scale));
}

/* The code of a number: to nearest, saturated. */
static uint32_t fp8_quantized(double value) {
    uint32_t best = 0;
    for (uint32_t code = 1; code < 0x7F; code++)
        if (fabs(fp8_code_value(code) - fabs(value)) < fabs(fp8_code_value(best) - fabs(value)))
            best = code;
    return best | (value < 0 ? 0x80 : 0);
}

/* ---- matrices ---- */

fp8_matrix fp8_new_matrix(uint32_t rows, uint32_t cols) {
    return (fp8_matrix){rows, cols, malloc((size_t)rows * cols * sizeof(uint16_t))};
}

/* A scale of any mantissa that suits normally distributed weights: 448 of them is about the largest. */
static float random_scale(test_rng *rng) {
    return (float)(0.0002 * (1 + test_uniform(rng)) * (test_below(rng, 2) ? 1 : 4));
}

fp8_matrix fp8_dequantized(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t region_rows, uint32_t region_cols) {
    fp8_matrix m = fp8_new_matrix(rows, cols);
    const uint32_t across = (cols + region_cols - 1) / region_cols;
    float *scales = malloc(across * sizeof *scales);
    uint32_t codes[1024];
    for (uint32_t i = 0; i < 1024; i++)
        codes[i] = fp8_quantized(130 * test_normal(rng));
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++) {
            if (r % region_rows == 0 && c % region_cols == 0)
                scales[c / region_cols] = random_scale(rng);
            const uint32_t code = r % region_rows == 0 && c % region_cols == 0 ? 0x7E : codes[test_below(rng, 1024)];
            m.weights[(size_t)r * cols + c] = fp8_scaled(code, scales[c / region_cols]);
        }
    free(scales);
    return m;
}

void fp8_spoil(test_rng *rng, fp8_matrix *m, uint32_t among) {
    static const uint16_t odd[] = {0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x0001, 0x8001, 0x007F, 0x7F7F,
                                   0x8000, 0x0000, 0x0080, 0x00FF, 0x3F81, 0xBB03, 0x1234, 0x2345};
    for (size_t i = 0; i < (size_t)m->rows * m->cols; i++)
        if (test_below(rng, among) == 0)
            m->weights[i] = test_below(rng, 2) ? odd[test_below(rng, 16)] : (uint16_t)(m->weights[i] ^ 1);
}

fp8_matrix fp8_other_matrix(test_rng *rng, int kind) {
    enum {
        ROWS = 512,
        COLS = 1024
    };
    fp8_matrix m = kind == FP8_OTHER_FINE_TUNED ? fp8_dequantized(rng, ROWS, COLS, 128, 128)
                   : kind == FP8_OTHER_GROUPS   ? fp8_dequantized(rng, ROWS, COLS, 1, 128)
                                                : fp8_new_matrix(ROWS, COLS);
    static const double fp4[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double scale = 1;
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++) {
        const double normal = test_normal(rng);
        double value = 0;
        if (kind == FP8_OTHER_NORMAL) {
            value = 0.02 * normal;
        } else if (kind == FP8_OTHER_STUDENT) {
            value = 0.02 * test_student(rng, 3);
        } else if (kind == FP8_OTHER_INT8) { /* a scale a row */
            scale = i % COLS ? scale : 0.0006 * (1 + test_uniform(rng));
            value = rint(fmax(-127, fmin(127, 32 * normal))) * scale;
        } else if (kind == FP8_OTHER_NVFP4) { /* scales of 16 */
            scale = i % 16 ? scale : fp8_code_value(fp8_quantized(40 + 60 * test_uniform(rng))) * 1.2345e-4;
            value = fp4[test_below(rng, 8)] * scale * (normal < 0 ? -1 : 1);
        } else if (kind == FP8_OTHER_FINE_TUNED) {
            value = (double)trf_bf16_to_f32(m.weights[i]) + 1e-4 * normal;
        } else if (kind == FP8_OTHER_GROUPS) {
            continue;
        } else if (kind == FP8_OTHER_INT4) { /* scales of 128 */
            scale = i % 128 ? scale : 0.008 * (1 + test_uniform(rng));
            value = rint(fmax(-8, fmin(7, 2.5 * normal))) * scale;
        }
        if (kind == FP8_OTHER_CONSTANTS)
            value = i % 3 ? 0.5 : 1.25;
        m.weights[i] = trf_f64_to_bf16(value); /* zeros, too */
    }
    return m;
}
