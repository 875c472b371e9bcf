/* SPDX-License-Identifier: Apache-2.0 */
/* An *accumulator tile*: the sums of 16 rows of W by 8 rows of x, as one mma instruction adds to them. C and CUDA. */
#ifndef TRF_ACC_TILE_H
#define TRF_ACC_TILE_H

enum {
    TRF_ACC_TILE_BYTES = 512 /* 16 bytes a lane */
};

#endif
