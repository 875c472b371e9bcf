/* Fused kernels of the e4m3 codec. */
#include "trf_fused_variants.cuh"

trf_fused_kernel trf_fused_e4m3(int class_bits, int bf16_x, int tiles, int geometry) {
    return trf_pick_form<trf_form<TRF_CODEC_E4M3, 2, 0, true>, trf_form<TRF_CODEC_E4M3, 4, 0, true>, false>(
        class_bits, bf16_x, tiles, geometry);
}
