/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 matrices for the bench modes that need nothing else: they are compressed on the host and copied to the device as
 * often as wanted, and their products are computed in F64. Built only with device code. */
#ifndef BENCH_MATRIX_CUDA_H
#define BENCH_MATRIX_CUDA_H

#include "bench_figure.h"
#include "bench_weights.h"

#include <cuda_runtime_api.h>

typedef struct bench_matrix {
    cli_shape shape;
    uint16_t *weights; /* BF16, [rows][cols] */
    bench_blob blob;
} bench_matrix;

/* All: @return 0, or -1 after a message. */

/* Draws `count` matrices of one shape, each with weights of its own, and compresses them. matrices: all zero; release
 * each with bench_matrix_free in either case. */
int bench_matrix_make(bench_matrix *matrices, uint32_t count, cli_shape shape, const cli_options *options);
void bench_matrix_free(bench_matrix *matrix);

/* Makes a device layer of the matrix. */
int bench_matrix_upload(const bench_matrix *matrix, trf_context *context, trf_device_layer **layer);

/* x: device, normal BF16, [rows][cols]; kept: the same on the host, malloc'd. */
int bench_matrix_draw_x(uint64_t rows, uint32_t cols, void **x, uint16_t **kept);

/* A relative error is the root of difference / energy. */
typedef struct bench_error {
    double energy, difference; /* sums of squares: of the products in F64, and of y's differences from them */
} bench_error;

/* Adds the error of BF16 y[m][rows], which is on the device, against x . W^T in F64 for a sample of W's rows. x: host,
 * BF16, [m][cols]. */
int bench_matrix_add_error(const bench_matrix *matrix, const uint16_t *x, uint32_t m, const void *y,
                           bench_error *error);

/* Adds the figure's detail "error". */
void bench_error_finish(const bench_error *error, bench_figure *figure);

#endif
