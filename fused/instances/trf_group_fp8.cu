/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped kernels of the fp8 codecs. */
#include "trf_group_instances.cuh"

template <class Codec> static trf_group_kernel pick_x(bool bf16_x) {
    constexpr int kSlabs = Codec::kClassBits == 2 ? 2 : 1;
    return bf16_x ? trf_group_pick<Codec, trf_bf16_type, kSlabs>() : trf_group_pick<Codec, trf_f16_type, kSlabs>();
}

trf_group_kernel trf_group_fp8(bool e5m2, uint32_t class_bits, bool bf16_x) {
    if (e5m2)
        return class_bits == 2 ? pick_x<trf_codec_config<TRF_CODEC_E5M2, 2>>(bf16_x)
                               : pick_x<trf_codec_config<TRF_CODEC_E5M2, 4>>(bf16_x);
    return class_bits == 2 ? pick_x<trf_codec_config<TRF_CODEC_E4M3, 2, 0, true>>(bf16_x)
                           : pick_x<trf_codec_config<TRF_CODEC_E4M3, 4, 0, true>>(bf16_x);
}
