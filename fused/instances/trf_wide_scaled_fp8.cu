/* SPDX-License-Identifier: Apache-2.0 */
/* Wide kernels of scaled FP8, whose weights are BF16 numbers as x is. */
#include "trf_wide_instances.cuh"

template <int kClassBits> using scaled_fp8 = trf_codec_config<TRF_CODEC_E4M3, kClassBits, 0, true, true>;

trf_wide_kernel trf_wide_scaled_fp8(int class_bits, int max_x_rows, int decoding_blocks) {
    return class_bits == 2 ? trf_wide_pick<scaled_fp8<2>, trf_bf16_type>(max_x_rows, decoding_blocks)
                           : trf_wide_pick<scaled_fp8<4>, trf_bf16_type>(max_x_rows, decoding_blocks);
}
