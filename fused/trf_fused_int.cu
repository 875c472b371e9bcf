/* Fused kernels of the int codec. */
#include "trf_fused_variants.cuh"

template <int kClassBits, class Type> static trf_fused_kernel trf_pick_int(int scaled, int tiles, int geometry) {
    return scaled ? trf_pick<trf_form<TRF_CODEC_INT, kClassBits>, Type, true>(tiles, geometry)
                  : trf_pick<trf_form<TRF_CODEC_INT, kClassBits>, Type, false>(tiles, geometry);
}

trf_fused_kernel trf_fused_int(int scaled, int class_bits, int bf16_x, int tiles, int geometry) {
    if (class_bits == 2)
        return bf16_x ? trf_pick_int<2, trf_bf16_type>(scaled, tiles, geometry)
                      : trf_pick_int<2, trf_f16_type>(scaled, tiles, geometry);
    return bf16_x ? trf_pick_int<4, trf_bf16_type>(scaled, tiles, geometry)
                  : trf_pick_int<4, trf_f16_type>(scaled, tiles, geometry);
}
