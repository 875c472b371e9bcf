/* SPDX-License-Identifier: Apache-2.0 */
/* Fused kernels of the int codec without scale groups. */
#include "trf_fused_instances.cuh"

template <int kRawBits> static trf_fused_kernel pick_raw_bits(int bf16_x, int x_tiles) {
    using Codec = trf_codec_config<TRF_CODEC_INT, 2, kRawBits>;
    return bf16_x ? trf_fused_pick_two_slabs<Codec, trf_bf16_type, false>(x_tiles)
                  : trf_fused_pick_two_slabs<Codec, trf_f16_type, false>(x_tiles);
}

trf_fused_kernel trf_fused_int(int class_bits, uint32_t raw_bits, int bf16_x, int x_tiles, int variant) {
    if (variant == TRF_VARIANT_TWO_SLABS && trf_has_known_planes(TRF_CODEC_INT, class_bits, raw_bits))
        return raw_bits == 3 ? pick_raw_bits<3>(bf16_x, x_tiles) : pick_raw_bits<6>(bf16_x, x_tiles);
    return trf_fused_pick_codec<trf_codec_config<TRF_CODEC_INT, 2>, trf_codec_config<TRF_CODEC_INT, 4>, false>(
        class_bits, bf16_x, x_tiles, variant);
}
