/* Fused kernels of the int codec. */
#include "trf_fused_variants.cuh"

/* Quads of 8-bit codes (6 raw bits) and of those near 4 bits a weight (3) have kernels of their own, with two slabs a warp. */
template <int kClassBits, class Type>
static trf_fused_kernel trf_pick_int(int scaled, uint32_t raw_bits, int tiles, int geometry) {
    if constexpr (kClassBits == 2) {
        if (geometry == TRF_GEOMETRY_TWO && raw_bits == 3)
            return trf_pick_kernel<trf_form<TRF_CODEC_INT, 2, 3>, Type, false, TRF_GEOMETRY_TWO, 1>();
        if (geometry == TRF_GEOMETRY_TWO && raw_bits == 6)
            return trf_pick_kernel<trf_form<TRF_CODEC_INT, 2, 6>, Type, false, TRF_GEOMETRY_TWO, 1>();
    }
    return scaled ? trf_pick<trf_form<TRF_CODEC_INT, kClassBits>, Type, true>(tiles, geometry)
                  : trf_pick<trf_form<TRF_CODEC_INT, kClassBits>, Type, false>(tiles, geometry);
}

trf_fused_kernel trf_fused_int(int scaled, int class_bits, uint32_t raw_bits, int bf16_x, int tiles, int geometry) {
    if (class_bits == 2)
        return bf16_x ? trf_pick_int<2, trf_bf16_type>(scaled, raw_bits, tiles, geometry)
                      : trf_pick_int<2, trf_f16_type>(scaled, raw_bits, tiles, geometry);
    return bf16_x ? trf_pick_int<4, trf_bf16_type>(scaled, raw_bits, tiles, geometry)
                  : trf_pick_int<4, trf_f16_type>(scaled, raw_bits, tiles, geometry);
}
