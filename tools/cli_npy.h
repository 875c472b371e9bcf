/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in .npy files, as numpy.save writes them. */
#ifndef CLI_NPY_H
#define CLI_NPY_H

#include "cli_options.h"

/* Reads a 1-D (one row) or 2-D array of '<f4' or '<f2' in C order. *values: [rows][cols], malloc'd. err may be NULL.
 * Errors: TRF_ERR_NOT_FOUND, TRF_ERR_IO, TRF_ERR_FORMAT, TRF_ERR_TRUNCATED, TRF_ERR_MEMORY. */
trf_status cli_read_npy(const char *path, float **values, uint64_t *rows, uint64_t *cols, trf_error *err);

/* Writes a 2-D array of '<f4', completely or not at all. @return as cli_file_begin. */
cli_exit cli_write_npy(const char *path, const float *values, uint64_t rows, uint64_t cols, int force);

#endif
