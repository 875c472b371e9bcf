/* Fused kernels of the fp16 codec. */
#include "trf_fused_variants.cuh"

trf_fused_kernel trf_fused_fp16(int class_bits, int tiles, int geometry) {
    if (class_bits == 2)
        return trf_pick<trf_form<TRF_CODEC_FP16, 2>, trf_f16_type, false>(tiles, geometry);
    return trf_pick<trf_form<TRF_CODEC_FP16, 4>, trf_f16_type, false>(tiles, geometry);
}
