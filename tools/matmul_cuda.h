/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse matmul --device cuda */
#ifndef MATMUL_CUDA_H
#define MATMUL_CUDA_H

#include "cli_options.h"

/* What a product was; the CPU's have no reason and no device. */
typedef struct matmul_report {
    trf_path path;      /* the one that was taken */
    const char *reason; /* why not FUSED; NULL if FUSED, or if --path asked for a path */
    char device[128];
    double seconds; /* copies of x and y, and the products; not the upload of the layer */
} matmul_report;

/* y[m][rows] = x[m][cols] . W^T of the .trf file options->arguments[0], on the device of `context`; x, y: host. x is
 * rounded to the type that the layer's codec multiplies; a finite value that would become infinite is an error. Errors
 * are printed. */
cli_exit matmul_on_device(const cli_options *options, trf_context *context, const float *x, uint64_t m, float *y,
                          matmul_report *report);

#endif
