/* SPDX-License-Identifier: Apache-2.0 */
/* Wide kernels of the fp8 and int codecs. */
#include "trf_wide_instances.cuh"

template <class Codec> static trf_wide_kernel pick_type(int bf16_x, int max_x_rows, int decoding_blocks) {
    return bf16_x ? trf_wide_pick<Codec, trf_bf16_type>(max_x_rows, decoding_blocks)
                  : trf_wide_pick<Codec, trf_f16_type>(max_x_rows, decoding_blocks);
}

trf_wide_kernel trf_wide_8_bit(uint32_t codec, int class_bits, int bf16_x, int max_x_rows, int decoding_blocks) {
    if (codec == TRF_CODEC_E5M2)
        return class_bits == 2 ? pick_type<trf_codec_config<TRF_CODEC_E5M2, 2>>(bf16_x, max_x_rows, decoding_blocks)
                               : pick_type<trf_codec_config<TRF_CODEC_E5M2, 4>>(bf16_x, max_x_rows, decoding_blocks);
    if (codec == TRF_CODEC_E4M3)
        return class_bits == 2
                   ? pick_type<trf_codec_config<TRF_CODEC_E4M3, 2, 0, true>>(bf16_x, max_x_rows, decoding_blocks)
                   : pick_type<trf_codec_config<TRF_CODEC_E4M3, 4, 0, true>>(bf16_x, max_x_rows, decoding_blocks);
    return class_bits == 2 ? pick_type<trf_codec_config<TRF_CODEC_INT, 2>>(bf16_x, max_x_rows, decoding_blocks)
                           : pick_type<trf_codec_config<TRF_CODEC_INT, 4>>(bf16_x, max_x_rows, decoding_blocks);
}
