/* Wide kernels. */
#include "trf_wide_variants.cuh"

template <class Form, class Type> static trf_wide_kernel pick(int columns, int share) {
    return columns == 64 ? trf_wide<Form, Type, 64, 1>
           : share == 1  ? trf_wide<Form, Type, 128, 1>
                         : trf_wide<Form, Type, 128, 2>;
}

template <class Form> static trf_wide_kernel pick_type(int bf16_x, int columns, int share) {
    return bf16_x ? pick<Form, trf_bf16_type>(columns, share) : pick<Form, trf_f16_type>(columns, share);
}

trf_wide_kernel trf_wide_float(uint32_t codec, int class_bits, int columns, int share) {
    if (codec == TRF_CODEC_BF16)
        return class_bits == 2 ? pick<trf_form<TRF_CODEC_BF16, 2>, trf_bf16_type>(columns, share)
                               : pick<trf_form<TRF_CODEC_BF16, 4>, trf_bf16_type>(columns, share);
    return class_bits == 2 ? pick<trf_form<TRF_CODEC_FP16, 2>, trf_f16_type>(columns, share)
                           : pick<trf_form<TRF_CODEC_FP16, 4>, trf_f16_type>(columns, share);
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
