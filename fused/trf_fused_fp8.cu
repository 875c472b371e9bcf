/* Fused kernels of the fp8 codecs. */
#include "trf_fused_variants.cuh"

template <class Quads, class Pairs>
static trf_fused_kernel trf_pick_fp8(int class_bits, int bf16_x, int tiles, int geometry) {
    if (class_bits == 2)
        return bf16_x ? trf_pick<Quads, trf_bf16_type, false>(tiles, geometry)
                      : trf_pick<Quads, trf_f16_type, false>(tiles, geometry);
    return bf16_x ? trf_pick<Pairs, trf_bf16_type, false>(tiles, geometry)
                  : trf_pick<Pairs, trf_f16_type, false>(tiles, geometry);
}

trf_fused_kernel trf_fused_fp8(int e5m2, int class_bits, int bf16_x, int tiles, int geometry) {
    if (e5m2)
        return trf_pick_fp8<trf_form<TRF_CODEC_E5M2, 2>, trf_form<TRF_CODEC_E5M2, 4>>(class_bits, bf16_x, tiles,
                                                                                      geometry);
    return trf_pick_fp8<trf_form<TRF_CODEC_E4M3, 2, 0, true>, trf_form<TRF_CODEC_E4M3, 4, 0, true>>(class_bits, bf16_x,
                                                                                                    tiles, geometry);
}
