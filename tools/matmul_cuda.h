/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse matmul --device cuda */
#ifndef MATMUL_CUDA_H
#define MATMUL_CUDA_H

#include "cli_options.h"

/* How a product was computed. On the CPU there is no reason and no device. */
typedef struct matmul_report {
    trf_path path;      /* the one that was taken */
    const char *reason; /* why the path is not FUSED; NULL if it is, or if --path named one */
    char device[128];
    double seconds; /* copies of x and y, and the products; not the upload of the layer */
} matmul_report;

/* Computes y[m][rows] = x[m][cols] . W^T on the device of `context`, where W is the layer in the .trf file
 * options->arguments[0]. x, y: host. x is rounded to the type that the layer's codec multiplies; it is an error if a
 * finite value would become infinite. Errors are printed. */
cli_exit matmul_on_device(const cli_options *options, trf_context *context, const float *x, uint64_t m, float *y,
                          matmul_report *report);

#endif
