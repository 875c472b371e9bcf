/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_weights.h"

#include "bench_random.h"
#include "cli_float.h"
#include "cli_messages.h"
#include "transfuse/device_memory.h"

#include <math.h>
#include <string.h>

static const double kFreedom = 5;

/* Draws a number that is uniform in [-1, 1). */
static double draw_uniform(uint64_t *state) { return (double)(int64_t)bench_random(state) * 0x1p-63; }

/* Marsaglia's polar method for the normal distribution (two values from a point of the unit disc), Bailey's for
 * Student-t (one value). R. W. Bailey, Mathematics of Computation 62 (1994). */
void bench_draw(float *weights, uint64_t n, int student_t) {
    uint64_t state = 1, i = 0;
    while (i < n) {
        double u = draw_uniform(&state), v = draw_uniform(&state), w = u * u + v * v;
        if (w >= 1 || w == 0)
            continue;
        if (student_t) {
            weights[i++] = (float)(u * sqrt(kFreedom * (pow(w, -2 / kFreedom) - 1) / w));
        } else {
            double scale = sqrt(-2 * log(w) / w);
            weights[i++] = (float)(u * scale);
            if (i < n)
                weights[i++] = (float)(v * scale);
        }
    }
}

static float largest_magnitude(const float *weights, uint64_t n) {
    float largest = 0;
    for (uint64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(weights[i]));
    return largest;
}

static void make_int8(const float *weights, cli_shape shape, int8_t *target) {
    for (uint32_t row = 0; row < shape.rows; row++) {
        const float *in = weights + (uint64_t)row * shape.cols;
        int8_t *out = target + (uint64_t)row * shape.cols;
        float largest = largest_magnitude(in, shape.cols), scale = largest > 0 ? 127 / largest : 0;
        for (uint32_t k = 0; k < shape.cols; k++)
            out[k] = (int8_t)rintf(in[k] * scale);
    }
}

void bench_make_source(const float *weights, cli_shape shape, double sigma, trf_dtype dtype, void *target) {
    uint64_t n = (uint64_t)shape.rows * shape.cols;
    if (dtype == TRF_DTYPE_I8) {
        make_int8(weights, shape, target);
        return;
    }
    float scale = (float)sigma;
    if (dtype == TRF_DTYPE_F8_E4M3 || dtype == TRF_DTYPE_F8_E5M2) {
        float largest = largest_magnitude(weights, n);
        scale = largest > 0 ? cli_dtype_max(dtype) / largest : 1;
    }
    size_t bytes = trf_dtype_bytes(dtype);
    for (uint64_t i = 0; i < n; i++) {
        float weight = weights[i] * scale;
        uint32_t code = bytes < 4 ? cli_float_to_bits(weight, dtype) : 0;
        if (bytes == 4)
            ((float *)target)[i] = weight;
        else if (bytes == 2)
            ((uint16_t *)target)[i] = (uint16_t)code;
        else
            ((uint8_t *)target)[i] = (uint8_t)code;
    }
}

/* Rounds a block of scale 1 to codes and multiplies them by their scale. */
static void make_scaled_block(const float *from, uint32_t rows, uint32_t cols, uint64_t stride, float sigma,
                              uint16_t *to) {
    float largest = 0;
    for (uint32_t r = 0; r < rows; r++)
        largest = fmaxf(largest, largest_magnitude(from + r * stride, cols));
    const float scale = largest > 0 ? largest * sigma / cli_dtype_max(TRF_DTYPE_F8_E4M3) : 1;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++) {
            const uint32_t code = cli_float_to_bits(from[r * stride + c] * sigma / scale, TRF_DTYPE_F8_E4M3);
            const float weight = cli_bits_to_float(code, TRF_DTYPE_F8_E4M3) * scale;
            to[r * stride + c] = (uint16_t)cli_float_to_bits(weight, TRF_DTYPE_BF16);
        }
}

void bench_make_scaled_fp8(const float *weights, cli_shape shape, double sigma, uint16_t *target) {
    enum {
        SIDE = 128 /* of a scale block */
    };
    for (uint32_t row = 0; row < shape.rows; row += SIDE)
        for (uint32_t col = 0; col < shape.cols; col += SIDE) {
            const uint32_t rows = shape.rows - row < SIDE ? shape.rows - row : SIDE,
                           cols = shape.cols - col < SIDE ? shape.cols - col : SIDE;
            const uint64_t at = (uint64_t)row * shape.cols + col;
            make_scaled_block(weights + at, rows, cols, shape.cols, (float)sigma, target + at);
        }
}

int bench_encode(const void *weights, trf_dtype dtype, cli_shape shape, const trf_encode_options *options,
                 bench_blob *blob) {
    trf_matrix matrix;
    trf_error err = {0};
    trf_matrix_init(&matrix);
    matrix.weights = weights;
    matrix.dtype = dtype;
    matrix.rows = shape.rows;
    matrix.cols = shape.cols;
    trf_free(blob->bytes);
    blob->bytes = NULL;
    if (!trf_encode_layer(&matrix, options, &blob->bytes, &blob->size, &blob->report, &err))
        return 0;
    cli_report_error(&err);
    return -1;
}
