/* SPDX-License-Identifier: Apache-2.0 */
/* Fused kernels of the fp16 codec. */
#include "trf_fused_instances.cuh"

trf_fused_kernel trf_fused_fp16(int class_bits, int x_tiles, int variant) {
    if (class_bits == 2)
        return trf_fused_pick<trf_codec_config<TRF_CODEC_FP16, 2>, trf_f16_type, false>(x_tiles, variant);
    return trf_fused_pick<trf_codec_config<TRF_CODEC_FP16, 4>, trf_f16_type, false>(x_tiles, variant);
}
