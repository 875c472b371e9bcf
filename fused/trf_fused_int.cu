/* Fused kernels of the int codec. */
#include "trf_fused_variants.cuh"

/* Two slabs a warp. raw_bits: of 8-bit codes with quads, and of those near 4 bits a weight, have kernels of their own. */
template <class Type> static trf_fused_kernel trf_pick_quads(uint32_t raw_bits) {
    switch (raw_bits) {
    case 3:
        return trf_pick_kernel<trf_form<TRF_CODEC_INT, 2, 3>, Type, false, TRF_GEOMETRY_TWO, 1>();
    case 6:
        return trf_pick_kernel<trf_form<TRF_CODEC_INT, 2, 6>, Type, false, TRF_GEOMETRY_TWO, 1>();
    default:
        return trf_pick_kernel<trf_form<TRF_CODEC_INT, 2>, Type, false, TRF_GEOMETRY_TWO, 1>();
    }
}

template <int kClassBits, class Type> static trf_fused_kernel trf_pick_int(int scaled, int tiles, int geometry) {
    return scaled ? trf_pick<trf_form<TRF_CODEC_INT, kClassBits>, Type, true>(tiles, geometry)
                  : trf_pick<trf_form<TRF_CODEC_INT, kClassBits>, Type, false>(tiles, geometry);
}

trf_fused_kernel trf_fused_int(int scaled, int class_bits, uint32_t raw_bits, int bf16_x, int tiles, int geometry) {
    if (geometry == TRF_GEOMETRY_TWO && class_bits == 2)
        return bf16_x ? trf_pick_quads<trf_bf16_type>(raw_bits) : trf_pick_quads<trf_f16_type>(raw_bits);
    if (class_bits == 2)
        return bf16_x ? trf_pick_int<2, trf_bf16_type>(scaled, tiles, geometry)
                      : trf_pick_int<2, trf_f16_type>(scaled, tiles, geometry);
    return bf16_x ? trf_pick_int<4, trf_bf16_type>(scaled, tiles, geometry)
                  : trf_pick_int<4, trf_f16_type>(scaled, tiles, geometry);
}
