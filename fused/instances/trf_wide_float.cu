/* Wide kernels of the bf16 and fp16 codecs. */
#include "trf_wide_variants.cuh"

trf_wide_kernel trf_wide_float(uint32_t codec, int class_bits, int columns, int share) {
    if (codec == TRF_CODEC_BF16)
        return class_bits == 2 ? trf_pick_wide<trf_form<TRF_CODEC_BF16, 2>, trf_bf16_type>(columns, share)
                               : trf_pick_wide<trf_form<TRF_CODEC_BF16, 4>, trf_bf16_type>(columns, share);
    return class_bits == 2 ? trf_pick_wide<trf_form<TRF_CODEC_FP16, 2>, trf_f16_type>(columns, share)
                           : trf_pick_wide<trf_form<TRF_CODEC_FP16, 4>, trf_f16_type>(columns, share);
}
