/* Fused kernels of the int codec without scales of groups. */
#include "trf_fused_variants.cuh"

template <int kRawBits> static trf_fused_kernel trf_pick_raw_bits(int bf16_x, int tiles) {
    using Form = trf_form<TRF_CODEC_INT, 2, kRawBits>;
    return bf16_x ? trf_pick_two<Form, trf_bf16_type, false>(tiles) : trf_pick_two<Form, trf_f16_type, false>(tiles);
}

trf_fused_kernel trf_fused_int(int class_bits, uint32_t raw_bits, int bf16_x, int tiles, int geometry) {
    if (geometry == TRF_GEOMETRY_TWO && trf_has_known_planes(TRF_CODEC_INT, class_bits, raw_bits))
        return raw_bits == 3 ? trf_pick_raw_bits<3>(bf16_x, tiles) : trf_pick_raw_bits<6>(bf16_x, tiles);
    return trf_pick_form<trf_form<TRF_CODEC_INT, 2>, trf_form<TRF_CODEC_INT, 4>, false>(class_bits, bf16_x, tiles,
                                                                                        geometry);
}
