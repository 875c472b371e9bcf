/* The list of fused kernels, and how to get at them. Each .cu of the family instantiates its own codecs, with quads and pairs:
 *
 *   codec                       type of x
 *   bf16, fp16                  its own
 *   e4m3, e5m2                  F16, BF16
 *   int; int with group scales  F16, BF16
 *
 * each for batches up to 8, 16, 32 and 64, and for the geometries below. */
#ifndef TRF_FUSED_VARIANTS_CUH
#define TRF_FUSED_VARIANTS_CUH

#include "trf_fused_kernel.cuh"

typedef void (*trf_fused_kernel)(trf_fused_args);

/* Best first; which ones a layer can have depends on its p, L and frequencies, and on shared memory. */
enum trf_fused_geometry {
    TRF_GEOMETRY_NINE_TWO, /* as NINE, and two slabs a warp: quads without group scales, batches to 8 */
    TRF_GEOMETRY_NINE,     /* p = L = 9, frequencies to 255, no row offsets */
    TRF_GEOMETRY_ANY,      /* all layers */
    TRF_GEOMETRY_FEW,      /* all layers, 8 warps: for long streams and little shared memory */
    TRF_GEOMETRIES
};

/* Warps of a block: what the accumulators of 8 * tiles columns leave registers for. Pairs have the longer chains of states, and want more. */
static constexpr int trf_fused_warps(int class_bits, int tiles, int geometry) {
    if (geometry == TRF_GEOMETRY_FEW || tiles == 8)
        return 8;
    if (tiles == 4)
        return 12;
    return geometry == TRF_GEOMETRY_NINE && class_bits == 4 && tiles == 1 ? 20 : 16;
}

static inline int trf_fused_slabs(int geometry) { return geometry == TRF_GEOMETRY_NINE_TWO ? 2 : 1; }

template <class Form, class Type, bool kScaled, int kGeometry> static trf_fused_kernel trf_pick_tiles(int tiles) {
    constexpr int kP = kGeometry == TRF_GEOMETRY_NINE ? 9 : 0, kClassBits = Form::kClassBits;
    switch (tiles) {
    case 1:
        return trf_fused_linear<Form, Type, kP, 1, 1, kScaled, trf_fused_warps(kClassBits, 1, kGeometry)>;
    case 2:
        return trf_fused_linear<Form, Type, kP, 1, 2, kScaled, trf_fused_warps(kClassBits, 2, kGeometry)>;
    case 4:
        return trf_fused_linear<Form, Type, kP, 1, 4, kScaled, trf_fused_warps(kClassBits, 4, kGeometry)>;
    default:
        return trf_fused_linear<Form, Type, kP, 1, 8, kScaled, trf_fused_warps(kClassBits, 8, kGeometry)>;
    }
}

template <class Form, class Type, bool kScaled> static trf_fused_kernel trf_pick(int tiles, int geometry) {
    switch (geometry) {
    case TRF_GEOMETRY_NINE_TWO:
        if constexpr (Form::kClassBits == 2 && !kScaled)
            return trf_fused_linear<Form, Type, 9, 2, 1, false, trf_fused_warps(2, 1, TRF_GEOMETRY_NINE_TWO)>;
        return nullptr;
    case TRF_GEOMETRY_NINE:
        return trf_pick_tiles<Form, Type, kScaled, TRF_GEOMETRY_NINE>(tiles);
    case TRF_GEOMETRY_ANY:
        return trf_pick_tiles<Form, Type, kScaled, TRF_GEOMETRY_ANY>(tiles);
    default:
        return trf_pick_tiles<Form, Type, kScaled, TRF_GEOMETRY_FEW>(tiles);
    }
}

/* One for each .cu. bf16_x: the type of x where the codec takes both. */
trf_fused_kernel trf_fused_bf16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_fp16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_fp8(int e5m2, int class_bits, int bf16_x, int tiles, int geometry);
trf_fused_kernel trf_fused_int(int scaled, int class_bits, int bf16_x, int tiles, int geometry);

#endif
