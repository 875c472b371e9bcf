/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that decode slabs of the bf16 and fp16 codecs. */
#include "trf_decode_slabs.cuh"

template <int kClassBits> static trf_write_kernel pick_bf16(uint32_t bytes, bool default_p) {
    return bytes == 4 ? trf_write_kernel_of<trf_codec_config<TRF_CODEC_BF16, kClassBits>, 4>(default_p)
                      : trf_write_kernel_of<trf_codec_config<TRF_CODEC_BF16, kClassBits>, 2>(default_p);
}

trf_write_kernel trf_write_kernel_bf16(uint32_t class_bits, uint32_t bytes, bool default_p) {
    return class_bits == 2 ? pick_bf16<2>(bytes, default_p) : pick_bf16<4>(bytes, default_p);
}

trf_write_kernel trf_write_kernel_fp16(uint32_t class_bits, bool default_p) {
    return class_bits == 2 ? trf_write_kernel_of<trf_codec_config<TRF_CODEC_FP16, 2>, 2>(default_p)
                           : trf_write_kernel_of<trf_codec_config<TRF_CODEC_FP16, 4>, 2>(default_p);
}
