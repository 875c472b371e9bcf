/* Fused kernels of the fp8 codecs. */
#include "trf_fused_variants.cuh"

template <int kCodec> static trf_fused_kernel trf_pick_fp8(int class_bits, int bf16_x, int tiles, int geometry) {
    if (class_bits == 2)
        return bf16_x ? trf_pick<trf_form<kCodec, 2>, trf_bf16_type, false>(tiles, geometry)
                      : trf_pick<trf_form<kCodec, 2>, trf_f16_type, false>(tiles, geometry);
    return bf16_x ? trf_pick<trf_form<kCodec, 4>, trf_bf16_type, false>(tiles, geometry)
                  : trf_pick<trf_form<kCodec, 4>, trf_f16_type, false>(tiles, geometry);
}

trf_fused_kernel trf_fused_fp8(int e5m2, int class_bits, int bf16_x, int tiles, int geometry) {
    return e5m2 ? trf_pick_fp8<TRF_CODEC_E5M2>(class_bits, bf16_x, tiles, geometry)
                : trf_pick_fp8<TRF_CODEC_E4M3>(class_bits, bf16_x, tiles, geometry);
}
