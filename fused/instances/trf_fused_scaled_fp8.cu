/* SPDX-License-Identifier: Apache-2.0 */
/* Fused and grouped kernels of scaled FP8, whose weights are BF16 numbers as x is. */
#include "trf_group_instances.cuh"

template <int kClassBits> using scaled_fp8 = trf_codec_config<TRF_CODEC_E4M3, kClassBits, 0, true, true>;

trf_fused_kernel trf_fused_scaled_fp8(int class_bits, int x_tiles, int variant) {
    return class_bits == 2 ? trf_fused_pick<scaled_fp8<2>, trf_bf16_type, false>(x_tiles, variant)
                           : trf_fused_pick<scaled_fp8<4>, trf_bf16_type, false>(x_tiles, variant);
}

trf_group_kernel trf_group_scaled_fp8(uint32_t class_bits) {
    return class_bits == 2 ? trf_group_pick<scaled_fp8<2>, trf_bf16_type, 2>()
                           : trf_group_pick<scaled_fp8<4>, trf_bf16_type, 1>();
}
