/* Weights of a source tensor as numbers, and how far decoded ones are from them. */
#ifndef TRF_WEIGHTS_H
#define TRF_WEIGHTS_H

#include "trf_file.h"

/* Widens `count` values of a dtype. Exact. */
void trf_weights_to_f32(trf_dtype dtype, const void *values, size_t count, float *out);

/* Sum of squares of the finite weights stored at `offset` of a file. buffer: buffer_bytes of scratch, at least 64 KiB.
 * Errors: TRF_ERR_IO, _TRUNCATED. */
trf_status trf_weights_energy(const trf_file *file, uint64_t offset, uint64_t bytes, trf_dtype dtype, uint8_t *buffer,
                              size_t buffer_bytes, double *energy, trf_error *err);

#endif
