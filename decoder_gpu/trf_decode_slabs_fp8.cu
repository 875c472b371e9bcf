/* The kernels that decode slabs of the fp8 codecs. */
#include "trf_decode_slabs.cuh"

template <class Traits> static trf_store_kernel pick_bytes_of(uint32_t bytes, bool default_p) {
    return bytes == 1 ? trf_store_kernel_of<Traits, 1>(default_p) : trf_store_kernel_of<Traits, 2>(default_p);
}

trf_store_kernel trf_store_kernel_fp8(uint32_t codec, uint32_t class_bits, uint32_t bytes, bool default_p) {
    if (codec == TRF_CODEC_E5M2)
        return class_bits == 2 ? pick_bytes_of<trf_codec_traits<TRF_CODEC_E5M2, 2>>(bytes, default_p)
                               : pick_bytes_of<trf_codec_traits<TRF_CODEC_E5M2, 4>>(bytes, default_p);
    return class_bits == 2 ? pick_bytes_of<trf_codec_traits<TRF_CODEC_E4M3, 2>>(bytes, default_p)
                           : pick_bytes_of<trf_codec_traits<TRF_CODEC_E4M3, 4>>(bytes, default_p);
}
