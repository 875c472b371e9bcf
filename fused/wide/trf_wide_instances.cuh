/* SPDX-License-Identifier: Apache-2.0 */
/* The list of wide kernels. There are kernels for every codec without scale groups except bf16, whose layers can be
 * loaded packed for large batches; for quads and pairs; for each type of x that the codec takes; and for up to 64 or up
 * to 128 rows of x a block (with loops for 48, 64, 80, 96, 112 and 128 rows). Those for 128 rows also exist with two
 * blocks that decode for each other. */
#ifndef TRF_WIDE_INSTANCES_CUH
#define TRF_WIDE_INSTANCES_CUH

#include "trf_wide_kernel.cuh"

typedef void (*trf_wide_kernel)(trf_wide_args);

template <class Codec, class Type> static trf_wide_kernel trf_wide_pick(int max_x_rows, int decoding_blocks) {
    return max_x_rows == 64       ? trf_wide<Codec, Type, 64, 1>
           : decoding_blocks == 1 ? trf_wide<Codec, Type, 128, 1>
                                  : trf_wide<Codec, Type, 128, 2>;
}

/* One function for each .cu. */
trf_wide_kernel trf_wide_fp16(int class_bits, int max_x_rows, int decoding_blocks);
trf_wide_kernel trf_wide_8_bit(uint32_t codec, int class_bits, int bf16_x, int max_x_rows,
                               int decoding_blocks); /* fp8, int */
trf_wide_kernel trf_wide_scaled_fp8(int class_bits, int max_x_rows, int decoding_blocks);

#endif
