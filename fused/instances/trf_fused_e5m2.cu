/* Fused kernels of the e5m2 codec. */
#include "trf_fused_variants.cuh"

trf_fused_kernel trf_fused_e5m2(int class_bits, int bf16_x, int tiles, int geometry) {
    return trf_pick_form<trf_form<TRF_CODEC_E5M2, 2>, trf_form<TRF_CODEC_E5M2, 4>, false>(class_bits, bf16_x, tiles,
                                                                                          geometry);
}
