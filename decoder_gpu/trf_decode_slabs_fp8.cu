/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that decode slabs of the fp8 codecs. */
#include "trf_decode_slabs.cuh"

template <class Codec> static trf_write_kernel pick_bytes_of(uint32_t bytes, bool default_p) {
    return bytes == 1 ? trf_write_kernel_of<Codec, 1>(default_p) : trf_write_kernel_of<Codec, 2>(default_p);
}

template <int kClassBits> using scaled_fp8 = trf_codec_config<TRF_CODEC_E4M3, kClassBits, 0, false, true>;

trf_write_kernel trf_write_kernel_scaled_fp8(uint32_t class_bits, bool default_p) {
    return class_bits == 2 ? trf_write_kernel_of<scaled_fp8<2>, 2>(default_p)
                           : trf_write_kernel_of<scaled_fp8<4>, 2>(default_p);
}

trf_write_kernel trf_write_kernel_fp8(uint32_t codec, uint32_t class_bits, uint32_t bytes, bool default_p) {
    if (codec == TRF_CODEC_E5M2)
        return class_bits == 2 ? pick_bytes_of<trf_codec_config<TRF_CODEC_E5M2, 2>>(bytes, default_p)
                               : pick_bytes_of<trf_codec_config<TRF_CODEC_E5M2, 4>>(bytes, default_p);
    return class_bits == 2 ? pick_bytes_of<trf_codec_config<TRF_CODEC_E4M3, 2>>(bytes, default_p)
                           : pick_bytes_of<trf_codec_config<TRF_CODEC_E4M3, 4>>(bytes, default_p);
}
