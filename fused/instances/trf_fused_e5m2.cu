/* SPDX-License-Identifier: Apache-2.0 */
/* Fused kernels of the e5m2 codec. */
#include "trf_fused_instances.cuh"

trf_fused_kernel trf_fused_e5m2(int class_bits, int bf16_x, int x_tiles, int variant) {
    return trf_fused_pick_codec<trf_codec_config<TRF_CODEC_E5M2, 2>, trf_codec_config<TRF_CODEC_E5M2, 4>, false>(
        class_bits, bf16_x, x_tiles, variant);
}
