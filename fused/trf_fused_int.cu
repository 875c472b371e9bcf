/* Fused kernels of the int codec without scales of groups. */
#include "trf_fused_variants.cuh"

static_assert(trf_fused_two_tiles(TRF_CODEC_INT, 2, false) == 1, "kernels with known planes have one tile");

/* Quads of 8-bit codes (6 raw bits) and of those near 4 bits a weight (3) have kernels of their own, with two slabs a warp. */
template <int kRawBits> static trf_fused_kernel trf_pick_raw_bits(int bf16_x) {
    using Form = trf_form<TRF_CODEC_INT, 2, kRawBits>;
    return bf16_x ? trf_pick_kernel<Form, trf_bf16_type, false, TRF_GEOMETRY_TWO, 1>()
                  : trf_pick_kernel<Form, trf_f16_type, false, TRF_GEOMETRY_TWO, 1>();
}

trf_fused_kernel trf_fused_int(int class_bits, uint32_t raw_bits, int bf16_x, int tiles, int geometry) {
    if (class_bits == 2 && geometry == TRF_GEOMETRY_TWO && raw_bits == 3)
        return trf_pick_raw_bits<3>(bf16_x);
    if (class_bits == 2 && geometry == TRF_GEOMETRY_TWO && raw_bits == 6)
        return trf_pick_raw_bits<6>(bf16_x);
    return trf_pick_form<trf_form<TRF_CODEC_INT, 2>, trf_form<TRF_CODEC_INT, 4>, false>(class_bits, bf16_x, tiles,
                                                                                        geometry);
}
