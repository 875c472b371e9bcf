/* SPDX-License-Identifier: Apache-2.0 */
/* The quantizer of the int codec: it finds the scales of float weights and their codes, and estimates what a step would
 * cost before it is tried.
 *
 * A scale region is the weights that share a scale: the tensor, a row, a scale group or a scale block. A weight w
 * becomes the code w / scale, rounded to nearest, ties to even. The scale region's scale is its magnitude (absmax for
 * INT8, root mean square under rate control) times one step common to the whole layer. */
#ifndef TRF_QUANTIZE_H
#define TRF_QUANTIZE_H

#include "trf_blob.h"
#include "trf_encode.h"
#include "trf_symbol_model.h"

typedef struct trf_quantizer trf_quantizer;

/* Reads the source once, in ranges of rows on options->threads workers. It finds every scale region's magnitude and
 * absmax, and takes a sample of up to 2^20 weights (all of a smaller layer) spread evenly over the matrix. It uses
 * these options: bits (0 = INT8), granularity (NONE = channel), scale_group_size, threads. The result does not depend
 * on threads. On success *quantizer is the caller's, to be freed with trf_quantizer_free; on failure it is NULL. Holds
 * 12 bytes a scale region and 0.5 MiB; while it reads also 4 MiB, 1 MiB a worker, and for large scale regions the sums
 * of ranges (a byte a weight at the most). Errors: TRF_ERR_ARGUMENT (source not F32, F16 or BF16, empty,
 * scale_group_size, bits; a weight that is NaN or infinite, named by row and column), TRF_ERR_MEMORY, whatever the
 * source returns. */
trf_status trf_quantizer_create(const trf_source *source, const trf_encode_options *options, trf_quantizer **quantizer,
                                trf_error *err);

void trf_quantizer_free(trf_quantizer *quantizer); /* NULL is allowed */

/* Estimates how often each code would occur with scales of `step` magnitudes: counts[code + TRF_MAX_CODE], adding up to
 * rows * cols. step: positive. Takes some 10 microseconds. Thread-safe. The estimate ignores scale regions whose scale
 * trf_quantizer_set_step has to enlarge. */
void trf_quantizer_estimate(const trf_quantizer *quantizer, double step, double counts[TRF_NUM_CODES]);

/* @return the step of absmax INT8 for a quantizer that was made with bits == 0: 1/127. */
double trf_quantizer_int8_step(const trf_quantizer *quantizer);

/* The range in which rate control has to search. Below min_step every scale region's absmax exceeds TRF_MAX_CODE times
 * its magnitude times the step, so that smaller steps change nothing (with `tensor`, this is where the largest weight
 * reaches TRF_MAX_CODE). At max_step and above all codes are 0. 0 < min_step < max_step holds for an all-zero layer,
 * too. */
double trf_quantizer_min_step(const trf_quantizer *quantizer);
double trf_quantizer_max_step(const trf_quantizer *quantizer);

/* Sets every scale region's scale to its magnitude times step, rounded to the table's dtype; the scale is larger if the
 * region's absmax would exceed TRF_MAX_CODE times that. May be called again, but not while another thread uses the
 * quantizer. Limits: scale regions of zeros get an entry of 1; no scale is below 2^-126 or above 2^127; F16 scales are
 * kept normal numbers, and so no scale is below 2^-29 of the layer's largest. Weights of scale regions that these
 * limits touch are still coded to within half a scale. step: positive. */
void trf_quantizer_set_step(trf_quantizer *quantizer, double step);

/* After trf_quantizer_set_step: the scale table and the extension's fields, as FORMAT.md section 3 has them. The
 * quantizer owns the table; the next trf_quantizer_set_step overwrites it. */
const void *trf_quantizer_table(const trf_quantizer *quantizer, uint64_t *bytes);
trf_granularity trf_quantizer_granularity(const trf_quantizer *quantizer);
trf_scale_dtype trf_quantizer_scale_dtype(const trf_quantizer *quantizer);
uint32_t trf_quantizer_scale_group_size(const trf_quantizer *quantizer); /* 0 for tensor and channel */
int32_t trf_quantizer_scale_exponent(const trf_quantizer *quantizer);    /* q; 0 for F32 scales */

/* After trf_quantizer_set_step: quantizes the rectangle of rows x cols weights from (row, col). weights: row-major
 * [rows][cols] of the source's dtype, as source->read gives them; codes: row-major [rows][cols], -TRF_MAX_CODE ...
 * TRF_MAX_CODE (INT8: -127 ... 127). code * scale differs from the weight by at most half a scale, or a whole one
 * where the next code would dequantize to infinity.
 * Adds to *energy the sum of w^2 and to *error_energy that of (w - dequantized w)^2, in an order that depends on the
 * rectangle alone. Thread-safe. */
void trf_quantizer_codes(const trf_quantizer *quantizer, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols,
                         const void *weights, int16_t *codes, double *energy, double *error_energy);

#endif
