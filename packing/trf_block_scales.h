/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the scales of dense BF16 weights that are FP8 E4M3 codes times a scale for each scale block of 128x128, on the
 * CPU. This is the reference for what trf_launch_find_fp8 finds, scale for scale. */
#ifndef TRF_BLOCK_SCALES_H
#define TRF_BLOCK_SCALES_H

#include "trf_find_fp8_launch.h"

/* Looks for the scales of a row of scale blocks. rows: dense rows in host memory, from the layer's first row on.
 * checks_all: as in trf_launch_find_fp8. scales: [block columns], 2^-100 <= scale < 2^7. *found: added to. Thread-safe
 * for distinct *found. @return whether each block has a scale; if not, found->refused is set, and what was written to
 * scales does not count. */
int trf_find_block_scales(const trf_rows_to_pack *rows, uint64_t block_row, int checks_all, float *scales,
                          trf_found_fp8 *found);

#endif
