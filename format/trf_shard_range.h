/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of a matrix a shard is. C and CUDA. */
#ifndef TRF_SHARD_RANGE_H
#define TRF_SHARD_RANGE_H

#include <stdint.h>

/* Which rows and columns of a layer's matrix are meant: all of them, or those of a shard, which has whole tiles. */
typedef struct trf_shard_range {
    uint32_t row, rows, col, cols;
} trf_shard_range;

#endif
