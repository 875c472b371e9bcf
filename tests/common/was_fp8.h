/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 weights that were FP8 E4M3 with scales. */
#ifndef WAS_FP8_H
#define WAS_FP8_H

#include "common/test_weights.h"
#include "transfuse.h"

/* Makes normally distributed codes times F32 scales (TENSOR, CHANNEL, or SCALE_BLOCK of 128x128), and changes one
 * weight in each third row, as many as the encoder bears in rows of 256 weights. @return [rows][cols], malloc'd. */
uint16_t *was_fp8_make(test_rng *rng, trf_granularity granularity, uint32_t rows, uint32_t cols);

/* Encodes such weights as that. *blob: release with trf_free. */
void was_fp8_encode(const uint16_t *weights, trf_favor favor, uint32_t rows, uint32_t cols, void **blob,
                    uint64_t *blob_bytes);

#endif
