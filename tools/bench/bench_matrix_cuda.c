/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_matrix_cuda.h"

#include "bench_memory.h"
#include "cli_cuda.h"
#include "cli_float.h"
#include "cli_messages.h"

#include <math.h>
#include <stdlib.h>

enum {
    SAMPLE_ROWS = 32
};
static const double kSigma = 0.02;

/* drawn: weights of scale 1, which are changed. */
static int compress(bench_matrix *matrix, float *drawn, const cli_options *options) {
    const cli_shape shape = matrix->shape;
    trf_encode_options encode;
    trf_encode_options_init(&encode);
    encode.codec = TRF_CODEC_BF16;
    encode.threads = options->threads;
    encode.verify = 0;
    encode.favor = options->has_favor ? options->favor : TRF_FAVOR_SPEED;
    matrix->weights = bench_alloc((uint64_t)shape.rows * shape.cols * sizeof *matrix->weights);
    if (!matrix->weights)
        return -1;
    bench_make_source(drawn, shape, kSigma, TRF_DTYPE_BF16, matrix->weights);
    return bench_encode(matrix->weights, TRF_DTYPE_BF16, shape, &encode, &matrix->blob);
}

int bench_matrix_make(bench_matrix *matrices, uint32_t count, cli_shape shape, const cli_options *options) {
    const uint64_t weights = (uint64_t)shape.rows * shape.cols;
    float *drawn = bench_alloc(count * weights * sizeof *drawn);
    int failed = !drawn;
    if (!failed)
        bench_draw(drawn, count * weights, 0);
    for (uint32_t i = 0; !failed && i < count; i++) {
        matrices[i].shape = shape;
        failed = compress(&matrices[i], drawn + i * weights, options);
    }
    free(drawn);
    return failed ? -1 : 0;
}

void bench_matrix_free(bench_matrix *matrix) {
    trf_free(matrix->blob.bytes);
    free(matrix->weights);
    *matrix = (bench_matrix){0};
}

int bench_matrix_upload(const bench_matrix *matrix, trf_context *context, trf_device_layer **layer) {
    trf_error err = {0};
    if (trf_device_layer_create(context, matrix->blob.bytes, matrix->blob.size, NULL, layer, &err) == TRF_OK)
        return 0;
    cli_report_error(&err);
    return -1;
}

int bench_matrix_draw_x(uint64_t rows, uint32_t cols, void **x, uint16_t **kept) {
    const uint64_t count = rows * cols;
    float *drawn = bench_alloc(count * sizeof *drawn);
    *kept = bench_alloc(count * sizeof **kept);
    *x = cli_cuda_alloc(count * sizeof **kept);
    int failed = !drawn || !*kept || !*x;
    if (!failed) {
        bench_draw(drawn, count, 0);
        for (uint64_t i = 0; i < count; i++)
            (*kept)[i] = (uint16_t)cli_float_to_bits(drawn[i], TRF_DTYPE_BF16);
        failed =
            cli_cuda_check(cudaMemcpy(*x, *kept, count * sizeof **kept, cudaMemcpyHostToDevice), "bench: copying x");
    }
    free(drawn);
    return failed ? -1 : 0;
}

int bench_matrix_add_error(const bench_matrix *matrix, const uint16_t *x, uint32_t m, const void *y,
                           bench_error *error) {
    const uint64_t rows = matrix->shape.rows, cols = matrix->shape.cols;
    uint16_t *found = bench_alloc(m * rows * sizeof *found);
    if (!found)
        return -1;
    int failed =
        cli_cuda_check(cudaMemcpy(found, y, m * rows * sizeof *found, cudaMemcpyDeviceToHost), "bench: reading y");
    for (uint32_t i = 0; !failed && i < m; i++)
        for (uint64_t n = 0; n < SAMPLE_ROWS && n < rows; n++) {
            const uint64_t row = n * rows / SAMPLE_ROWS < rows ? n * rows / SAMPLE_ROWS : n; /* spread over all */
            double sum = 0;
            for (uint64_t k = 0; k < cols; k++)
                sum += (double)cli_bits_to_float(matrix->weights[row * cols + k], TRF_DTYPE_BF16) *
                       (double)cli_bits_to_float(x[i * cols + k], TRF_DTYPE_BF16);
            const double off = (double)cli_bits_to_float(found[i * rows + row], TRF_DTYPE_BF16) - sum;
            error->energy += sum * sum;
            error->difference += off * off;
        }
    free(found);
    return failed ? -1 : 0;
}

void bench_error_finish(const bench_error *error, bench_figure *figure) {
    const double relative = error->energy > 0 ? sqrt(error->difference / error->energy) : sqrt(error->difference);
    bench_add_real(&figure->details, "error", relative);
}
