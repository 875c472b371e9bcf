/* SPDX-License-Identifier: Apache-2.0 */
/* Fused kernels of the bf16 codec. */
#include "trf_fused_instances.cuh"

trf_fused_kernel trf_fused_bf16(int class_bits, int x_tiles, int variant) {
    if (class_bits == 2)
        return trf_fused_pick<trf_codec_config<TRF_CODEC_BF16, 2>, trf_bf16_type, false>(x_tiles, variant);
    return trf_fused_pick<trf_codec_config<TRF_CODEC_BF16, 4>, trf_bf16_type, false>(x_tiles, variant);
}
