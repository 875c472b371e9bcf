/* The kernels that decode slabs of the int codec. */
#include "trf_decode_slabs.cuh"

template <class Traits> static trf_store_kernel pick_bytes_of(uint32_t bytes, bool default_p) {
    return bytes == 1   ? trf_store_kernel_of<Traits, 1>(default_p)
           : bytes == 2 ? trf_store_kernel_of<Traits, 2>(default_p)
                        : trf_store_kernel_of<Traits, 4>(default_p);
}

trf_store_kernel trf_store_kernel_int(uint32_t class_bits, uint32_t bytes, bool default_p) {
    return class_bits == 2 ? pick_bytes_of<trf_codec_traits<TRF_CODEC_INT, 2>>(bytes, default_p)
                           : pick_bytes_of<trf_codec_traits<TRF_CODEC_INT, 4>>(bytes, default_p);
}
