/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of a matrix a shard is. C and CUDA. */
#ifndef TRF_SHARD_RANGE_H
#define TRF_SHARD_RANGE_H

#include <stdint.h>

/* Where a shard lies in the tiles that are loaded for it, which are whole: its first row and column, counted from the
 * first of these tiles, and how many rows and columns there are. For a whole matrix, and for a layer that is not coded,
 * row and col are 0. */
typedef struct trf_shard_range {
    uint32_t row, rows, col, cols;
} trf_shard_range;

#endif
