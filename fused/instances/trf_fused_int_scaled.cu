/* Fused kernels of the int codec with scales of groups. */
#include "trf_fused_variants.cuh"

trf_fused_kernel trf_fused_int_scaled(int class_bits, int bf16_x, int tiles, int geometry) {
    return trf_pick_form<trf_form<TRF_CODEC_INT, 2>, trf_form<TRF_CODEC_INT, 4>, true>(class_bits, bf16_x, tiles,
                                                                                       geometry);
}
