/* Fused kernels of the bf16 codec. */
#include "trf_fused_variants.cuh"

trf_fused_kernel trf_fused_bf16(int class_bits, int tiles, int geometry) {
    if (class_bits == 2)
        return trf_pick<trf_form<TRF_CODEC_BF16, 2>, trf_bf16_type, false>(tiles, geometry);
    return trf_pick<trf_form<TRF_CODEC_BF16, 4>, trf_bf16_type, false>(tiles, geometry);
}
