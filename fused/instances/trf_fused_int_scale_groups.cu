/* SPDX-License-Identifier: Apache-2.0 */
/* Fused kernels of the int codec with scale groups. */
#include "trf_fused_instances.cuh"

trf_fused_kernel trf_fused_int_scale_groups(int class_bits, int bf16_x, int x_tiles, int variant) {
    return trf_fused_pick_codec<trf_codec_config<TRF_CODEC_INT, 2>, trf_codec_config<TRF_CODEC_INT, 4>, true>(
        class_bits, bf16_x, x_tiles, variant);
}
