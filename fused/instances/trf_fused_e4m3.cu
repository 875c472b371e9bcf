/* SPDX-License-Identifier: Apache-2.0 */
/* Fused kernels of the e4m3 codec. */
#include "trf_fused_instances.cuh"

trf_fused_kernel trf_fused_e4m3(int class_bits, int bf16_x, int x_tiles, int variant) {
    return trf_fused_pick_codec<trf_codec_config<TRF_CODEC_E4M3, 2, 0, true>,
                                trf_codec_config<TRF_CODEC_E4M3, 4, 0, true>, false>(class_bits, bf16_x, x_tiles,
                                                                                     variant);
}
