/* Wide kernels of the fp8 and int codecs. */
#include "trf_wide_variants.cuh"

template <class Form> static trf_wide_kernel pick_type(int bf16_x, int columns, int share) {
    return bf16_x ? trf_pick_wide<Form, trf_bf16_type>(columns, share)
                  : trf_pick_wide<Form, trf_f16_type>(columns, share);
}

trf_wide_kernel trf_wide_code(uint32_t codec, int class_bits, int bf16_x, int columns, int share) {
    if (codec == TRF_CODEC_E5M2)
        return class_bits == 2 ? pick_type<trf_form<TRF_CODEC_E5M2, 2>>(bf16_x, columns, share)
                               : pick_type<trf_form<TRF_CODEC_E5M2, 4>>(bf16_x, columns, share);
    if (codec == TRF_CODEC_E4M3)
        return class_bits == 2 ? pick_type<trf_form<TRF_CODEC_E4M3, 2, 0, true>>(bf16_x, columns, share)
                               : pick_type<trf_form<TRF_CODEC_E4M3, 4, 0, true>>(bf16_x, columns, share);
    return class_bits == 2 ? pick_type<trf_form<TRF_CODEC_INT, 2>>(bf16_x, columns, share)
                           : pick_type<trf_form<TRF_CODEC_INT, 4>>(bf16_x, columns, share);
}
