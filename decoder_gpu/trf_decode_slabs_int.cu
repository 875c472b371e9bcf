/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that decode slabs of the int codec. */
#include "trf_decode_slabs.cuh"

template <class Codec> static trf_write_kernel pick_bytes_of(uint32_t bytes, bool default_p) {
    return bytes == 1   ? trf_write_kernel_of<Codec, 1>(default_p)
           : bytes == 2 ? trf_write_kernel_of<Codec, 2>(default_p)
                        : trf_write_kernel_of<Codec, 4>(default_p);
}

trf_write_kernel trf_write_kernel_int(uint32_t class_bits, uint32_t bytes, bool default_p) {
    return class_bits == 2 ? pick_bytes_of<trf_codec_config<TRF_CODEC_INT, 2>>(bytes, default_p)
                           : pick_bytes_of<trf_codec_config<TRF_CODEC_INT, 4>>(bytes, default_p);
}
